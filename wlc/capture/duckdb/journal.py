"""The journal: the `wlc` schema of the master, where change sets wait in the transaction that made them.

Tables of it:
    state    key and value: which farm, history and batch the database has reached; written by flush and master only
    layouts  a row for every table and every layout it ever had while journalled; its id names the image table
    counts   rows and digest of every table at the last published tick
    entries  a row for a transaction that is more than images of one table: its records, or that it was rolled back
    j<id>    row images of one table in one layout

An image has its tick, its weight (-1 was there before, +1 is there after), the `rowid` it had, and, where there is no
entry for the transaction, the transaction's own data as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc import types
from wlc.fields import as_layout, layout_json
from wlc.model import Layout, Name, literal, quote

if TYPE_CHECKING:
    import duckdb

# Rows that an open transaction added have row ids from here on; probed at connect, never assumed.
LOCAL_ROWID = 36028797018960000


@dataclass(frozen=True, slots=True)
class Table:
    """A captured table in one layout.

    Attributes:
        id: Number of its image table.
        catalog: Name of the database it lies in.
        keys: Column lists that are unique: primary key first; None where an index on an expression is unique, too.
        has_rowid: False where a column of its own is called rowid and hides DuckDB's.
    """

    id: int
    catalog: str
    name: Name
    layout: Layout
    keys: tuple[tuple[str, ...], ...] | None = ()
    has_rowid: bool = True

    @property
    def sql(self) -> str:
        """The table's full name as SQL text."""
        return f"{quote(self.catalog)}.{self.name.sql}"

    @property
    def images(self) -> str:
        """Full name of its image table as SQL text."""
        return f"{quote(self.catalog)}.wlc.j{self.id}"

    @property
    def columns(self) -> list[str]:
        """Names of the columns of its image table, one for each stored column."""
        return [f"c{number}" for number in range(len(self.layout.stored))]

    @property
    def values(self) -> list[str]:
        """Expressions that write the stored columns of a row, in storage types."""
        return [types.store_sql(column) for column in self.layout.stored]


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


def read_state(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[str, str]:
    """All of `wlc.state`; empty where the database has never been a master."""
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


def add_layout(connection: duckdb.DuckDBPyConnection, table: Table) -> None:
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
    layout = json.dumps(layout_json(table.layout))
    connection.execute(
        f"INSERT INTO {quote(table.catalog)}.wlc.layouts VALUES (?, ?, ?, ?)",
        [table.id, table.name.schema, table.name.name, layout],
    )


def read_layouts(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[int, tuple[Name, Layout]]:
    """Every layout that has an image table, by id in rising order; the greatest id of a name is the current one."""
    rows = connection.execute(
        f"SELECT id, schema_name, table_name, layout FROM {quote(catalog)}.wlc.layouts ORDER BY id"
    ).fetchall()
    return {id_: (Name(schema, table), as_layout(json.loads(layout))) for id_, schema, table, layout in rows}


def add_entry(connection: duckdb.DuckDBPyConnection, catalog: str, tick: int, entry: dict[str, Any]) -> None:
    """Journal the records of a transaction."""
    text = json.dumps(entry, ensure_ascii=False)
    connection.execute(f"INSERT INTO {quote(catalog)}.wlc.entries VALUES (?, ?)", [tick, text])
