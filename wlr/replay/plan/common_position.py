"""Finds the position of a replica in another log of the same database, without copying a row.

A replica of site B holds the transactions that B took from A. The footers of B's log record them, in the batch that
completes them: the vector, B's own last tick, and the position that B had read in A's log (the proof). The replica
stores all this with its rows. So it can continue from A's log without a rebuild if five things are proven:

1. It holds exactly the data that every hop passed on: the filters are the same, no transaction was skipped.
2. There is a proof: B had read A's log, or A had read B's.
3. The log that was read still exists: the chain of log files proves that.
4. There is a tick of A's log up to which it holds exactly the replica's transactions, by their vectors.
5. The digests of the replica's tables equal those of A at this tick.

CouchDB compares sessions that source and target store. A log that never changes needs none: facts of a batch stay true.

The contents of a copy of a database: transactions of its own log and of other sites, and the proofs of both.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain as chained
from typing import TYPE_CHECKING, Protocol

from wlc.farm.digest import DIFFERS, UNKNOWN, compared
from wlc.farm.human_form import ForPeople
from wlc.farm.json_fields import TickFrom0, Ticks
from wlc.farm.log_columns import Transactions
from wlc.farm.model import Position, Taken
from wlc.farm.vectors import contains, expanded, raised
from wlc.multi_master.anchors import anchor
from wlr.replay.plan.bounds import goes_on
from wlr.replay.plan.patterns import described, hash_of, matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from wlc.farm.model import Batch, Digest, Manifest, Name, Transaction
    from wlc.farm.vectors import Lineage


@dataclass(frozen=True, slots=True)
class Refusal(ForPeople):
    """Why a replica cannot continue from another log.

    Attributes:
        nearest: The event to wait for or the first step to take; empty if only a new replica helps.
        common: Last tick of the other log that the replica is known to hold; None if unknown.
        is_expired: The proof was pruned.
    """

    reason: str
    nearest: str
    common: int | None = None
    is_expired: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a log.

    Attributes:
        batch_last: Last tick of its batch.
        catalog: Name that DDL text gives the database there; "" if unknown.
        clock: Commit time of its transaction, None if unknown.
    """

    position: Position
    batch_last: int
    contained: Contained
    catalog: str = ""
    clock: datetime | None = None


class Held(Protocol):
    """The required fields of a replica: `wlr.engine.replica_state.ReplicaState` is one."""

    @property
    def position(self) -> Position: ...
    @property
    def contained(self) -> Contained: ...
    @property
    def tables(self) -> tuple[str, ...]: ...
    @property
    def accepted(self) -> frozenset[int]: ...
    @property
    def is_unlocked(self) -> bool: ...


class SourceLog(Protocol):
    """The log from which a replica is to continue.

    Attributes:
        site: Its name in messages.
        numbers: Numbers of its batches, rising.
        start: Position before its first batch, None if unknown.
        lineage: The parents of histories.
    """

    @property
    def site(self) -> str: ...
    @property
    def numbers(self) -> Sequence[int]: ...
    @property
    def start(self) -> Point | None: ...
    @property
    def lineage(self) -> Lineage: ...
    def batch(self, number: int) -> tuple[Batch, str]:
        """Read a batch and its chain hash."""

    def digests(self, position: Position) -> Mapping[Name, Digest]:
        """Return the known digests at a position."""


class HomeLog(Protocol):
    """The log that the replica reads now, if it can be reached."""

    @property
    def site(self) -> str: ...
    def chain(self, number: int) -> str | None:
        """Return the chain hash of a batch, None if unknown."""

    def earlier_proofs(self) -> Iterator[Taken]:
        """Yield the positions in other logs that earlier batches had read, the newest first."""


def fast_forward(
    state: Held, source: SourceLog, home: HomeLog | None = None, held: Mapping[Name, Digest] | None = None
) -> Position | Refusal:
    """Return the position in another log from which a replica can continue, or the refusal; see `meeting_point`."""
    found = meeting_point(state, source, home, held)
    return found.position if isinstance(found, Point) else found


def meeting_point(
    state: Held, source: SourceLog, home: HomeLog | None = None, held: Mapping[Name, Digest] | None = None
) -> Point | Refusal:
    """Return the place in another log from which a replica can continue, or the refusal.

    Args:
        state: The replica's state.
        source: The other log.
        home: The log that it reads now; less can be proven without it.
        held: Digests of all tables of the replica, computed from its rows.
    """
    search = _Search(state, source, home)
    found = search.refuse_other_content() or search.point()
    if isinstance(found, Point):
        problem = (
            search.refuse_missing(found)
            or search.refuse_break(found)
            or search.refuse_unproven(found)
            or search.refuse_other_rows(found, held or {})
        )
        return problem or found
    return found


