"""What a table holds, told from the log: which files its rows lie in, and what schema changes made of them.

A replica runs the schema changes; a reader has no database to run them in. It follows the table instead: a new table or
a clear forgets all that was before, a column that was added with a constant, dropped or renamed is an expression over
the older files. Anything else needs a replica, and is refused by its tick.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.errors import CorruptError, UnsupportedError
from wlc.model import Change, Clear, Ddl, Name, file_column, quote
from wlc.types import store_sql
from wlr.engine.duckdb.statements import tokens, unquote
from wlr.plan import Read

if TYPE_CHECKING:
    from wlc.model import Column, DataFile, Layout, Manifest, Record, TableFile

_NUMBER, _STRING = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", r"'(?:[^']|'')*'"
_WORDS = r"[A-Za-z_]\w*(?: [A-Za-z_]\w*)*(?:\(\d+(?:, ?\d+)?\))?"
_VALUE = rf"(?:NULL|true|false|{_NUMBER}|{_STRING})"
# Default values come from the farm and go into SQL: nothing but a constant may pass.
_CONSTANT = re.compile(rf"{_VALUE}|CAST\({_VALUE} AS {_WORDS}\)", re.IGNORECASE)
# What forgets the rows of tables; a DROP SCHEMA takes its tables along.
_DROPS = ("DROP TABLE", "DROP SCHEMA")


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of the log, and per stored column of the table the SQL that makes its stored value of a file's row."""

    read: Read
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a table holds at one moment: the rows of a snapshot's files, if any, and the images of the log.

    Attributes:
        snapshot: Tick of the snapshot that `files` belong to, None if none of its rows count any more.
        values: As in a part, for the rows of the snapshot.
        added: Number of +1 images in `parts`; `removed`: number of -1 images.
        has_key: The primary key was the same all the time, so that it tells which row an image removes.
        broken: Tick of a schema change that cannot be followed, None if all can be. `files` and `parts` have the
            layout `was` then, unless rows were changed since.
    """

    layout: Layout
    snapshot: int | None = None
    files: tuple[DataFile, ...] = ()
    values: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    added: int = 0
    removed: int = 0
    has_key: bool = False
    broken: int | None = None
    was: Layout | None = None


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
    """Say whether a record gives the table's name to another table, or takes it away from this one."""
    if not isinstance(record, Ddl) or (old := _old_name(record)) is None:
        return False
    return record.object == table or (old.schema == table.schema and old.name.lower() == table.name.lower())


@dataclass(slots=True)
class Trace:
    """The tables of a database, followed record by record."""

    tables: dict[Name, Contents] = field(default_factory=dict)

    @classmethod
    def begin(cls, manifest: Manifest | None) -> Trace:
        """Start from a snapshot, or from an empty database."""
        tables = {}
        for table in manifest.tables if manifest else ():
            has_key, values = bool(table.layout.primary_key), _as_stored(table.layout)
            tick = manifest.position.tick if manifest and table.files else None
            tables[table.table] = Contents(table.layout, tick, table.files, values, has_key=has_key)
        return cls(tables)

    def follow(self, record: Record, tick: int, files: dict[str, TableFile]) -> None:
        """Take in the next record of a committed transaction.

        Raises:
            CorruptError: It changes a table that does not exist, or has other columns.
        """
        match record:
            case Change():
                self.tables[record.table] = _changed(self._find(record.table, tick), record, tick, files[record.path])
            case Clear():
                self.tables[record.table] = _empty(self._find(record.table, tick).layout)
            case Ddl():
                self._follow_ddl(record, tick)

    def _find(self, table: Name, tick: int) -> Contents:
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
    """Return the name that a table had before a statement that renames it, None for any other statement."""
    if ddl.layout is None:
        return None
    words = tokens(ddl.statement)
    lowered = [word.lower() for word in words]
    if lowered[:2] != ["alter", "table"] or "rename" not in lowered:
        return None
    place = lowered.index("rename")
    if lowered[place + 1 : place + 2] != ["to"]:
        return None
    return Name(ddl.object.schema, unquote(words[place - 1]))


def _same_name(one: Name, other: Name) -> bool:
    return one.schema == other.schema and one.name.lower() == other.name.lower()


def _as_stored(layout: Layout) -> tuple[str, ...]:
    return tuple(quote(file_column(column.name)) for column in layout.stored)


def _empty(layout: Layout) -> Contents:
    return Contents(layout, has_key=bool(layout.primary_key))


def _changed(contents: Contents, change: Change, tick: int, file: TableFile) -> Contents:
    if file.layout.shape != contents.layout.shape:
        raise CorruptError(f"{file.file.path} has other columns than table {change.table} at tick {tick}")
    if contents.broken is not None:
        contents = replace(contents, was=None)
    parts, last = contents.parts, Part(Read(file, tick, tick), _as_stored(file.layout))
    for part in parts:
        if part.read.file == file and part.values == last.values:
            last = replace(part, read=replace(part.read, last=tick))
            parts = tuple(p for p in parts if p is not part)
            break
    added, removed = contents.added + change.added, contents.removed + change.removed
    return replace(contents, parts=(*parts, last), added=added, removed=removed)


def _altered(contents: Contents, layout: Layout, tick: int) -> Contents:
    if not contents.files and not contents.parts:
        return _empty(layout)
    old, new = contents.layout, layout
    edit = _edit(old, new)
    if edit is None or contents.broken is not None:
        # The rows may all be written again by the same transaction, which clears what is broken here.
        was = old if contents.broken is None else contents.was
        return replace(contents, layout=layout, broken=contents.broken or tick, was=was, has_key=False)
    has_key = contents.has_key and _key_places(old) == _key_places(new) and len(old.stored) <= len(new.stored)
    parts = tuple(replace(part, values=_edited(part.values, edit)) for part in contents.parts)
    values = _edited(contents.values, edit) if contents.values else ()
    return replace(contents, layout=layout, parts=parts, values=values, has_key=has_key)


def _key_places(layout: Layout) -> list[int]:
    names = [column.name for column in layout.stored]
    return [names.index(name) for name in layout.primary_key]


# An edit of a list of values: drop the one at this place (None: none), then append this one ("": none).
_Edit = tuple[int | None, str]


def _edited(values: tuple[str, ...], edit: _Edit) -> tuple[str, ...]:
    dropped, appended = edit
    kept = values if dropped is None else values[:dropped] + values[dropped + 1 :]
    return (*kept, appended) if appended else kept


def _edit(old: Layout, new: Layout) -> _Edit | None:
    """Return what turns values of the old layout into those of the new one, None if nothing simple does."""
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
