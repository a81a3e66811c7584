"""Follows tables through the log: the files of their rows, and the effects of schema changes on these rows.

A replica runs the schema changes. A reader has no database to run them in, and follows the tables instead. A new table
or a clear discards everything before. A column that was dropped, renamed, or added with a constant becomes an
expression over the older files. Any other change needs a replica and is refused with its tick.

Maps rows of one layout of a table to another one, by the names of the columns.

Decides from the log, without reading data files, which rows a table has as of a moment.

Decides from the log, without reading data files, which row images make the change feed of a table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from wlc.dialect.duckdb.fold import stored_columns
from wlc.dialect.sql import literal
from wlc.dialect.types import load_sql, store_sql
from wlc.farm.errors import CorruptError, ExpiredError, UnsupportedError
from wlc.farm.model import AlteredObject, Change, Clear, CreatedObject, Ddl, DroppedObject, Layout, RenamedObject
from wlc.farm.schema_fold import table_effects
from wlr.reading.place import named_table
from wlr.replay import log_reader
from wlr.replay.ddl.left_out import is_run
from wlr.replay.plan.bounds import Stop
from wlr.replay.plan.step import Read, actions_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Column, ColumnStep, DataFile, DdlEffect, Manifest, Name, Record, Transaction
    from wlr.replay.plan.step import Action, TableChange


def mapped_values(layout: Layout, old: Layout, values: Sequence[str]) -> tuple[str, ...]:
    """Map stored values of another layout by name: missing columns are NULL, other types are cast exactly, or fail."""
    there = {column.name.lower(): (column, value) for column, value in zip(old.stored, values, strict=True)}
    return tuple(_mapped(column, *there.get(column.name.lower(), (None, ""))) for column in layout.stored)


def _mapped(column: Column, old: Column | None, stored: str) -> str:
    if old is None:
        return store_sql(column, f"CAST(NULL AS {column.type})")
    if old.type == column.type:
        return stored
    value = load_sql(old, stored)
    cast = f"TRY_CAST({value} AS {column.type})"
    says = literal(f"column {column.name} was {old.type}, and has a value that {column.type} cannot hold: ")
    is_same = f"CAST({cast} AS {old.type}) IS NOT DISTINCT FROM {value}"
    return store_sql(column, f"CASE WHEN {is_same} THEN {cast} ELSE error({says} || CAST({value} AS VARCHAR)) END")


_NUMBER, _STRING = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", r"'(?:[^']|'')*'"
_WORDS = r"[A-Za-z_]\w*(?: [A-Za-z_]\w*)*(?:\(\d+(?:, ?\d+)?\))?"
_VALUE = rf"(?:NULL|true|false|{_NUMBER}|{_STRING})"
# Default values from the farm go into SQL: only constants may pass.
_CONSTANT = re.compile(rf"{_VALUE}|CAST\({_VALUE} AS {_WORDS}\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LogPart:
    """Rows of the log, and the SQL that makes each stored column of the table from a file's row."""

    read: Read
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableContents:
    """The contents of a table at one moment: the rows of a snapshot's files, if any, and the images of the log.

    Attributes:
        snapshot: Tick of the snapshot that `files` belong to; None if no row of a snapshot counts any more.
        values: As in `LogPart`, for the rows of the snapshot.
        added: Number of +1 images in `parts`; `removed`: number of -1 images.
        has_key: The primary key never changed, so it identifies the row that an image removes.
        condition: Condition of the rows, over the columns as declared, of the table as `called`.
        broken: Tick of a schema change that cannot be followed; None without one. If set, `files` and `parts` have the
            layout `was`, unless rows were changed since.
    """

    layout: Layout
    snapshot: int | None = None
    files: tuple[DataFile, ...] = ()
    values: tuple[str, ...] = ()
    parts: tuple[LogPart, ...] = ()
    added: int = 0
    removed: int = 0
    has_key: bool = False
    broken: int | None = None
    was: Layout | None = None
    condition: str = ""
    called: str = ""


def forgets(record: Record, table: Name) -> bool:
    """Return whether a record discards all earlier rows of the table."""
    if isinstance(record, Clear):
        return record.table == table
    ends = (effect for effect in _effects(record) if isinstance(effect, CreatedObject | DroppedObject))
    return any(effect.object.name == table for effect in ends)


