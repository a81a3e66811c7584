"""The tree of tiers as its registry knows it at one moment: places that serve, readers, claims and settings."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.farm.clock import utc_now
from wlc.farm.document_folder import parted, read_folder
from wlc.farm.errors import CorruptError
from wlc.farm.paths import REPLICAS, parse_replica_path
from wlc.farm.registry import ACTIVE, INACTIVE, STUCK, Replica, decode_replica
from wlc.farm.tier_settings import TierSettings, read_settings
from wlc.farm.upstreams import ORIGIN, Claim, Upstream, claims, read_upstreams
from wlc.tiers.choice import Node, ancestors, recent_s

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Config


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody who registered.

    Attributes:
        replica: What it says.
        arrived: When the store got that.
        upstream: What it says as a place that serves; None if it does not serve.
    """

    replica: Replica
    arrived: datetime
    upstream: Upstream | None


@dataclass(frozen=True, slots=True)
class Tree:
    """What the registry of a database holds.

    Attributes:
        config: That of the place itself, the origin.
        members: By id.
        origin: What its owner has set of the origin; None if nothing.
        now: The present time of the store's clock, as far as that is known.
        damaged: What is wrong with documents that were left out.
    """

    config: Config
    settings: TierSettings
    members: Mapping[str, Member]
    origin: Upstream | None
    claims: tuple[Claim, ...]
    now: datetime
    damaged: tuple[str, ...] = ()

    def age_s(self, member: Member) -> float:
        """Return for how long somebody was not heard of, by the store's clock."""
        return max((self.now - member.arrived).total_seconds(), 0.0)

    def is_silent(self, member: Member) -> bool:
        """Say whether somebody was not heard of for longer than the announced interval allows."""
        return self.age_s(member) > recent_s(member.replica.interval_s or 0.0, self.settings)

    def is_live(self, claim: Claim) -> bool:
        """Say whether a claim holds: its holder is heard of, and the slot exists."""
        holder = self.members.get(claim.holder)
        return holder is not None and not self.is_silent(holder) and claim.slot < self.fanout(claim.upstream)

    def children(self, but: str = "") -> Counter[str]:
        """Count for each upstream the slots that are held, without those of one holder."""
        return Counter(claim.upstream for claim in self.claims if claim.holder != but and self.is_live(claim))

    def fanout(self, name: str) -> int:
        """Return how many may read from an upstream: what was set for it, what it says, or the registry's number."""
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
            # It serves what it has, also while it cannot go on itself.
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
        """Return where an upstream is; `origin` is where the registry is."""
        upstream = self.members[name].upstream if name in self.members else None
        return upstream.url if upstream else origin


def read_tree(database: FarmDatabase, now: datetime | None = None) -> Tree:
    """Read what the registry of a database holds; damaged registrations are left out.

    Args:
        database: The place that holds the registry.
        now: The present time; that of the newest registration if omitted, which is right for whoever has just
            registered, whatever this machine's clock says.

    Raises:
        MissingError: There is no such database.
    """
    config, settings = database.config(), read_settings(database)
    # Whoever claims a slot has registered before: read the other way round, a claim of the meantime would seem to be of
    # somebody who is gone, and its slot would be given twice.
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
    """Return how far a place is behind on purpose: nobody holds what the places above it do not give yet."""
    above = (known[name].delay_s for name in ancestors(node.id, known) if name in known)
    return max([node.delay_s, *above])
