"""What a site rejected of the changes that another one published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.farm.human_form import ForPeople

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
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


@dataclass(frozen=True, slots=True)
class RejectionCount(ForPeople):
    """How many rows of a table were rejected for one cause, and of how many transactions.

    Attributes:
        rule: By which the table decides; "" for none.
    """

    table: Name
    cause: str
    transactions: int
    rows: int
    rule: str = ""


def risen(before: Iterable[RejectionCount], after: Iterable[RejectionCount]) -> list[RejectionCount]:
    """Return by how much counts have risen, in the order of `after`; those that have not are left out."""
    known = {(each.table, each.cause): each for each in before}
    found = []
    for each in after:
        old = known.get((each.table, each.cause))
        if old is None:
            found.append(each)
        elif each.rows > old.rows:
            found.append(replace(each, transactions=each.transactions - old.transactions, rows=each.rows - old.rows))
    return found


def of_whole_transactions(counters: Iterable[ConflictCounter]) -> int:
    """Return how many transactions were rejected as a whole."""
    return sum(each.value for each in counters if each.name in ("rejects", "refused"))
