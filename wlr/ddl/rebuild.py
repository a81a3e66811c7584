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
    from collections.abc import Iterable, Iterator

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
class DroppedColumns:
    """The column that a statement drops from a table, and generated columns that go with it."""

    table: Name
    columns: tuple[str, ...]


def blocked_columns(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> DroppedColumns | None:
    """Return what a statement drops if DuckDB would refuse that for a key or an index behind a column.

    Args:
        connection: That will run it.
        catalog: Name of the database there.
        ddl: The statement, which may change the table that is its object.
    """
    table = ddl.object
    altered = (each for each in ddl.does if isinstance(each, AlteredObject) and each.object == DbObject("TABLE", table))
    dropped = tuple(old for each in altered for old, new in each.columns if old is not None and new is None)
    layout = catalogs.tables(connection, catalog).get(table) if dropped else None
    names = column_names(layout) if layout else ()
    if not dropped or not {*dropped} <= {*names}:
        return None
    later = {name.lower() for name in names[min(map(names.index, dropped)) + 1 :] if name not in dropped}
    keys = connection.execute(_KEYS, [catalog, table.schema, table.name]).fetchall()
    depend = any(name.lower() in later for (listed,) in keys for name in listed)
    query = "SELECT count(*) FROM duckdb_indexes() WHERE database_name = ? AND schema_name = ? AND table_name = ?"
    has_index = connection.execute(query, [catalog, table.schema, table.name]).fetchall()[0][0]
    return DroppedColumns(table, dropped) if depend or (has_index and later) else None


def without_columns(connection: duckdb.DuckDBPyConnection, catalog: str, dropped: DroppedColumns) -> None:
    """Make a table anew without columns; raises DuckDB's error if something else depends on table or columns."""
    table, place = dropped.table, [catalog, dropped.table.schema, dropped.table.name]
    where = "WHERE database_name = ? AND schema_name = ? AND table_name = ?"
    ((sql,),) = connection.execute(f"SELECT sql FROM duckdb_tables() {where}", place).fetchall()
    stored = [c.name for c in catalogs.tables(connection, catalog)[table].stored if c.name not in dropped.columns]
    afterwards = [text for (text,) in connection.execute(_AFTERWARDS, place).fetchall()]
    afterwards += _comments(connection, dropped, place)
    made = Name(table.schema, f"{table.name} without {dropped.columns[0]}")
    listed = ", ".join(map(quote, stored))
    connection.execute(f"USE {quote(catalog)}.{quote(table.schema)}")
    for statement in (
        f"CREATE TABLE {made.sql} ({', '.join(_items(sql, dropped.columns))})",
        f"INSERT INTO {made.sql} ({listed}) SELECT {listed} FROM {table.sql}",
        f"DROP TABLE {table.sql}",
        f"ALTER TABLE {made.sql} RENAME TO {quote(table.name)}",
        *afterwards,
    ):
        connection.execute(statement)


def _items(sql: str, columns: Iterable[str]) -> Iterator[str]:
    """Yield what the parentheses of CREATE TABLE list, without columns."""
    listed, dropped = tokens(sql), {column.lower() for column in columns}
    opened = next(token for token in listed if token.text == "(")
    start, first = opened.end, None
    for token in listed:
        if token.start <= opened.start:
            continue
        if token.depth == 1 and first is None:
            first = token
        if (token.text == "," and token.depth == 1) or (token.text == ")" and token.depth == 0):
            if first is None or first.name.lower() not in dropped:
                yield sql[start : token.start].strip()
            else:
                # A constraint may begin with a word that is a column's name, too.
                dropped.remove(first.name.lower())
            start, first = token.end, None
        if token.text == ")" and token.depth == 0:
            return


def _comments(connection: duckdb.DuckDBPyConnection, dropped: DroppedColumns, place: list[str]) -> list[str]:
    where = "WHERE database_name = ? AND schema_name = ? AND table_name = ? AND comment IS NOT NULL"
    sql = dropped.table.sql
    rows = connection.execute(f"SELECT comment FROM duckdb_tables() {where}", place).fetchall()
    made = [f"COMMENT ON TABLE {sql} IS {literal(text)}" for (text,) in rows]
    rows = connection.execute(f"SELECT column_name, comment FROM duckdb_columns() {where}", place).fetchall()
    made += [
        f"COMMENT ON COLUMN {sql}.{quote(column)} IS {literal(text)}"
        for column, text in rows
        if column not in dropped.columns
    ]
    rows = connection.execute(f"SELECT index_name, comment FROM duckdb_indexes() {where}", place).fetchall()
    names = (Name(dropped.table.schema, index) for index, _ in rows)
    return made + [f"COMMENT ON INDEX {n.sql} IS {literal(text)}" for n, (_, text) in zip(names, rows, strict=True)]
