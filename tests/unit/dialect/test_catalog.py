"""The columns of a few plain tables are read in a quicker way, which must say the same as the usual one."""

from __future__ import annotations

import duckdb
import pytest

from wlc.dialect.duckdb import catalog

TABLES = """
    CREATE TYPE mood AS ENUM ('sad', 'it''s'); CREATE TYPE point AS STRUCT(x INTEGER, "y z" DOUBLE);
    CREATE SCHEMA "odd ""one";
    CREATE TABLE keyed (b VARCHAR, a INTEGER, c DECIMAL(9, 3), PRIMARY KEY (a, b));
    CREATE TABLE "odd ""one"."it's" ("c d" mood NOT NULL, "E" point[], f MAP(VARCHAR, TIMESTAMPTZ), g UNION(n HUGEINT));
    CREATE TABLE checked (i INTEGER UNIQUE, CHECK (i > 0)); CREATE VIEW seen AS FROM keyed; CREATE TEMP TABLE own (i BIT);
"""
WITH_DEFAULTS = ("i INTEGER DEFAULT 5", "i INTEGER, j INTEGER GENERATED ALWAYS AS (i + 1)", "i INTEGER DEFAULT NULL")


@pytest.mark.parametrize("more", ["", *WITH_DEFAULTS])
def test_both_ways_say_the_same(more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with duckdb.connect() as connection:
        connection.execute(TABLES)
        if more:
            connection.execute(f"CREATE TABLE more ({more})")
        quick = catalog.tables(connection, "memory")
        monkeypatch.setattr(catalog, "_FEW", 0)
        assert catalog.tables(connection, "memory") == quick
    assert len(quick) == 3 + bool(more)
