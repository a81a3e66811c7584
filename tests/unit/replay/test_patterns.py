"""Which tables a replica holds, by the patterns that it was made with."""

from __future__ import annotations

import pytest

from wlc.farm.model import Name
from wlr.replay.plan.patterns import described, exactly, listed, matches


@pytest.mark.parametrize(
    ("patterns", "held"),
    [
        ((), {"main.a", "main.b", "x.a"}),
        (("a",), {"main.a", "x.a"}),
        (("main.*",), {"main.a", "main.b"}),
        (("!a",), {"main.b"}),
        (("!x.*",), {"main.a", "main.b"}),
        (("main.*", "!b"), {"main.a"}),
        (("!a", "!b"), set()),
        (("u", "main.a"), {"main.a"}),
        (("A",), set()),
        (("other.a",), set()),
    ],
)
def test_tables_are_chosen_and_left_out(patterns: tuple[str, ...], held: set[str]):
    tables = [Name("main", "a"), Name("main", "b"), Name("x", "a")]
    assert {str(table) for table in tables if matches(table, patterns)} == held


def test_patterns_are_described():
    assert described(()) == "all tables"
    assert described(("a", "!b", "!c")) == "tables a but b, c"


def test_options_become_patterns():
    assert listed(None, None) is None
    assert listed(["a"], ["b", "c"]) == ("a", "!b", "!c")


@pytest.mark.parametrize("schema", ["main", "!odd", "st*r", "[x]", "A[b]*ä"])
def test_one_table_is_named_exactly(schema: str):
    pattern = exactly(Name(schema, "a"))
    assert matches(Name(schema, "A"), [pattern])
    assert not matches(Name(schema, "ab"), [pattern])
    assert not matches(Name("main2", "a"), [pattern])
