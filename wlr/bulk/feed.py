"""What a read of the farm has to do, decided from the log before any data file is touched."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.errors import ExpiredError, InvalidError, UnsupportedError
from wlc.model import Change, Clear, Name
from wlr.bulk import log
from wlr.bulk.tasks import RemovedTask, changes_tasks
from wlr.bulk.trace import Trace, forgets, renames
from wlr.plan import Read, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wlc.farm import FarmDatabase
    from wlc.model import Batch, Layout, Transaction
    from wlr.bulk.tasks import Said, Task
    from wlr.bulk.trace import Contents


def contents_at(database: FarmDatabase, wanted: Name, target: Target) -> tuple[Name, Contents, int]:
    """Follow a table up to the target.

    Returns:
        The table's name as it is written there, what it holds, and the tick of the last transaction that counts.

    Raises:
        InvalidError: There is no such table then, or the target is ahead of the farm.
        ExpiredError: The target was pruned.
    """
    manifest = log.choose(database, target)
    trace, tick = Trace.begin(manifest), manifest.position.tick if manifest else 0
    for transaction, files in log.after(database, manifest, target):
        for record in transaction.records:
            trace.follow(record, transaction.tick, dict(files))
        tick = transaction.tick
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


def refuse_broken(table: Name, contents: Contents) -> None:
    """Refuse a table with rows that a schema change altered in a way that only an engine can repeat.

    Raises:
        UnsupportedError: It has; the message names the transaction.
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
) -> list[Task]:
    """Say which images of which files make the change feed of a table, in the columns of `layout`.

    Args:
        database: The farm database.
        batches: Log files that hold all of the ticks.
        table: The table, which keeps its name all the time.
        layout: Columns of the feed.
        ticks: The first and the last one, both included; None for no end.
        partitions: Most tasks.

    Raises:
        UnsupportedError: The name went from one table to another; the message names the transaction.
        ExpiredError: A transaction removed all rows, and what they were was pruned.
    """
    reads: dict[str, Read] = {}
    said: list[Said] = []
    ends: list[int] = []
    for batch, _ in batches:
        files = {file.file.path: file for file in batch.files}
        for transaction in _between(batch, ticks):
            for record in transaction.records:
                if isinstance(record, Change) and record.table == table:
                    read = reads.get(record.path) or Read(files[record.path], transaction.tick, transaction.tick)
                    reads[record.path] = replace(read, last=transaction.tick)
                    said.append(_said(transaction))
                elif renames(record, table):
                    raise _renamed(table, transaction.tick)
                elif forgets(record, table) and not (isinstance(record, Clear) and not record.removed):
                    ends.append(transaction.tick)
    removed = _removed_tasks(database, table, layout, ends) if ends else []
    return [*removed, *changes_tasks(layout, list(reads.values()), set(said), partitions)]


def _between(batch: Batch, ticks: tuple[int, int | None]) -> list[Transaction]:
    first, last = ticks
    return [
        transaction
        for transaction in batch.transactions
        if transaction.committed is not None
        and transaction.tick >= first
        and (last is None or transaction.tick <= last)
    ]


def _said(transaction: Transaction) -> Said:
    assert transaction.committed is not None
    return transaction.tick, transaction.committed, transaction.user


def _renamed(table: Name, tick: int) -> UnsupportedError:
    return UnsupportedError(
        f"transaction {tick} renamed a table, from or to {table}",
        hint=f'Read up to option("to_tick", {tick - 1}) under the old name, from {tick + 1} on under the new one.',
    )


def _removed_tasks(database: FarmDatabase, table: Name, layout: Layout, ends: list[int]) -> list[Task]:
    """Find out what the table held whenever all of it was removed at once: the log does not repeat that."""
    try:
        manifest = log.choose(database, Target(tick=ends[0] - 1))
    except ExpiredError as error:
        raise ExpiredError(
            f"transaction {ends[0]} removed all rows of table {table}, and what they were was pruned",
            hint=f'Read the changes with option("from_tick", {ends[0] + 1}) or later.',
        ) from error
    trace = Trace.begin(manifest)
    tasks: list[Task] = []
    for transaction, files in log.after(database, manifest, Target(tick=ends[-1])):
        for record in transaction.records:
            contents = trace.tables.get(table)
            if transaction.tick in ends and forgets(record, table) and contents is not None:
                contents = _before(table, contents, transaction.tick)
                if contents.files or contents.parts:
                    tasks.append(RemovedTask(layout, contents, _said(transaction)))
            trace.follow(record, transaction.tick, dict(files))
    return tasks


def _before(table: Name, contents: Contents, tick: int) -> Contents:
    """A table that is written anew because it was altered held its rows in the layout before that."""
    if contents.broken == tick and contents.was is not None:
        return replace(contents, layout=contents.was, broken=None)
    refuse_broken(table, contents)
    return contents
