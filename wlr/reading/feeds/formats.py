"""The formats of a feed: the text of a changed row, a schema change and a truncation.

SQL makes the texts of rows from the columns of `rendering`: `before` and `after` (row images as text, or NULL), `head`
and `tail` (the transaction in this format), and `name` (the table). The number of the record goes between the parts of
the text, after the records are ordered.

The records of a feed, in the order of the log: runs of changed rows, and notes between them.

The SQL that writes row images as text: JSON objects, or cells of CSV.

Integers up to 64 bits and floats are JSON numbers. Values that JSON readers would round (decimals, larger integers) and
values that JSON lacks (dates, NaN, intervals) are DuckDB's text, and bytes are base64. docs/feeds.md has the table.
"""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from wlc.dialect.sql import literal, quote
from wlc.dialect.types import load_sql, parse, storage_type
from wlc.farm.clock import format_time
from wlc.farm.errors import InvalidError
from wlc.farm.model import Change, Clear, Ddl, file_column
from wlc.farm.schema_fold import is_aside, table_names
from wlr.replay.plan.patterns import matches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from wlc.dialect.types import ColumnType
    from wlc.farm.model import Batch, Column, Layout, Name, TableFile, Transaction


# More row images, or more files, are sorted in two passes.
RUN_ROWS = 250_000
RUN_FILES = 200


@dataclass(frozen=True, slots=True)
class RowChange:
    """The changed rows of one table in a transaction.

    Attributes:
        place: Number of the change within its transaction.
    """

    transaction: Transaction
    history: str
    change: Change
    file: TableFile
    place: int


@dataclass(frozen=True, slots=True)
class Note:
    """A record that is one line: a schema change of a table, or the removal of all of its rows."""

    transaction: Transaction
    history: str
    record: Ddl | Clear
    table: Name


Item = RowChange | Note


def items_of(batch: Batch, after: int, tables: Collection[str]) -> Iterator[Item]:
    """Yield the records of a batch for a feed, in order.

    Args:
        batch: The batch.
        after: Tick of the last transaction to leave out.
        tables: Patterns of the feed's tables; empty for all.
    """
    files = {file.file.path: file for file in batch.files}
    for transaction in batch.transactions:
        if transaction.tick <= after or transaction.committed is None:
            continue
        for place, record in enumerate(transaction.records):
            if isinstance(record, Change):
                if record.rows and matches(record.table, tables):
                    yield RowChange(transaction, batch.history, record, files[record.path], place)
            elif isinstance(record, Clear):
                if record.removed and matches(record.table, tables):
                    yield Note(transaction, batch.history, record, record.table)
            elif isinstance(record, Ddl):
                for table in _concerned(record, tables):
                    yield Note(transaction, batch.history, record, table)


def _concerned(ddl: Ddl, tables: Collection[str]) -> Iterator[Name]:
    """Yield the feed's tables that a statement creates, drops, renames or alters. Comments are ignored."""
    does = tuple(effect for effect in ddl.does if not is_aside(effect))
    for names in table_names(replace(ddl, does=does)):
        yield from [name for name in reversed(names.both) if matches(name, tables)][:1]


@dataclass(frozen=True, slots=True)
class RowsRun:
    """Changes of rows for one query; ticks rise, and no other record is between them."""

    changes: Sequence[RowChange]

    @property
    def first(self) -> int:
        """Tick of the first one."""
        return self.changes[0].transaction.tick

    @property
    def last(self) -> int:
        """Tick of the last one."""
        return self.changes[-1].transaction.tick

    @property
    def files(self) -> dict[str, TableFile]:
        """Their data files, by path."""
        return {change.file.file.path: change.file for change in self.changes}


