"""Constraints of a DuckDB master's tables, for PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.dialect.sql import quote
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Check, Reference, Unique
from wlr.engine.postgres.expressions import expression_sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from wlc.farm.model import Name, TableConstraint


@dataclass(frozen=True, slots=True)
class ConstraintTranslator:
    """Translates constraints of one table.

    Attributes:
        spelling: How columns of the table are written, by their names in lower case.
        resolve: Finds a table or sequence that an expression names.
        place: Finds the replica's table for one of the master's.
        spelt: Returns a column of another table as it is written.
    """

    spelling: Mapping[str, str]
    resolve: Callable[[tuple[str, ...]], Name]
    place: Callable[[Name], Name]
    spelt: Callable[[Name, str], str]

    def action(self, constraint: TableConstraint) -> tuple[str, str]:
        """Return what adds a constraint to its table, "" if it has no counterpart, and its name in a warning."""
        match constraint:
            case Unique(columns):
                return f"ADD UNIQUE ({self._listed(columns)})", "a UNIQUE constraint"
            case Check(_, sql):
                return self._check(sql), "a CHECK constraint"
            case Reference(columns, to, keys):
                table = self.place(to)
                referred = ", ".join(quote(self.spelt(table, key)) for key in keys)
                # The master has checked the rows.
                added = f"ADD FOREIGN KEY ({self._listed(columns)}) REFERENCES {table.sql} ({referred}) NOT VALID"
                return added, "a foreign key"

    def _check(self, sql: str) -> str:
        try:
            return f"ADD CHECK ({expression_sql(sql, self.spelling, self.resolve)})"
        except UnsupportedError:
            return ""

    def _listed(self, columns: Iterable[str]) -> str:
        return ", ".join(quote(self.spelling.get(column.lower(), column)) for column in columns)
