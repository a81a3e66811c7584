"""The captured state of a master's objects other than tables, so that uncaptured changes of these are found.

Each captured transaction stores its changes of objects with its effect.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from wlc.capture.duckdb import schema_change
from wlc.dialect.duckdb import engine
from wlc.dialect.sql import quote
from wlc.farm.model import DbObject, Name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import duckdb

    from wlc.capture.duckdb.schema_change import CatalogEntry, ObjectKey, Objects

# In an order in which they can be dropped.
KINDS = ("INDEX", "VIEW", "SEQUENCE", "TYPE", "SCHEMA")
_Row = tuple[str, str, str, str | None, str, str]


class ChangedObject(NamedTuple):
    """An object that was changed without capture.

    Attributes:
        of: Table of an index.
        problem: Evidence of the change.
        is_known: The object existed before the change.
        is_present: The object exists now.
    """

    object: DbObject
    of: Name | None
    problem: str
    is_known: bool
    is_present: bool


def create(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Create the table of captured objects, and fill it with the present ones, unless the table exists."""
    query = "SELECT 1 FROM duckdb_tables() WHERE database_name = ? AND (schema_name, table_name) = ('wlc', 'objects')"
    if not connection.execute(query, [catalog]).fetchall():
        connection.execute(
            f"CREATE TABLE {_table(catalog)}"
            " (kind VARCHAR, schema_name VARCHAR, name VARCHAR, of VARCHAR, definition VARCHAR, version VARCHAR)"
        )
        renew(connection, catalog)


def renew(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Store the present objects as captured, in the caller's transaction."""
    connection.execute(f"DELETE FROM {_table(catalog)}")
    _add(connection, catalog, schema_change.objects(connection, catalog, macros=False).items())


def note(connection: duckdb.DuckDBPyConnection, catalog: str, changed: Collection[ObjectKey], after: Objects) -> None:
    """Store the objects that a captured statement has changed, in its transaction."""
    if noted := sorted(key for key in changed if key[0] in KINDS):
        gone = f"DELETE FROM {_table(catalog)} WHERE (kind, schema_name, name) = (?, ?, ?)"
        connection.executemany(gone, noted)
        _add(connection, catalog, [(key, after[key]) for key in noted if key in after])


def changed(connection: duckdb.DuckDBPyConnection, catalog: str) -> list[ChangedObject]:
    """Return the objects that were changed without capture, in an order in which they can be dropped."""
    known = {row[:3]: row for row in connection.execute(f"FROM {_table(catalog)}").fetchall()}
    present = {row[:3]: row for row in _rows(schema_change.objects(connection, catalog, macros=False).items())}
    found = []
    for key in sorted({**known, **present}, key=lambda key: (KINDS.index(key[0]), key)):
        before, now = known.get(key), present.get(key)
        if before is None or now is None:
            problem = "was created" if before is None else "was dropped"
        # Versions of DuckDB write definitions in different ways.
        elif before[-1] == now[-1] and before[-2] != now[-2]:
            problem = "was changed"
        else:
            continue
        kind, schema, name, of, *_ = before or now or ()
        table = None if of is None else Name(schema, of)
        made = DbObject(kind, Name(schema, name))
        found.append(ChangedObject(made, table, problem, before is not None, now is not None))
    return found


def sequences(connection: duckdb.DuckDBPyConnection, catalog: str) -> set[Name]:
    """Return the names of the captured sequences."""
    query = f"SELECT schema_name, name FROM {_table(catalog)} WHERE kind = 'SEQUENCE'"
    return {Name(*row) for row in connection.execute(query).fetchall()}


def _add(
    connection: duckdb.DuckDBPyConnection, catalog: str, entries: Iterable[tuple[ObjectKey, CatalogEntry]]
) -> None:
    if rows := _rows(entries):
        connection.executemany(f"INSERT INTO {_table(catalog)} VALUES (?, ?, ?, ?, ?, ?)", rows)


def _rows(entries: Iterable[tuple[ObjectKey, CatalogEntry]]) -> list[_Row]:
    return [(*key, entry.of, _definition(key, entry), engine.running()) for key, entry in entries if key[0] in KINDS]


def _definition(key: ObjectKey, entry: CatalogEntry) -> str:
    sql = entry.sql or ""
    if key[0] == "SEQUENCE":
        # A reopened sequence starts at its last value.
        sql = sql.partition(" ")[2]
    return hashlib.sha256(f"{sql} {entry.more}".encode()).hexdigest()


def _table(catalog: str) -> str:
    return f"{quote(catalog)}.wlc.objects"
