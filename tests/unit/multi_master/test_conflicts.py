"""What recorded statements say about the constraints of tables is what DuckDB's catalogs say."""

from __future__ import annotations

import duckdb
import pytest

from tests.schema_changes import SchemaChanges
from wlc.farm.model import Name
from wlc.farm.schema_fold import SchemaFold
from wlc.multi_master.conflicts import constraint_beside_key, has_check

pytestmark = pytest.mark.slow

# All ways in which a constraint comes to a table, moves with it, or goes.
_STATEMENTS = """
    CREATE SCHEMA s;
    CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER UNIQUE);
    ALTER TABLE T RENAME TO u;
    ALTER TABLE main.u RENAME TO "Unique";
    CREATE TABLE "A b" (k INTEGER PRIMARY KEY, v INTEGER CHECK (v > 0));
    ALTER TABLE IF EXISTS "A b" RENAME TO checked;
    CREATE TABLE parent (k INTEGER PRIMARY KEY);
    CREATE TABLE child (k INTEGER PRIMARY KEY, v INTEGER REFERENCES parent);
    ALTER TABLE child RENAME TO grandchild;
    CREATE TABLE itself (k INTEGER PRIMARY KEY, v INTEGER REFERENCES itself);
    CREATE TABLE plain (k INTEGER PRIMARY KEY, v INTEGER, "unique" VARCHAR DEFAULT 'check');
    CREATE INDEX many ON plain (v);
    CREATE TABLE s.plain (k INTEGER PRIMARY KEY, v INTEGER);
    CREATE UNIQUE INDEX once ON s.plain (v);
    CREATE TABLE s.parent (k INTEGER PRIMARY KEY);
    CREATE TABLE added (k INTEGER PRIMARY KEY, v INTEGER);
    ALTER TABLE added ADD COLUMN w INTEGER UNIQUE;
    CREATE TABLE more (k INTEGER PRIMARY KEY, v INTEGER);
    ALTER TABLE more ADD CONSTRAINT again UNIQUE (v);
    CREATE TABLE a (k INTEGER PRIMARY KEY, v INTEGER UNIQUE);
    CREATE TABLE b (k INTEGER PRIMARY KEY, v INTEGER);
    ALTER TABLE a RENAME TO c;
    ALTER TABLE b RENAME TO a;
    ALTER TABLE c RENAME TO b;
    CREATE TABLE replaced (k INTEGER PRIMARY KEY, v INTEGER UNIQUE CHECK (v > 0));
    CREATE OR REPLACE TABLE REPLACED (k INTEGER PRIMARY KEY);
    CREATE TABLE filled (k INTEGER PRIMARY KEY, v INTEGER UNIQUE);
    DROP TABLE filled;
    CREATE TABLE filled AS SELECT 1 AS k;
    CREATE OR REPLACE TABLE filled (k INTEGER PRIMARY KEY, v INTEGER UNIQUE CHECK (v > 0));
    COMMENT ON TABLE filled IS 'of much use';
    CREATE TABLE free (k INTEGER PRIMARY KEY, v INTEGER);
    CREATE UNIQUE INDEX most ON free (v);
    DROP INDEX MOST;
    CREATE SCHEMA gone;
    CREATE TABLE gone.free (k INTEGER PRIMARY KEY, v INTEGER);
    CREATE UNIQUE INDEX sole ON gone.free (v);
    DROP SCHEMA gone CASCADE;
    CREATE SCHEMA gone;
    CREATE TABLE gone.free (k INTEGER PRIMARY KEY, v INTEGER);
"""
_CONSTRAINTS = "SELECT schema_name, table_name, constraint_type, referenced_table FROM duckdb_constraints()"
_INDEXED = "SELECT schema_name, table_name FROM duckdb_indexes() WHERE is_unique"


def _catalog(connection: duckdb.DuckDBPyConnection) -> dict[Name, tuple[str | None, bool]]:
    """Return for each table a constraint beside its key, and whether it has a CHECK."""
    indexed = {(schema, table) for schema, table in connection.execute(_INDEXED).fetchall()}
    found: dict[tuple[str, str], set[str]] = {}
    for schema, table, kind, parent in connection.execute(_CONSTRAINTS).fetchall():
        found.setdefault((schema, table), set()).add(kind)
        if parent is not None:
            found.setdefault((schema, parent), set()).add(kind)
    return {
        Name(*name): (
            "a UNIQUE constraint"
            if "UNIQUE" in kinds
            else "a FOREIGN KEY"
            if "FOREIGN KEY" in kinds
            else "a UNIQUE index"
            if name in indexed
            else None,
            "CHECK" in kinds,
        )
        for name, kinds in found.items()
    }


def test_constraints_are_those_of_the_catalogs() -> None:
    found = SchemaFold()
    with duckdb.connect() as connection:
        changes = SchemaChanges(connection)
        for statement in connection.extract_statements(_STATEMENTS):
            for ddl in changes.run(statement.query):
                found.apply(ddl)
        wanted = _catalog(connection)
    said = {each.name: (constraint_beside_key(found, each), has_check(each)) for each in found.tables.values()}
    assert said == wanted
    assert {beside for beside, _ in said.values()} == {None, "a UNIQUE constraint", "a FOREIGN KEY", "a UNIQUE index"}
