"""Make a snapshot of a farm database from an older one and the log, without touching the master."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wlc
from wlc.farm.config import naming_snapshot
from wlc.farm.errors import CorruptError, UnavailableError, UnsupportedError
from wlc.farm.lease import taking_snapshot
from wlc.farm.model import AlteredObject, Ddl, Manifest
from wlr.engine.adapters import folder_target
from wlr.replay import log_reader
from wlr.replay.plan.bounds import Stop
from wlr.replay.run import Replay
from wlr.replay.workers import workers

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from wlc.farm.database import FarmDatabase
    from wlc.farm.human_form import Progress
    from wlc.farm.model import Config, Position
    from wlr.engine.contract import Lake


def snapshot_from_log(
    db: str | os.PathLike[str],
    *,
    farm: str | os.PathLike[str] | None = None,
    engine: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Write a snapshot at the last published tick, so that older log files can be pruned.

    A Parquet replica is made in a scratch folder and rolled forward; its files become the snapshot's.

    Args:
        db: Name in the farm, URL of the database's folder there, or path of the master.
        farm: URL of the farm, for a bare name.
        engine: "local", "spark" or "auto", see `wlr.replicate`.
        storage_options: Options of the farm's file system.
        progress: Called with units done, units in all, and what is being done.

    Raises:
        ReplayError: A transaction cannot be applied.
        UnsupportedError: The log holds a schema change that cannot be part of a snapshot; take one from the master.
        UnavailableError: The farm is unreachable: try again.

    Examples:
        >>> wlr.snapshot_from_log("sales").position.tick
        3
    """
    database = wlc.resolve(db, farm, storage_options=storage_options)
    # The lease delays a due snapshot of the master.
    busy = taking_snapshot(database.store, database.name)
    with busy, tempfile.TemporaryDirectory(prefix="wlr-snapshot-") as work:
        lake = folder_target(Path(work) / "lake")
        bulk = workers(engine, database)
        run = Replay(lake, database, Stop(), bulk=bulk, progress=progress)
        made_from = run.make(()).snapshot
        return _publish(database, lake, made_from)


def _publish(database: FarmDatabase, lake: Lake, made_from: int | None) -> Manifest:
    manifest, files = lake.as_snapshot(database.name)
    schema = (manifest.schema, manifest.schema_after)
    if made_from is not None:
        schema = _with_originals(database, database.read_manifest(made_from), manifest.position) or schema
    manifest = replace(manifest, schema=schema[0], schema_after=schema[1], vector=_vector(database, manifest.position))
    published = database.publish_snapshot(manifest, files)
    # The snapshot is complete: the next snapshot, prune or verify updates a stale configuration.
    with suppress(UnavailableError):
        _name(database, published)
    return published


def _name(database: FarmDatabase, manifest: Manifest) -> None:
    """Make `wlc.config` name a snapshot of its history, with two requests, so that a conflict is rare."""
    position = manifest.position

    def named(config: Config) -> Config:
        return naming_snapshot(config, position.tick) if config.history == position.history else config

    try:
        database.change_config(named)
    except CorruptError:
        database.rebuild_config()


def _with_originals(
    database: FarmDatabase, base: Manifest, position: Position
) -> tuple[tuple[Ddl, ...], tuple[Ddl, ...]] | None:
    """Return the schema's statements with their originals in the master's dialect; None for a DuckDB master.

    The lake's own statements are in DuckDB's dialect. On an empty database, the statements of the snapshot and of the
    log build the same schema.
    """
    statements = [*base.schema, *base.schema_after]
    if all(statement.original is None for statement in statements):
        return None
    known = len(statements)
    start = base.position
    numbers = database.batch_numbers()
    first = start.batch if start.batch in numbers else start.batch + 1
    for batch, chain in log_reader.batches_from(database, first, numbers, start):
        if batch.number > position.batch:
            break
        if batch.number == position.batch and chain != position.chain:
            raise UnavailableError(
                f"batch {batch.number} of {database.name} changed during the snapshot", hint="Try again."
            )
        for transaction in batch.transactions:
            if start.tick < transaction.tick <= position.tick:
                statements += [record for record in transaction.records if isinstance(record, Ddl)]
    for statement in statements[known:]:
        if any(isinstance(e, AlteredObject) and any(old is None for old, _ in e.values) for e in statement.does):
            raise UnsupportedError(
                f"{statement.object} got a new value since the snapshot at tick {base.position.tick}, and PostgreSQL"
                " cannot load rows with it in the transaction that adds it",
                hint="Take a snapshot from the master itself: wlc snapshot SOURCE",
            )
    return tuple(statements), ()


def _vector(database: FarmDatabase, position: Position) -> Mapping[str, int]:
    """Return the vector at the position, from the snapshot or the batch."""
    ticks = database.snapshot_ticks()
    if position.tick in ticks:
        return database.read_manifest(position.tick).vector
    batch, _ = database.read_batch(position.batch)
    if batch.last != position.tick:
        raise UnavailableError(
            f"batch {position.batch} of {database.name} changed during the snapshot", hint="Try again."
        )
    return batch.vector
