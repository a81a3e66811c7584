"""Constraints in the text of DuckDB's CREATE TABLE, for PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.dialect.sql import quote
from wlc.farm.errors import UnsupportedError
from wlr.engine.postgres.expressions import expression_sql
from wlr.engine.postgres.text import StatementReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from wlc.farm.model import Name


@dataclass(frozen=True, slots=True)
class Constraint:
    """The action that adds a constraint to its table ("" if it has no counterpart), and its name in a warning."""

    sql: str
    what: str


@dataclass(frozen=True, slots=True)
class ConstraintReader:
    """Reads all constraints that the record's layout does not say: UNIQUE, CHECK and foreign keys.

    Attributes:
        spelling: How columns of the table are written, by their names in lower case.
        resolve: Finds a table or sequence.
        spelt: Returns a column of another table as it is written.
    """

    spelling: Mapping[str, str]
    resolve: Callable[[tuple[str, ...]], Name]
    spelt: Callable[[Name, str], str]

    def read(self, statement: str) -> list[Constraint]:
        """Return the constraints of a whole CREATE TABLE statement.

        Raises:
            ValueError: The statement cannot be understood.
        """
        reader = StatementReader(statement)
        while not reader.is_done and reader.peek() != "(":
            reader.at += 1
        return [found for item in reader.items() for found in self._of_item(StatementReader(item))]

    def _of_item(self, item: StatementReader) -> Iterator[Constraint]:
        if item.take("CONSTRAINT"):
            item.name()
        if item.take("FOREIGN", "KEY"):
            columns = item.names_in_brackets()
            if item.take("REFERENCES"):
                yield self._reference(item, columns)
        elif item.take("UNIQUE"):
            yield self._unique(item.names_in_brackets())
        elif item.take("CHECK"):
            yield self._check(item)
        elif not (item.peek() == "PRIMARY" and item.peek(1) == "KEY"):
            yield from self._of_column(item.name(), item)

    def _of_column(self, column: str, item: StatementReader) -> Iterator[Constraint]:
        while not item.is_done:
            if item.peek() == "(":
                item.items()
            elif item.take("UNIQUE"):
                yield self._unique([column])
            elif item.take("REFERENCES"):
                yield self._reference(item, [column])
            elif item.take("CHECK"):
                yield self._check(item)
            else:
                item.at += 1

    def _unique(self, columns: list[str]) -> Constraint:
        return Constraint(f"ADD UNIQUE ({self._listed(columns)})", "a UNIQUE constraint")

    def _reference(self, item: StatementReader, columns: list[str]) -> Constraint:
        table = self.resolve(item.path())
        referred = ""
        if item.peek() == "(":
            referred = f" ({', '.join(quote(self.spelt(table, column)) for column in item.names_in_brackets())})"
        # The master has checked the rows.
        added = f"ADD FOREIGN KEY ({self._listed(columns)}) REFERENCES {table.sql}{referred} NOT VALID"
        return Constraint(added, "a foreign key")

    def _check(self, item: StatementReader) -> Constraint:
        text = item.bracketed()
        try:
            return Constraint(f"ADD CHECK ({expression_sql(text, self.spelling, self.resolve)})", "a CHECK constraint")
        except UnsupportedError:
            return Constraint("", "a CHECK constraint")

    def _listed(self, columns: list[str]) -> str:
        return ", ".join(quote(self.spelling.get(column.lower(), column)) for column in columns)
