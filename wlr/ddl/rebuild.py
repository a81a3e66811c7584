"""DROP COLUMN where DuckDB refuses it: a column before one that an index or a key depends on.

Other engines drop such a column. Here the table is made anew without it, in the caller's transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb.lexer import tokens
from wlc.dialect.sql import literal, quote
from wlc.farm.model import AlteredObject, DbObject, Name
from wlc.farm.schema_fold import column_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

    from wlc.farm.model import Ddl

_KEYS = """
    SELECT constraint_column_names FROM duckdb_constraints() WHERE database_name = ? AND schema_name = ?
        AND table_name = ? AND constraint_type IN ('PRIMARY KEY', 'UNIQUE', 'FOREIGN KEY')
"""
_AFTERWARDS = """
    SELECT sql FROM duckdb_indexes() WHERE database_name = $1 AND schema_name = $2 AND table_name = $3 AND sql <> ''
    UNION ALL SELECT sql FROM duckdb_triggers() WHERE database_name = $1 AND schema_name = $2 AND table_name = $3
"""


@dataclass(frozen=True, slots=True)
class DroppedColumn:
    """A column that a statement drops from a table."""

    table: Name
    column: str


def blocked_column(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> DroppedColumn | None:
    """Return the column that a statement drops if DuckDB would refuse that for a key or an index behind the column.

    Args:
        connection: That will run it.
        catalog: Name of the database there.
        ddl: The statement, which may change the table that is its object.
    """
    table = ddl.object
    altered = (each for each in ddl.does if isinstance(each, AlteredObject) and each.object == DbObject("TABLE", table))
    column = next((old for each in altered for old, new in each.columns if old is not None and new is None), None)
    layout = catalogs.tables(connection, catalog).get(table) if column is not None else None
    names = column_names(layout) if layout else ()
    if column not in names:
        return None
    later = {name.lower() for name in names[names.index(column) + 1 :]}
    keys = connection.execute(_KEYS, [catalog, table.schema, table.name]).fetchall()
    depend = any(name.lower() in later for (listed,) in keys for name in listed)
    query = "SELECT count(*) FROM duckdb_indexes() WHERE database_name = ? AND schema_name = ? AND table_name = ?"
    has_index = connection.execute(query, [catalog, table.schema, table.name]).fetchall()[0][0]
    return DroppedColumn(table, column) if depend or (has_index and later) else None


def without_column(connection: duckdb.DuckDBPyConnection, catalog: str, dropped: DroppedColumn) -> None:
    """Make a table anew without a column; raises DuckDB's error if something else depends on either."""
    table, place = dropped.table, [catalog, dropped.table.schema, dropped.table.name]
    where = "WHERE database_name = ? AND schema_name = ? AND table_name = ?"
    ((sql,),) = connection.execute(f"SELECT sql FROM duckdb_tables() {where}", place).fetchall()
    stored = [c.name for c in catalogs.tables(connection, catalog)[table].stored if c.name != dropped.column]
    afterwards = [text for (text,) in connection.execute(_AFTERWARDS, place).fetchall()]
    afterwards += _comments(connection, dropped, place)
    made = Name(table.schema, f"{table.name} without {dropped.column}")
    listed = ", ".join(map(quote, stored))
    connection.execute(f"USE {quote(catalog)}.{quote(table.schema)}")
    for statement in (
        f"CREATE TABLE {made.sql} ({', '.join(_items(sql, dropped.column))})",
        f"INSERT INTO {made.sql} ({listed}) SELECT {listed} FROM {table.sql}",
        f"DROP TABLE {table.sql}",
        f"ALTER TABLE {made.sql} RENAME TO {quote(table.name)}",
        *afterwards,
    ):
        connection.execute(statement)


def _items(sql: str, column: str) -> Iterator[str]:
    """Yield what the parentheses of CREATE TABLE list, without a column."""
    listed = tokens(sql)
    opened = next(token for token in listed if token.text == "(")
    start, first, found = opened.end, None, False
    for token in listed:
        if token.start <= opened.start:
            continue
        if token.depth == 1 and first is None:
            first = token
        if (token.text == "," and token.depth == 1) or (token.text == ")" and token.depth == 0):
            if found or first is None or first.name.lower() != column.lower():
                yield sql[start : token.start].strip()
            else:
                found = True
            start, first = token.end, None
        if token.text == ")" and token.depth == 0:
            return


def _comments(connection: duckdb.DuckDBPyConnection, dropped: DroppedColumn, place: list[str]) -> list[str]:
    where = "WHERE database_name = ? AND schema_name = ? AND table_name = ? AND comment IS NOT NULL"
    sql = dropped.table.sql
    rows = connection.execute(f"SELECT comment FROM duckdb_tables() {where}", place).fetchall()
    made = [f"COMMENT ON TABLE {sql} IS {literal(text)}" for (text,) in rows]
    rows = connection.execute(f"SELECT column_name, comment FROM duckdb_columns() {where}", place).fetchall()
    made += [
        f"COMMENT ON COLUMN {sql}.{quote(column)} IS {literal(text)}"
        for column, text in rows
        if column != dropped.column
    ]
    rows = connection.execute(f"SELECT index_name, comment FROM duckdb_indexes() {where}", place).fetchall()
    names = (Name(dropped.table.schema, index) for index, _ in rows)
    return made + [f"COMMENT ON INDEX {n.sql} IS {literal(text)}" for n, (_, text) in zip(names, rows, strict=True)]
