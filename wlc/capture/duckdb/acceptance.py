"""Schema changes that replicas cannot follow are refused on the master, before they are committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.duckdb import statements
from wlc.dialect.duckdb.lexer import words
from wlc.dialect.duckdb.schema import schema_statements
from wlc.dialect.duckdb.statements import (
    OutsideStatementError,
    StatementError,
    refuse_hostile,
    refuse_hostile_macro,
    refuse_oversized,
    relations_read,
    understanding,
)
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    import duckdb

    from wlc.farm.model import Ddl, Name

_INSIDE = "create it with TEMP, or in another database that is attached; docs/security.md says what replicas may read"


def refuse_hiding(text: str) -> None:
    """Refuse a statement, before it runs, that creates a macro or type in the place of what the capture itself uses.

    Raises:
        UnsupportedError: It does.
    """
    try:
        statements.refuse_hiding(text)
    except StatementError as error:
        raise UnsupportedError(f"the statement cannot be captured: {error}", hint="choose another name") from error


def refuse_untaken(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> None:
    """Refuse a statement that every replica would refuse.

    Args:
        connection: Has run it, in a transaction that is still open.
        catalog: Name of the database.
        ddl: What would be recorded.

    Raises:
        UnsupportedError: It calls what replicas do not call, or is too long or nested too deeply.
    """
    if ddl.kind.endswith("TRIGGER"):
        # Replicas have no triggers: their effects arrive as rows.
        return
    try:
        _refuse(connection, catalog, ddl)
    except StatementError as error:
        raise UnsupportedError(f"{ddl.kind} {ddl.object} cannot be captured: {error}", hint=_INSIDE) from error


def refuse_present(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Refuse a database with an object that replicas would refuse.

    A view that reads files is no such object: replicas get one that says so in its place.

    Raises:
        UnsupportedError: There is such an object.
    """
    for ddl in (ddl for part in schema_statements(connection, catalog) for ddl in part):
        try:
            _refuse(connection, catalog, ddl)
        except OutsideStatementError as error:
            if ddl.kind != "CREATE VIEW":
                raise _untaken(ddl, error) from error
        except StatementError as error:
            raise _untaken(ddl, error) from error


def _untaken(ddl: Ddl, error: StatementError) -> UnsupportedError:
    message = f"the database has {ddl.object}, which replicas do not take: {error}"
    return UnsupportedError(message, hint="drop it; docs/security.md says what replicas may read and call")


def _refuse(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> None:
    with understanding(ddl.statement):
        refuse_oversized(ddl.statement)
        refuse_hostile(connection, catalog, ddl.statement)
        refuse_hostile_macro(connection, catalog, ddl.statement)
        _refuse_others(connection, catalog, ddl.statement)


def _refuse_others(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> None:
    """Refuse a view or macro over temporary tables, or tables of other databases."""
    read = relations_read(connection, catalog, statement)
    if not read:
        return
    databases, schemas, temporary = connection.execute(
        "SELECT (SELECT list(lower(database_name)) FROM duckdb_databases()),"
        " (SELECT list(lower(schema_name)) FROM duckdb_schemas() WHERE database_name = $1),"
        " (SELECT coalesce(list(lower(name)), []) FROM (SELECT table_name AS name FROM duckdb_tables() WHERE temporary"
        " UNION ALL SELECT view_name FROM duckdb_views() WHERE temporary AND NOT internal))",
        [catalog],
    ).fetchall()[0]
    others = {*databases} - {*schemas, catalog.lower(), "system"}
    for path in read:
        if (len(path) > 1 and path[0].lower() in others) or (len(path) == 1 and path[0].lower() in temporary):
            raise StatementError(f"{'.'.join(path)} lies outside the database")


def refuse_broken_macros(connection: duckdb.DuckDBPyConnection, catalog: str, changed: frozenset[Name]) -> None:
    """Refuse to leave a macro over something that is not there any more: no replica and no snapshot can create it.

    Args:
        connection: In a transaction that is about to be committed.
        catalog: Name of the database.
        changed: Objects that the transaction dropped, altered or renamed, under their old names.

    Raises:
        UnsupportedError: There is such a macro.
    """
    query = "SELECT macro_definition FROM duckdb_functions() WHERE database_name = ? AND NOT internal"
    names = {name.name.lower() for name in changed}
    if not any(names & words(text) for (text,) in connection.execute(query, [catalog]).fetchall()):
        return
    try:
        schema_statements(connection, catalog)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"the change cannot be captured, because replicas could not create what depends on it: {error.message}",
            hint="drop or replace the macro in the same transaction, or before",
        ) from error
