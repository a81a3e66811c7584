"""Decides from the log, before any data file is read, which row images make the change feed of a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from wlc.dialect.duckdb.fold import stored_columns
from wlc.farm.errors import ExpiredError, UnsupportedError
from wlc.farm.model import Change, Clear, Ddl
from wlr import log_reader
from wlr.plan.step import Read, actions_of
from wlr.plan.stop import Stop
from wlr.reading.contents import refuse_broken, tables_at
from wlr.reading.layouts import mapped_values
from wlr.reading.trace import LogPart, Trace, column_steps, edited, forgets, renames

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, ColumnStep, Layout, Name, Transaction
    from wlr.reading.trace import TableContents


class FeedTransaction(NamedTuple):
    """What a change feed says of a transaction."""

    tick: int
    committed: datetime | None
    user: str | None


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """All that a table held when it was cleared, dropped or replaced; `values` are as in `FeedPlan.parts`."""

    contents: TableContents
    transaction: FeedTransaction
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FeedPlan:
    """The changes of a table between two ticks.

    Attributes:
        reads: Data files and the ticks that count in them, in commit order.
        transactions: The transactions of `reads` with their number of row images, rising.
        removed: Rows that no data file lists, in commit order.
        layouts: Those that the range gave the table, in commit order.
        by_layout: The same rows as `reads`, and how many of the layouts are older than they are.
    """

    reads: tuple[Read, ...]
    transactions: tuple[tuple[FeedTransaction, int], ...]
    removed: tuple[RemovedRows, ...]
    layouts: tuple[NewLayout, ...]
    by_layout: tuple[tuple[Read, int], ...]

    def parts(self) -> tuple[LogPart, ...]:
        """Return the rows of `reads` with values in the layout that the table has at the end of the range."""
        return tuple(LogPart(read, _values(read.file.layout, self.layouts[known:])) for read, known in self.by_layout)


class NewLayout(NamedTuple):
    """A layout that a transaction gave the table, by altering columns; `steps` is None if it made the table anew."""

    tick: int
    layout: Layout
    steps: tuple[ColumnStep, ...] | None


def plan_feed(
    database: FarmDatabase, batches: Sequence[tuple[Batch, str]], table: Name, ticks: tuple[int, int | None]
) -> FeedPlan:
    """Find the changes of a table.

    Args:
        database: The farm database.
        batches: Log files that hold all of the ticks.
        table: The table; its name must not change in between.
        ticks: The first and the last one, both included; None for no end.

    Raises:
        UnsupportedError: The table was renamed, or another one took its name; the message names the transaction.
        ExpiredError: A transaction removed all rows, and the snapshot and log that held them were pruned.
    """
    transactions: dict[FeedTransaction, int] = {}
    ends: list[int] = []
    layouts: list[NewLayout] = []
    by_layout: dict[tuple[str, int], Read] = {}
    for batch, _ in batches:
        files = {file.file.path: file for file in batch.files}
        for transaction in _between(batch, ticks):
            for record in transaction.records:
                if isinstance(record, Change) and record.table == table:
                    tick, place = transaction.tick, (record.path, len(layouts))
                    read = by_layout.get(place) or Read(files[record.path], tick, tick)
                    by_layout[place] = replace(read, last=tick)
                    described = _described(transaction)
                    transactions[described] = transactions.get(described, 0) + record.rows
                elif renames(record, table):
                    raise _renamed(table, transaction.tick)
                elif forgets(record, table) and not (isinstance(record, Clear) and not record.removed):
                    ends.append(transaction.tick)
                if isinstance(record, Ddl) and record.object == table and record.layout is not None:
                    steps = None if forgets(record, table) else column_steps(record)
                    layouts.append(NewLayout(transaction.tick, record.layout, steps))
    removed = _removed_rows(database, table, ends) if ends else []
    return FeedPlan(
        _whole(by_layout),
        tuple(sorted(transactions.items(), key=lambda item: item[0].tick)),
        tuple(replace(rows, values=_values_of_removed(rows, layouts)) for rows in removed),
        tuple(layouts),
        tuple((read, known) for (_, known), read in by_layout.items()),
    )


def refuse_other_columns(
    database: FarmDatabase, plan: FeedPlan, table: Name, wanted: Collection[str], first: int, *, has_begun: bool
) -> None:
    """Refuse a schema change after which a column of a stream would be NULL, or not what its older rows say.

    Args:
        database: The farm database.
        plan: The next changes of the stream.
        table: Its table.
        wanted: Names of the columns that it gives.
        first: The first tick of the changes.
        has_begun: It has given changes before.

    Raises:
        UnsupportedError: There is such a change behind rows of the stream; the message names the transaction.
    """
    old = _layout_before(database, table, plan.layouts[0].tick) if plan.layouts else None
    for number, new in enumerate(plan.layouts):
        has_older = has_begun or bool(plan.removed) or any(known <= number for _, known in plan.by_layout)
        lost = [name for name in wanted if old and _loses(name, old, new)]
        if lost and has_older:
            rows = [read.last for read, known in plan.by_layout if known <= number]
            rows += [removed.transaction.tick for removed in plan.removed]
            raise _other_columns(table, new.tick, lost, first, has_own=new.steps is not None and new.tick in rows)
        old = new.layout


def _layout_before(database: FarmDatabase, table: Name, tick: int) -> Layout | None:
    contents = tables_at(database, Stop(tick=tick - 1)).get(table) if tick > 1 else None
    return contents.layout if contents else None


def _loses(wanted: str, old: Layout, new: NewLayout) -> bool:
    """Say whether a statement took a column away, or gave rows that lacked it something else than NULL."""
    had, has = _has(old, wanted), _has(new.layout, wanted)
    if had or not has or new.steps is None:
        return had and not has
    added = [column for column in new.layout.stored if (None, column.name) in new.steps]
    return not any(column.name.lower() == wanted.lower() and column.default in (None, "NULL") for column in added)


def _has(layout: Layout, wanted: str) -> bool:
    return any(column.name.lower() == wanted.lower() for column in layout.stored)


def _other_columns(table: Name, tick: int, lost: Sequence[str], first: int, *, has_own: bool) -> UnsupportedError:
    """Build the error for a transaction that took columns away; `has_own`: it changed rows before, which had them."""
    begin = f"Read the changes from_tick {first} to_tick {tick - 1}, then begin" if first < tick else "Begin"
    if has_own:
        begin = f"Read the whole table at tick {tick}, in place of what the stream has given, then begin"
    return UnsupportedError(
        f"transaction {tick} dropped or renamed column {', '.join(lost)} of table {table}, or added it with a default",
        hint=f"{begin} a new stream with from_tick {tick + has_own} and a new checkpoint.",
    )


def _whole(by_layout: Mapping[tuple[str, int], Read]) -> tuple[Read, ...]:
    """Join what counts of one file under several layouts."""
    reads: dict[str, Read] = {}
    for (path, _), read in by_layout.items():
        reads[path] = replace(reads[path], last=read.last) if path in reads else read
    return tuple(reads.values())


def _values(old: Layout, later: Sequence[NewLayout]) -> tuple[str, ...]:
    """Return the SQL that makes each stored column of the last layout from a row of an older one.

    Otherwise images of one row, written before and after a column was renamed or added, would not cancel out.
    """
    values = stored_columns(old)
    for new in later:
        found = None if new.steps is None else edited(values, old, new.layout, new.steps)
        values = mapped_values(new.layout, old, values) if found is None else found
        old = new.layout
    return values


def _values_of_removed(rows: RemovedRows, layouts: Sequence[NewLayout]) -> tuple[str, ...]:
    """Return the values of removed rows; a transaction may alter the table before and after it removes them."""
    tick, layout = rows.transaction.tick, rows.contents.layout
    before = [n for n, new in enumerate(layouts) if new.tick == tick and new.layout.shape == layout.shape]
    first = before[-1] + 1 if before else sum(new.tick < tick for new in layouts)
    return _values(layout, layouts[first:])


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
        hint=f"Read up to tick {tick - 1} under the old name, from tick {tick + 1} on under the new one.",
    )


def _removed_rows(database: FarmDatabase, table: Name, ends: list[int]) -> list[RemovedRows]:
    """Find the rows that the table held when all of them were removed at once: the log does not list them."""
    try:
        manifest = log_reader.choose_snapshot(database, Stop(tick=ends[0] - 1))
    except ExpiredError as error:
        raise ExpiredError(
            f"transaction {ends[0]} removed all rows of table {table}, and what they were was pruned",
            hint=f"Read the changes from tick {ends[0] + 1} on.",
        ) from error
    trace = Trace.begin(manifest)
    found: list[RemovedRows] = []
    for step in log_reader.steps_after(database, manifest, Stop(tick=ends[-1])):
        for transaction, record in ((t, record) for t in step.applied for record in t.records):
            contents = trace.tables.get(table)
            if transaction.tick in ends and forgets(record, table) and contents is not None:
                contents = _before(table, contents, transaction.tick)
                if contents.files or contents.parts:
                    found.append(RemovedRows(contents, _described(transaction)))
            for action in actions_of((replace(transaction, records=(record,)),), step.files):
                trace.follow(action, transaction.tick)
    return found


def _before(table: Name, contents: TableContents, tick: int) -> TableContents:
    """Return the contents in the layout before the alteration for a table that is written anew because of it."""
    if contents.broken == tick and contents.was is not None:
        return replace(contents, layout=contents.was, broken=None)
    refuse_broken(table, contents)
    return contents