class RunGathering:
    """Gathers changes of rows until a run is worth a query.

    A transaction with other records is rendered record by record, because its numbering continues across them.

    Args:
        has_columns: Records have the table's columns, so a run has one layout.
    """

    def __init__(self, *, has_columns: bool = False) -> None:
        self._has_columns = has_columns
        self._changes: list[RowChange] = []
        self._rows = 0
        self._paths: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """Whether there is no change."""
        return not self._changes

    def add(self, change: RowChange) -> RowsRun | None:
        """Add a change, and return the run before it if that is large enough."""
        last = self._changes[-1] if self._changes else None
        is_whole = last is not None and last.transaction.tick != change.transaction.tick
        is_full = self._rows >= RUN_ROWS or len(self._paths) >= RUN_FILES
        is_other = last is not None and last.history != change.history
        is_unlike = self._has_columns and last is not None and last.file.layout.stored != change.file.layout.stored
        run = self.take() if (is_whole and (is_full or is_other)) or is_unlike else None
        self._changes.append(change)
        self._rows += change.change.rows
        self._paths.add(change.file.file.path)
        return run

    def take(self) -> RowsRun | None:
        """Return the current run, None without one, and begin another."""
        run = RowsRun(tuple(self._changes)) if self._changes else None
        self._changes, self._rows, self._paths = [], 0, set()
        return run


def object_sql(columns: Iterable[Column]) -> str:
    """Return the SQL that makes the JSON object of a row image, as text, from the stored values of some columns."""
    fields = ", ".join(f"{quote(column.name)} := {_json_value(column)}" for column in columns)
    return f"CAST(to_json(struct_pack({fields})) AS VARCHAR)"


def cells_sql(columns: Iterable[Column]) -> str:
    """Return the SQL that makes the CSV cells of a row image, separated by commas."""
    return " || ',' || ".join(_cell_sql(column) for column in columns)


def quoted_cell_sql(text: str) -> str:
    """Return the SQL that makes a CSV cell of a text: NULL is an empty cell, and an empty text is `""`."""
    must_quote = f"{text} = '' OR regexp_matches({text}, '[\",\\n\\r]')"
    quoted = f"'\"' || replace({text}, '\"', '\"\"') || '\"'"
    return f"CASE WHEN {text} IS NULL THEN '' WHEN {must_quote} THEN {quoted} ELSE {text} END"


def told_apart_sql(columns: Iterable[Column]) -> str:
    """Return the SQL that distinguishes row images with the same text."""
    stored = (
        f"{quote(column.name)} := {_json(parse(storage_type(column.type)), quote(file_column(column.name)), 0)}"
        for column in columns
        if _is_rebuilt(column)
    )
    fields = ", ".join(stored)
    return f"CAST(to_json(struct_pack({fields})) AS VARCHAR)" if fields else "CAST(NULL AS VARCHAR)"


def key_columns(layout: Layout) -> list[Column]:
    """Return the columns of the primary key, in the key's order."""
    by_name = {column.name: column for column in layout.stored}
    return [by_name[name] for name in layout.primary_key]


def _json_value(column: Column) -> str:
    stored = quote(file_column(column.name))
    if _is_rebuilt(column):
        # Only DuckDB's own text shows the member of a UNION, or the content of a VARIANT.
        return f"CAST({load_sql(column, stored)} AS VARCHAR)"
    return _json(parse(storage_type(column.type)), stored, 0)


def _is_rebuilt(column: Column) -> bool:
    return parse(column.type).holds(lambda row: row.is_rebuilt)


