"""Publish what a master has journalled: data files, log file, then the journal and `wlc.config` follow."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.capture.duckdb import source
from wlc.clock import read_time, utc_now
from wlc.config import STARTED, STOPPED
from wlc.errors import CorruptError, FencedError, GapError, UnavailableError
from wlc.model import Config, Origin, Position
from wlc.paths import snapshot_folder
from wlc.snapshot import take
from wlc.store import ConflictError, MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import duckdb

    from wlc.capture.duckdb.shared import Shared
    from wlc.farm import FarmDatabase
    from wlc.model import Batch, Manifest

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Flushed:
    """What one flush published; `tick` is the last published one afterwards."""

    batches: int
    transactions: int
    rows: int
    tick: int


def publish(shared: Shared, database: FarmDatabase) -> Flushed:
    """Publish every journalled transaction; one batch for all, or one for each where the beat is 0.

    Dying anywhere in between is harmless: a batch exists with its log file or not at all, and the journal is emptied
    only of what a log file holds.

    Raises:
        FencedError: The farm's database is another master's. Nothing was published.
        UnavailableError: The farm cannot be reached. Try again.
    """
    batches = transactions = rows = 0
    most = 1 if shared.beat_s == 0 else source.MOST_TRANSACTIONS
    with shared.root.cursor() as connection, shared.publish_lock:
        while True:
            connection.execute("BEGIN TRANSACTION READ ONLY")
            try:
                waiting = source.pending(connection, shared.catalog, most)
                published = _publish_batch(connection, shared, database, waiting) if waiting.transactions else None
            finally:
                connection.execute("ROLLBACK")
            if published is None:
                break
            batch, chain, waiting = published
            source.acknowledge(connection, shared, waiting, batch, chain)
            _advance_config(database, batch)
            batches, transactions = batches + 1, transactions + len(batch.transactions)
            rows += sum(file.file.rows for file in batch.files)
    return Flushed(batches, transactions, rows, int(shared.state["tick"]))


def _publish_batch(
    connection: duckdb.DuckDBPyConnection, shared: Shared, database: FarmDatabase, waiting: source.Pending
) -> tuple[Batch, str, source.Pending]:
    state = shared.state
    config = _config(database, state)
    fence(config, state)
    shared.beat_s = config.beat_s
    number = int(state["batch"]) + 1
    settled = _already_published(connection, shared, database, number)
    if settled is not None:
        return settled
    header = _header(state, number)
    with tempfile.TemporaryDirectory(prefix="wlc-") as folder:
        batch, files = source.write_batch(connection, shared, waiting, Path(folder), header)
        try:
            return batch, database.publish(batch, files), waiting
        except FencedError:
            settled = _already_published(connection, shared, database, number)
            if settled is None:
                raise
            return settled


def settle(shared: Shared, database: FarmDatabase) -> None:
    """After all is published: put `wlc.config` right if it was lost or damaged or an earlier run left it behind.

    Raises:
        FencedError: The farm's database is another master's.
    """
    config = _config(database, shared.state)
    fence(config, shared.state)
    published = int(shared.state["batch"])
    if config.batches > published + 1:
        raise _outdated(database, published + 1)
    if config.batches <= published:
        database.rebuild_config()


def _config(database: FarmDatabase, state: Mapping[str, str]) -> Config:
    """The present config, made again from the log files and what the master knows where it is lost or damaged."""
    try:
        return database.config()
    except (MissingError, CorruptError):
        return database.rebuild_config(known(state))


def known(state: Mapping[str, str]) -> Config:
    """The config as a master would write it by its own state."""
    parent = json.loads(state["parent"]) if state.get("parent") else None
    return Config(
        "",
        state.get("logs", "wlc_logs"),
        STARTED,
        int(state["batch"]) + 1,
        float(state["beat_s"]),
        read_time(state["clock"]) if state.get("clock") else None,
        state["name"],
        state["history"],
        int(state["tick"]),
        Origin(**parent) if parent else None,
    )


def _header(state: dict[str, str], number: int) -> dict[str, Any]:
    parent = json.loads(state["parent"]) if state.get("parent") else None
    return {
        "database": state["name"],
        "number": number,
        "history": state["history"],
        "previous": state["chain"],
        "vector": json.loads(state.get("vector") or "{}"),
        "parent": Origin(**parent) if parent else None,
    }


def _already_published(
    connection: duckdb.DuckDBPyConnection, shared: Shared, database: FarmDatabase, number: int
) -> tuple[Batch, str, source.Pending] | None:
    """Our own batch that we died or lost the answer after; another's batch fences us off."""
    state = shared.state
    try:
        batch, chain = database.read_batch(number)
    except MissingError:
        return None
    except GapError as error:
        raise _outdated(database, number) from error
    # It holds as many transactions as the beat of that time wanted.
    waiting = source.pending(connection, shared.catalog, len(batch.transactions))
    if batch.history == state["history"] and batch.previous == state["chain"] and source.matches(waiting, batch):
        return batch, chain, waiting
    raise _outdated(database, number)


