"""What a PostgreSQL master holds, as its replicas ought to hold it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import psycopg
import pyarrow as pa

from tests.scratch import attached
from wlc.capture.postgres.types import duckdb_type
from wlc.dialect.postgres.text import read_text_sql
from wlc.dialect.sql import quote
from wlc.farm.model import Name

if TYPE_CHECKING:
    from pathlib import Path

Rows = dict[str, Counter[tuple[str | None, ...]]]
_SETTINGS = "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1 -c bytea_output=hex"
_TABLES = """
    SELECT n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attgenerated = ''),
        array_agg(format_type(coalesce(nullif(t.typbasetype, 0), a.atttypid),
            CASE WHEN t.typbasetype = 0 THEN a.atttypmod ELSE t.typtypmod END) ORDER BY a.attnum)
            FILTER (WHERE a.attgenerated = '')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid
    WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND n.nspname !~ '^pg_'
        AND n.nspname NOT IN ('information_schema', 'wlr', 'wlc') GROUP BY 1, 2
"""


def texts_of(url: str) -> Rows:
    """Every row of every table of a PostgreSQL database, in its own text form."""
    with psycopg.connect(url, options=_SETTINGS) as connection:
        return {
            str(Name(schema, table)): Counter(
                connection.execute(
                    f"SELECT {', '.join(f'{quote(c)}::text' for c in columns)} FROM ONLY {Name(schema, table).sql}"
                ).fetchall()
            )
            for schema, table, columns, _ in connection.execute(_TABLES).fetchall()
        }


def expected_in_duckdb(url: str) -> Rows:
    """Every row of a PostgreSQL master as a replica that is no PostgreSQL shows it as text."""
    expected: Rows = {}
    with psycopg.connect(url, options=_SETTINGS) as connection, duckdb.connect() as reader:
        reader.execute("SET TimeZone = 'UTC'")
        for schema, table, columns, types in connection.execute(_TABLES).fetchall():
            # A cast of character(n) to text loses blanks at the end.
            listed = ", ".join(
                f"CASE WHEN {quote(column)} IS DISTINCT FROM NULL THEN format('%s', {quote(column)}) END"
                for column in columns
            )
            rows = connection.execute(f"SELECT {listed} FROM ONLY {Name(schema, table).sql}").fetchall()
            texts = {f"c{i}": pa.array([row[i] for row in rows], pa.string()) for i in range(len(columns))}
            reader.register("t", pa.table(texts))
            read = (f"CAST({read_text_sql(duckdb_type(base), f'c{i}')} AS VARCHAR)" for i, base in enumerate(types))
            expected[str(Name(schema, table))] = Counter(reader.execute(f"SELECT {', '.join(read)} FROM t").fetchall())
    return expected


def held_in_duckdb(path: Path) -> Rows:
    """Every row of every table of a DuckDB replica, as text."""
    with attached(path) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found: Rows = {}
        query = "SELECT schema_name, table_name FROM duckdb_tables() WHERE schema_name <> 'wlr' AND NOT internal"
        for schema, table in connection.execute(query).fetchall():
            rows = connection.execute(f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM {Name(schema, table).sql}").fetchall()
            found[str(Name(schema, table))] = Counter(rows)
        return found