def renames(record: Record, table: Name) -> bool:
    """Return whether a record renames the table, or renames another table to its name."""
    return any(table in (e.object.name, e.to) for e in _effects(record) if isinstance(e, RenamedObject))


def column_steps(ddl: Ddl) -> tuple[ColumnStep, ...]:
    """Return the changes of a statement to its table's columns."""
    steps = (e.columns for e in _effects(ddl) if isinstance(e, AlteredObject) and e.object.name == ddl.object)
    return next(steps, ())


def _effects(record: Record) -> Iterator[DdlEffect]:
    """Yield the effects of a record on tables; statements for PostgreSQL alone do not affect rows of the log."""
    if isinstance(record, Ddl) and is_run(record, ()):
        yield from table_effects(record)


@dataclass(slots=True)
class Trace:
    """The tables of a database, followed through the plan's actions, in a replica's order."""

    tables: dict[Name, TableContents] = field(default_factory=dict)

    @classmethod
    def begin(cls, manifest: Manifest | None) -> Trace:
        """Start from a snapshot, or from an empty database."""
        tables = {}
        for table in manifest.tables if manifest else ():
            has_key, values = bool(table.layout.primary_key), stored_columns(table.layout)
            tick = manifest.position.tick if manifest and table.files else None
            tables[table.table] = TableContents(table.layout, tick, table.files, values, has_key=has_key)
        return cls(tables)

    def follow(self, action: Action, tick: int) -> None:
        """Follow the next action of a step that ends at a tick.

        Raises:
            CorruptError: It changes a missing table, or one with other columns.
        """
        if isinstance(action, Ddl):
            self._follow_ddl(action, tick)
            return
        for change in action.changes:
            first = min((read.first for read in change.reads), default=tick)
            self.tables[change.table] = _changed(self._find(change.table, first), change)

    def _find(self, table: Name, tick: int) -> TableContents:
        if table not in self.tables:
            raise CorruptError(f"transaction {tick} changes table {table}, which does not exist")
        return self.tables[table]

    def _follow_ddl(self, ddl: Ddl, tick: int) -> None:
        for effect in _effects(ddl):
            name = effect.object.name
            match effect:
                case DroppedObject():
                    self.tables.pop(name, None)
                case CreatedObject() if ddl.layout is not None:
                    self.tables[name] = _empty(ddl.layout)
                case RenamedObject(_, to):
                    self.tables[to] = self._find(name, tick)
                    del self.tables[name]
                case AlteredObject(columns=steps) if ddl.layout is not None:
                    self.tables[name] = _altered(self._find(name, tick), ddl.layout, steps, tick)


def _empty(layout: Layout) -> TableContents:
    return TableContents(layout, has_key=bool(layout.primary_key))


def _changed(contents: TableContents, change: TableChange) -> TableContents:
    if change.cleared is not None:
        contents = _empty(contents.layout)
    parts = {(part.read.file.file.path, part.values): part for part in contents.parts}
    for read in change.reads:
        if read.file.layout.shape != contents.layout.shape:
            name = read.file.file.path
            raise CorruptError(f"{name} has other columns than table {change.table} at tick {read.last}")
        values = stored_columns(read.file.layout)
        # A file may hold changes of several steps.
        before = parts.pop((read.file.file.path, values), None)
        first = before.read.first if before else read.first
        parts[read.file.file.path, values] = LogPart(replace(read, first=first), values)
    added, removed = contents.added + change.added, contents.removed + change.removed
    was = None if change.reads else contents.was
    return replace(contents, parts=tuple(parts.values()), added=added, removed=removed, was=was)


def _altered(contents: TableContents, layout: Layout, steps: Iterable[ColumnStep], tick: int) -> TableContents:
    if not contents.files and not contents.parts:
        return _empty(layout)
    old = contents.layout
    is_plain = edited(stored_columns(old), old, layout, steps) is not None
    if not is_plain or contents.broken is not None:
        # The same transaction may rewrite all rows, which makes the table readable again.
        was = old if contents.broken is None else contents.was
        return replace(contents, layout=layout, broken=contents.broken or tick, was=was, has_key=False)

    def after(values: tuple[str, ...]) -> tuple[str, ...]:
        return edited(values, old, layout, steps) or ()

    has_key = contents.has_key and old.key_places == layout.key_places and len(old.stored) <= len(layout.stored)
    parts = tuple(replace(part, values=after(part.values)) for part in contents.parts)
    values = after(contents.values) if contents.values else ()
    return replace(contents, layout=layout, parts=parts, values=values, has_key=has_key)