class _Search:
    def __init__(self, state: Held, source: SourceLog, home: HomeLog | None) -> None:
        self._state = state
        self._source = source
        self._home = home
        self._lineage = source.lineage
        self._mine = expanded(state.contained.vector, self._lineage)
        self._home_histories = self._with_ancestors(state.position.history)
        newest = source.batch(source.numbers[-1])[0].history if source.numbers else ""
        first = source.start.position.history if source.start else ""
        self._source_histories = self._with_ancestors(newest) | self._with_ancestors(first)

    def _with_ancestors(self, history: str) -> set[str]:
        return {history, *(ancestor for ancestor, _ in self._lineage.ancestors(history))} if history else set()

    # 1

    def refuse_other_content(self) -> Refusal | None:
        """Refuse a replica whose rows differ from its own log, or from the data that every hop passed on."""
        state = self._state
        if state.accepted:
            ticks = ", ".join(map(str, sorted(state.accepted)))
            return Refusal(f"the replica has skipped transaction {ticks}", "Repair its tables: wlr repair")
        if state.is_unlocked:
            return Refusal(
                "the replica is unlocked, so its owner may have written to its tables", "wlr replica lock, then again"
            )
        for proof in state.contained.proofs:
            if proof.history in self._source_histories and proof.filters not in ("", hash_of(state.tables)):
                here = described(state.tables)
                return Refusal(
                    f"site {self._own_site} took only a part of {proof.site}; the replica holds {here}", _REBUILD
                )
        return None

    @property
    def _own_site(self) -> str:
        return self._home.site if self._home else "that the replica reads"

    # 4

    def point(self) -> Point | Refusal:
        """Return the last place of the log up to which the replica holds everything."""
        source = self._source
        numbers = source.numbers
        if not numbers:
            return source.start or Refusal(f"{source.site} has no log and no snapshot", _REBUILD)
        first, stop = numbers[0], numbers[-1]
        found = anchor(first, stop, self._footer, self._mine, floor=first - 1, lineage=self._lineage)
        place = source.start if found == first else self._end_of((found or stop + 1) - 1)
        if place is None or (found == first and not self._holds(place)):
            # The replica lacks transactions before the oldest batch.
            return self._begins_later(source.batch(first)[0])
        for number in range(found or stop + 1, stop + 1):
            batch, chain = source.batch(number)
            count = next((n for n, t in enumerate(batch.transactions) if self._lacks(t, batch.history)), None)
            if count == 0:
                break
            if count is not None:
                return within(batch, chain, count, place.contained)
            place = self._end_of(number)
        return place

    def _holds(self, start: Point) -> bool:
        """Return whether the replica holds everything contained at the start of the log."""
        own = start.contained.own
        there = {
            history: tick if own is None or history not in self._source_histories else min(tick, own)
            for history, tick in start.contained.vector.items()
        }
        return contains(self._mine, there, self._lineage)

    def _footer(self, number: int) -> Mapping[str, int]:
        return self._source.batch(number)[0].vector

    def _end_of(self, number: int) -> Point:
        return end_of(*self._source.batch(number))

    def _lacks(self, transaction: Transaction, history: str) -> bool:
        if transaction.committed is None or not transaction.records:
            return False
        origin = transaction.origin
        named, tick = (origin.history, origin.tick) if origin else (history, transaction.tick)
        return self._mine.get(named, 0) < tick

    def _begins_later(self, batch: Batch) -> Refusal:
        reason = f"the log of {self._source.site} begins at tick {batch.first}, which the replica does not hold"
        return Refusal(reason, _REBUILD, is_expired=True)

    def refuse_missing(self, point: Point) -> Refusal | None:
        """Refuse a place that lacks a transaction of the replica."""
        there = expanded(point.contained.vector, self._lineage)
        numbers = self._source.numbers
        at_end = expanded(self._footer(numbers[-1]), self._lineage) if numbers else there
        for history, tick in sorted(self._needed().items()):
            if history in self._source_histories:
                if tick > point.position.tick and (problem := self._refuse_lost(point, tick)):
                    return problem
            elif at_end.get(history, 0) >= tick > there.get(history, 0):
                reason = (
                    f"{self._source.site} took transactions before tick {tick} of history {history} that the replica"
                )
                return Refusal(f"{reason} does not hold", _FURTHER)
            elif there.get(history, 0) < tick:
                if history in self._home_histories:
                    reason = (
                        f"the replica holds transactions of {self._own_site} up to tick {tick}, {self._source.site}"
                    )
                    return Refusal(
                        f"{reason} has not taken them", f"Wait until {self._source.site} has taken and published them"
                    )
                reason = f"{self._source.site} lacks tick {tick} of history {history}, which the replica holds"
                return Refusal(reason, f"Wait until {self._source.site} has taken and published it")
        return None

    def _needed(self) -> dict[str, int]:
        """Return per history the last tick that the place must contain; of the replica's own log, the last own tick."""
        own = self._state.contained.own
        last = self._state.position.tick if own is None else own
        found = {h: min(tick, last) if h in self._home_histories else tick for h, tick in self._mine.items()}
        # A history that only took other sites' transactions adds nothing to its parent.
        for history, (ancestor, tick) in self._parents():
            if found.get(history, 0) <= tick and ancestor in found:
                found.pop(history, None)
        return {history: tick for history, tick in found.items() if tick}

    def _parents(self) -> Iterator[tuple[str, tuple[str, int]]]:
        for history in self._home_histories:
            nearest = next(iter(self._lineage.ancestors(history)), None)
            if nearest is not None:
                yield history, nearest

    def _refuse_lost(self, point: Point, tick: int) -> Refusal | None:
        """Refuse a log that lacks its own ticks that the replica holds, or has reused them."""
        source = self._source
        if not source.numbers or source.batch(source.numbers[-1])[0].last < tick:
            end = source.batch(source.numbers[-1])[0].last if source.numbers else point.position.tick
            reason = (
                f"the log of {source.site} ends at tick {end}, and the replica holds its tick {tick}: it was restored"
            )
            return Refusal(f"{reason} from a backup, or is a copy that lags", _REBUILD, self._common())
        for number in range(max(point.position.batch, source.numbers[0]), source.numbers[-1] + 1):
            batch, _ = source.batch(number)
            for each in batch.transactions:
                if point.position.tick < each.tick <= tick and each.origin is None and each.records:
                    reason = (
                        f"{source.site} took transactions before its tick {each.tick} that the replica does not hold"
                    )
                    return Refusal(reason, _FURTHER)
            if batch.last >= tick:
                break
        return None

    def refuse_break(self, point: Point) -> Refusal | None:
        """Refuse a place whose log breaks later, because a later history grew from another position."""
        source, here = self._source, replace(point.position, tick=max(point.position.tick, point.batch_last))
        later = [number for number in source.numbers if number > here.batch]
        if not later or source.batch(later[-1])[0].history == here.history:
            return None
        for number in later:
            batch, chain = source.batch(number)
            if not goes_on(batch, here):
                reason = f"the common history of {source.site} ended at tick {here.tick}, and no changes lead"
                return Refusal(
                    f"{reason} from there to tick {batch.first}",
                    f"Wait until {self._own_site} has taken and published later transactions of {source.site}, and"
                    " roll the replica forward first: wlr replicate --into TARGET",
                )
            here = Position(batch.history, batch.last, number, chain)
        return None

    # 2, 3

    def refuse_unproven(self, point: Point) -> Refusal | None:
        """Refuse a log that no hop of the replica has read, or that has changed since."""
        begins = self._source.start
        if begins and begins.position.batch == self._state.position.batch == 0 and self._nothing_published(begins):
            # Only random ids of histories can be compared.
            return None
        proofs = [proof for proof in self._state.contained.proofs if proof.history in self._source_histories]
        for proof in proofs:
            found = _chain_in(self._source, proof.batch)
            if found is None:
                reason = f"batch {proof.batch} of {self._source.site}, which {self._own_site} had read, was pruned"
                return Refusal(reason, _REBUILD, is_expired=True)
            if found != proof.chain:
                common = self._common()
                until = f"after tick {common}" if common is not None else f"before tick {proof.tick}"
                reason = f"{self._source.site} was restored and has another past {until}; the replica holds ticks that"
                return Refusal(f"{reason} are lost there", _REBUILD, common)
        if proofs or self._is_proven_back(point):
            return None
        reason = f"nothing proves how far {self._own_site} and {self._source.site} have read each other's log"
        return Refusal(reason, f"Let {self._own_site} take from {self._source.site} and publish, then replicate again")

    def _nothing_published(self, start: Point) -> bool:
        wanted = [tick for history, tick in self._mine.items() if history in self._source_histories]
        known = self._home_histories | self._source_histories
        return max(wanted, default=0) <= start.position.tick and self._mine.keys() <= known

    def _is_proven_back(self, point: Point) -> bool:
        """Return whether the other log has read the replica's log, with the same chain."""
        here = self._state.position
        for number in range(point.position.batch, (self._source.numbers or (1,))[0] - 1, -1):
            batch, _ = self._source.batch(number)
            for proof in batch.taken if batch.last <= point.position.tick else ():
                if proof.history in self._home_histories and proof.filters in ("", hash_of(self._state.tables)):
                    if proof.batch == here.batch:
                        return proof.chain == here.chain
                    is_same = self._home is not None and self._home.chain(here.batch) == here.chain
                    return is_same and self._home is not None and self._home.chain(proof.batch) == proof.chain
        return False

    def _common(self) -> int | None:
        """Return the last existing tick of the other log that a hop of the replica has read."""
        earlier = self._home.earlier_proofs() if self._home else ()
        for proof in chained(self._state.contained.proofs, earlier):
            if proof.history in self._source_histories and _chain_in(self._source, proof.batch) == proof.chain:
                return proof.tick
        return None

    # 5

    def refuse_other_rows(self, point: Point, held: Mapping[Name, Digest]) -> Refusal | None:
        """Refuse a place at which the digest of a table differs from the replica's."""
        known = self._source.digests(point.position)
        wanted = {name for name in held.keys() | known.keys() if name in held or matches(name, self._state.tables)}
        outcomes = {name: compared(held.get(name), known.get(name)) for name in wanted}
        at = f"at tick {point.position.tick} of {self._source.site}"
        if differing := _named(outcomes, DIFFERS):
            reason = f"{differing} of the replica differs from that {at}"
            return Refusal(reason, "If there were conflicts, wait until both sites have taken each other's changes")
        if self._needs_digests() and (unknown := _named(outcomes, UNKNOWN)):
            return Refusal(f"the log has no digest of {unknown} {at}", _REBUILD)
        return None

    def _needs_digests(self) -> bool:
        """Return whether sites may have resolved conflicts: then equal vectors do not mean equal rows."""
        return any(tick for history, tick in self._needed().items() if history not in self._source_histories) or (
            not self._source_histories.isdisjoint(self._home_histories)
        )


