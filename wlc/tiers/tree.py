"""The tree of tiers in its registry at one moment: upstreams, readers, claims and settings.

Registrations of a relay: as a reader of its upstream, and as an upstream of its readers.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.farm.clock import utc_now
from wlc.farm.document_folder import parted, read_folder
from wlc.farm.errors import CorruptError
from wlc.farm.paths import REPLICAS, parse_replica_path, upstream_path
from wlc.farm.registry import (
    ACTIVE,
    INACTIVE,
    PENDING,
    RELAY,
    STUCK,
    Replica,
    decode_replica,
    moved_to,
    this_host,
    this_user,
)
from wlc.farm.seal.checksum import checksum
from wlc.tiers.choice import Node, ancestors, recent_s
from wlc.tiers.same_past import resolved
from wlc.tiers.tier_settings import TierSettings, read_settings
from wlc.tiers.upstreams import ORIGIN, Claim, Upstream, change_upstream, claims, read_upstreams

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Config, Position


@dataclass(frozen=True, slots=True)
class Member:
    """A registered member.

    Attributes:
        replica: Its registration as a reader.
        arrived: When the store received it.
        upstream: Its registration as an upstream; None if it does not serve.
    """

    replica: Replica
    arrived: datetime
    upstream: Upstream | None


@dataclass(frozen=True, slots=True)
class Tree:
    """The content of a database's registry.

    Attributes:
        config: Configuration of the place itself, the origin.
        members: By id.
        origin: The owner's settings of the origin; None without any.
        now: The present by the store's clock, as far as known.
        damaged: Errors of documents that were left out.
    """

    config: Config
    settings: TierSettings
    members: Mapping[str, Member]
    origin: Upstream | None
    claims: tuple[Claim, ...]
    now: datetime
    damaged: tuple[str, ...] = ()

    def age_s(self, member: Member) -> float:
        """Return the time since a member was last seen, by the store's clock."""
        return max((self.now - member.arrived).total_seconds(), 0.0)

    def is_silent(self, member: Member) -> bool:
        """Say whether a member was last seen longer ago than its interval allows."""
        return self.age_s(member) > recent_s(member.replica.interval_s or 0.0, self.settings)

    def is_live(self, claim: Claim) -> bool:
        """Say whether a claim holds: its holder is not silent, and the slot exists."""
        holder = self.members.get(claim.holder)
        return holder is not None and not self.is_silent(holder) and claim.slot < self.fanout(claim.upstream)

    def children(self, but: str = "") -> Counter[str]:
        """Count the held slots of each upstream, without those of one holder."""
        return Counter(claim.upstream for claim in self.claims if claim.holder != but and self.is_live(claim))

    def fanout(self, name: str) -> int:
        """Return the fan-out of an upstream: its override, its own number, or the registry's."""
        member = self.members.get(name)
        return self.settings.fanout_of(name, member.upstream.fanout if member and member.upstream else None)

    def nodes(self) -> list[Node]:
        """Return the origin and all others that serve, by id."""
        config = self.config
        state = INACTIVE if self.origin is not None and self.origin.state == INACTIVE else ACTIVE
        top = Node(ORIGIN, "", state, last=config.batches - 1, tick=config.tick, fanout=self.fanout(ORIGIN))
        nodes = [top, *(self.node(member) for _, member in sorted(self.members.items()) if member.upstream)]
        known = {node.id: node for node in nodes}
        return [replace(node, delay_s=_delay_s(node, known)) for node in nodes]

    def node(self, member: Member) -> Node:
        """Return a member as the pure functions know it."""
        replica, upstream = member.replica, member.upstream
        position = replica.position
        state = replica.state
        if upstream is not None:
            # It serves its content even while it is stuck.
            state = STUCK if replica.state == STUCK and upstream.state == ACTIVE else upstream.state
        return Node(
            replica.id,
            replica.upstream or ORIGIN,
            state,
            self.age_s(member),
            replica.interval_s or 0.0,
            upstream.class_name if upstream else replica.class_name,
            upstream.first if upstream else None,
            position.batch if position else None,
            position.tick if position else 0,
            position.chain if position else "",
            self.fanout(replica.id) if upstream else 0,
            upstream.delay_s if upstream else replica.delay_s,
        )

    def url(self, name: str, origin: str) -> str:
        """Return the URL of an upstream; `origin` is the place of the registry."""
        upstream = self.members[name].upstream if name in self.members else None
        return upstream.url if upstream else origin


