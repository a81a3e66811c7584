"""What a site takes of another one's log at a time.

What a site rejected of the changes that another one published.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.farm.human_form import ForPeople
from wlc.farm.vectors import contains, raised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Name, Origin, TableFile, Taken, Transaction


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


@dataclass(frozen=True, slots=True)
class RejectionMark:
    """How much had been rejected at a moment: the number of the last row, and how many whole transactions."""

    row: int
    transactions: int


@dataclass(frozen=True, slots=True)
class Rejections:
    """What was rejected since a mark.

    Attributes:
        transactions: How many were rejected as a whole.
        rows: Rows that this site rejected, or that gave way here, by table and cause.
        own: Rows of this site's own transactions that another site has told that it rejected.
    """

    transactions: int
    rows: tuple[RejectionCount, ...]
    own: int


@dataclass(frozen=True, slots=True)
class SiteTransaction:
    """A transaction of another site's log that is to be taken.

    Attributes:
        line: Its place within the step: 1, 2, 3 …
        origin: Where it was first committed, which names its changes.
        past: Vector of that log just before it: what its author had seen at most.
        transaction: As that site published it.
        reads_past: What its reads had seen at most: the vector when it began; None if it has read nothing that counts.
    """

    line: int
    origin: Origin
    past: Mapping[str, int]
    transaction: Transaction
    reads_past: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class SiteStep:
    """Consecutive transactions of another site's log that are taken in one transaction of the database.

    Attributes:
        site: Whose log it is.
        transactions: Those that the database does not contain, in the order of that log; none where only the position
            moves.
        files: Of the batches that they come from, by path.
        contained: What the database contains after the step, its own history left out.
        proof: How far the log is read then, None before the end of the first batch.
        is_primary: The log is that of the primary.
        is_alone: Its one transaction changes the schema or clears a table.
        parts: The steps that were joined into this one; none where it is of one batch.
    """

    site: str
    transactions: tuple[SiteTransaction, ...]
    files: Mapping[str, TableFile]
    contained: Mapping[str, int]
    proof: Taken | None
    is_primary: bool
    is_alone: bool = False
    parts: tuple[SiteStep, ...] = ()

    @property
    def rows(self) -> int:
        """How many row images its transactions have."""
        return sum(getattr(record, "rows", 0) for each in self.transactions for record in each.transaction.records)

    @classmethod
    def joined(cls, parts: Sequence[SiteStep]) -> SiteStep:
        """Join consecutive steps of one log, at least one, into one that leads where the last of them leads."""
        if len(parts) == 1:
            return parts[0]
        transactions = [each for part in parts for each in part.transactions]
        return replace(
            parts[-1],
            transactions=tuple(replace(each, line=line) for line, each in enumerate(transactions, start=1)),
            files={path: file for part in parts for path, file in part.files.items()},
            parts=tuple(parts),
        )

    def can_join(self, step: SiteStep) -> bool:
        """Say whether the next step of the log can be taken with this one."""
        if self.is_alone or step.is_alone:
            return False
        if not (self.transactions and step.transactions):
            return True
        before, after = self.transactions[-1], step.transactions[0]
        # A history that began anew may have ticks again that another one had, and has not seen that in the end.
        return after.transaction.tick > before.transaction.tick and contains(
            after.past, raised(before.past, [before.origin])
        )


@dataclass(frozen=True, slots=True)
class TakenCount:
    """How many transactions were taken, and how many row images in them."""

    transactions: int
    rows: int


@dataclass(frozen=True, slots=True)
class EndedLog:
    """The log of a former primary, up to the batch that ended its history with the tick `last`."""

    database: FarmDatabase
    history: str
    last: int
    batch: int


@dataclass(frozen=True, slots=True)
class Succession:
    """What a site judges of itself before it leads as the primary.

    Attributes:
        own: Its own transactions that no primary has judged, as the last one would have read them.
        judged: What that one contained in the end.
        ended: The logs by which they are judged.
    """

    own: SiteStep
    judged: Mapping[str, int]
    ended: tuple[EndedLog, ...]