# Only a new replica helps.
_REBUILD = ""
_FURTHER = "Roll the replica forward first: wlr replicate --into TARGET"


def end_of(batch: Batch, chain: str) -> Point:
    """Return the place after a batch."""
    position = Position(batch.history, batch.last, batch.number, chain)
    return Point(position, batch.last, of_footer(batch), batch.catalog, batch.clock)


def within(batch: Batch, chain: str, count: int, before: Contained) -> Point:
    """Return the place after the first transactions of a batch."""
    applied = batch.transactions[:count]
    last = applied[-1]
    position = Position(batch.history, last.tick, batch.number, chain)
    clock = next((t.committed for t in reversed(applied) if t.committed), None)
    return Point(position, batch.last, having_applied(before, applied, batch.history), batch.catalog, clock)


def _chain_in(source: SourceLog, number: int) -> str | None:
    """Return the chain hash of a batch, None if it was pruned."""
    numbers = source.numbers
    if number in numbers:
        return source.batch(number)[1]
    if number + 1 in numbers:
        return source.batch(number + 1)[0].previous
    if source.start is not None and source.start.position.batch == number:
        return source.start.position.chain
    # The batch is beyond the end of this log: another log was read.
    return "" if not numbers or number > numbers[-1] else None


def _named(outcomes: Mapping[Name, str], outcome: str) -> str:
    return ", ".join(
        str(name) for name, found in sorted(outcomes.items(), key=lambda item: item[0]) if found == outcome
    )


