"""Steps: the parts of another site's log that a site takes at a time.

Rejected rows of another site's changes.
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
    """A rejected row.

    Attributes:
        site: Where it was rejected; `detected`: when.
        source: Site whose log held it.
        source_tick: Its transaction there.
        count: Its place among the rejected rows of that transaction.
        op_type: `WRITE_ROW`, `UPDATE_ROW`, `DELETE_ROW` or `READ_ROW`.
        cause: `ROW_DOES_NOT_EXIST`, `ROW_ALREADY_EXISTS`, `DATA_IN_CONFLICT`, `TRANS_IN_CONFLICT`, or the cause for a
            transaction that could not be applied.
        pg_type: PostgreSQL's name of the conflict, None without one.
        old: The row before the transaction at its site, None if there was none.
        new: The row after it.
        local: The row where it was rejected.
        dependent: The row itself was not in conflict, but another row of its transaction, or an earlier transaction.
        resubmitted: When it was resubmitted; None if it was not.
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
        """Its id: `source:source_tick:count`; the first two name its transaction."""
        return f"{self.source}:{self.source_tick}:{self.count}"


@dataclass(frozen=True, slots=True)
class ConflictCounter(ForPeople):
    """A counter of one site's changes, by rule, or "" for no rule."""

    site: str
    rule: str
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class RejectionCount(ForPeople):
    """Number of a table's rows rejected for one cause, and of their transactions.

    Attributes:
        rule: The table's rule; "" for none.
    """

    table: Name
    cause: str
    transactions: int
    rows: int
    rule: str = ""


@dataclass(frozen=True, slots=True)
class RejectionMark:
    """The rejections up to a moment: the number of the last row, and of whole transactions."""

    row: int
    transactions: int


@dataclass(frozen=True, slots=True)
class Rejections:
    """The rejections since a mark.

    Attributes:
        transactions: Number of wholly rejected transactions.
        rows: Rows that this site rejected or evicted, by table and cause.
        own: Rows of this site's own transactions that another site has reported as rejected.
    """

    transactions: int
    rows: tuple[RejectionCount, ...]
    own: int


@dataclass(frozen=True, slots=True)
class SiteTransaction:
    """A transaction of another site's log to take.

    Attributes:
        line: Its place within the step: 1, 2, 3 …
        origin: Where it was first committed, which names its changes.
        past: Vector of that log just before it: the most that its author had seen.
        transaction: As that site published it.
        reads_past: The most that its reads had seen: the vector when it began; None without tracked reads.
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
        site: The site of the log.
        transactions: The transactions that the database lacks, in the order of that log; none if only the position
            moves.
        files: Data files of their batches, by path.
        contained: The database's vector after the step, without its own history.
        proof: The position in the log after the step, None before the end of the first batch.
        is_primary: The log is that of the primary.
        is_alone: Its one transaction changes the schema or clears a table.
        parts: The steps joined into this one; empty if it is of one batch.
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
        """Number of row images in its transactions."""
        return sum(getattr(record, "rows", 0) for each in self.transactions for record in each.transaction.records)

    @classmethod
    def joined(cls, parts: Sequence[SiteStep]) -> SiteStep:
        """Join consecutive steps of one log, at least one, into one step with the last one's position."""
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
        # A later history may reuse ticks of a former one whose end it has not seen.
        return after.transaction.tick > before.transaction.tick and contains(
            after.past, raised(before.past, [before.origin])
        )


@dataclass(frozen=True, slots=True)
class TakenCount:
    """Numbers of transactions taken, and of row images in them."""

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
    """The own transactions that a site judges before it leads as the primary.

    Attributes:
        own: Its own unjudged transactions, as the last primary would have read them.
        judged: That primary's last vector.
        ended: The logs by which they are judged.
    """

    own: SiteStep
    judged: Mapping[str, int]
    ended: tuple[EndedLog, ...]
