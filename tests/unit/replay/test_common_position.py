"""Where in another log a replica stands: what is proven is what replaying both logs says, over any ways of taking."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sampling import machine_settings
from wlc.farm.model import Batch, Clear, Name, Origin, Position, Taken, Transaction
from wlc.farm.vectors import NO_LINEAGE, Lineage
from wlr.engine.replica_state import START
from wlr.replay.plan.common_position import NOTHING, Contained, Point, Refusal, end_of, fast_forward
from wlr.replay.plan.patterns import hash_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wlc.farm.model import Digest

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
ROWS = (Clear(Name("main", "t"), 1),)
NAMES = ("oslo", "rome", "paris", "york", "bergen")


@dataclass
class ModelLog:
    """A site whose history is called as itself; it is a `SourceLog` and a `HomeLog`.

    Attributes:
        pruned: So many of its first batches are gone.
        has_snapshot: One says where the first that is left goes on.
    """

    site: str
    log: list[Transaction] = field(default_factory=list)
    batches: list[tuple[Batch, str]] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)
    vector: dict[str, int] = field(default_factory=dict)
    taken: dict[str, Taken] = field(default_factory=dict)
    pruned: int = 0
    has_snapshot: bool = True
    lineage = NO_LINEAGE

    @property
    def start(self) -> Point | None:
        if not self.pruned:
            return Point(START, 0, NOTHING)
        return end_of(*self.batch(self.pruned)) if self.has_snapshot else None

    @property
    def numbers(self) -> list[int]:
        return list(range(self.pruned + 1, len(self.batches) + 1))

    def batch(self, number: int) -> tuple[Batch, str]:
        return self.batches[number - 1]

    def chain(self, number: int) -> str | None:
        return self.batch(number)[1] if number in self.numbers else None

    def earlier_proofs(self) -> Iterator[Taken]:
        for batch, _ in reversed(self.batches[self.pruned :]):
            yield from batch.taken

    def digests(self, _: Position) -> Mapping[Name, Digest]:
        # Vectors and proofs alone have to tell.
        return {}

    def commit(self, origin: Origin | None = None) -> None:
        tick = len(self.log) + 1
        self.log.append(Transaction(tick, "ann", NOW, NOW, ROWS, origin))
        self.vector[self.site] = tick
        if origin is not None:
            self.vector[origin.history] = origin.tick

    def publish(self) -> None:
        done = self.batches[-1][0].last if self.batches else 0
        if len(self.log) == done:
            return
        own = max((t.tick for t in self.log if t.origin is None), default=0)
        previous, transactions = self.batches[-1][1] if self.batches else "", tuple(self.log[done:])
        batch = Batch(
            self.site,
            len(self.batches) + 1,
            self.site,
            done + 1,
            len(self.log),
            previous,
            self.site,
            transactions,
            vector=dict(self.vector),
            own=own if self.taken else None,
            taken=tuple(self.taken.values()),
        )
        self.batches.append((batch, sha256(repr(batch).encode()).hexdigest()))

    def take(self, other: ModelLog) -> None:
        """Take what is missing of another log, batch by batch, unless that is pruned."""
        if other.pruned > self.read.get(other.site, 0):
            return
        for batch, chain in other.batches[self.read.get(other.site, 0) :]:
            for each in batch.transactions:
                name = each.origin or Origin(batch.history, each.tick)
                if self.vector.get(name.history, 0) < name.tick:
                    self.commit(name)
            # That of the other log contains ticks that only repeat what is contained.
            self.vector[batch.history] = max(self.vector.get(batch.history, 0), batch.last)
            self.taken[other.site] = Taken(other.site, batch.history, batch.last, batch.number, chain)
        self.read[other.site] = len(other.batches)

    def held(self, tick: int) -> frozenset[tuple[str, int]]:
        """By brute force: which transactions a replay of the log up to a tick has applied."""
        named = ((each.origin, each.tick) for each in self.log[:tick])
        return frozenset((o.history, o.tick) if o else (self.site, at) for o, at in named)


@dataclass(frozen=True)
class ModelReplica:
    position: Position
    contained: Contained
    tables: tuple[str, ...] = ()
    accepted: frozenset[int] = frozenset()
    is_unlocked: bool = False


@st.composite
def worlds(draw: st.DrawFn) -> list[ModelLog]:
    """Two to five sites, in a chain, a ring or any other way, that wrote, published, took and pruned by chance."""
    sites = [ModelLog(name) for name in NAMES[: draw(st.integers(2, 5))]]
    several = st.integers(0, len(sites) - 1)
    for kind, one, other in draw(
        st.lists(st.tuples(st.sampled_from("wpttttttx"), several, several), min_size=12, max_size=40)
    ):
        match kind:
            case "w":
                sites[one].commit()
            case "p":
                sites[one].publish()
            case "x":
                sites[one].pruned = min(sites[one].pruned + 1, max(len(sites[one].batches) - 1, 0))
                sites[one].has_snapshot = other % 2 == 0
            case _ if one != other:
                sites[other].publish()
                sites[one].take(sites[other])
            case _:
                pass
    for site in sites:
        site.publish()
    return sites


def replicas(sites: list[ModelLog]) -> Iterator[tuple[ModelLog, ModelReplica]]:
    """A replica after each batch of each site."""
    for home in sites:
        for batch, chain in home.batches:
            place = end_of(batch, chain)
            yield home, ModelReplica(place.position, place.contained)


def test_what_is_accepted_is_what_replaying_both_logs_says() -> None:
    accepted: list[Position] = []

    @machine_settings(150)
    @given(sites=worlds())
    def check(sites: list[ModelLog]) -> None:
        for home, replica in replicas(sites):
            held = home.held(replica.position.tick)
            for source in (each for each in sites if each is not home and each.batches):
                found = fast_forward(replica, source, home)
                if isinstance(found, Position):
                    accepted.append(found)
                    assert source.held(found.tick) == held, (home.site, replica, source.site, found)

    check()
    # One that refuses everything would be right, too.
    assert len(accepted) > 150


@machine_settings(60)
@given(sites=worlds(), bit=st.integers(0, 255))
def test_one_bit_flipped_in_a_proof_is_refused(sites: list[ModelLog], bit: int) -> None:
    for home, replica in replicas(sites):
        for proof in replica.contained.proofs:
            source = next(site for site in sites if site.site == proof.site)
            flipped = f"{int(proof.chain, 16) ^ 1 << bit:064x}"
            for wrong in (replace(proof, chain=flipped), replace(proof, batch=proof.batch ^ (1 + bit % 4))):
                others = tuple(wrong if each is proof else each for each in replica.contained.proofs)
                lying = replace(replica, contained=replace(replica.contained, proofs=others))
                assert isinstance(fast_forward(lying, source, home), Refusal), (proof, wrong)


def taken_by_paris() -> tuple[ModelReplica, ModelLog, ModelLog]:
    """A replica of Paris, which has taken what Oslo wrote; Oslo; Paris."""
    oslo, paris = ModelLog("oslo"), ModelLog("paris")
    oslo.commit()
    oslo.publish()
    paris.take(oslo)
    paris.publish()
    place = end_of(*paris.batches[-1])
    return ModelReplica(place.position, place.contained), oslo, paris


def filtered(of: Contained, filters: str) -> Contained:
    return replace(of, proofs=tuple(replace(proof, filters=filters) for proof in of.proofs))


PATTERNS = ("main.t",)


@pytest.mark.parametrize(
    ("hop", "tables", "told"),
    [
        ((), (), ""),
        (PATTERNS, PATTERNS, ""),
        # A site that took all has what the replica holds of it.
        ((), PATTERNS, ""),
        (PATTERNS, (), "site paris took only a part of oslo; the replica holds all tables"),
        (("main.u",), PATTERNS, "site paris took only a part of oslo; the replica holds tables main.t"),
    ],
)
def test_another_filter_is_never_fast_forwarded(hop: tuple[str, ...], tables: tuple[str, ...], told: str) -> None:
    replica, oslo, paris = taken_by_paris()
    contained = filtered(replica.contained, hash_of(hop) if hop else "")
    found = fast_forward(replace(replica, contained=contained, tables=tables), oslo, paris)
    if not told:
        assert found == end_of(*oslo.batches[-1]).position
        return
    assert isinstance(found, Refusal)
    # No hint: only a new replica helps, which is never made unasked.
    assert (found.reason, found.nearest) == (told, "")


def test_another_filter_is_never_fast_forwarded_the_other_way() -> None:
    """Paris had read Oslo's log through a filter; a replica of Oslo holds all."""
    _, oslo, paris = taken_by_paris()
    place = end_of(*oslo.batches[-1])
    replica = ModelReplica(place.position, place.contained)
    assert isinstance(fast_forward(replica, paris, oslo), Position)
    batch, chain = paris.batches[-1]
    paris.batches[-1] = (
        replace(batch, taken=filtered(end_of(batch, chain).contained, hash_of(PATTERNS)).proofs),
        chain,
    )
    found = fast_forward(replica, paris, oslo)
    assert isinstance(found, Refusal)
    assert "nothing proves how far" in found.reason


