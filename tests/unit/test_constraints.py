"""Constraints of a CREATE TABLE of DuckDB, as PostgreSQL adds them."""

from __future__ import annotations

import pytest

from wlc.farm.model import Name
from wlr.engine.postgres.constraints import ConstraintReader

READER = ConstraintReader({"a": "A", "b": "b"}, lambda path: Name("public", path[-1]), lambda _, column: column.upper())


@pytest.mark.parametrize(
    "columns, added",
    [
        ("a INTEGER PRIMARY KEY, b VARCHAR NOT NULL DEFAULT 'UNIQUE', PRIMARY KEY (a, b)", []),
        ("a INTEGER UNIQUE, UNIQUE (b, a)", ['ADD UNIQUE ("A")', 'ADD UNIQUE ("b", "A")']),
        ("a DECIMAL(5,2) CHECK ((a > 1))", ['ADD CHECK ((("A" > 1)))']),
        ("b VARCHAR, CONSTRAINT c CHECK (a IN (1, 2))", ['ADD CHECK (("A" IN (1, 2)))']),
        ("a INTEGER CHECK (plus(a))", [""]),
        (
            "a INTEGER REFERENCES p (id), FOREIGN KEY (a, b) REFERENCES s.q",
            [
                'ADD FOREIGN KEY ("A") REFERENCES "public"."p" ("ID") NOT VALID',
                'ADD FOREIGN KEY ("A", "b") REFERENCES "public"."q" NOT VALID',
            ],
        ),
    ],
)
def test_constraints_are_read(columns: str, added: list[str]) -> None:
    assert [found.sql for found in READER.read(f"CREATE TABLE t ({columns});")] == added


@pytest.mark.parametrize(
    "columns", ["a INTEGER CHECK", "CHECK", "UNIQUE", "FOREIGN KEY", "REFERENCES", "a INTEGER REFERENCES"]
)
def test_what_is_broken_is_refused(columns: str) -> None:
    if columns == "REFERENCES":
        # A column of that name has no constraint.
        assert READER.read(f"CREATE TABLE t ({columns})") == []
        return
    with pytest.raises(ValueError, match="no (list|name)"):
        READER.read(f"CREATE TABLE t ({columns})")