def edited(values: Iterable[str], old: Layout, new: Layout, steps: Iterable[ColumnStep]) -> tuple[str, ...] | None:
    """Return the SQL of a row's values after a schema change; None if only an engine can compute them.

    Args:
        values: SQL of the values of the stored columns before it.
        old: The layout before it.
        new: The layout after it.
        steps: Its changes of columns.
    """
    columns = {name: (kind, value) for (name, kind), value in zip(old.shape, values, strict=True)}
    made = {column.name: column for column in new.stored}
    for before, after in steps:
        if before is None and after in made:
            if (constant := _constant(made[after])) is None:
                return None
            columns[after] = (made[after].type, constant)
        elif before is not None and after is None:
            columns.pop(before, None)
        elif before is not None and after is not None:
            columns = {after if name == before else name: column for name, column in columns.items()}
    is_like_new = [(name, kind) for name, (kind, _) in columns.items()] == [*new.shape]
    return tuple(value for _, value in columns.values()) if is_like_new else None


def _constant(column: Column) -> str | None:
    default = column.default or "NULL"
    if not _CONSTANT.fullmatch(default):
        return None
    try:
        return store_sql(column, f"CAST({default} AS {column.type})")
    except UnsupportedError:
        return None


def contents_at(database: FarmDatabase, wanted: str, stop: Stop) -> tuple[Name, TableContents, int]:
    """Follow a table up to the stop.

    Args:
        database: The farm database.
        wanted: The user's name of the table.
        stop: The stop.

    Returns:
        The table's name in the log, its contents, and the tick of the last transaction that counts.

    Raises:
        InvalidError: There is no such table then, or the stop is ahead of the farm.
        ExpiredError: The stop was pruned.
    """
    trace, tick = _followed(database, stop)
    name = named_table(wanted, trace.tables, f"at tick {tick}")
    return name, trace.tables[name], tick


def tables_at(database: FarmDatabase, stop: Stop) -> dict[Name, TableContents]:
    """Follow all tables up to the stop; raises as `contents_at` does."""
    return _followed(database, stop)[0].tables


def tick_at(database: FarmDatabase, stop: Stop) -> int:
    """Return the last tick that counts at the stop, 0 if it is before the first; raises as `contents_at` does."""
    return _followed(database, stop)[1]


def _followed(database: FarmDatabase, stop: Stop) -> tuple[Trace, int]:
    manifest = log_reader.choose_snapshot(database, stop)
    trace, tick = Trace.begin(manifest), manifest.position.tick if manifest else 0
    for step in log_reader.steps_after(database, manifest, stop):
        for action in step.actions():
            trace.follow(action, step.last)
        if applied := step.applied:
            tick = applied[-1].tick
    return trace, tick


def refuse_broken(table: Name, contents: TableContents) -> None:
    """Refuse a table with rows that only an engine can compute after a schema change.

    Raises:
        UnsupportedError: The table has such rows; the message names the transaction.
    """
    if contents.broken is not None:
        raise UnsupportedError(
            f"transaction {contents.broken} altered table {table} in a way that a reader cannot follow",
            hint="Take a new snapshot with wlc snapshot, read as of a tick before it, or read a Parquet replica.",
        )


def narrowed(contents: TableContents, wanted: Collection[str]) -> TableContents:
    """Leave out unneeded columns.

    Folding images after a projection equals projecting the folded images, so dropped columns change no other column.

    Args:
        contents: The contents of the table.
        wanted: Names of columns. Columns that identify removed rows are kept, too.
    """
    layout = contents.layout
    key = layout.primary_key if contents.has_key and contents.removed else ()
    kept = {*wanted, *key} or {column.name for column in layout.stored[:1]}
    places = [place for place, column in enumerate(layout.stored) if column.name in kept]
    cut = Layout(tuple(layout.stored[place] for place in places), key)
    parts = tuple(replace(part, values=_chosen(part.values, places)) for part in contents.parts)
    values = _chosen(contents.values, places)
    return replace(contents, layout=cut, values=values, parts=parts, has_key=bool(key))


