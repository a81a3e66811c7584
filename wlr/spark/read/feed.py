"""Decides from the log, before any data file is read, which rows make a table as of a moment, or its change feed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.errors import ExpiredError, InvalidError, UnsupportedError
from wlc.farm.model import Change, Clear, Name
from wlr import log_reader
from wlr.plan.step import Read, actions_of
from wlr.plan.stop import Stop
from wlr.spark.read.tasks import FeedTransaction, RemovedTask, changes_tasks
from wlr.spark.read.trace import Trace, forgets, renames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Layout, Transaction
    from wlr.spark.read.tasks import ReadTask
    from wlr.spark.read.trace import TableContents


def contents_at(database: FarmDatabase, wanted: Name, stop: Stop) -> tuple[Name, TableContents, int]:
    """Follow a table up to the stop.

    Returns:
        The table's name as it is written there, what it holds, and the tick of the last transaction that counts.

    Raises:
        InvalidError: There is no such table then, or the stop is ahead of the farm.
        ExpiredError: The stop was pruned.
    """
    manifest = log_reader.choose_snapshot(database, stop)
    trace, tick = Trace.begin(manifest), manifest.position.tick if manifest else 0
    for step in log_reader.steps_after(database, manifest, stop):
        for action in step.actions():
            trace.follow(action, step.last)
        if applied := step.applied:
            tick = applied[-1].tick
    name = _find(wanted, trace, tick)
    return name, trace.tables[name], tick


def _find(wanted: Name, trace: Trace, tick: int) -> Name:
    if wanted in trace.tables:
        return wanted
    for name in trace.tables:
        if (name.schema.lower(), name.name.lower()) == (wanted.schema.lower(), wanted.name.lower()):
            return name
    tables = sorted(map(str, trace.tables))
    listed = ", ".join(tables[:10]) + (", …" if len(tables) > 10 else "")
    raise InvalidError(f"there is no table {wanted} at tick {tick}", hint=f"There are: {listed}" if tables else None)


def refuse_broken(table: Name, contents: TableContents) -> None:
    """Refuse a table with rows that a schema change altered in a way that only an engine can repeat.

    Raises:
        UnsupportedError: The table has such rows; the message names the transaction.
    """
    if contents.broken is not None:
        raise UnsupportedError(
            f"transaction {contents.broken} altered table {table} in a way that Spark cannot follow",
            hint="Take a new snapshot with wlc snapshot, read as of a tick before it, or read a Parquet replica.",
        )


def feed_tasks(
    database: FarmDatabase,
    batches: Sequence[tuple[Batch, str]],
    table: Name,
    layout: Layout,
    ticks: tuple[int, int | None],
    partitions: int,
) -> list[ReadTask]:
    """Cut the change feed of a table, in the columns of `layout`, into tasks.

    Args:
        database: The farm database.
        batches: Log files that hold all of the ticks.
        table: The table; its name must not change in between.
        layout: Columns of the feed.
        ticks: The first and the last one, both included; None for no end.
        partitions: Most tasks.

    Raises:
        UnsupportedError: The table was renamed, or another one took its name; the message names the transaction.
        ExpiredError: A transaction removed all rows, and the snapshot and log that held them were pruned.
    """
    reads: dict[str, Read] = {}
    transactions: list[FeedTransaction] = []
    ends: list[int] = []
    for batch, _ in batches:
        files = {file.file.path: file for file in batch.files}
        for transaction in _between(batch, ticks):
            for record in transaction.records:
                if isinstance(record, Change) and record.table == table:
                    read = reads.get(record.path) or Read(files[record.path], transaction.tick, transaction.tick)
                    reads[record.path] = replace(read, last=transaction.tick)
                    transactions.append(_described(transaction))
                elif renames(record, table):
                    raise _renamed(table, transaction.tick)
                elif forgets(record, table) and not (isinstance(record, Clear) and not record.removed):
                    ends.append(transaction.tick)
    removed = _removed_tasks(database, table, layout, ends) if ends else []
    return [*removed, *changes_tasks(layout, list(reads.values()), set(transactions), partitions)]


def _between(batch: Batch, ticks: tuple[int, int | None]) -> list[Transaction]:
    first, last = ticks
    return [
        transaction
        for transaction in batch.transactions
        if transaction.committed is not None
        and transaction.tick >= first
        and (last is None or transaction.tick <= last)
    ]


def _described(transaction: Transaction) -> FeedTransaction:
    assert transaction.committed is not None
    return FeedTransaction(transaction.tick, transaction.committed, transaction.user)


def _renamed(table: Name, tick: int) -> UnsupportedError:
    return UnsupportedError(
        f"transaction {tick} renamed a table, from or to {table}",
        hint=f'Read up to option("to_tick", {tick - 1}) under the old name, from {tick + 1} on under the new one.',
    )


def _removed_tasks(database: FarmDatabase, table: Name, layout: Layout, ends: list[int]) -> list[ReadTask]:
    """Give the rows that the table held when all of them were removed at once: the log does not list them."""
    try:
        manifest = log_reader.choose_snapshot(database, Stop(tick=ends[0] - 1))
    except ExpiredError as error:
        raise ExpiredError(
            f"transaction {ends[0]} removed all rows of table {table}, and what they were was pruned",
            hint=f'Read the changes with option("from_tick", {ends[0] + 1}) or later.',
        ) from error
    trace = Trace.begin(manifest)
    tasks: list[ReadTask] = []
    for step in log_reader.steps_after(database, manifest, Stop(tick=ends[-1])):
        for transaction, record in ((t, record) for t in step.applied for record in t.records):
            contents = trace.tables.get(table)
            if transaction.tick in ends and forgets(record, table) and contents is not None:
                contents = _before(table, contents, transaction.tick)
                if contents.files or contents.parts:
                    tasks.append(RemovedTask(layout, contents, _described(transaction)))
            for action in actions_of((replace(transaction, records=(record,)),), step.files):
                trace.follow(action, transaction.tick)
    return tasks


def _before(table: Name, contents: TableContents, tick: int) -> TableContents:
    """Return the contents in the layout before the alteration for a table that is written anew because of it."""
    if contents.broken == tick and contents.was is not None:
        return replace(contents, layout=contents.was, broken=None)
    refuse_broken(table, contents)
    return contents
