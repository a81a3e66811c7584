"""Which conditions find at most one row."""

from __future__ import annotations

import pytest

from wlc.capture.duckdb import superset
from wlc.capture.duckdb.analysis import TouchEffect, analyse
from wlc.capture.duckdb.journal import CapturedTable
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
