"""A master's database in plain Python: a counter for each author, so that a lost or a repeated transaction shows."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from wlc.farm.config import STARTED
from wlc.farm.database import open_database
from wlc.farm.model import Manifest, Name, SequencePosition, Transaction
from wlc.masters.contract import BatchContent, Source, SourceDetails
from wlc.masters.fence import announce_snapshot
from wlc.masters.master_state import MasterState
from wlc.multi_master.site_life import SiteLife
from wlc.multi_master.site_step import RejectionMark, Rejections, TakenCount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime
    from pathlib import Path

    from wlc.farm.database import FarmDatabase
    from wlc.farm.errors import FencedError
    from wlc.farm.human_form import Progress
    from wlc.farm.model import Batch, TableFile, Taken
    from wlc.multi_master.circle_place import SiteState
    from wlc.multi_master.site_step import ConflictCounter, SiteStep

NAME = "sales"


class NotOnceError(AssertionError):
    """A transaction was lost on the way, or came twice."""


def counted(values: dict[str, int], records: Iterable[Any], where: str) -> None:
    """Apply a transaction: it takes each counter one further.

    Raises:
        NotOnceError: It does not.
    """
    for record in records:
        author = record.sequence.name
        if record.value != values.get(author, 0) + 1:
            raise NotOnceError(f"{where}: {author} is at {values.get(author, 0)}, and {record.value} came")
        values[author] = record.value


def master_state(
    farm: str, name: str, history: str, now: datetime, beat_s: float, site: SiteState | None = None
) -> MasterState:
    """What a master remembers that has published nothing."""
    return MasterState(
        farm, name, history, 0, 0, "", None, {}, None, beat_s, "wlc_logs", state=STARTED, began=now, site=site
    )


@dataclass(frozen=True)
class Entry:
    """A committed transaction that waits to be published, and how far another log is taken with it."""

    transaction: Transaction
    proof: Taken | None = None


class SimulatedSource(Source, SiteLife):
    """A master that survives the processes that work with it, and what it does as a site.

    Attributes:
        author: Whose counter it counts on.
        values: What it contains: the counter of each author.
        journal: What waits to be published.
    """

    beat_s = 0.0

    def __init__(self, author: str, state: MasterState, clock: Callable[[], datetime]) -> None:
        super().__init__(self)
        self.author, self.clock = author, clock
        self.values: dict[str, int] = {}
        self.journal: list[Entry] = []
        self.has_settled_past = state.site is None
        self._state = state
        self._last = state.began or clock()

    def __str__(self) -> str:
        return f"{self.author}.duckdb"

    def commit(self) -> None:
        """Commit a transaction of the database's own users."""
        value = self.values.get(self.author, 0) + 1
        self.values[self.author] = value
        self._journal((SequencePosition(Name("main", self.author), value),), None)

    def _journal(self, records: Sequence[Any], taken: Any) -> None:
        self._last = now = max(self.clock(), self._last + timedelta(microseconds=1))
        transaction = Transaction(0, self.author, now, now, tuple(records), origin=taken)
        self.journal.append(Entry(transaction))

    # What `publish` asks for

    @property
    def site(self) -> SimulatedSource:
        return self

    @property
    def state(self) -> MasterState:
        return self._state

    def remember(self, state: MasterState) -> None:
        self._state = state

    def elsewhere(self) -> FencedError | None:
        return None

    def refuse_gap(self) -> None:
        pass

    def last_place(self) -> str:
        return str(len(self.journal))

    def is_idle(self) -> bool:
        return not self.journal

    def publishing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def without_commits(self) -> AbstractContextManager[None]:
        return nullcontext()

    def working(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def gather(self, upto: str, *, is_each: bool) -> Iterator[SimulatedBatch | None]:
        yield SimulatedBatch(self, 1 if is_each else len(self.journal)) if self.journal else None

    @contextmanager
    def gather_again(self, batch: Batch) -> Iterator[SimulatedBatch | None]:
        count = len(batch.transactions)
        yield SimulatedBatch(self, count) if count <= len(self.journal) else None

    # What `take` asks for

    def take(self, steps: Iterable[SiteStep], fetch: Callable[[TableFile], Path]) -> TakenCount:
        count = 0
        for step in steps:
            for each in step.transactions:
                counted(self.values, each.transaction.records, f"{self} takes from {step.site}")
                self._journal(each.transaction.records, each.origin)
                count += 1
            site = self._state.site
            assert site is not None
            self._state = replace(self._state, site=site.having_taken(step.contained, step.proof))
            if step.transactions and step.proof is not None:
                self.journal[-1] = replace(self.journal[-1], proof=step.proof)
        return TakenCount(count, 0)

    def note_contained(self, site: str, tick: int) -> None:
        pass

    def refuse_rules(self, site: SiteState) -> None:
        pass

    def take_back(self, batch: Batch, chain: str, fetch: Callable[[TableFile], Path]) -> int:
        # It died before it noted what it had published.
        with self.gather_again(batch) as gathered:
            assert gathered is not None
            assert gathered.matches(batch)
            gathered.note(batch, chain)
        return 0

    # What a master does now and then

    def take_snapshot(self, database: FarmDatabase, *, is_first: bool, progress: Progress | None = None) -> Manifest:
        """Publish what was published before as a snapshot; nobody may have committed since."""
        assert not self.journal
        reached = self._state.reached()
        counters = [SequencePosition(Name("main", author), value) for author, value in sorted(self.values.items())]
        manifest = Manifest(
            self._state.name, reached.position, reached.clock, NAME, (), (), (), tuple(counters), vector=reached.vector
        )
        published = database.publish_snapshot(manifest, {})
        announce_snapshot(database, self._state)
        return published

    def details(self) -> SourceDetails:
        return SourceDetails(unpublished=len(self.journal))

    def conflict_counters(self) -> list[ConflictCounter]:
        return []

    def rejection_mark(self) -> RejectionMark:
        return RejectionMark(-1, 0)

    def rejected_since(self, mark: RejectionMark) -> Rejections:
        return Rejections(0, (), 0)

    # What a simulation does not come to

    def _unneeded(self, *_: object, **__: object) -> Any:
        raise NotImplementedError

    adopt_place = keep_options = check = install = has_objects = bypassed = warn_bypassed = _unneeded
    verify = journal_difference = publish_bypassed = uninstall = _unneeded
    held = rehearsal = inherit = disinherit = pass_sequences = renew = _unneeded
    what_only_a_primary_writes = step_down = take_over = _unneeded
    rejected_rows = resubmit = _unneeded

    @property
    def default_name(self) -> str:
        raise NotImplementedError

    @property
    def default_folder(self) -> Path:
        raise NotImplementedError


@dataclass(frozen=True)
class SimulatedBatch:
    """The first transactions of a source's journal, as `wlc.masters.contract.Gathered`."""

    source: SimulatedSource
    count: int

    @property
    def _transactions(self) -> list[Transaction]:
        first = self.source.state.tick + 1
        entries = self.source.journal[: self.count]
        return [replace(each.transaction, tick=tick) for tick, each in enumerate(entries, first)]

    def write(self) -> BatchContent:
        proofs = tuple(each.proof for each in self.source.journal[: self.count] if each.proof is not None)
        return BatchContent(NAME, self._transactions, (), {}, {}, frozenset(), taken=proofs)

    def matches(self, batch: Batch) -> bool:
        return list(batch.transactions) == self._transactions

    def note(self, batch: Batch, chain: str) -> None:
        assert self.matches(batch), "what is noted is what was gathered"
        self.source.remember(self.source.state.after(batch, chain))
        del self.source.journal[: self.count]


def database_of(source: SimulatedSource) -> FarmDatabase:
    """Where a source publishes."""
    return open_database(source.state.name, source.state.farm)
