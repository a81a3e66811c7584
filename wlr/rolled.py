"""A farm's own snapshot rolled forward: made from an older one and the log, without touching the master."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wlc import paths
from wlc.errors import UnavailableError, UnsupportedError
from wlc.model import Ddl, Manifest, SnapshotTable
from wlr import engine as engines
from wlr import log, plan
from wlr.engine.parquet.executor import fetched
from wlr.engine.parquet.folder import Folder
from wlr.replay import Replay
from wlr.replica import database_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from wlc.farm import FarmDatabase
    from wlc.model import DataFile, Position
    from wlr.engine.parquet.version import LakeTable


def snapshot_from_log(
    db: str | os.PathLike[str],
    *,
    farm: str | None = None,
    engine: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Manifest:
    """Write a snapshot at the last published tick, so that older log files can be pruned.

    A Parquet replica is made beside and rolled forward; its files become the snapshot's.

    Args:
        db: Name in the farm, URL of the database's folder there, or path of the master.
        farm: URL of the farm, for a bare name.
        engine: Who does the work, see `wlr.replicate`.
        storage_options: Options of the farm's file system.
        progress: Called with units done, units in all, and what is being done.

    Raises:
        ReplayError: A transaction cannot be applied.
        UnsupportedError: The log holds a schema change that cannot be part of a snapshot; take one from the master.
        UnavailableError: The farm is out of reach: try again.
    """
    database = database_of(db, farm, storage_options)
    with tempfile.TemporaryDirectory(prefix="wlr-snapshot-") as work:
        place = engines.locate(f"parquet://{work}/lake")
        bulk = engines.Bulk(engine, database, spark_rows=engines.spark_rows())
        run = Replay(place, database, plan.Target(), bulk=bulk, progress=progress)
        made_from = run.make(()).snapshot
        return _publish(database, Folder(place.url), made_from)


def _publish(database: FarmDatabase, lake: Folder, made_from: int | None) -> Manifest:
    found = lake.find()
    assert found is not None
    version = lake.read_current(found[0])
    files: dict[str, Path] = {}
    schema = (version.schema, version.schema_after)
    if made_from is not None:
        schema = _with_originals(database, database.read_manifest(made_from), version.position) or schema
    manifest = Manifest(
        database=database.name,
        position=version.position,
        clock=version.clock or version.made,
        catalog=version.catalog,
        schema=schema[0],
        schema_after=schema[1],
        tables=tuple(_table(lake, table, files) for table in version.tables),
        sequences=version.sequences,
        vector=_vector(database, version.position),
        digests={name: digest for name, digest in version.digests.items() if digest},
    )
    published = database.publish_snapshot(manifest, files)
    # The configuration names the newest snapshot; it follows, and can be rebuilt at any time.
    database.rebuild_config()
    return published


def _with_originals(
    database: FarmDatabase, base: Manifest, position: Position
) -> tuple[tuple[Ddl, ...], tuple[Ddl, ...]] | None:
    """Return the statements of a master that is no DuckDB, in its own dialect, too; None if the master is a DuckDB.

    The lake knows nothing of that dialect. On an empty database, what the log has run since leads to the same schema.
    """
    statements = [*base.schema, *base.schema_after]
    if all(statement.original is None for statement in statements):
        return None
    told = len(statements)
    start = base.position
    first = start.batch if start.batch in database.batch_numbers() else start.batch + 1
    for batch, chain in log.batches_from(database, first, start):
        if batch.number > position.batch:
            break
        if batch.number == position.batch and chain != position.chain:
            raise UnavailableError(f"batch {batch.number} of {database.name} changed meanwhile", hint="Try again.")
        for transaction in batch.transactions:
            if start.tick < transaction.tick <= position.tick:
                statements += [record for record in transaction.records if isinstance(record, Ddl)]
    for statement in statements[told:]:
        if statement.kind == "ALTER TYPE" and "ADD VALUE" in statement.statement.upper():
            raise UnsupportedError(
                f"{statement.object} got a new value since the snapshot at tick {base.position.tick}, and PostgreSQL"
                " cannot load rows with it in the transaction that adds it",
                hint="wlc snapshot SOURCE takes one from the master itself",
            )
    return tuple(statements), ()


def _table(lake: Folder, table: LakeTable, files: dict[str, Path]) -> SnapshotTable:
    listed: list[DataFile] = []
    for part in table.parts:
        path = paths.snapshot_data_path(len(files))
        with fetched(lake.store, part) as piece:
            files[path] = piece.path
        listed.append(replace(part.file, path=path))
    return SnapshotTable(table.table, table.layout, tuple(listed))


def _vector(database: FarmDatabase, position: Position) -> Mapping[str, int]:
    """Per history the last tick contained, as the batch of the position, or the snapshot at it, says."""
    ticks = database.snapshot_ticks()
    if position.tick in ticks:
        return database.read_manifest(position.tick).vector
    batch, _ = database.read_batch(position.batch)
    if batch.last != position.tick:
        raise UnavailableError(f"batch {position.batch} of {database.name} changed meanwhile", hint="Try again.")
    return batch.vector
