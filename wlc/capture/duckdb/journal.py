"""The journal: the `wlc` schema of the master, in which the transaction that makes a change set stores it.

Tables of it:
    state    key and value: which farm, history and batch the database has reached; written by flush and master only
    layouts  a row for every table and every layout it ever had while journalled; its id names the image table
    counts   rows and digest of every table at the last published tick
    entries  a row for a transaction that is more than images of one table: its records, or that it was rolled back
    j<id>    row images of one table in one layout
    packed   in pieces, the data files of large transactions; see `wlc.capture.duckdb.packed`
    parked … for a moment, rows that refer to others; see `wlc.dialect.duckdb.parked_rows`

An image has its tick, its weight (-1 was there before, +1 is there after), the `rowid` it had, and, where there is no
entry for the transaction, the transaction's own data as JSON. Images of rows that were only read, and of a primary's
refreshes, have special weights here and weight 0 in data files; an entry names them.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from wlc.dialect import types
from wlc.dialect.sql import literal, quote
from wlc.farm.clock import format_time, read_time
from wlc.farm.errors import InvalidError
from wlc.farm.json_fields import ENCODER
from wlc.farm.json_records import record_of
from wlc.farm.model import Clear, Ddl, Layout, Name, Origin, RowRejected, SequencePosition, Taken
from wlc.farm.names import as_name, name_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    import duckdb

# Rows that an open transaction added have row ids from here on; probed at connect, never assumed.
LOCAL_ROWID = 36028797018960000
# Weights of images that change nothing.
READ, READ_EXCLUSIVELY, REFRESHED, ABSENT = 10, 11, 20, 21


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """A captured table in one layout.

    Attributes:
        id: Number of its image table.
        catalog: Name of the database it lies in.
        keys: Column lists that are unique: primary key first; None where an index on an expression is unique, too.
        has_rowid: False if one of its columns is called rowid and hides DuckDB's.
        is_altered: Its columns differ from the captured ones.
    """

    id: int
    catalog: str
    name: Name
    layout: Layout
    keys: tuple[tuple[str, ...], ...] | None = ()
    has_rowid: bool = True
    is_altered: bool = False

    @property
    def sql(self) -> str:
        """The table's full name as SQL text."""
        return f"{quote(self.catalog)}.{self.name.sql}"

    @property
    def images(self) -> str:
        """Full name of its image table as SQL text."""
        return images_sql(self.catalog, self.id)

    @property
    def columns(self) -> list[str]:
        """Names of the columns of its image table, one for each stored column."""
        return [f"c{number}" for number in range(len(self.layout.stored))]

    @property
    def values(self) -> list[str]:
        """Expressions that write the stored columns of a row, in storage types."""
        return [types.store_sql(column) for column in self.layout.stored]

    @property
    def named_values(self) -> str:
        """The same as the list of a SELECT, each called as its column of the image table."""
        return ", ".join(f"{value} AS {name}" for value, name in zip(self.values, self.columns, strict=True))


@dataclass(frozen=True, slots=True)
class JournalledImages:
    """The images of a transaction in one image table.

    Attributes:
        layout: Number of the image table.
        packed: Bytes of the data file that holds them instead of the image table; 0 if there is none.
    """

    table: Name
    layout: int
    added: int
    removed: int
    packed: int = 0


@dataclass(frozen=True, slots=True)
class JournalledReads:
    """The rows of one image table that a transaction read, and whether with the intention to write."""

    table: Name
    layout: int
    rows: int
    exclusive: bool

    @property
    def weight(self) -> int:
        """Weight of their images in the journal."""
        return READ_EXCLUSIVELY if self.exclusive else READ


@dataclass(frozen=True, slots=True)
class JournalledRefresh:
    """The rows of one image table with the primary's values, or absent there: then images hold only the key.

    Kept rows stay unchanged here, see `wlc.farm.model.RowsRefreshed`.
    """

    table: Name
    layout: int
    rows: int
    absent: bool
    kept: bool = False

    @property
    def weight(self) -> int:
        """Weight of their images in the journal."""
        return ABSENT if self.absent else REFRESHED


# Records with rows in an image table.
JournalledRows = JournalledImages | JournalledReads | JournalledRefresh
JournalRecord = JournalledRows | Ddl | Clear | SequencePosition | RowRejected


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One transaction in the journal.

    Attributes:
        committed: None for a transaction that had changes and was rolled back.
        records: In the order in which a replica must apply them.
        origin: Where the transaction was made, if it was taken from another site.
        after: Last tick that was committed when the transaction began; None for a single master.
        proof: The position in that site's log that this transaction takes, if more than its origin is known.
    """

    tick: int
    user: str
    started: datetime
    committed: datetime | None
    records: tuple[JournalRecord, ...] = ()
    origin: Origin | None = None
    after: int | None = None
    proof: Taken | None = None

    @property
    def header(self) -> str:
        """The transaction's own data as JSON, without its records."""
        if self.origin is not None or self.after or self.proof is not None:
            return _json_text(_header_json(self))
        # The same as below, in a quarter of the time.
        committed = "null" if self.committed is None else f'"{format_time(self.committed)}"'
        return f'{{"user": {_text(self.user)}, "started": "{format_time(self.started)}", "committed": {committed}}}'


