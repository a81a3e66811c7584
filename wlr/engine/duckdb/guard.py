"""Triggers that let only replay write to replicated tables.

After a direct write, a replica is no copy any more, unnoticed until a change does not fit. DuckDB has no permissions,
so every replicated table gets a trigger for each kind of statement, which fails the statement unless the replica's
owner has put a row into `wlr.guard`. Triggers do not see DROP TABLE. A view in schema `wlr` that depends on the table
prevents DROP TABLE without CASCADE.

The replay drops the triggers of the tables that it writes to and creates them again, in the transaction of the step,
which takes a millisecond. With triggers, a large DELETE takes twice the time, although they read no row, and ALTER
TABLE refuses some changes.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.permitted_ddl import GUARD
from wlc.dialect.sql import literal, quote
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import duckdb

_KEEPER = " is replicated"
_KINDS = ("insert", "update", "delete")


def put_on(connection: duckdb.DuckDBPyConnection, catalog: str, tables: Collection[Name]) -> None:
    """Guard the unguarded ones of the tables."""
    put_back(connection, catalog, set(tables) - guarded(connection, catalog))
    keepers = {_keeper(name): name for name in tables}
    if missing := sorted(keepers.keys() - _views(connection, catalog)):
        connection.execute("SET enable_view_dependencies = true")
        for keeper in missing:
            name = keepers[keeper]
            table = f"{quote(catalog)}.{name.sql}" if name.schema.lower() == catalog.lower() else name.sql
            connection.execute(f"CREATE VIEW {quote(catalog)}.wlr.{quote(keeper)} AS SELECT 1 AS one FROM {table}")
        connection.execute("RESET enable_view_dependencies")


def put_back(connection: duckdb.DuckDBPyConnection, catalog: str, tables: Collection[Name]) -> None:
    """Restore the guards that the caller's transaction has removed."""
    for name in sorted(tables):
        for kind in _KINDS:
            _create(connection, catalog, name, kind)


def _keeper(name: Name) -> str:
    return f"{name}{_KEEPER}"


def _views(connection: duckdb.DuckDBPyConnection, catalog: str) -> set[str]:
    query = "SELECT view_name FROM duckdb_views() WHERE database_name = ? AND schema_name = 'wlr'"
    return {view for (view,) in connection.execute(query, [catalog]).fetchall()}


def let_go(connection: duckdb.DuckDBPyConnection, catalog: str, tables: Collection[Name]) -> None:
    """Allow statements to drop or alter tables until the caller's transaction restores their guards."""
    for name in sorted(tables):
        connection.execute(f"DROP VIEW IF EXISTS {quote(catalog)}.wlr.{quote(_keeper(name))}")


def _create(connection: duckdb.DuckDBPyConnection, catalog: str, name: Name, kind: str) -> None:
    # The table is not qualified with the database's name, which depends on how the file is opened; but a database named
    # like the schema makes the name ambiguous.
    lock = "wlr.wlr.guard" if catalog.lower() == "wlr" else "wlr.guard"
    message = literal(f"table {name} belongs to a replica and is read-only; to allow writes: wlr replica unlock FILE")
    connection.execute(
        f"CREATE TRIGGER {GUARD}{kind} AFTER {kind.upper()} ON {quote(catalog)}.{name.sql} FOR EACH STATEMENT"
        f" INSERT INTO {lock} SELECT error({message}) WHERE NOT EXISTS (FROM {lock})"
    )


@contextmanager
def off_for_update(connection: duckdb.DuckDBPyConnection, catalog: str, name: Name) -> Iterator[None]:
    """Make an UPDATE change rows in place: under a trigger, DuckDB deletes and inserts, which references forbid."""
    if was_guarded := name in guarded(connection, catalog):
        connection.execute(f"DROP TRIGGER {GUARD}update ON {quote(catalog)}.{name.sql}")
    yield
    if was_guarded:
        _create(connection, catalog, name, "update")


def take_off(connection: duckdb.DuckDBPyConnection, catalog: str, tables: Collection[Name]) -> None:
    """Remove the guards of tables until the caller's transaction restores them."""
    for name in sorted(tables):
        for kind in _KINDS:
            connection.execute(f"DROP TRIGGER IF EXISTS {GUARD}{kind} ON {quote(catalog)}.{name.sql}")


def guarded(connection: duckdb.DuckDBPyConnection, catalog: str) -> set[Name]:
    """Return the tables with guards."""
    rows = connection.execute(
        "SELECT schema_name, table_name FROM duckdb_triggers() WHERE database_name = ? AND starts_with(trigger_name, ?)"
        " GROUP BY ALL HAVING count(*) = 3",
        [catalog, GUARD],
    ).fetchall()
    return {Name(*row) for row in rows}
