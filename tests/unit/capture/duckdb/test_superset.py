"""Which conditions find at most one row, and VALUES lists given their columns' types."""

from __future__ import annotations

import duckdb
import pytest

from wlc.capture.duckdb import superset
from wlc.capture.duckdb.analysis import TouchEffect, analyse
from wlc.capture.duckdb.journal import CapturedTable
from wlc.capture.duckdb.superset import typed
from wlc.farm.model import Column, Layout, Name

COLUMNS = (Column("id", "BIGINT", False), Column("a", "UINTEGER"), Column("b", "VARCHAR"), Column("x", "DOUBLE"))
KEYS = (("id",), ("a", "id"), ("b",), ("x",))
TABLE = CapturedTable(1, "sales", Name("main", "t"), Layout(COLUMNS, ("id",)), KEYS)


@pytest.mark.parametrize(
    "condition, finds_one",
    [
        ("id = 5", True),
        ('"ID" = $1', True),
        ("id = $two", False),
        ("id = 5.0", False),
        ("id = -5", False),
        ("id = '5'", False),
        ("a = 5", False),
        ("a = 5 AND id = $1", True),
        ("a = 5 AND b = 'x'", False),
        ("a = 5 AND id > 1", False),
        ("b = 'x'", False),
        ("b = 5", False),
        ("x = 5", False),
        ("id = 5 = true", False),
        ("id = 5 OR true", False),
        ("id = a", False),
        ("NOT id = 5", False),
        ("(id = 5)", False),
        ("id = 5 + 1", False),
        ("a BETWEEN 1 AND id = 5", False),
    ],
)
def test_a_key_of_integers_finds_one_row(condition: str, finds_one: bool) -> None:
    effect = analyse(f"DELETE FROM t WHERE {condition}", "DELETE")
    assert isinstance(effect, TouchEffect)
    assert superset.finds_one(effect, TABLE, {"1": True, "two": False}) == finds_one


def test_a_condition_is_needed() -> None:
    effect = analyse("DELETE FROM t", "DELETE")
    assert isinstance(effect, TouchEffect)
    assert not superset.finds_one(effect, TABLE, {})


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("VALUES (1, 'x')", "VALUES (CAST(1 AS A),CAST( 'x' AS B))"),
        ("values (f(1, 2), [(3), 4]), ({'a': 5}, ',(')", None),
        ("VALUES (1, 2, 3)", "VALUES (1, 2, 3)"),
        ("SELECT 1, 2", "SELECT 1, 2"),
        ("(VALUES (1, 2))", "(VALUES (1, 2))"),
    ],
)
def test_text(query: str, expected: str | None) -> None:
    if expected is None:
        expected = "values (CAST(f(1, 2) AS A),CAST( [(3), 4] AS B)), (CAST({'a': 5} AS A),CAST( ',(' AS B))"
    assert typed(query, ["A", "B"]) == expected


def test_values_are_those_that_an_insert_makes_of_them() -> None:
    query = (
        "VALUES (0.1, ['a,', '(b'], 1), ('0.15', [], -- why )\n '2'), ('nan', NULL, (SELECT max(i) FROM range(4) r(i)))"
    )
    kinds = ["DOUBLE", "VARCHAR[]", "INTEGER"]
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (a DOUBLE, b VARCHAR[], c INTEGER)")
        connection.execute(f"INSERT INTO t {query}")
        assert connection.execute(typed(query, kinds)).fetchall()[:2] == [(0.1, ["a,", "(b"], 1), (0.15, [], 2)]
        assert connection.execute(f"FROM t EXCEPT ALL ({typed(query, kinds)})").fetchall() == []
