"""What a database contains, as Python's values, so that DuckDB and PostgreSQL can be compared."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.json import set_json_loads

from tests.scratch import attached
from wlc.dialect.duckdb.catalog import tables
from wlc.dialect.sql import quote

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

Held = dict[str, Counter[str]]
_TABLES = """
    SELECT n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attname) FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_attribute a
        ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'wlr', 'wlc', 'pg_toast')
        AND n.nspname NOT LIKE 'pg_temp%' GROUP BY 1, 2
"""


def held_by_postgres(url: str, main: str = "public") -> Held:
    """Every row of every table, with its multiplicity; schema `main` is called as the master calls it."""
    found: Held = {}
    with psycopg.connect(url) as connection:
        set_json_loads(json.loads, connection)
        connection.execute("SET TimeZone = 'UTC'")
        for schema, table, columns in connection.execute(_TABLES).fetchall():
            listed = ", ".join(map(quote, columns))
            rows = connection.execute(f"SELECT {listed} FROM {quote(schema)}.{quote(table)}").fetchall()
            found[f"{'main' if schema == main else schema}.{table}"] = Counter(map(shown, rows))
    return found


def held_by_duckdb(path: Path) -> Held:
    """The same of a DuckDB file that nobody has open."""
    with attached(path) as connection:
        return held_in(connection, connection.execute("SELECT current_database()").fetchall()[0][0])


def held_in(connection: duckdb.DuckDBPyConnection, catalog: str) -> Held:
    """The same of a DuckDB database that is open."""
    found = {}
    for name, layout in tables(connection, catalog).items():
        listed = ", ".join(quote(column) for column in sorted(column.name for column in layout.columns))
        rows = connection.execute(f"SELECT {listed} FROM {quote(catalog)}.{name.sql}").fetchall()
        found[str(name)] = Counter(map(shown, rows))
    return found


def shown(row: tuple[Any, ...]) -> str:
    """A row as text that is the same for equal values of the two drivers."""
    return repr([_plain(value) for value in row])


def _plain(value: Any) -> Any:
    match value:
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC)
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case bytearray() | memoryview():
            return bytes(value)
        case _:
            return value
