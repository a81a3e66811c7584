"""What a site rejected of the changes that another one published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.farm.human_form import ForPeople

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from wlc.farm.model import Name


@dataclass(frozen=True, slots=True)
class RejectedRow(ForPeople):
    """A row that was rejected.

    Attributes:
        site: Where it was rejected; `detected`: when.
        source: Site whose log had it.
        source_tick: Its transaction there.
        count: Its place among the rejected rows of that transaction.
        op_type: `WRITE_ROW`, `UPDATE_ROW`, `DELETE_ROW` or `READ_ROW`.
        cause: `ROW_DOES_NOT_EXIST`, `ROW_ALREADY_EXISTS`, `DATA_IN_CONFLICT`, `TRANS_IN_CONFLICT`, or that of a
            transaction that could not be applied.
        pg_type: PostgreSQL's name of the conflict, None if it has none.
        old: The row before the transaction at its site, None if there was none.
        new: The row after it.
        local: The row where it was rejected.
        dependent: The row itself was not in conflict: another one of its transaction was, or an earlier transaction.
        resubmitted: When it was written again; None if it was not.
    """

    site: str
    source: str
    source_tick: int
    count: int
    table: Name
    key: Mapping[str, object]
    op_type: str
    cause: str
    pg_type: str | None
    old: Mapping[str, object] | None
    new: Mapping[str, object] | None
    local: Mapping[str, object] | None
    origin_history: str
    origin_tick: int
    detected: datetime
    dependent: bool
    resubmitted: datetime | None = None

    @property
    def id(self) -> str:
        """What it is called: `source:source_tick:count`; the first two name its transaction."""
        return f"{self.source}:{self.source_tick}:{self.count}"


@dataclass(frozen=True, slots=True)
class ConflictCounter(ForPeople):
    """A counter: of the changes of one site, by rule or ("") by none."""

    site: str
    rule: str
    name: str
    value: int
