"""Publish what a master has journalled: data files, log file, then the journal and `wlc.config` follow."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.capture.duckdb import digests, source
from wlc.errors import FencedError, GapError
from wlc.ownership import (
    Flushed,
    advance_config,
    announce_snapshot,
    fence,
    header,
    outdated,
    present_config,
    reached,
)
from wlc.snapshot import Known, take
from wlc.store import MissingError

if TYPE_CHECKING:
    import duckdb

    from wlc.capture.duckdb.shared import Shared
    from wlc.farm import FarmDatabase
    from wlc.model import Batch, Manifest


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
            shared.begin_reading(connection)
            try:
                waiting = source.pending(connection, shared.catalog, most)
                published = _publish_batch(connection, shared, database, waiting) if waiting.transactions else None
            finally:
                connection.execute("ROLLBACK")
            if published is None:
                break
            batch, chain, waiting = published
            source.acknowledge(connection, shared, waiting, batch, chain)
            advance_config(database, batch)
            batches, transactions = batches + 1, transactions + len(batch.transactions)
            rows += sum(file.file.rows for file in batch.files)
    return Flushed(batches, transactions, rows, int(shared.state["tick"]))


def _publish_batch(
    connection: duckdb.DuckDBPyConnection, shared: Shared, database: FarmDatabase, waiting: source.Pending
) -> tuple[Batch, str, source.Pending]:
    state = shared.state
    config = present_config(database, state)
    fence(config, state)
    shared.beat_s = config.beat_s
    number = int(state["batch"]) + 1
    settled = _already_published(connection, shared, database, number)
    if settled is not None:
        return settled
    described = header(state, number)
    with tempfile.TemporaryDirectory(prefix="wlc-") as folder:
        batch, files = source.write_batch(connection, shared, waiting, Path(folder), described)
        try:
            return batch, database.publish(batch, files), waiting
        except FencedError:
            settled = _already_published(connection, shared, database, number)
            if settled is None:
                raise
            return settled


def _already_published(
    connection: duckdb.DuckDBPyConnection, shared: Shared, database: FarmDatabase, number: int
) -> tuple[Batch, str, source.Pending] | None:
    """Our own batch that we died or lost the answer after; another's batch fences us off."""
    state = shared.state
    try:
        batch, chain = database.read_batch(number, is_own=True)
    except MissingError:
        return None
    except GapError as error:
        raise outdated(database, number) from error
    # It holds as many transactions as the beat of that time wanted.
    waiting = source.pending(connection, shared.catalog, len(batch.transactions))
    if batch.history == state["history"] and batch.previous == state["chain"] and source.matches(waiting, batch):
        return batch, chain, waiting
    raise outdated(database, number)


def take_snapshot(shared: Shared, database: FarmDatabase) -> Manifest:
    """Copy the database at exactly the last published tick, while other connections go on writing."""
    with shared.root.cursor() as connection:
        # What can be published without stopping the writers is; only the rest waits for no commit to come in between.
        publish(shared, database)
        with shared.publish_lock, shared.commit_lock:
            publish(shared, database)
            shared.begin_reading(connection)
            state = dict(shared.state)
        try:
            position, clock, vector = reached(state)
            known = Known(digests.read(connection, shared.catalog), digests.read_quick(connection, shared.catalog))
            manifest = take(connection, shared.catalog, database, position, clock, vector, known)
        finally:
            connection.execute("ROLLBACK")
    announce_snapshot(database, state, position.tick)
    if known.is_news:
        _note_digests(shared, manifest, known)
    return manifest


def _note_digests(shared: Shared, manifest: Manifest, known: Known) -> None:
    """Go on from what a snapshot has read, if nothing was published since; what was known before says the same."""
    with shared.root.cursor() as connection, shared.publish_lock, shared.commit_lock:
        if int(shared.state["tick"]) == manifest.position.tick:
            connection.execute("BEGIN")
            source.write_digests(connection, shared.catalog, manifest.digests, known.quick)
            connection.execute("COMMIT")
