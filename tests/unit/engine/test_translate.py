"""Constraints of a DuckDB master's table, as PostgreSQL adds them."""

from __future__ import annotations

import pytest

from wlc.farm.model import Check, Name, Reference, TableConstraint, Unique
from wlr.engine.postgres.translate import ConstraintTranslator

TRANSLATOR = ConstraintTranslator(
    {"a": "A", "b": "b"},
    lambda path: Name("public", path[-1]),
    lambda name: Name("public", name.name),
    lambda _, column: column.upper(),
)


@pytest.mark.parametrize(
    "constraint, added",
    [
        (Unique(("a",)), 'ADD UNIQUE ("A")'),
        (Unique(("b", "a")), 'ADD UNIQUE ("b", "A")'),
        (Check(("a",), "(a > 1)"), 'ADD CHECK (("A" > 1))'),
        (Check(("a",), "(a IN (1, 2))"), 'ADD CHECK (("A" IN (1, 2)))'),
        (Check(("a",), "plus(a)"), ""),
        (
            Reference(("a", "b"), Name("main", "p"), ("id", "Q")),
            'ADD FOREIGN KEY ("A", "b") REFERENCES "public"."p" ("ID", "Q") NOT VALID',
        ),
    ],
)
def test_constraints_are_translated(constraint: TableConstraint, added: str) -> None:
    assert TRANSLATOR.action(constraint)[0] == added
