"""VALUES lists given their columns' types: as text, and by what DuckDB makes of them."""

from __future__ import annotations

import duckdb
import pytest

from wlc.capture.duckdb.superset import typed


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
