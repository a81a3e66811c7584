"""What is derived: only tables that somebody named, each as its filter lets it pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wlc.farm import json_fields as fields
from wlc.farm.errors import InvalidError
from wlr.plan.patterns import idle, matches
from wlr.plan.row_filters import RowFilters, TableFilter, as_filters, filters_json

if TYPE_CHECKING:
    from collections.abc import Collection

    from wlc.farm.model import Name


@dataclass(frozen=True)
class ChosenTables(RowFilters):
    """Filters that let nothing pass of a table that nobody named.

    Attributes:
        patterns: Tables that pass, too, with all of their rows and columns.
    """

    patterns: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tables or self.patterns)

    def of(self, table: Name) -> TableFilter | None:
        """Return the filter of a table, None if nothing of it is derived."""
        found = RowFilters.of(self, table)
        return found or (TableFilter(table) if self.patterns and matches(table, self.patterns) else None)

    def is_served(self, names: Collection[Name]) -> bool:
        """Say whether every filter and pattern names one of these tables."""
        folded = {name.folded for name in names}
        return not idle(self.patterns, names) and all(each.table.folded in folded for each in self.tables)

    def served(self, names: Collection[Name]) -> ChosenTables:
        """Return the choice with tables as they are really called.

        Raises:
            InvalidError: A filter or a pattern names no table.
        """
        if left := idle(self.patterns, names):
            known = ", ".join(sorted(map(str, names))) or "none yet"
            raise InvalidError(f"no table matches {left[0]!r}", hint=f"Tables are: {known}.")
        return replace(self, tables=self.named_as(names).tables)


def chosen_tables(filters: RowFilters | None, patterns: tuple[str, ...]) -> ChosenTables:
    """Return a choice, given filters and patterns; it may be empty."""
    found = filters or RowFilters()
    return ChosenTables(found.tables, found.key_file, found.key_mark, patterns=patterns)


def choice_json(choice: ChosenTables) -> dict[str, Any]:
    """Write a choice."""
    return {
        "filters": filters_json(RowFilters(choice.tables, choice.key_file, choice.key_mark)),
        "tables": list(choice.patterns),
    }


def as_choice(value: object) -> ChosenTables:
    """Read what `choice_json` wrote.

    Raises:
        ValueError, KeyError, TypeError: It is something else.
    """
    content = fields.as_object(value)
    return chosen_tables(as_filters(content["filters"]), tuple(map(fields.as_text, fields.as_list(content["tables"]))))
