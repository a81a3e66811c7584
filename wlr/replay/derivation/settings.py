"""A source database's record of a database derived from it: its place, and the filters.

The record is in the source's folder, which readers of the derived database cannot read, and encrypted like its log:
conditions and names of columns reveal what is held back. Records are numbered and never changed; the newest counts.

The filters of a derived database: only named tables are derived, each through its filter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from wlc.farm.documents import Document
from wlc.farm.errors import InvalidError, UnavailableError
from wlc.farm.json_fields import History, JsonForm, Presence, Sha256, as_count, as_object, as_text, known
from wlc.farm.json_records import record_of
from wlc.farm.model import Parent
from wlc.farm.paths import DERIVED, derived_path, parse_derived_path
from wlc.farm.store import AlreadyExistsError
from wlr.engine.replica_state import StartOrPosition
from wlr.replay.plan.patterns import idle, matches
from wlr.replay.plan.row_filters import RowFilters, TableFilter, WrittenFilters

if TYPE_CHECKING:
    from collections.abc import Collection

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Name


_BEHIND = ("batch", "chain")


def _as_behind(value: object) -> tuple[int, str]:
    content = as_object(value)
    known(content, " ".join(_BEHIND))
    return as_count(content["batch"]), as_text(content["chain"])


Behind = Annotated[tuple[int, str], JsonForm(_as_behind, lambda behind: dict(zip(_BEHIND, behind, strict=True)))]


@dataclass(frozen=True, slots=True)
class Derivation:
    """A derived database, as recorded at its source.

    Attributes:
        url: URL of the derived database's folder.
        history: Its current history.
        start: Position in the source where that history begins.
        parent: The history and tick that it grew from, None for the first one.
        behind: Batch of the derived database after which it begins, and its chain hash; 0 and "" for the first one.
        choice: The filters.
    """

    may_have_info: ClassVar = True
    url: str
    history: History
    start: StartOrPosition
    mark: Sha256
    parent: Parent | None
    behind: Behind
    choice: InlineChoice


_DOCUMENT = Document("derived", Derivation, hint="Restore it from a backup, or derive another database.")


def find_derivation(database: FarmDatabase, name: str) -> tuple[Derivation, int] | None:
    """Return the newest record of a derived database, and its number; None without a record.

    Raises:
        CorruptError: The newest record is damaged.
    """
    listed = (parse_derived_path(entry.path) for entry in database.store.list(f"{DERIVED}{name}/"))
    number = max((parsed[1] for parsed in listed if parsed), default=0)
    if not number:
        return None
    path = derived_path(name, number)
    return _DOCUMENT.decode(database.store.read(path), f"{database.url}/{path}"), number


def add_derivation(database: FarmDatabase, name: str, number: int, said: Derivation) -> Derivation:
    """Add a record of a derived database; earlier records stay.

    Args:
        database: The source.
        name: Name of the derived database.
        number: Number of the new record, one more than the last.
        said: The record.

    Raises:
        UnavailableError: Another process was faster.
    """
    try:
        database.store.create(derived_path(name, number), _DOCUMENT.encode(said))
    except AlreadyExistsError as error:
        found = find_derivation(database, name)
        # The answer to our own request may have been lost.
        if found is None or found != (said, number):
            message = f"another process derived {said.url} at the same time"
            raise UnavailableError(message, hint="Try again.") from error
    return said


@dataclass(frozen=True)
class ChosenTables(RowFilters):
    """Filters that derive named tables only.

    Attributes:
        patterns: Tables that pass whole.
    """

    patterns: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tables or self.patterns)

    def of(self, table: Name) -> TableFilter | None:
        """Return the filter of a table, None if the table is not derived."""
        found = RowFilters.of(self, table)
        return found or (TableFilter(table) if self.patterns and matches(table, self.patterns) else None)

    def is_served(self, names: Collection[Name]) -> bool:
        """Return whether every filter and pattern names one of these tables."""
        folded = {name.folded for name in names}
        return not idle(self.patterns, names) and all(each.table.folded in folded for each in self.tables)

    def served(self, names: Collection[Name]) -> ChosenTables:
        """Return the filters with full names of tables.

        Raises:
            InvalidError: A filter or a pattern names no table.
        """
        if left := idle(self.patterns, names):
            known = ", ".join(sorted(map(str, names))) or "none yet"
            raise InvalidError(f"no table matches {left[0]!r}", hint=f"Tables are: {known}.")
        return replace(self, tables=self.named_as(names).tables)


def chosen_tables(filters: RowFilters | None, patterns: tuple[str, ...]) -> ChosenTables:
    """Combine filters and patterns; the result may be empty."""
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


# Its keys are merged into the surrounding object.
InlineChoice = Annotated[
    ChosenTables, Presence.INLINE, JsonForm(_as_choice, _choice_json, frozenset({"filters", "tables"}))
]
