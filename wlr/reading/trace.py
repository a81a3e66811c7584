"""Follows tables through the log: which files hold their rows, and what schema changes did to these rows.

A replica runs the schema changes. A reader has no database to run them in, and follows the tables instead. A new table
or a clear ends everything before. A column that was dropped, renamed, or added with a constant becomes an expression
over the older files. Any other change needs a replica and is refused with its tick.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.fold import stored_columns
from wlc.dialect.types import store_sql
from wlc.farm.errors import CorruptError, UnsupportedError
from wlc.farm.model import AlteredObject, Clear, CreatedObject, Ddl, DroppedObject, RenamedObject
from wlc.farm.schema_fold import table_effects
from wlr.ddl.relevance import is_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wlc.farm.model import Column, ColumnStep, DataFile, DdlEffect, Layout, Manifest, Name, Record
    from wlr.plan.step import Action, Read, TableChange

_NUMBER, _STRING = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", r"'(?:[^']|'')*'"
_WORDS = r"[A-Za-z_]\w*(?: [A-Za-z_]\w*)*(?:\(\d+(?:, ?\d+)?\))?"
_VALUE = rf"(?:NULL|true|false|{_NUMBER}|{_STRING})"
# Default values come from the farm and go into SQL: nothing but a constant may pass.
_CONSTANT = re.compile(rf"{_VALUE}|CAST\({_VALUE} AS {_WORDS}\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LogPart:
    """Rows of the log, and the SQL that makes each stored column of the table from a file's row."""

    read: Read
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableContents:
    """What a table holds at one moment: the rows of a snapshot's files, if any, and the images of the log.

    Attributes:
        snapshot: Tick of the snapshot that `files` belong to; None if no row of a snapshot counts any more.
        values: As in `LogPart`, for the rows of the snapshot.
        added: Number of +1 images in `parts`; `removed`: number of -1 images.
        has_key: The primary key never changed, so that it identifies the row that an image removes.
        condition: Only rows count that fulfil it; over the columns as declared, of the table as `called`.
        broken: Tick of a schema change that cannot be followed; None if every change could be. Then `files` and
            `parts` have the layout `was`, unless rows were changed since.
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
    """Say whether a record ends everything that the table held before."""
    if isinstance(record, Clear):
        return record.table == table
    ends = (effect for effect in _effects(record) if isinstance(effect, CreatedObject | DroppedObject))
    return any(effect.object.name == table for effect in ends)


def renames(record: Record, table: Name) -> bool:
    """Say whether a record renames the table, or renames another table to its name."""
    return any(table in (e.object.name, e.to) for e in _effects(record) if isinstance(e, RenamedObject))


def column_steps(ddl: Ddl) -> tuple[ColumnStep, ...]:
    """Return how a statement changes the columns of the table that it is about."""
    steps = (e.columns for e in _effects(ddl) if isinstance(e, AlteredObject) and e.object.name == ddl.object)
    return next(steps, ())


def _effects(record: Record) -> Iterator[DdlEffect]:
    """Yield what a record does to tables. What PostgreSQL alone does is not about rows that the log lists."""
    if isinstance(record, Ddl) and is_run(record, ()):
        yield from table_effects(record)


@dataclass(slots=True)
class Trace:
    """The tables of a database, followed through the actions of the plan, as a replica applies them."""

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
            CorruptError: It changes a table that does not exist, or that has other columns.
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
        # The same transaction may write all rows again, which mends this.
        was = old if contents.broken is None else contents.was
        return replace(contents, layout=layout, broken=contents.broken or tick, was=was, has_key=False)

    def after(values: tuple[str, ...]) -> tuple[str, ...]:
        return edited(values, old, layout, steps) or ()

    has_key = contents.has_key and old.key_places == layout.key_places and len(old.stored) <= len(layout.stored)
    parts = tuple(replace(part, values=after(part.values)) for part in contents.parts)
    values = after(contents.values) if contents.values else ()
    return replace(contents, layout=layout, parts=parts, values=values, has_key=has_key)


def edited(values: Iterable[str], old: Layout, new: Layout, steps: Iterable[ColumnStep]) -> tuple[str, ...] | None:
    """Return the SQL of a row's values after a schema change; None if only an engine can tell them.

    Args:
        values: SQL of the values of the stored columns before it.
        old: The layout before it.
        new: The layout after it.
        steps: How it changes the columns.
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