def install(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Create the `wlc` schema in a database that is about to become a master."""
    schema = f"{quote(catalog)}.wlc"
    connection.execute(f"""
        CREATE SCHEMA IF NOT EXISTS {schema};
        CREATE TABLE IF NOT EXISTS {schema}.state (key VARCHAR, value VARCHAR);
        CREATE TABLE IF NOT EXISTS {schema}.layouts
            (id INTEGER, schema_name VARCHAR, table_name VARCHAR, layout VARCHAR);
        CREATE TABLE IF NOT EXISTS {schema}.counts
            (schema_name VARCHAR, table_name VARCHAR, rows BIGINT, sum UBIGINT, quick UBIGINT);
        CREATE TABLE IF NOT EXISTS {schema}.entries (tick BIGINT, entry VARCHAR);
    """)


def refuse_replica(connection: duckdb.DuckDBPyConnection, catalog: str, shown: str) -> None:
    """Refuse a replica, because replication changes it without capture.

    Raises:
        InvalidError: The database is one.
    """
    if is_replica(connection, catalog):
        message = f"{shown} is a replica, which cannot be a master"
        raise InvalidError(message, hint=f"wlr status {shlex.quote(shown)}", path=shown)


def is_replica(connection: duckdb.DuckDBPyConnection, catalog: str) -> bool:
    """Say whether a database takes its rows from another master."""
    query = "SELECT 1 FROM duckdb_tables() WHERE database_name = ? AND (schema_name, table_name) = ('wlr', 'state')"
    return bool(connection.execute(query, [catalog]).fetchall())


def read_state(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[str, str]:
    """All of `wlc.state`; empty if the database has never been a master."""
    # Without this check, DuckDB would read any caller's Python variable `state` if there is no such table.
    found = connection.execute(
        "SELECT count(*) FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'wlc' AND table_name = 'state'",
        [catalog],
    ).fetchall()
    if not found[0][0]:
        return {}
    return dict(connection.execute(f"SELECT key, value FROM {quote(catalog)}.wlc.state").fetchall())


def write_state(connection: duckdb.DuckDBPyConnection, catalog: str, values: dict[str, str]) -> None:
    """Replace the given keys of `wlc.state`, in the caller's transaction."""
    table = f"{quote(catalog)}.wlc.state"
    names = ", ".join(literal(key) for key in values)
    connection.execute(f"DELETE FROM {table} WHERE key IN ({names})")
    rows = ", ".join(f"({literal(key)}, {literal(value)})" for key, value in values.items())
    connection.execute(f"INSERT INTO {table} VALUES {rows}")


def add_layout(connection: duckdb.DuckDBPyConnection, table: CapturedTable) -> None:
    """Make the image table of a table, in the transaction that creates or alters it.

    Raises:
        UnsupportedError: A column has a type that cannot be written exactly.
    """
    columns = "".join(
        f", {name} {types.storage_type(column.type)}"
        for name, column in zip(table.columns, table.layout.stored, strict=True)
    )
    for column in table.layout.stored:
        types.store_sql(column)
    connection.execute(
        f"CREATE TABLE {table.images} (_tick BIGINT, _weight TINYINT, _rowid BIGINT, _meta VARCHAR{columns})"
    )
    layout = json.dumps(record_of(Layout).write(table.layout))
    connection.execute(
        f"INSERT INTO {quote(table.catalog)}.wlc.layouts VALUES (?, ?, ?, ?)",
        [table.id, table.name.schema, table.name.name, layout],
    )


def read_layouts(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[int, tuple[Name, Layout]]:
    """Every layout that has an image table, by id in rising order; the greatest id of a name is the current one."""
    rows = connection.execute(
        f"SELECT id, schema_name, table_name, layout FROM {quote(catalog)}.wlc.layouts ORDER BY id"
    ).fetchall()
    return {id_: (Name(schema, table), _layout(layout)) for id_, schema, table, layout in rows}


@lru_cache(maxsize=4096)
def _layout(text: str) -> Layout:
    return record_of(Layout).read(json.loads(text))


def images_sql(catalog: str, layout: int) -> str:
    """Full name of an image table as SQL text."""
    return f"{quote(catalog)}.wlc.j{layout}"


# Entries -------------------------------------------------------------------------------------------------------------


def add_entry(connection: duckdb.DuckDBPyConnection, catalog: str, entry: JournalEntry) -> None:
    """Journal a transaction, in the caller's transaction."""
    values = [entry.tick, _entry_text(entry)]
    connection.execute(f"INSERT INTO {quote(catalog)}.wlc.entries VALUES (?, ?)", values)


def _entry_text(entry: JournalEntry) -> str:
    content = _header_json(entry)
    if entry.records:
        content["records"] = [_record_json(record) for record in entry.records]
    return _json_text(content)


def add_entries(connection: duckdb.DuckDBPyConnection, catalog: str, entries: Sequence[JournalEntry]) -> None:
    """Journal many transactions at once, in the caller's transaction."""
    texts = [_entry_text(entry) for entry in entries]
    connection.execute(
        f"INSERT INTO {quote(catalog)}.wlc.entries SELECT unnest(?::BIGINT[]), unnest(?::VARCHAR[])",
        [[entry.tick for entry in entries], texts],
    )


def decode_entry(tick: int, text: str, images: JournalledImages | None = None) -> JournalEntry:
    """Decode an entry of `add_entry`, or the header of a transaction that has only images of one table."""
    content = json.loads(text)
    committed = content["committed"]
    records = (images,) if images else tuple(_as_record(record) for record in content.get("records", ()))
    return JournalEntry(
        tick,
        content["user"],
        read_time(content["started"]),
        None if committed is None else read_time(committed),
        records,
        record_of(Origin).read(content["origin"]) if "origin" in content else None,
        content.get("after"),
        record_of(Taken).read(content["proof"]) if "proof" in content else None,
    )


def raise_after(connection: duckdb.DuckDBPyConnection, table: str, column: str, before: int, rise: int) -> None:
    """Shift the `after` ticks of transactions with the ticks of transactions committed after a given tick."""
    found = connection.execute(f"SELECT {column} FROM {table} WHERE {column} LIKE '%\"after\":%'").fetchall()
    contents = {text: json.loads(text) for (text,) in found}
    shifted = {text: content for text, content in contents.items() if content.get("after", 0) > before}
    texts = [_json_text(content | {"after": content["after"] + rise}) for content in shifted.values()]
    connection.execute(
        f"UPDATE {table} SET {column} = r.shifted FROM (SELECT unnest($1::VARCHAR[]) AS text,"
        f" unnest($2::VARCHAR[]) AS shifted) AS r WHERE {column} = r.text",
        [list(shifted), texts],
    )


def last_commit(
    connection: duckdb.DuckDBPyConnection, catalog: str, layouts: Iterable[int]
) -> tuple[int, datetime | None]:
    """Greatest tick of the journal, 0 if it is empty, and the last commit time, None if nothing was committed."""
    is_committed = "entry NOT LIKE '%\"committed\": null%'"
    schema = f"{quote(catalog)}.wlc"
    sources = [f"SELECT max(tick), arg_max(entry, tick) FILTER (WHERE {is_committed}) FROM {schema}.entries"]
    sources += [f"SELECT max(_tick), arg_max(_meta, _tick) FROM {images_sql(catalog, number)}" for number in layouts]
    found = connection.execute(" UNION ALL ".join(sources)).fetchall()
    times = [decode_entry(tick, text).committed for tick, text in found if text]
    return max(tick or 0 for tick, _ in found), max((time for time in times if time), default=None)


@cache
def _text(user: str) -> str:
    return _json_text(user)


def _json_text(content: object) -> str:
    return ENCODER.encode(content)


def _header_json(entry: JournalEntry) -> dict[str, Any]:
    committed = None if entry.committed is None else format_time(entry.committed)
    content: dict[str, Any] = {"user": entry.user, "started": format_time(entry.started), "committed": committed}
    if entry.origin is not None:
        content["origin"] = record_of(Origin).write(entry.origin)
    if entry.after:
        content["after"] = entry.after
    if entry.proof is not None:
        content["proof"] = asdict(entry.proof)
    return content


def _record_json(record: JournalRecord) -> dict[str, Any]:
    match record:
        case JournalledImages(table, layout, added, removed, packed):
            change = {"id": layout, "table": name_json(table), "added": added, "removed": removed}
            return {"change": change | ({"packed": packed} if packed else {})}
        case Clear() | SequencePosition() | Ddl() | RowRejected():
            return {_KINDS[type(record)]: record_of(type(record)).write(record)}
        case JournalledReads(table, layout, rows, exclusive):
            return {"read": {"id": layout, "table": name_json(table), "rows": rows, "exclusive": exclusive}}
        case JournalledRefresh(table, layout, rows, absent, kept):
            refresh = {"id": layout, "table": name_json(table), "rows": rows, "absent": absent}
            return {"refresh": refresh | ({"kept": True} if kept else {})}


def _as_record(content: dict[str, Any]) -> JournalRecord:
    if "change" in content:
        change = content["change"]
        counts = change["added"], change["removed"], change.get("packed", 0)
        return JournalledImages(as_name(change["table"]), change["id"], *counts)
    if "read" in content:
        read = content["read"]
        return JournalledReads(as_name(read["table"]), read["id"], read["rows"], read["exclusive"])
    if "refresh" in content:
        refresh = content["refresh"]
        is_kept = refresh.get("kept", False)
        return JournalledRefresh(as_name(refresh["table"]), refresh["id"], refresh["rows"], refresh["absent"], is_kept)
    ((kind, record),) = content.items()
    return record_of(_RECORDS[kind]).read(record)


_RECORDS: dict[str, type[JournalRecord]] = {
    "clear": Clear,
    "sequence": SequencePosition,
    "ddl": Ddl,
    "rejected": RowRejected,
}
_KINDS = {record: kind for kind, record in _RECORDS.items()}
