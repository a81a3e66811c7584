"""Who takes part in a simulation: masters, sites, relays, replicas and whoever prunes, with the product's decisions."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from tests.simulation.source import NAME, NotOnceError, SimulatedSource, counted, database_of
from wlc.farm.clock import format_time
from wlc.farm.database import open_database
from wlc.farm.errors import ExpiredError, GapError, UnavailableError
from wlc.farm.model import Position
from wlc.farm.registry import Replica
from wlc.farm.store import ConflictError, MissingError
from wlc.masters import publish as publishing
from wlc.masters.prune import prune_database
from wlc.multi_master.take_round import take_into
from wlc.tiers.attaching import read_through
from wlc.tiers.attachment import Attachment, Keepalive, attachment_of, place_of, register_reader
from wlc.tiers.relay import ship

if TYPE_CHECKING:
    from tests.simulation.hub import Hub, Process
    from tests.simulation.network import Network
    from wlc.farm.database import FarmDatabase
    from wlc.tiers.attachment import Membership

# What passes by itself: the next round tries again.
PASSES = (UnavailableError, ConflictError)
ROUND_S = 10.0


@dataclass(eq=False)
class Node:
    """Somebody who does rounds until killed, and begins again with what is durable.

    Attributes:
        failures: Errors that passed; each ended a round.
        requests: Of all its processes, by kind; `bytes` likewise.
    """

    hub: Hub
    name: str
    round_s: float = ROUND_S
    process: Process | None = None
    failures: list[str] = field(default_factory=list)
    rounds: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    bytes: int = 0

    @property
    def is_running(self) -> bool:
        return self.process is not None and not self.process.is_over

    def start(self, skew_s: float = 0.0) -> None:
        """Begin a process."""
        self.process = self.hub.spawn(self.name, self._main, skew_s)

    def kill(self) -> None:
        """End the process; what it did not write down is lost."""
        if self.process is not None:
            self.hub.kill(self.process)
            self._count()

    def _count(self) -> None:
        assert self.process is not None
        for each in (self.process, *self.process.threads):
            self.requests += each.requests
            each.requests.clear()
            self.bytes, each.bytes = self.bytes + each.bytes, 0

    def _main(self) -> None:
        self.begin()
        # Rounds of cron are not in step.
        self.hub.sleep(self.hub.random.uniform(0, self.round_s))
        while True:
            began_s = self.hub.now_s
            try:
                self.round()
            except PASSES as error:
                self.failures.append(f"{format_time(self.hub.clock())} {error.message}")
            self.rounds += 1
            self._count()
            self.hub.sleep(max(began_s + self.round_s - self.hub.now_s, 0.1))

    def begin(self) -> None:
        """Do what a process does when it starts."""

    def round(self) -> None:
        """Do what it does each time."""
        raise NotImplementedError


@dataclass(eq=False)
class Master(Node):
    """A master: users commit, and each round publishes; every tenth one with a snapshot and a prune.

    Attributes:
        writes: How many transactions a round has at most; 0 once its users have gone home.
        keep_for: What pruning keeps for those who are reading.
    """

    source: SimulatedSource = field(kw_only=True)
    writes: int = 3
    prunes_every: int = 10
    keep_for: timedelta = timedelta(seconds=60)

    def begin(self) -> None:
        self.source.has_settled_past = self.source.state.site is None

    def round(self) -> None:
        for _ in range(self.hub.random.randint(0, self.writes) if self.writes else 0):
            self.source.commit()
        database = database_of(self.source)
        self.publish(database)
        if self.prunes_every and self.rounds % self.prunes_every == self.prunes_every - 1 and not self.source.journal:
            self.source.take_snapshot(database, is_first=False)
            self.prune(database)

    def publish(self, database: FarmDatabase) -> None:
        publishing.publish(self.source, database)

    def prune(self, database: FarmDatabase) -> None:
        prune_database(database, keep_for=self.keep_for)


@dataclass(eq=False)
class Site(Master):
    """One of several masters: each round also takes what the others published."""

    def publish(self, database: FarmDatabase) -> None:
        take_into(self.source, database)


@dataclass(eq=False)
class Reader(Node):
    """Somebody who chooses where to read.

    Attributes:
        registry: URL of the database that knows the places.
        is_forgotten: Its owner has forgotten it, so that nobody keeps what it needs.
    """

    network: Network = field(kw_only=True)
    registry: str = field(kw_only=True)
    keepalive: Keepalive | None = None
    is_forgotten: bool = False

    def begin(self) -> None:
        self.keepalive = Keepalive().__enter__()

    def round(self) -> None:
        try:
            self.read()
        except ExpiredError:
            # Nobody else is told so, however long it was away; it does what the hint says.
            if not self.is_forgotten:
                raise
            self.is_forgotten = False
            self.forget()

    def read(self) -> None:
        """Do a round of reading."""
        raise NotImplementedError

    def forget(self) -> None:
        """Lose everything, to begin anew."""
        raise NotImplementedError


@dataclass(eq=False)
class Relay(Reader):
    """A relay that prunes on its own schedule."""

    fanout: int = 3
    prunes_every: int = 15

    @property
    def farm(self) -> str:
        return f"memory://{self.name}"

    @property
    def url(self) -> str:
        return f"{self.farm}/{NAME}"

    def read(self) -> None:
        ship(self.registry, to=self.farm, upstream="auto", fanout=self.fanout, keepalive=self.keepalive)
        if self.rounds % self.prunes_every == self.prunes_every - 1:
            prune_database(open_database(self.url), keep_for=timedelta(seconds=60))

    def forget(self) -> None:
        self.network.erase(self.name)


@dataclass(eq=False)
class ReplicaNode(Reader):
    """A replica: it has counters, and applies each transaction once.

    Attributes:
        position: Where it stands, None before it holds anything; durable, with `values` and `attachment`.
    """

    position: Position | None = None
    values: dict[str, int] = field(default_factory=dict)
    attachment: Attachment | None = None

    def read(self) -> None:
        registry = open_database(self.registry)
        attachment = attachment_of(registry, self.attachment, None if self.attachment else "auto", None)
        assert attachment is not None
        read_through(
            place_of(registry, attachment.registry), self._registration(), attachment, self._read, self.keepalive
        )

    def forget(self) -> None:
        self.position, self.values, self.attachment = None, {}, None

    def _registration(self) -> Replica:
        return Replica(self.name, f"{self.name}.duckdb", self.position, None, self.hub.clock(), self.name, "user")

    def _read(self, place: FarmDatabase, membership: Membership) -> None:
        self.attachment = membership.attachment
        if self.position is None:
            register_reader(place, self._registration(), membership)
            self._load_snapshot(place)
        before = self.position
        with suppress(MissingError):
            while True:
                self._apply(place)
        register_reader(place, self._registration(), membership, is_level=self.position == before)

    def _load_snapshot(self, place: FarmDatabase) -> None:
        ticks = place.snapshot_ticks()
        if ticks:
            manifest = place.read_manifest(ticks[-1])
            self.position = manifest.position
            self.values = {each.sequence.name: each.value for each in manifest.sequences}

    def _apply(self, place: FarmDatabase) -> None:
        held = self.position
        number = held.batch + 1 if held else 1
        try:
            batch, chain = place.read_batch(number, held.chain if held else None)
        except GapError as error:
            if min(place.batch_numbers(), default=0) <= number:
                raise
            raise ExpiredError(f"{place.url} has pruned batch {number}", path=place.url) from error
        if held is not None and batch.first <= held.tick:
            raise NotOnceError(f"{self.name} stands at {held}, and batch {batch.number} begins at tick {batch.first}")
        for transaction in batch.transactions:
            counted(self.values, transaction.records, f"{self.name} reads {place.url}")
        self.position = Position(batch.history, batch.last, batch.number, chain)