def _json(parsed: ColumnType, value: str, depth: int) -> str:
    """Return SQL of a value that `to_json` writes exactly."""
    row, item = parsed.row, f"_{depth}"
    if row.is_float:
        finite = f"CASE WHEN isfinite({value}) THEN to_json({value}) ELSE to_json(CAST({value} AS VARCHAR)) END"
        return f"CASE WHEN {value} IS NOT NULL THEN {finite} END"
    if row.name == "BLOB":
        return f"base64({value})"
    if not row.is_nested:
        is_own = row.is_integer or row.name in ("BOOLEAN", "VARCHAR")
        return value if is_own else f"CAST({value} AS VARCHAR)"
    if row.name == "LIST":
        return f"list_transform({value}, lambda {item}: {_json(parsed.fields[0][1], item, depth + 1)})"
    if row.name == "MAP":
        packed = _packed(
            (name, _json(member, f"struct_extract({item}, {literal(name)})", depth + 1))
            for name, member in parsed.fields
        )
        return f"list_transform(map_entries({value}), lambda {item}: {packed})"
    members = (
        (name, _json(member, f"struct_extract({value}, {literal(name)})", depth)) for name, member in parsed.fields
    )
    return f"CASE WHEN {value} IS NOT NULL THEN {_packed(members)} END"


def _packed(members: Iterable[tuple[str, str]]) -> str:
    return "struct_pack(" + ", ".join(f"{quote(name)} := {value}" for name, value in members) + ")"


def _cell_sql(column: Column) -> str:
    value = _json_value(column)
    row = parse(storage_type(column.type)).row
    if row.is_integer or row.name == "BOOLEAN":
        return f"coalesce(CAST({value} AS VARCHAR), '')"
    if row.is_float:
        return f"coalesce(CAST({quote(file_column(column.name))} AS VARCHAR), '')"
    if parse(storage_type(column.type)).row.is_nested and not _is_rebuilt(column):
        whole = f"CASE WHEN {value} IS NOT NULL THEN CAST(to_json({value}) AS VARCHAR) END"
        return f"({quoted_cell_sql(f'({whole})')})"
    return f"({quoted_cell_sql(value)})"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LINE_END = " || chr(10)"
# `source.version` of Debezium's envelope. It rises with the format of records, and not with dbfarm, so that every
# version of dbfarm writes a record with the same bytes.
_ENVELOPE_VERSION = "1"


@dataclass(frozen=True, slots=True)
class RecordMoment:
    """The transaction of a record, or the snapshot of its row.

    Attributes:
        user: The user who committed it; None for a snapshot.
    """

    history: str
    tick: int
    committed: datetime | None
    user: str | None
    is_snapshot: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """Dropped records: their count, and (tick, number) of the first and the last one."""

    dropped: int
    history: str
    first: tuple[int, int]
    last: tuple[int, int]