@dataclass(frozen=True, slots=True)
class Contained:
    """The contents at a tick of a log.

    Attributes:
        tick: That tick.
        vector: Per history the last tick contained.
        own: Last tick of the log with records of its own site; 0 before the first, None if unknown.
        proofs: The newest position read in each other site's log.
    """

    tick: TickFrom0 = 0
    vector: Ticks = field(default_factory=dict)
    own: TickFrom0 | None = 0
    proofs: tuple[Taken, ...] = ()


NOTHING = Contained()


def of_footer(batch: Batch) -> Contained:
    """Return the contents after a batch, from its footer."""
    # A log without other sites' transactions does not mark its own ticks: all of them are.
    own = batch.own or (batch.last if batch.vector.keys() <= {batch.history} else 0)
    return Contained(batch.last, dict(batch.vector), own, batch.taken)


def of_snapshot(manifest: Manifest) -> Contained:
    """Return the contents of a snapshot, which does not mark the log's own ticks."""
    position = manifest.position
    vector = {**manifest.vector, position.history: position.tick} if position.tick else dict(manifest.vector)
    is_alone = vector.keys() <= {position.history}
    return Contained(position.tick, vector, position.tick if is_alone else 0 if position.batch == 0 else None)


def having_applied(before: Contained, transactions: Sequence[Transaction], history: str) -> Contained:
    """Return the contents after more transactions of a log's history."""
    if not transactions:
        return before
    origins = [t.origin for t in Transactions.of(transactions).objects if t.origin is not None]
    own = next((t.tick for t in reversed(transactions) if t.records and t.origin is None), before.own)
    last = transactions[-1].tick
    return replace(before, tick=last, vector={**raised(before.vector, origins), history: last}, own=own)