@pytest.mark.parametrize(
    ("other", "told"),
    [({"accepted": frozenset({7, 3})}, "skipped transaction 3, 7"), ({"is_unlocked": True}, "is unlocked")],
    ids=["accepted", "unlocked"],
)
def test_who_holds_something_else_than_its_log_says_goes_on_nowhere(other: dict[str, Any], told: str) -> None:
    replica, oslo, paris = taken_by_paris()
    found = fast_forward(replace(replica, **other), oslo, paris)
    assert isinstance(found, Refusal)
    assert told in found.reason


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_what_was_pruned_in_between_is_no_gap(has_snapshot: bool) -> None:
    """Oslo goes on and prunes what Paris had read: nothing proves what the replica lacks."""
    replica, oslo, paris = taken_by_paris()
    for _ in "123":
        oslo.commit()
        oslo.publish()
    oslo.pruned, oslo.has_snapshot = 2, has_snapshot
    found = fast_forward(replica, oslo, paris)
    assert isinstance(found, Refusal)
    assert (found.reason, found.is_expired) == (
        "the log of oslo begins at tick 3, which the replica does not hold",
        True,
    )
    # As long as the batch after the one that was read is there, its header is the proof.
    oslo.pruned, oslo.has_snapshot = 1, True
    assert fast_forward(replica, oslo, paris) == end_of(*oslo.batches[0]).position


