"""What a transaction did to the rows of a table of a PostgreSQL master."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wlc.farm.model import Clear, Layout, Name


@dataclass(slots=True)
class Segment:
    """Rows of one table in one layout; those of transactions with values that do not fit it are apart."""

    number: int
    oid: int
    name: Name
    layout: Layout
    rows: int = 0
    has_misfits: bool = False

    @property
    def table(self) -> str:
        """Name of the table that gathers them."""
        return f"segment_{self.number}"


@dataclass(slots=True)
class Changed:
    """A transaction changed rows of a segment.

    Attributes:
        is_resend: The event triggers sent all rows of its table, and nothing else changed them.
    """

    segment: Segment
    added: int = 0
    removed: int = 0
    is_resend: bool = False

    @property
    def oid(self) -> int:
        """The table."""
        return self.segment.oid


@dataclass(slots=True)
class Cleared:
    """A transaction removed all rows of a table; `is_resend`: they follow again."""

    oid: int
    clear: Clear
    is_resend: bool
