"""Constraints in the text of DuckDB's CREATE TABLE, for PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.errors import UnsupportedError
from wlc.model import quote
from wlr.engine.postgres.expressions import expression_sql
from wlr.engine.postgres.text import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wlc.model import Name

    Resolve = Callable[[tuple[str, ...]], Name]
    Spell = Callable[[Name, str], str]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What adds a constraint to its table ("" if it has no counterpart), and how a warning calls it."""

    sql: str
    what: str


def constraints(statement: str, spelling: dict[str, str], resolve: Resolve, spell: Spell) -> list[Constraint]:
    """Return the constraints of a table but for its primary key; NOT NULL is part of the columns.

    Args:
        statement: The whole statement.
        spelling: How columns are written, by their names in lower case.
        resolve: Finds a table or sequence.
        spell: Says how a column of another table is written.

    Raises:
        ValueError: The statement cannot be understood.
    """
    reader = Reader(statement)
    while not reader.is_done and reader.peek() != "(":
        reader.at += 1
    return [found for item in reader.items() for found in _of_item(item, spelling, resolve, spell)]


def _of_item(item: str, spelling: dict[str, str], resolve: Resolve, spell: Spell) -> Iterator[Constraint]:
    reader = Reader(item)
    if reader.take("CONSTRAINT"):
        reader.name()
    if reader.take("UNIQUE"):
        yield _unique(reader.names_in_brackets(), spelling)
    elif reader.take("FOREIGN", "KEY"):
        columns = reader.names_in_brackets()
        if reader.take("REFERENCES"):
            yield _reference(reader, _listed(columns, spelling), resolve, spell)
    elif reader.take("CHECK"):
        yield _check(reader, spelling, resolve)
    elif not (reader.peek() == "PRIMARY" and reader.peek(1) == "KEY"):
        yield from _of_column(reader, spelling, resolve, spell)


def _of_column(reader: Reader, spelling: dict[str, str], resolve: Resolve, spell: Spell) -> Iterator[Constraint]:
    column = reader.name()
    while not reader.is_done:
        if reader.peek() == "(":
            reader.items()
        elif reader.take("UNIQUE"):
            yield _unique([column], spelling)
        elif reader.take("REFERENCES"):
            yield _reference(reader, _listed([column], spelling), resolve, spell)
        elif reader.take("CHECK"):
            yield _check(reader, spelling, resolve)
        else:
            reader.at += 1


def _unique(columns: list[str], spelling: dict[str, str]) -> Constraint:
    return Constraint(f"ADD UNIQUE ({_listed(columns, spelling)})", "a UNIQUE constraint")


def _reference(reader: Reader, columns: str, resolve: Resolve, spell: Spell) -> Constraint:
    table = resolve(reader.path())
    referred = ""
    if reader.peek() == "(":
        referred = f" ({', '.join(quote(spell(table, column)) for column in reader.names_in_brackets())})"
    # The master has checked the rows.
    return Constraint(f"ADD FOREIGN KEY ({columns}) REFERENCES {table.sql}{referred} NOT VALID", "a foreign key")


def _check(reader: Reader, spelling: dict[str, str], resolve: Resolve) -> Constraint:
    start = reader.tokens[reader.at].start
    reader.items()
    text = reader.text[start : reader.tokens[reader.at - 1].end]
    try:
        return Constraint(f"ADD CHECK ({expression_sql(text, spelling, resolve)})", "a CHECK constraint")
    except UnsupportedError:
        return Constraint("", "a CHECK constraint")


def _listed(columns: list[str], spelling: dict[str, str]) -> str:
    return ", ".join(quote(spelling.get(column.lower(), column)) for column in columns)