def test_a_proof_that_comes_later_is_not_used() -> None:
    """mem3's find_source_seq: Paris reads on, and a replica at an earlier batch holds what that one says."""
    replica, oslo, paris = taken_by_paris()
    first = end_of(*oslo.batches[-1])
    oslo.commit()
    oslo.publish()
    paris.take(oslo)
    paris.publish()
    assert fast_forward(replica, oslo, paris) == first.position
    later = end_of(*paris.batches[-1])
    assert (
        fast_forward(ModelReplica(later.position, later.contained), oslo, paris) == end_of(*oslo.batches[-1]).position
    )


def test_a_chain_of_five_is_proven_by_its_ends() -> None:
    """Oslo's transaction goes down the chain; a replica of its last site can go on one hop before."""
    sites = [ModelLog(name) for name in NAMES]
    sites[0].commit()
    sites[0].publish()
    for before, after in pairwise(sites):
        after.take(before)
        after.publish()
    end = sites[-1].batches[-1]
    place = end_of(*end)
    replica = ModelReplica(place.position, place.contained)
    batch, chain = sites[-2].batches[-1]
    assert fast_forward(replica, sites[-2], sites[-1]) == end_of(batch, chain).position
    refused = fast_forward(replica, sites[0], sites[-1])
    assert isinstance(refused, Refusal)
    assert "lacks tick 1 of history" in refused.reason


@pytest.mark.parametrize("first", [2, 3])
def test_a_log_that_cannot_be_followed_from_there_is_refused(first: int) -> None:
    """Oslo was restored from a backup: what follows is a new history, which goes on at the next tick or does not."""
    replica, oslo, paris = taken_by_paris()
    place = end_of(*oslo.batches[-1]).position
    oslo.commit()
    oslo.publish()
    batch, chain = oslo.batches[-1]
    transactions = (replace(batch.transactions[0], tick=first),)
    grown = replace(
        batch, history="oslo 2", parent=Origin("oslo", 1), first=first, last=first, vector={"oslo 2": first}
    )
    oslo.batches[-1] = replace(grown, transactions=transactions), chain
    oslo.lineage = Lineage({"oslo 2": Origin("oslo", 1)})
    found = fast_forward(replica, oslo, paris)
    if first == 2:
        assert found == place
        return
    assert isinstance(found, Refusal)
    assert "the common history of oslo ended at tick 1" in found.reason
    assert "Wait until paris has taken and published later transactions of oslo" in found.nearest


def test_what_was_taken_behind_something_that_the_replica_lacks_is_not_waited_for() -> None:
    """Paris has both; the replica of Rome lacks what York wrote, which Paris took first, and Rome since."""
    rome, york, paris = ModelLog("rome"), ModelLog("york"), ModelLog("paris")
    for site in (rome, york):
        site.commit()
        site.publish()
    early = end_of(*rome.batches[-1])
    waits = fast_forward(ModelReplica(early.position, early.contained), paris, rome)
    assert isinstance(waits, Refusal)
    assert waits.nearest == "Wait until paris has taken and published them"
    for taken in (york, rome):
        paris.take(taken)
        paris.publish()
    found = fast_forward(ModelReplica(early.position, early.contained), paris, rome)
    assert isinstance(found, Refusal)
    assert found.reason == "paris took transactions before tick 1 of history rome that the replica does not hold"
    assert found.nearest == "Roll the replica forward first: wlr replicate --into TARGET"
    rome.take(york)
    rome.publish()
    later = end_of(*rome.batches[-1])
    assert isinstance(fast_forward(ModelReplica(later.position, later.contained), paris, rome), Position)