def text_of(value: object) -> str:
    """Write a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Format(ABC):
    """A format.

    Attributes:
        name: As in `--format`.
        has_columns: Lines have the table's columns, so a feed has one table and each file one layout.
    """

    name: ClassVar[str]
    has_columns: ClassVar[bool] = False

    def __init__(self, database: str, feed: str) -> None:
        self.database = database
        self.feed = feed

    def header(self, layout: Layout | None) -> str:  # noqa: ARG002 - most formats have none
        """Return the header of a file, "" without one.

        Args:
            layout: Layout of the table, None for a file whose first line has none of its columns.
        """
        return ""

    def image_sql(self, layout: Layout) -> str:
        """Return the SQL of a row image as text."""
        return object_sql(layout.stored)

    @abstractmethod
    def table(self, table: Name) -> str:
        """Return the part of a line about its table."""

    @abstractmethod
    def around(self, moment: RecordMoment) -> tuple[str, str]:
        """Return the parts of a line about its transaction: `head` and `tail`."""

    @abstractmethod
    def line_parts(self, *, is_snapshot: bool) -> tuple[str, ...]:
        """Return the SQL of the parts of a row's text, with the line end; its number goes between the parts.

        Only updates have a third part, which is empty for other rows, without a number before it.
        """

    @abstractmethod
    def note(self, note: Note, moment: RecordMoment, n: int) -> str:
        """Return the line of a schema change or truncation, with the line end."""

    def padded(self, line: str, header: str) -> str:  # noqa: ARG002 - most formats have no columns
        """Return a line without a row, with as many cells as the header of its file."""
        return line

    def gap(self, gap: Gap) -> str:
        """Return the line that reports dropped records, with the line end."""
        said = {
            "dropped": gap.dropped,
            "history": gap.history,
            "from": {"tick": gap.first[0], "n": gap.first[1]},
            "to": {"tick": gap.last[0], "n": gap.last[1]},
        }
        return text_of(said) + "\n"


class JsonFormat(Format):
    """A JSON object per line, flat, with the names of the log."""

    name = "json"

    def table(self, table: Name) -> str:
        return '"table":' + text_of(str(table))

    def around(self, moment: RecordMoment) -> tuple[str, str]:
        return text_of(_members(moment))[1:-1], ""

    def line_parts(self, *, is_snapshot: bool) -> tuple[str, ...]:
        operation = "CASE WHEN before IS NULL THEN 'insert' WHEN after IS NULL THEN 'delete' ELSE 'update' END"
        return (
            f"""'{{"op":"' || {"'read'" if is_snapshot else operation} || '",' || name || ',' || head || ',"n":'""",
            """',"before":' || coalesce(before, 'null') || ',"after":' || coalesce(after, 'null') || '}'""" + _LINE_END,
        )

    def note(self, note: Note, moment: RecordMoment, n: int) -> str:
        record = note.record
        said: dict[str, Any] = {"op": "truncate" if isinstance(record, Clear) else "schema"}
        said |= {"table": str(note.table), **_members(moment), "n": n}
        if isinstance(record, Clear):
            said["rows"] = record.removed
        else:
            said |= {"kind": record.kind, "object": str(record.object), "statement": record.statement}
            said |= {"original": record.original} if record.original else {}
            said |= {"columns": _columns(record), "primary_key": _key(record)}
        return text_of(said) + "\n"


class DebeziumFormat(Format):
    """The envelope of Debezium's change events, without schemas (`schemas.enable=false`)."""

    name = "debezium"

    def table(self, table: Name) -> str:
        return f'"schema":{text_of(table.schema)},"table":{text_of(table.name)}'

    def around(self, moment: RecordMoment) -> tuple[str, str]:
        source = {
            "version": _ENVELOPE_VERSION,
            "connector": "dbfarm",
            "name": self.feed,
            "ts_ms": _milliseconds(moment),
            "snapshot": "true" if moment.is_snapshot else "false",
            "db": self.database,
            "history": moment.history,
            "tick": moment.tick,
            "user": moment.user,
        }
        return text_of(source)[1:-1], f'"ts_ms":{text_of(_milliseconds(moment))}'

    def line_parts(self, *, is_snapshot: bool) -> tuple[str, ...]:
        operation = "CASE WHEN before IS NULL THEN 'c' WHEN after IS NULL THEN 'd' ELSE 'u' END"
        images = """'{"before":' || coalesce(before, 'null') || ',"after":' || coalesce(after, 'null')"""
        return (
            images + """ || ',"source":{' || head || ',' || name || ',"n":'""",
            f"""'}},"op":"' || {"'r'" if is_snapshot else operation} || '",' || tail || '}}'""" + _LINE_END,
        )

    def note(self, note: Note, moment: RecordMoment, n: int) -> str:
        record, (head, tail) = note.record, self.around(moment)
        source = f'"source":{{{head},{self.table(note.table)},"n":{n}}}'
        if isinstance(record, Clear):
            return f'{{"before":null,"after":null,{source},"op":"t",{tail}}}\n'
        change = {
            "databaseName": self.database,
            "schemaName": note.table.schema,
            "ddl": record.statement,
            "tableChanges": [self._table_change(note, record)],
        }
        return f"{{{source},{tail},{text_of(change)[1:-1]}}}\n"

    def _table_change(self, note: Note, record: Ddl) -> dict[str, Any]:
        columns = [
            {"name": c["name"], "typeName": c["type"], "optional": c["nullable"], "position": place}
            for place, c in enumerate(_columns(record), start=1)
        ]
        table = {"primaryKeyColumnNames": _key(record), "columns": columns} if record.layout else None
        said = {"type": record.kind.partition(" ")[0], "id": f'"{self.database}".{note.table.sql}', "table": table}
        if record.object != note.table and record.layout:
            said["previousId"], said["id"] = said["id"], f'"{self.database}".{record.object.sql}'
        return said


