"""A replica in a DuckDB file becomes a site: what guards it goes, and the journal comes, in one transaction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.statements import GUARD
from wlc.dialect.sql import quote
from wlc.farm.errors import InvalidError
from wlc.farm.json_records import record_of
from wlc.farm.model import Position

if TYPE_CHECKING:
    import duckdb


def position(connection: duckdb.DuckDBPyConnection, catalog: str) -> Position | None:
    """Return where a replica stands, None if the database is no replica.

    Raises:
        InvalidError: It was locked open, lacks tables or failed, so that it is no copy of the master.
    """
    query = "SELECT 1 FROM duckdb_tables() WHERE database_name = ? AND (schema_name, table_name) = ('wlr', 'state')"
    if not connection.execute(query, [catalog]).fetchall():
        return None
    values = dict(connection.execute(f"SELECT key, value FROM {quote(catalog)}.wlr.state").fetchall())
    is_open = bool(connection.execute(f"SELECT 1 FROM {quote(catalog)}.wlr.guard LIMIT 1").fetchall())
    if is_open or values.get("accepted", "[]") != "[]" or values.get("patterns", "[]") != "[]":
        raise InvalidError(
            "a replica that was unlocked, skipped a transaction or leaves tables out cannot become a site",
            hint="make a new one: wlr replicate DB --into FILE",
        )
    content = json.loads(values["position"])
    return record_of(Position).read(content) if content else Position("", 0)


def release(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Remove what a replica has besides its tables, in the caller's transaction; others have nothing of the kind."""
    guards = connection.execute(
        "SELECT schema_name, table_name, trigger_name FROM duckdb_triggers()"
        " WHERE database_name = ? AND starts_with(trigger_name, ?)",
        [catalog, GUARD],
    ).fetchall()
    for schema, table, trigger in guards:
        connection.execute(f"DROP TRIGGER {quote(trigger)} ON {quote(catalog)}.{quote(schema)}.{quote(table)}")
    connection.execute(f"DROP SCHEMA IF EXISTS {quote(catalog)}.wlr CASCADE")
