"""Listings of a master's catalog are those of a plain database, but for the schema wlc."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
from tests.suites.listings import without_own

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.capture.duckdb.connection import Connection

LISTINGS = [
    "FROM duckdb_tables()",
    "SELECT * FROM duckdb_columns ORDER BY ALL",
    "SELECT count(*) FROM duckdb_columns() AS c JOIN duckdb_tables() AS t USING (table_name)",
    "SELECT t.table_name FROM range(2), duckdb_tables() AS t",
    "SHOW ALL TABLES",
    "SHOW SCHEMAS;",
    "DESCRIBE",
    "show all;",
    "SELECT duckdb_tables.table_name, column_name FROM duckdb_tables JOIN duckdb_columns USING (table_oid)",
    "SELECT table_schema, table_name, table_type FROM information_schema.tables",
    "SELECT count(*) FROM information_schema.schemata",
    "SELECT nspname FROM pg_catalog.pg_namespace",
    "FROM duckdb_triggers()",
    "SELECT index_name, sql FROM duckdb_indexes()",
    "FROM duckdb_constraints()",
    "SELECT type_name FROM duckdb_types() WHERE NOT internal",
]
MADE = "CREATE TYPE m AS ENUM ('a'); CREATE TABLE t (i INTEGER PRIMARY KEY, s m); CREATE VIEW v AS FROM t; CREATE INDEX x ON t (s)"


def listed(connection: Connection | duckdb.DuckDBPyConnection, query: str) -> list[str]:
    try:
        return sorted(map(repr, connection.execute(query).fetchall()))
    except duckdb.BinderException:
        # The query needs the numbers that this form of it leaves out.
        return []


@pytest.mark.slow
def test_only_the_schema_wlc_differs(tmp_path: Path) -> None:
    path = tmp_path / "memory.duckdb"
    wlc.master(path, farm="memory://listings", name=tmp_path.name, beat_s=3600, create=True)
    with wlc.connect(path) as master, duckdb.connect() as plain:
        for connection in (master, plain):
            connection.execute(MADE)
        assert master.execute("FROM duckdb_tables()").fetchall() != plain.execute("FROM duckdb_tables()").fetchall()
        for query in LISTINGS:
            shown = without_own(query)
            found = [[listed(c, one) for c in (master, plain)] for one in shown]
            assert any(own == other and own for own, other in found) or "triggers" in query, query
            plain.execute("CREATE TABLE more (j INTEGER PRIMARY KEY)")
            if "duckdb_tables()" in query or query.startswith(("SHOW ALL", "SELECT * FROM duckdb_columns")):
                found = [[listed(c, one) for c in (master, plain)] for one in shown[:1]]
                assert all(own != other for own, other in found), f"a difference would not be seen in {query}"
            plain.execute("DROP TABLE more")


@pytest.mark.parametrize(
    "sql", ["CREATE VIEW v AS FROM duckdb_tables()", "SELECT 1, duckdb_tables FROM t", "SHOW TABLES", "SELECT 1"]
)
def test_what_is_no_query_of_a_listing_stays(sql: str) -> None:
    assert without_own(sql) == []