class CsvFormat(Format):
    """Comma-separated values: columns about the change, then the table's. An update is two lines."""

    name = "csv"
    has_columns = True
    _OWN = ("_op", "_history", "_tick", "_n", "_committed", "_user", "_note")

    def header(self, layout: Layout | None) -> str:
        names = (_cell(column.name) for column in layout.stored) if layout else ()
        return ",".join([*self._OWN, *names]) + "\n"

    def image_sql(self, layout: Layout) -> str:
        return cells_sql(layout.stored)

    def table(self, table: Name) -> str:  # noqa: ARG002
        return ""

    def around(self, moment: RecordMoment) -> tuple[str, str]:
        committed = format_time(moment.committed) if moment.committed else ""
        return f"{moment.history},{moment.tick}", f"{committed},{_cell(moment.user)},"

    def line_parts(self, *, is_snapshot: bool) -> tuple[str, ...]:
        rest, is_update = "',' || tail || ','", "before IS NOT NULL AND after IS NOT NULL"
        operation = "CASE WHEN after IS NULL THEN 'delete' WHEN before IS NULL THEN 'insert' ELSE 'update_before' END"
        first = "'read'" if is_snapshot else operation
        second = f"CASE WHEN {is_update} THEN 'update_after,' || head || ',' ELSE '' END"
        return (
            f"{first} || ',' || head || ','",
            f"{rest} || coalesce(before, after){_LINE_END} || {second}",
            f"CASE WHEN {is_update} THEN {rest} || after{_LINE_END} ELSE '' END",
        )

    def note(self, note: Note, moment: RecordMoment, n: int) -> str:
        is_clear = isinstance(note.record, Clear)
        said = note.record.removed if isinstance(note.record, Clear) else note.record.statement
        head, tail = self.around(moment)
        return f"{'truncate' if is_clear else 'schema'},{head},{n},{tail}{_cell(str(said))}\n"

    def gap(self, gap: Gap) -> str:
        said = f"{gap.dropped} records up to here, from tick {gap.first[0]} on"
        return f"dropped,{gap.history},{gap.last[0]},{gap.last[1]},,,{_cell(said)}\n"

    def padded(self, line: str, header: str) -> str:
        (names,) = csv.reader([header])
        return line[:-1] + "," * (len(names) - len(self._OWN)) + "\n"


FORMATS: dict[str, type[Format]] = {each.name: each for each in (JsonFormat, DebeziumFormat, CsvFormat)}


def format_of(name: str) -> type[Format]:
    """Return the format of a name.

    Raises:
        InvalidError: There is none.
    """
    if name not in FORMATS:
        raise InvalidError(f"there is no format {name!r}", hint=f"--format {' or '.join(FORMATS)}")
    return FORMATS[name]


def _members(moment: RecordMoment) -> dict[str, Any]:
    committed = format_time(moment.committed) if moment.committed else None
    return {"history": moment.history, "tick": moment.tick, "committed": committed, "user": moment.user}


def _milliseconds(moment: RecordMoment) -> int | None:
    return (moment.committed - _EPOCH) // timedelta(milliseconds=1) if moment.committed else None


def _columns(ddl: Ddl) -> list[dict[str, Any]]:
    listed = ddl.layout.stored if ddl.layout else ()
    return [{"name": column.name, "type": column.type, "nullable": column.nullable} for column in listed]


def _key(ddl: Ddl) -> list[str]:
    return list(ddl.layout.primary_key) if ddl.layout else []


def _cell(text: str | None) -> str:
    if text is None:
        return ""
    must_quote = not text or any(sign in text for sign in '",\n\r')
    return '"' + text.replace('"', '""') + '"' if must_quote else text