def _outdated(database: FarmDatabase, number: int) -> FencedError:
    return FencedError(
        f"batch {number} of {database.name} was published by another master, or by this one before it was restored",
        hint="run exactly one master; to go on from this copy: wlc stop SOURCE, then wlc master SOURCE, which starts"
        " a new history",
        path=database.url,
    )


def fence(config: Config, state: dict[str, str]) -> None:
    """Refuse to publish into a farm database that is not ours any more.

    Raises:
        FencedError: Another history has begun there, or it was stopped from elsewhere.
    """
    if config.history != state["history"]:
        raise FencedError(
            f"farm database {config.name} is at history {config.history}, this master at {state['history']}",
            hint="another copy became its master; to publish this one, too: wlc stop SOURCE, then"
            " wlc master SOURCE --name OTHER",
        )
    if config.state == STOPPED:
        raise FencedError(
            f"farm database {config.name} was stopped",
            hint="wlc stop SOURCE, then wlc master SOURCE, which starts a new history from a snapshot",
        )


def _advance_config(database: FarmDatabase, batch: Batch) -> None:
    """Let `wlc.config` follow; it can always be rebuilt, so only a fence matters here."""
    written = next((t.committed for t in reversed(batch.transactions) if t.committed), None)

    def follow(config: Config) -> Config:
        if config.batches > batch.number:
            return config
        return replace(config, batches=batch.number + 1, tick=batch.last, write=written or config.write)

    change_config(database, follow)


def change_config(database: FarmDatabase, change: Callable[[Config], Config]) -> Config:
    """Replace `wlc.config` by compare-and-swap until nobody else changes it in between.

    Args:
        database: Whose config.
        change: Function from the present config to the new one; returns its argument to leave it alone.
    """
    for _ in range(_ATTEMPTS):
        config, version = database.config_versioned()
        changed = change(config)
        if changed == config:
            return config
        try:
            database.replace_config(changed, version)
        except ConflictError:
            continue
        return changed
    raise UnavailableError(f"wlc.config of {database.name} keeps changing", hint="try again", path=database.url)


def own(config: Config, state: Mapping[str, str]) -> Config:
    """Return the config, unless it is another history's.

    Raises:
        FencedError: It is.
    """
    if config.history != state["history"]:
        raise FencedError(f"another master took {config.name} over meanwhile", hint="choose another name with --name")
    return config


def take_snapshot(shared: Shared, database: FarmDatabase) -> Manifest:
    """Copy the database at exactly the last published tick, while other connections go on writing."""
    with shared.root.cursor() as connection:
        # What can be published without stopping the writers is; only the rest waits for no commit to come in between.
        publish(shared, database)
        with shared.publish_lock, shared.commit_lock:
            publish(shared, database)
            connection.execute("BEGIN TRANSACTION READ ONLY")
            connection.execute("SELECT count(*) FROM duckdb_tables()").fetchall()
            state = dict(shared.state)
        try:
            position = Position(state["history"], int(state["tick"]), int(state["batch"]), state["chain"])
            clock_ = read_time(state["clock"]) if state.get("clock") else utc_now()
            vector = json.loads(state.get("vector") or "{}")
            vector = {**vector, state["history"]: position.tick} if position.tick else vector
            manifest = take(connection, shared.catalog, database, position, clock_, vector)
        finally:
            connection.execute("ROLLBACK")
    folder = snapshot_folder(position.tick)
    change_config(database, lambda config: replace(own(config, state), snapshot=folder))
    return manifest
