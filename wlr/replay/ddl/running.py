"""Schema changes from the farm: checked, then run as recorded.

A statement from the farm is untrusted data. It runs only if it is a single statement of a kind that changes a schema,
and names no object of dbfarm and nothing outside the database (see `wlc.dialect.duckdb.permitted_ddl`). The connection
cannot reach files while it runs (see `wlr.engine.calculator.Scratch`).

Refusals of `wlc.dialect.duckdb.permitted_ddl` become failures of a step.

DROP COLUMN where DuckDB refuses it: a column before one that an index or a key depends on.

Other engines drop such a column. Here the table is rebuilt without it, in the caller's transaction.
"""

from __future__ import annotations

import re
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb import permitted_ddl, settings
from wlc.dialect.duckdb.lexer import tokens, without_comments
from wlc.dialect.duckdb.permitted_ddl import OWN as OWN
from wlc.dialect.duckdb.permitted_ddl import short as short
from wlc.dialect.sql import literal, quote
from wlc.farm.model import AlteredObject, DbObject, Name
from wlc.farm.schema_fold import column_names
from wlr.replay.ddl.limits import bounded, limited
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wlc.farm.model import Ddl, SequencePosition


_ALLOWED = {"CREATE", "ALTER", "DROP"}
_ALTERS_TABLE = re.compile(r"\s*ALTER\s+TABLE\b", re.IGNORECASE)


def check(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> None:
    """Refuse a statement that is no ordinary schema change.

    Args:
        connection: The connection that will run it.
        catalog: Name of the database there.
        ddl: The schema change.

    Raises:
        OutsideError: It makes a view that reads outside the database.
        StepError: The text is several statements, of another kind, or about an object of dbfarm or another owner.
    """
    with understanding(ddl.statement), limited(connection, ddl.statement), bounded(connection):
        _check(connection, catalog, ddl)


def _check(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> None:
    refuse_oversized(ddl.statement)
    try:
        kinds = [statement.type.name for statement in connection.extract_statements(ddl.statement)]
    except duckdb.Error as error:
        raise StepError(f"statement cannot be parsed: {error}", table=str(ddl.object)) from error
    # DuckDB adds a column with a computed default in several steps, which it calls one statement of type MULTI.
    is_allowed = kinds == ["MULTI"] and _ALTERS_TABLE.match(without_comments(ddl.statement)) is not None
    is_allowed = is_allowed or (len(kinds) == 1 and kinds[0] in _ALLOWED)
    if not is_allowed or ddl.dialect != "duckdb":
        message = f"not one schema change in DuckDB's dialect: {short(ddl.statement)}"
        raise StepError(message, table=str(ddl.object))
    if any(schema.lower() in OWN for schema in (ddl.object.schema, *ddl.search_path)):
        message = f"the farm must not change schemas wlc and wlr: {short(ddl.statement)}"
        raise StepError(message, table=str(ddl.object))
    if not settings.is_allowed(ddl.settings):
        message = f"settings that change no statement's meaning: {dict(ddl.settings)} of {short(ddl.statement)}"
        raise StepError(message, table=str(ddl.object))
    try:
        refuse_hostile(connection, catalog, ddl.statement)
    except StepError as error:
        error.table = str(ddl.object)
        raise


def without_outside(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> Ddl:
    """Check a statement of a snapshot; replace a view that reads outside the database by one that raises an error.

    Masters may have such views, and later statements may name them. Raises as `check` does.
    """
    try:
        check(connection, catalog, ddl)
    except OutsideError as error:
        warnings.warn(f"view {ddl.object} is left out: {error.cause}", stacklevel=2)
        said = literal(f"view {ddl.object} was left out of this replica: it reads outside the database")
        path = ddl.object.sql if ddl.object.schema else quote(ddl.object.name)
        return replace(ddl, statement=f"CREATE VIEW {path} AS SELECT error({said}) AS left_out")
    return ddl


def run(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> Name | None:
    """Run a checked statement.

    After a failure the connection may still look up names in the statement's schema.

    Returns:
        The table that was rebuilt for it, which is the same table to the master; None without one.

    Raises:
        StepError: The statement took too long, or made a macro that reads outside the database.
    """
    dropped = blocked_columns(connection, catalog, ddl)
    connection.execute(settings.search_path_sql(catalog, ddl.search_path))
    if dropped is not None:
        without_columns(connection, catalog, dropped)
    else:
        with understanding(ddl.statement), limited(connection, ddl.statement), bounded(connection):
            with settings.applied(connection, ddl.settings):
                connection.execute(ddl.statement)
            refuse_hostile_macro(connection, catalog, ddl.statement)
    connection.execute(f"USE {quote(catalog)}.main")
    return dropped.table if dropped else None


def set_sequence(connection: duckdb.DuckDBPyConnection, catalog: str, sequence: SequencePosition) -> None:
    """Set the position of a sequence."""
    name = literal(f"{quote(catalog)}.{sequence.sequence.sql}")
    connection.execute(f"SELECT setval({name}, {sequence.value})")


class OutsideError(StepError):
    """A view or macro reads outside the database."""


@contextmanager
def _judging() -> Iterator[None]:
    try:
        yield
    except permitted_ddl.OutsideStatementError as error:
        raise OutsideError(str(error)) from error
    except permitted_ddl.StatementError as error:
        raise StepError(str(error)) from error


@contextmanager
def understanding(statement: str) -> Iterator[None]:
    """Turn our own error about a statement from the farm into a failure of the statement, which can be accepted."""
    with _judging(), permitted_ddl.understanding(statement):
        yield


def refuse_oversized(statement: str) -> None:
    """Refuse a statement for which a parser could need too much memory or stack."""
    with _judging():
        permitted_ddl.refuse_oversized(statement)


def refuse_hostile(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> None:
    """Refuse a statement that is no ordinary schema change; see `wlc.dialect.duckdb.permitted_ddl`."""
    with _judging():
        permitted_ddl.refuse_hostile(connection, catalog, statement)


def refuse_hostile_macro(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> None:
    """Refuse a macro that reads outside the database, right after its creation and before any call."""
    with _judging():
        permitted_ddl.refuse_hostile_macro(connection, catalog, statement)


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
    """The column that a statement drops from a table, and the generated columns dropped with it."""

    table: Name
    columns: tuple[str, ...]


def blocked_columns(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> DroppedColumns | None:
    """Return the columns that a statement drops, if DuckDB would refuse that for a key or an index on a later column.

    Args:
        connection: The connection that will run it.
        catalog: Name of the database there.
        ddl: The statement, whose object may be the table.
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
    """Rebuild a table without columns; raises DuckDB's error if another object depends on table or columns."""
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
    """Yield the items in the parentheses of CREATE TABLE, without columns."""
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
                # A constraint may begin with a word that is also a column's name.
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
