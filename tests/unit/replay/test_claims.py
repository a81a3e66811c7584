"""What statements say that they did is compared with the catalog of who runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

from tests.lies import lies
from tests.schema_changes import SchemaChanges
from wlc.farm.model import Name
from wlr.replay.ddl.claims import Claims, shown
from wlr.replay.plan.failure import ContradictionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.farm.model import Ddl
    from wlr.replay.ddl.claims import ShownCatalog

BEFORE = """
    CREATE TYPE mood AS ENUM ('calm', 'busy');
    CREATE TABLE other (id INTEGER PRIMARY KEY, v VARCHAR); CREATE INDEX by_value ON other (v);
    CREATE TABLE t (id INTEGER PRIMARY KEY, "A b" VARCHAR UNIQUE, n INTEGER CHECK (n > 0), m INTEGER);
    CREATE TABLE plain (a INTEGER, b INTEGER); CREATE UNIQUE INDEX by_m ON t (m); CREATE VIEW v AS FROM plain;
    CREATE SEQUENCE q; CREATE SCHEMA s; CREATE TABLE s.x (a INTEGER); CREATE VIEW s.y AS FROM s.x;
    CREATE TABLE child (p INTEGER REFERENCES other (id), n INTEGER);
    CREATE TABLE computed (a INTEGER, b INTEGER AS (a + 1), c INTEGER, d INTEGER AS (b + 1))
"""
# Every kind of statement that DuckDB replicas run.
HONEST = (
    "CREATE TABLE made (id INTEGER PRIMARY KEY, v VARCHAR UNIQUE, n INTEGER CHECK (n > 0), p INTEGER REFERENCES other (id))",
    "CREATE TABLE s.made (a INTEGER, b INTEGER, UNIQUE (a, b))",
    "CREATE OR REPLACE TABLE plain (a INTEGER, c VARCHAR)",
    "CREATE OR REPLACE TABLE plain (a INTEGER, b INTEGER)",
    "DROP TABLE plain CASCADE",
    "DROP TABLE child",
    "ALTER TABLE plain RENAME TO simple",
    "ALTER TABLE plain RENAME a TO c",
    "ALTER TABLE child RENAME n TO c",
    "ALTER TABLE plain ADD COLUMN c INTEGER DEFAULT 5",
    "ALTER TABLE plain DROP COLUMN a",
    "ALTER TABLE computed DROP COLUMN a CASCADE",
    "ALTER TABLE computed RENAME a TO e",
    "ALTER TABLE plain ALTER a TYPE VARCHAR",
    "ALTER TABLE plain ADD PRIMARY KEY (b)",
    "ALTER TABLE plain ALTER a SET DEFAULT 5",
    "CREATE INDEX i ON plain (a)",
    "CREATE UNIQUE INDEX i ON plain (b, (a + 1))",
    "DROP INDEX by_m",
    "CREATE VIEW w AS FROM t",
    "DROP VIEW v",
    "ALTER VIEW v RENAME TO w",
    "CREATE SEQUENCE r",
    "DROP SEQUENCE q",
    "CREATE TYPE e AS ENUM ('x')",
    "CREATE SCHEMA z",
    "DROP SCHEMA s CASCADE",
)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute(BEFORE)
        yield connection


def refusal(claims: Claims, told: list[Ddl], after: ShownCatalog) -> str:
    try:
        claims.refuse_contradiction(told, after)
    except ContradictionError as error:
        return error.cause
    return ""


@pytest.mark.parametrize("text", HONEST)
def test_every_lie_is_found_and_nothing_else(database: duckdb.DuckDBPyConnection, text: str) -> None:
    changes, before = SchemaChanges(database), shown(database, "memory")
    database.execute("BEGIN")
    try:
        honest = changes.run(text)
        after, claims = shown(database, "memory"), Claims(before)
        assert refusal(claims, honest, after) == ""
        for at, ddl in enumerate(honest):
            for what, lie in lies(ddl, before.schema.tables[Name("main", "other")]):
                told = [*honest[:at], lie, *honest[at + 1 :]]
                assert "the farm says of " in refusal(claims, told, after), (what, lie)
    finally:
        database.execute("ROLLBACK")
