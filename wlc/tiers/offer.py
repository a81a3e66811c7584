"""What a relay says of itself: as a reader of the place above, and as an upstream of those below."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.farm.clock import utc_now
from wlc.farm.paths import upstream_path
from wlc.farm.registry import ACTIVE, INACTIVE, PENDING, RELAY, Replica, moved_to, this_host, this_user
from wlc.farm.same_past import resolved
from wlc.farm.seal.checksum import checksum
from wlc.farm.upstreams import Upstream, change_upstream

if TYPE_CHECKING:
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Position


@dataclass(frozen=True, slots=True)
class Offer:
    """What a relay offers to readers; None for what it said before."""

    class_name: str | None
    fanout: int | None
    delay_s: float

    @property
    def is_explicit(self) -> bool:
        """Whether its owner says more than nothing."""
        return self.class_name is not None or self.fanout is not None


def relay_id(relay: FarmDatabase) -> str:
    """Return the id of a relay: the same in every run, so that nothing has to be remembered for it."""
    endpoint = (relay.storage_options or {}).get("endpoint_url") or os.environ.get("AWS_ENDPOINT_URL", "")
    is_remote = "://" in relay.url
    return checksum(f"{endpoint if is_remote else this_host()} {resolved(relay.url)}".encode())[:32]


def as_reader(relay: FarmDatabase, position: Position | None, clock: datetime | None, delay_s: float) -> Replica:
    """Return what a relay says of itself where it reads."""
    here = this_host(), this_user()
    return Replica(relay_id(relay), resolved(relay.url), position, clock, utc_now(), *here, kind=RELAY, delay_s=delay_s)


def how_to_begin_anew(url: str) -> str:
    """Return the hint for a relay whose log cannot go on, because nobody has the next batch any more."""
    return f"Delete {url} and ship again: it begins with what is left then."


def is_offered(registry: FarmDatabase, relay: FarmDatabase) -> bool:
    """Say whether a registry knows a relay as an upstream."""
    return registry.store.exists(upstream_path(relay_id(relay)))


def offer_place(
    registry: FarmDatabase, relay: FarmDatabase, offer: Offer, first: int | None, *, has_start: bool
) -> Upstream:
    """Register a relay as an upstream; it stays inactive if its owner took it out.

    Args:
        registry: Where.
        relay: What serves.
        offer: What its owner says.
        first: The first batch that it holds; None if that was not looked up.
        has_start: Readers can begin with what it holds.
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
