"""Choice of an upstream, tiers of a tree's members, and silent or stuck ones: decisions without I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from wlc.farm.registry import ACTIVE, INACTIVE, PENDING
from wlc.tiers.attachment import Penalty
from wlc.tiers.tier_settings import DEFAULTS, TierSettings
from wlc.tiers.upstreams import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

# The tier of a member without a path to the origin.
NOWHERE = 10**6
# Request limits of an idle process and of one round; each further registry adds to them.
REQUESTS_A_MINUTE = 6
IDLE_ROUND_REQUESTS = 16
IDLE_REGISTRY_REQUESTS = 4


@dataclass(frozen=True, slots=True)
class Node:
    """An upstream or a replica in the registry at one moment.

    Attributes:
        parent: Id of its upstream; empty for the origin.
        state: Pending, active, inactive or stuck.
        age_s: Time since it was last seen, by the store's clock; 0 for the origin.
        interval_s: How often it registers.
        first: First batch that it holds; None if unknown.
        last: Last batch that it holds; None before the first.
        tick: Last tick that it holds.
        chain: Chain hash of its last batch; empty if unknown.
        fanout: Maximum number of its readers.
        delay_s: Its configured delay.
    """

    id: str
    parent: str = ORIGIN
    state: str = ACTIVE
    age_s: float = 0.0
    interval_s: float = 0.0
    class_name: str = ""
    first: int | None = None
    last: int | None = None
    tick: int = 0
    chain: str = ""
    fanout: int = DEFAULTS.fanout
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reader:
    """The reader that chooses.

    Attributes:
        batch: The batch of its position; None before the first.
        chain: Chain hash of that batch; empty if unknown.
        delay_s: Its configured delay.
    """

    id: str
    batch: int | None = None
    chain: str = ""
    class_name: str = ""
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The reason why a reader cannot use an upstream.

    Attributes:
        why: For people, as in "it is inactive".
        is_lasting: The reason holds until its owner changes a setting.
        is_expired: The upstream has pruned the batches after the reader's position.
    """

    why: str
    is_lasting: bool = False
    is_expired: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """Candidate upstreams, the best first, and the reasons against the others.

    Attributes:
        candidates: Ids of upstreams; can be empty.
        is_over_fanout: No upstream has a free slot or a known range, so fan-outs are ignored.
        rejected: Reason by excluded upstream.
    """

    candidates: tuple[str, ...]
    is_over_fanout: bool
    rejected: Mapping[str, Exclusion] = field(default_factory=dict)


def choose(
    nodes: Iterable[Node],
    children: Mapping[str, int],
    me: Reader,
    penalties: Iterable[Penalty],
    now: datetime,
    settings: TierSettings = DEFAULTS,
    seed: int | None = None,
) -> Choice:
    """Choose upstreams: active, recent, covering my position, not below me, with a free slot, near the origin.

    Args:
        nodes: All upstreams, the origin among them.
        children: By upstream, the number of slots that other readers hold.
        me: The reader that chooses.
        penalties: Failed upstreams.
        now: The present, by the clock of the penalties.
        settings: Of the registry.
        seed: Makes the order among equals repeatable.

    Source: Comdb2, `register_replicant` of `lua/lib/physrep_register_replicant.lua`, and the tests of phys_rep_tiered.
    """
    known = {node.id: node for node in nodes}
    avoided = {penalty.upstream for penalty in penalties if penalty.until > now}
    tiers = tiers_of(known.values())
    chance = random.Random(seed)  # noqa: S311 - spreads readers among equals
    order = {name: chance.random() for name in sorted(known)}

    def sort_key(name: str) -> tuple[int, int, float]:
        return tiers[name], children.get(name, 0), order[name]

    why_not = {name: exclusion(node, me, known, avoided, settings) for name, node in known.items()}
    strict = {name: why or _excluded_by_load(known[name], me, children) for name, why in why_not.items()}
    for reasons, is_over in ((strict, False), (why_not, True)):
        fitting = sorted((name for name, why in reasons.items() if not why), key=sort_key)
        rejected = {name: why for name, why in reasons.items() if why}
        if fitting:
            return Choice(tuple(fitting[: settings.candidates]), is_over, rejected)
    return Choice((), True, rejected)


def exclusion(
    node: Node, me: Reader, known: Mapping[str, Node], avoided: Iterable[str], settings: TierSettings = DEFAULTS
) -> Exclusion | None:
    """Return why the reader cannot use an upstream, regardless of its load; None if it can."""
    if node.id == me.id:
        return Exclusion("it is the reader itself", is_lasting=True)
    if me.id in ancestors(node.id, known):
        return Exclusion("it reads from the reader", is_lasting=True)
    if node.state in (PENDING, INACTIVE):
        return Exclusion(f"it is {node.state}", is_lasting=node.state == INACTIVE)
    if node.age_s > recent_s(node.interval_s, settings):
        return Exclusion(f"it was last seen {node.age_s:.0f} s ago")
    if not is_class_enough(node, me, settings):
        return Exclusion(f"its class {node.class_name or 'none'} is below {me.class_name}", is_lasting=True)
    if node.delay_s > me.delay_s:
        return Exclusion(f"it stays {node.delay_s:g} s behind on purpose", is_lasting=True)
    if node.id in avoided:
        return Exclusion("it failed a short time ago")
    return _excluded_by_range(node, me)


