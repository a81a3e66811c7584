"""What is derived: only tables that somebody named, each as its filter lets it pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from wlc.farm.errors import InvalidError
from wlc.farm.json_fields import JsonForm, Presence, as_object
from wlc.farm.json_records import record_of
from wlr.plan.patterns import idle, matches
from wlr.plan.row_filters import RowFilters, TableFilter, WrittenFilters

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


@dataclass(frozen=True, slots=True)
class _Choice:
    filters: WrittenFilters
    tables: tuple[str, ...]


def _as_choice(content: object) -> ChosenTables:
    found: _Choice = record_of(_Choice).read_among(as_object(content))
    return chosen_tables(found.filters, found.tables)


def _choice_json(choice: ChosenTables) -> dict[str, Any]:
    filters = RowFilters(choice.tables, choice.key_file, choice.key_mark)
    return record_of(_Choice).write(_Choice(filters, choice.patterns))


# Its keys stand among those of what is around it.
InlineChoice = Annotated[
    ChosenTables, Presence.INLINE, JsonForm(_as_choice, _choice_json, frozenset({"filters", "tables"}))
]
