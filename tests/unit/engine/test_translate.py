"""Statements and constraints of a DuckDB master, as PostgreSQL runs and adds them."""

from __future__ import annotations

import pytest

from wlc.farm.model import Check, Name, Reference, TableConstraint, Unique
from wlr.engine.postgres.translate import ConstraintTranslator, StatementReader

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


def test_reader() -> None:
    reader = StatementReader("CREATE TABLE s.\"T\" (é VARCHAR DEFAULT ',(', b INTEGER[] CHECK (b[1:2] IS NULL));")
    assert reader.take("CREATE", "TABLE")
    assert reader.path() == ("s", "T")
    assert reader.items() == ["é VARCHAR DEFAULT ',('", "b INTEGER[] CHECK (b[1:2] IS NULL)"]
    assert reader.is_done
    with pytest.raises(ValueError, match="is not closed"):
        StatementReader("(a, (b)").items()
    with pytest.raises(ValueError, match="no name"):
        StatementReader("'text'").name()