def _excluded_by_range(node: Node, me: Reader) -> Exclusion | None:
    """Return why an upstream does not cover the reader's position; an unknown range may cover it."""
    if me.batch is None:
        return None
    if node.first is not None and node.first > me.batch + 1:
        return Exclusion(f"it begins with batch {node.first}, after the reader's batch {me.batch}", is_expired=True)
    # The origin's `wlc.config` lags behind its log; the reader looks for the batch in the log before it reads.
    if node.id != ORIGIN and node.last is not None and node.last < me.batch:
        return Exclusion(f"it ends with batch {node.last}, before the reader's batch {me.batch}")
    if node.last == me.batch and node.chain and me.chain and node.chain != me.chain:
        return Exclusion("it has another past")
    return None


def _excluded_by_load(node: Node, me: Reader, children: Mapping[str, int]) -> Exclusion | None:
    if children.get(node.id, 0) >= node.fanout:
        return Exclusion(f"all of its {node.fanout} slots are taken")
    # The origin's range is unknown, too, but it is tried first.
    if me.batch is not None and node.last is None and node.id != ORIGIN:
        return Exclusion("what it holds is not known")
    return None


def is_class_enough(node: Node, me: Reader, settings: TierSettings) -> bool:
    """Say whether an upstream has the reader's class or a higher one; a class without rank equals only itself."""
    if not me.class_name or node.id == ORIGIN or node.class_name == me.class_name:
        return True
    mine, its = settings.rank(me.class_name), settings.rank(node.class_name)
    return mine is not None and its is not None and its >= mine


def keepalive_interval_s(settings: TierSettings, beat_s: float, registries: int = 1) -> float:
    """Return the keepalive interval of a running process.

    It is the registry's number, or longer, so that an idle process makes at most six requests a minute, including its
    rounds. If rounds are too frequent for that, one keepalive per round suffices. A number below the default holds
    unchanged.

    Args:
        settings: Of the registry.
        beat_s: Seconds between two rounds.
        registries: Number of registries to report to.
    """
    if settings.keepalive_s < DEFAULTS.keepalive_s:
        return settings.keepalive_s
    left = REQUESTS_A_MINUTE * beat_s / 60 - IDLE_ROUND_REQUESTS - (registries - 1) * IDLE_REGISTRY_REQUESTS
    fitting_s = beat_s * registries / left if left > 0 else beat_s
    return max(settings.keepalive_s, min(fitting_s, beat_s))


def recent_s(interval_s: float, settings: TierSettings = DEFAULTS) -> float:
    """Return the seconds after which a member with a stated interval is silent."""
    return max(settings.recent_s, settings.recent_intervals * interval_s)


def ancestors(name: str, known: Mapping[str, Node]) -> list[str]:
    """Return the upstreams above a member, nearest first, up to the origin, the end of the path or a cycle."""
    found: list[str] = []
    node = known.get(name)
    while node is not None and node.id != ORIGIN and node.parent not in found:
        found.append(node.parent)
        node = known.get(node.parent)
    return found


def tiers_of(nodes: Iterable[Node]) -> dict[str, int]:
    """Return the tier of every member: 0 for the origin, 1 for its readers …; `NOWHERE` without a path to it."""
    known = {node.id: node for node in nodes}
    tiers = {}
    for name in known:
        above = ancestors(name, known)
        is_rooted = name == ORIGIN or (above and above[-1] == ORIGIN)
        tiers[name] = len(above) if is_rooted else NOWHERE
    return tiers


def penalized(
    penalties: Sequence[Penalty], upstream: str, now: datetime, settings: TierSettings
) -> tuple[Penalty, ...]:
    """Add a failure: the penalty doubles with each consecutive one."""
    before = next((penalty.times for penalty in penalties if penalty.upstream == upstream), 0)
    length_s = min(settings.penalty_s * 2 ** min(before, 30), settings.penalty_most_s)
    others = tuple(penalty for penalty in penalties if penalty.upstream != upstream)
    return (*others, Penalty(upstream, before + 1, now + timedelta(seconds=length_s)))


def is_stuck(
    node: Node, ahead: tuple[int, int] | None, idle_s: float, beat_s: float, settings: TierSettings = DEFAULTS
) -> bool:
    """Say whether a member does not advance although its upstream is ahead.

    Args:
        node: The member.
        ahead: Batch and tick of its upstream; None if unknown.
        idle_s: Time from its last progress to its last registration: a member cannot report progress in between.
        beat_s: How often new batches appear.
        settings: Of the registry.
    """
    if ahead is None or node.last is None or (node.last, node.tick) >= ahead:
        return False
    return idle_s > max(settings.stuck_s, 2 * beat_s)