def read_tree(database: FarmDatabase, now: datetime | None = None) -> Tree:
    """Read the registry of a database; damaged registrations are left out.

    Args:
        database: The place that holds the registry.
        now: The present time; if omitted, that of the newest registration, which is right for a caller that has just
            registered, even if this machine's clock is wrong.

    Raises:
        MissingError: There is no such database.
    """
    config, settings = database.config(), read_settings(database)
    # A reader registers before it claims a slot. In the reverse order of reading, a claim made meanwhile would seem to
    # belong to a former member, and its slot would be assigned twice.
    held = tuple(claims(database))
    places, wrong = read_upstreams(database)
    served = {upstream.id: upstream for upstream in places}
    registered = read_folder(database.store, REPLICAS, parse_replica_path, decode_replica)
    damaged = tuple(f"{error.message}. {error.hint}" for error in (*wrong, *parted(registered)[1]))
    members = {
        replica.id: Member(replica, entry.arrived, served.get(replica.id))
        for entry, replica in registered.values()
        if not isinstance(replica, CorruptError)
    }
    arrivals = [member.arrived for member in members.values()]
    newest = max([*arrivals, now] if now else arrivals, default=utc_now())
    return Tree(config, settings, members, served.get(ORIGIN), held, newest, damaged)


def _delay_s(node: Node, known: Mapping[str, Node]) -> float:
    """Return the total delay of a place: its own, or that of its upstreams if it is longer."""
    above = (known[name].delay_s for name in ancestors(node.id, known) if name in known)
    return max([node.delay_s, *above])


@dataclass(frozen=True, slots=True)
class Offer:
    """A relay's offer to readers; None keeps the former value."""

    class_name: str | None
    fanout: int | None
    delay_s: float

    @property
    def is_explicit(self) -> bool:
        """Whether its owner has set a field."""
        return self.class_name is not None or self.fanout is not None


def relay_id(relay: FarmDatabase) -> str:
    """Return the id of a relay: the same in every run, so it need not be stored."""
    endpoint = (relay.storage_options or {}).get("endpoint_url") or os.environ.get("AWS_ENDPOINT_URL", "")
    is_remote = "://" in relay.url
    return checksum(f"{endpoint if is_remote else this_host()} {resolved(relay.url)}".encode())[:32]


def as_reader(relay: FarmDatabase, position: Position | None, clock: datetime | None, delay_s: float) -> Replica:
    """Return what a relay says of itself where it reads."""
    here = this_host(), this_user()
    return Replica(relay_id(relay), resolved(relay.url), position, clock, utc_now(), *here, kind=RELAY, delay_s=delay_s)


def begin_again_hint(url: str) -> str:
    """Return the hint for a relay whose log cannot continue, because the next batch is lost everywhere."""
    return f"Delete {url} and ship again: it then begins with the remaining files."


def is_offered(registry: FarmDatabase, relay: FarmDatabase) -> bool:
    """Say whether a registry knows a relay as an upstream."""
    return registry.store.exists(upstream_path(relay_id(relay)))


def offer_place(
    registry: FarmDatabase, relay: FarmDatabase, offer: Offer, first: int | None, *, has_start: bool
) -> Upstream:
    """Register a relay as an upstream; it stays inactive if its owner took it out.

    Args:
        registry: The registry.
        relay: The relay's registration.
        offer: Its owner's offer.
        first: The first batch that it holds; None if not looked up.
        has_start: Readers can begin with its content.
    """
    url, now = resolved(relay.url), utc_now()

    def change(before: Upstream | None) -> Upstream:
        class_name = offer.class_name if offer.class_name is not None else before.class_name if before else ""
        fanout = offer.fanout if offer.fanout is not None else before.fanout if before else None
        known = before.first if before else None
        transitions = before.transitions if before else moved_to((), PENDING, "registered", now)
        if has_start and transitions[-1].state != INACTIVE:
            transitions = moved_to(transitions, ACTIVE, "holds a whole copy", now)
        first_now = first if first is not None else known
        return Upstream(
            relay_id(relay),
            url,
            this_host(),
            this_user(),
            class_name=class_name,
            fanout=fanout,
            delay_s=offer.delay_s,
            first=first_now,
            transitions=transitions,
        )

    return change_upstream(registry, relay_id(relay), change)
