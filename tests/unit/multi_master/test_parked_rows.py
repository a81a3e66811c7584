"""Rows that refer to others, moved aside and back."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb
import pytest

from wlc.dialect.duckdb.catalog import references
from wlc.dialect.duckdb.parked_rows import ParkedRows
from wlc.farm.errors import UnavailableError
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

SCHEMA = """
    CREATE SCHEMA wlc;
    CREATE TABLE wlc.state (key VARCHAR, value VARCHAR);
    CREATE TYPE kind AS ENUM ('a', 'b');
    CREATE TABLE p (a INTEGER, b VARCHAR, u INTEGER UNIQUE, PRIMARY KEY (a, b));
    CREATE TABLE "C 'x.y""z" (id INTEGER PRIMARY KEY, a INTEGER, b VARCHAR, up INTEGER REFERENCES "C 'x.y""z" (id),
        u INTEGER REFERENCES p (u), FOREIGN KEY (a, b) REFERENCES p (a, b));
    CREATE TABLE bag (c INTEGER REFERENCES "C 'x.y""z" (id), u INTEGER REFERENCES p (u), k kind, twice INTEGER AS (c * 2),
        x DOUBLE, t STRUCT(i INTEGER, l VARCHAR[]));
    INSERT INTO p SELECT range % 4, 'b' || range // 4, range FROM range(20);
    INSERT INTO "C 'x.y""z" SELECT range, range % 4, CASE WHEN range % 5 > 0 THEN 'b' || range % 5 END, NULL,
        CASE WHEN range % 3 = 0 THEN range % 20 END FROM range(40);
    INSERT INTO "C 'x.y""z" SELECT range + 40, NULL, NULL, range % 40, NULL FROM range(60);
    INSERT INTO "C 'x.y""z" SELECT range + 100, 1, 'b1', range + 40, 7 FROM range(60);
    INSERT INTO bag SELECT CASE WHEN range % 7 > 0 THEN range % 160 END, CASE WHEN range % 2 = 0 THEN range % 20 END,
        (['a', 'b'])[1 + range % 2], '-0.0'::DOUBLE, {'i': 1, 'l': ['x', NULL]} FROM range(400);
"""
CHILD, BAG, PARENT = (Name("main", name) for name in ("C 'x.y\"z", "bag", "p"))


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        opened.execute(SCHEMA)
        yield opened


def contents(connection: duckdb.DuckDBPyConnection) -> list[str]:
    tables = (PARENT, CHILD, BAG)
    return [repr(connection.execute(f"FROM {name.sql} ORDER BY ALL").fetchall()) for name in tables]


def own_tables(connection: duckdb.DuckDBPyConnection) -> set[str]:
    query = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'wlc'"
    return {name for (name,) in connection.execute(query).fetchall()}


@pytest.mark.parametrize("rows", ["u = 7", "u IN (1, 2, 3)", "a = 1", "true", "false"])
def test_rows_that_are_referred_to_can_be_changed_and_removed(connection: duckdb.DuckDBPyConnection, rows: str) -> None:
    before, parked = contents(connection), ParkedRows(connection, "memory", "wlc")
    keys = [key for key in references(connection, "memory") if key.parent == PARENT]
    names = {key: ", ".join(f"{column} AS r{n}" for n, column in enumerate(key.referred)) for key in keys}
    moved = {key: f"SELECT {names[key]} FROM p WHERE {rows}" for key in keys}
    assert parked.park(moved) == parked.tables() == (() if rows == "false" else (BAG, CHILD))
    connection.execute(f"BEGIN; DELETE FROM p WHERE {rows}; ROLLBACK")
    connection.execute(f"BEGIN; UPDATE p SET u = -1 - u WHERE {rows}; UPDATE p SET u = -1 - u WHERE u < 0; COMMIT")
    assert own_tables(connection) == {"state", *(("parked 0", "parked 1") if parked.tables() else ())}
    assert parked.bring_back() == (() if rows == "false" else (BAG, CHILD))
    assert contents(connection) == before
    assert own_tables(connection) == {"state"}
    assert parked.tables() == parked.bring_back() == ()


def test_only_rows_that_refer_are_parked(connection: duckdb.DuckDBPyConnection) -> None:
    parked = ParkedRows(connection, "memory", "wlc")
    (key,) = (key for key in references(connection, "memory") if (key.table, key.parent) == (BAG, PARENT))
    referring = connection.execute("SELECT count(*) FROM bag WHERE u = 8").fetchall()
    assert parked.park({key: "SELECT 8 AS r0 UNION ALL SELECT 8"}) == (BAG,)
    assert connection.execute(f"SELECT count(*) FROM {parked.relation(0)}").fetchall() == referring


def test_tables_are_opened_in_each_transaction(connection: duckdb.DuckDBPyConnection) -> None:
    opened: list[Collection[Name]] = []

    @contextmanager
    def opening(names: Collection[Name]) -> Iterator[None]:
        opened.append(set(names))
        yield

    parked = ParkedRows(connection, "memory", "wlc", opening)
    (key,) = (key for key in references(connection, "memory") if key.table == key.parent)
    parked.park({key: "SELECT range AS r0 FROM range(3)"})
    parked.bring_back()
    assert opened == [{BAG}, {CHILD}, {CHILD}, {BAG, CHILD}]


def test_a_rescue_that_fails_says_what_is_where(connection: duckdb.DuckDBPyConnection) -> None:
    parked = ParkedRows(connection, "memory", "wlc")
    (key,) = (key for key in references(connection, "memory") if key.table == key.parent)
    parked.park({key: "SELECT 0 AS r0"})
    connection.execute(f"INSERT INTO {CHILD.sql} (id) VALUES (40)")
    with pytest.raises(UnavailableError, match="those of main.C .x.y.z into .memory..wlc..parked 1., and cannot"):
        parked.rescue("a.duckdb")
    connection.execute(f"DELETE FROM {CHILD.sql} WHERE id = 40")
    parked.rescue("a.duckdb")
    assert own_tables(connection) == {"state"}