def _chosen(values: Sequence[str], places: Sequence[int]) -> tuple[str, ...]:
    return tuple(values[place] for place in places) if values else ()


class FeedTransaction(NamedTuple):
    """The columns of a transaction in a change feed."""

    tick: int
    committed: datetime | None
    user: str | None


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """The rows of a table when it was cleared, dropped or replaced; `values` are as in `FeedPlan.parts`."""

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
        layouts: New layouts of the table in the range, in commit order.
        by_layout: The same rows as `reads`, each with its number of older layouts.
    """

    reads: tuple[Read, ...]
    transactions: tuple[tuple[FeedTransaction, int], ...]
    removed: tuple[RemovedRows, ...]
    layouts: tuple[NewLayout, ...]
    by_layout: tuple[tuple[Read, int], ...]

    def parts(self) -> tuple[LogPart, ...]:
        """Return the rows of `reads` with values in the table's last layout of the range."""
        return tuple(LogPart(read, _values(read.file.layout, self.layouts[known:])) for read, known in self.by_layout)


class NewLayout(NamedTuple):
    """A layout of the table after a transaction altered columns; `steps` is None if it created the table again."""

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
        ticks: The first and the last one, both included; None without an end.

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
    """Refuse a schema change that makes a stream's column NULL, or contradicts its older rows.

    Args:
        database: The farm database.
        plan: The next changes of the stream.
        table: Its table.
        wanted: Names of its columns.
        first: The first tick of the changes.
        has_begun: It has given changes before.

    Raises:
        UnsupportedError: Such a change follows rows of the stream; the message names the transaction.
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
    """Return whether a statement dropped a column, or added one whose older rows are not NULL."""
    had, has = _has(old, wanted), _has(new.layout, wanted)
    if had or not has or new.steps is None:
        return had and not has
    added = [column for column in new.layout.stored if (None, column.name) in new.steps]
    return not any(column.name.lower() == wanted.lower() and column.default in (None, "NULL") for column in added)


def _has(layout: Layout, wanted: str) -> bool:
    return any(column.name.lower() == wanted.lower() for column in layout.stored)


def _other_columns(table: Name, tick: int, lost: Sequence[str], first: int, *, has_own: bool) -> UnsupportedError:
    """Build the error for a transaction that dropped columns; `has_own`: it changed rows with them before."""
    begin = f"Read the changes from_tick {first} to_tick {tick - 1}, then begin" if first < tick else "Begin"
    if has_own:
        begin = f"Read the whole table at tick {tick}, in place of the stream's rows so far, then begin"
    return UnsupportedError(
        f"transaction {tick} dropped or renamed column {', '.join(lost)} of table {table}, or added it with a default",
        hint=f"{begin} a new stream with from_tick {tick + has_own} and a new checkpoint.",
    )


def _whole(by_layout: Mapping[tuple[str, int], Read]) -> tuple[Read, ...]:
    """Join the ranges of one file under several layouts."""
    reads: dict[str, Read] = {}
    for (path, _), read in by_layout.items():
        reads[path] = replace(reads[path], last=read.last) if path in reads else read
    return tuple(reads.values())


def _values(old: Layout, later: Sequence[NewLayout]) -> tuple[str, ...]:
    """Return the SQL that makes each stored column of the last layout from a row of an older one.

    Otherwise, images of one row from before and after a new or renamed column would not cancel out.
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
    """Find the table's rows when all of them were removed at once: the log does not list them."""
    try:
        manifest = log_reader.choose_snapshot(database, Stop(tick=ends[0] - 1))
    except ExpiredError as error:
        raise ExpiredError(
            f"transaction {ends[0]} removed all rows of table {table}, and the log of these rows was pruned",
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
    """Return the contents in the layout before an alteration that rewrites the table."""
    if contents.broken == tick and contents.was is not None:
        return replace(contents, layout=contents.was, broken=None)
    refuse_broken(table, contents)
    return contents
