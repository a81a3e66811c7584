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
from wlc.dialect.duckdb.table_statement import about_table
from wlc.dialect.types import store_sql
from wlc.farm.errors import CorruptError, UnsupportedError
from wlc.farm.model import Clear, Ddl, Name

if TYPE_CHECKING:
    from wlc.farm.model import Column, DataFile, Layout, Manifest, Record
    from wlr.plan.step import Action, Read, TableChange

_NUMBER, _STRING = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", r"'(?:[^']|'')*'"
_WORDS = r"[A-Za-z_]\w*(?: [A-Za-z_]\w*)*(?:\(\d+(?:, ?\d+)?\))?"
_VALUE = rf"(?:NULL|true|false|{_NUMBER}|{_STRING})"
# Default values come from the farm and go into SQL: nothing but a constant may pass.
_CONSTANT = re.compile(rf"{_VALUE}|CAST\({_VALUE} AS {_WORDS}\)", re.IGNORECASE)
# Statements that end tables; DROP SCHEMA ends those in the schema.
_DROPS = ("DROP TABLE", "DROP SCHEMA")


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
    if not isinstance(record, Ddl):
        return False
    if record.kind == "DROP SCHEMA":
        return record.object.name == table.schema
    return record.object == table and (record.kind == "DROP TABLE" or _makes(record))


def renames(record: Record, table: Name) -> bool:
    """Say whether a record renames the table, or renames another table to its name."""
    if not isinstance(record, Ddl) or (old := _old_name(record)) is None:
        return False
    return record.object == table or _same_name(old, table)


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
        if ddl.kind in _DROPS:
            for table in [table for table in self.tables if forgets(ddl, table)]:
                del self.tables[table]
        elif ddl.layout is None:
            return
        elif _makes(ddl):
            self.tables[ddl.object] = _empty(ddl.layout)
        else:
            old = _old_name(ddl) or ddl.object
            there = next((n for n in self.tables if n == old or _same_name(n, old)), None)
            if there is None:
                raise CorruptError(f"transaction {tick} alters table {ddl.object}, which does not exist")
            self.tables[ddl.object] = _altered(self.tables.pop(there), ddl.layout, tick)


def _makes(ddl: Ddl) -> bool:
    return ddl.kind.startswith("CREATE") and ddl.layout is not None


def _old_name(ddl: Ddl) -> Name | None:
    """Return the name that a table had before a statement that renames it; None for any other statement."""
    about = about_table(ddl) if ddl.layout is not None else None
    return about.table if about is not None and about.renamed is not None else None


def _same_name(one: Name, other: Name) -> bool:
    return one.schema == other.schema and one.name.lower() == other.name.lower()


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


def _altered(contents: TableContents, layout: Layout, tick: int) -> TableContents:
    if not contents.files and not contents.parts:
        return _empty(layout)
    old, new = contents.layout, layout
    edit = edit_between(old, new)
    if edit is None or contents.broken is not None:
        # The same transaction may write all rows again, which mends this.
        was = old if contents.broken is None else contents.was
        return replace(contents, layout=layout, broken=contents.broken or tick, was=was, has_key=False)
    has_key = contents.has_key and old.key_places == new.key_places and len(old.stored) <= len(new.stored)
    parts = tuple(replace(part, values=edited(part.values, edit)) for part in contents.parts)
    values = edited(contents.values, edit) if contents.values else ()
    return replace(contents, layout=layout, parts=parts, values=values, has_key=has_key)


# A change to a list of values: the place of the value to drop or None, and the value to append or "".
Edit = tuple[int | None, str]


def edited(values: tuple[str, ...], edit: Edit) -> tuple[str, ...]:
    """Return the values of a row after a schema change."""
    dropped, appended = edit
    kept = values if dropped is None else values[:dropped] + values[dropped + 1 :]
    return (*kept, appended) if appended else kept


def edit_between(old: Layout, new: Layout) -> Edit | None:
    """Return what turns values of the old layout into those of the new one; None if no simple change does."""
    before, after = old.shape, new.shape
    if len(before) == len(after):
        renamed = [place for place, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        kept = all(before[place][1] == after[place][1] for place in renamed)
        return (None, "") if len(renamed) <= 1 and kept else None
    if after[:-1] == before:
        constant = _constant(new.stored[-1])
        return None if constant is None else (None, constant)
    dropped = next((n for n, pair in enumerate(before) if pair not in after), 0)
    return (dropped, "") if before[:dropped] + before[dropped + 1 :] == after else None


def _constant(column: Column) -> str | None:
    default = column.default or "NULL"
    if not _CONSTANT.fullmatch(default):
        return None
    try:
        return store_sql(column, f"CAST({default} AS {column.type})")
    except UnsupportedError:
        return None
