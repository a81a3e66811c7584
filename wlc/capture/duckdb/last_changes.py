"""The last commit that changed each table, for conflicts that DuckDB does not notice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wlc.farm.model import Name


@dataclass
class LastChanges:
    """The number of the last commit that changed a table, counted while the database is open."""

    removals: dict[Name, int] = field(default_factory=dict)
    additions: dict[Name, int] = field(default_factory=dict)
    alterations: dict[Name, int] = field(default_factory=dict)

    def note(
        self, commit: int, removed_from: Iterable[Name], added_to: Iterable[Name], altered: Iterable[Name]
    ) -> None:
        """Note what a commit did to tables; rows that it updated count as removed and added."""
        self.removals.update(dict.fromkeys(removed_from, commit))
        self.additions.update(dict.fromkeys(added_to, commit))
        self.alterations.update(dict.fromkeys(altered, commit))

    def has_removed_since(self, table: Name, commits: int) -> bool:
        """Say whether rows of a table were removed or changed after the database had seen so many commits."""
        return self.removals.get(table, 0) > commits

    def has_changed_since(self, table: Name, commits: int) -> bool:
        """Say the same, or that rows were added."""
        return self.has_removed_since(table, commits) or self.additions.get(table, 0) > commits

    def has_altered_since(self, table: Name, commits: int) -> bool:
        """Say whether a table was altered or dropped after the database had seen so many commits."""
        return self.alterations.get(table, 0) > commits
