"""The tree of tiers for people and monitoring: members with their upstream, lag, and need for attention."""

from __future__ import annotations

import shlex
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.farm.clock import utc_now
from wlc.farm.human_form import ForPeople
from wlc.farm.registry import INACTIVE, PENDING, RELAY, STUCK, Transition
from wlc.masters.lookup import resolve
from wlc.tiers.choice import NOWHERE, ancestors, is_stuck, tiers_of
from wlc.tiers.tree import read_tree
from wlc.tiers.upstreams import ORIGIN

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from wlc.tiers.choice import Node
    from wlc.tiers.tier_settings import TierSettings
    from wlc.tiers.tree import Member, Tree

CUT_OFF = "cut off"


@dataclass(frozen=True, slots=True)
class TierMember(ForPeople):
    """A member of the tree.

    Attributes:
        id: Its registered id; `origin` for the place that holds the registry.
        kind: origin, relay, replica, site or feed.
        url: Where it is.
        upstream: Id of its upstream; empty for the origin.
        registry: URL of the registry by which it chooses, if it is not the shown one.
        tier: 0 for the origin; None without a path to it.
        state: pending, active, inactive or stuck.
        marks: Reasons for attention: silent, stuck, pending for long, cut off.
        children: Its claimed slots.
        fanout: Its maximum of slots; None for a member that does not serve.
        tick: Last tick that it holds; None before the first.
        batch: Its batch.
        lag_s: Seconds between its last commit and the origin's; None if one of them is unknown.
        delay_s: Its configured delay.
        seen: When it was last seen, by the store's clock; None for the origin.
        interval_s: How often it registers.
        transitions: Its last changes of state with cause, actor and time, oldest first.
    """

    id: str
    kind: str
    url: str
    upstream: str
    tier: int | None
    class_name: str
    state: str
    marks: tuple[str, ...]
    children: int
    fanout: int | None
    tick: int | None
    batch: int | None
    lag_s: float | None
    delay_s: float
    tables: tuple[str, ...]
    seen: datetime | None
    interval_s: float | None
    host: str
    user: str
    transitions: tuple[Transition, ...] = ()
    registry: str = ""


@dataclass(frozen=True, slots=True)
class TierTree(ForPeople):
    """All members of the tree, readers after their upstream, and the effective settings.

    Attributes:
        damaged: Errors of the registry's documents that were left out.
    """

    url: str
    members: tuple[TierMember, ...]
    settings: TierSettings
    damaged: tuple[str, ...] = ()

    @property
    def stuck(self) -> tuple[TierMember, ...]:
        """Members that do not advance although their upstream is ahead."""
        return tuple(member for member in self.members if STUCK in (*member.marks, member.state))

    @property
    def cut_off(self) -> tuple[TierMember, ...]:
        """Relays without a path to the origin: they read in a cycle, or from an unregistered upstream."""
        return tuple(member for member in self.members if CUT_OFF in member.marks)


def tier_tree(
    db: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> TierTree:
    """Return the readers of a database with their upstream, lag, and need for attention.

    Args:
        db: Name in the farm, URL of the database's folder, or a source that knows its farm.
        farm: URL of the farm, for a bare name; WLC_FARM if omitted.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: There is no such database.

    Examples:
        >>> shipped = wlc.ship("sales", to="relay")
        >>> sorted(member.kind for member in wlc.tier_tree("sales").members)
        ['origin', 'relay', 'replica', 'replica']
    """
    database = resolve(db, farm, storage_options=storage_options)
    tree = read_tree(database, utc_now())
    for problem in tree.damaged:
        warnings.warn(problem, stacklevel=2)
    return TierTree(database.url, members_of(tree, database.url), tree.settings, tree.damaged)


def continuing_command(member: TierMember, url: str) -> str:
    """Return the command that continues a member or names the remedy; `url` is the origin's.

    A feed to Kafka keeps its state in the farm.
    """
    if member.kind == RELAY:
        return f"wlc tier ship {shlex.quote(url)} --to {shlex.quote(member.url.rpartition('/')[0])}"
    if member.url.startswith("kafka://"):
        return f"wlr status {shlex.quote(f'{url}/feeds/' + member.id.removeprefix('feed-'))}"
    return f"wlr replicate --into {shlex.quote(member.url)}"


def members_of(tree: Tree, url: str) -> tuple[TierMember, ...]:
    """Return all members of a tree, the origin first; `url` is the origin's."""
    return tuple(_members(tree, url))


def _members(tree: Tree, url: str) -> Iterable[TierMember]:
    nodes = {node.id: node for node in (*tree.nodes(), *map(tree.node, tree.members.values()))}
    children, tiers = tree.children(), tiers_of(nodes.values())
    below: dict[str, list[str]] = {}
    for name, node in sorted(nodes.items()):
        if name != ORIGIN:
            # A member that reads from an unregistered upstream or in a cycle is listed beside the origin.
            below.setdefault(node.parent if tiers[name] != NOWHERE else "", []).append(name)

    def walk(name: str) -> Iterable[TierMember]:
        yield _member(nodes[name], tree, tiers[name], children[name], nodes)
        for child in below.get(name, ()):
            yield from walk(child)

    yield _origin(nodes[ORIGIN], tree, children[ORIGIN], url)
    for name in below.get(ORIGIN, ()):
        yield from walk(name)
    for name in below.get("", ()):
        yield _member(nodes[name], tree, NOWHERE, children[name], nodes)


def _origin(node: Node, tree: Tree, children: int, url: str) -> TierMember:
    transitions = tree.origin.transitions if tree.origin else ()
    return TierMember(
        id=ORIGIN,
        kind=ORIGIN,
        url=url,
        upstream="",
        tier=0,
        class_name="",
        state=node.state,
        marks=(),
        children=children,
        fanout=node.fanout,
        tick=node.tick,
        batch=node.last,
        lag_s=0.0,
        delay_s=0.0,
        tables=(),
        seen=None,
        interval_s=None,
        host="",
        user="",
        transitions=transitions,
    )


def _member(node: Node, tree: Tree, tier: int, children: int, nodes: Mapping[str, Node]) -> TierMember:
    member = tree.members[node.id]
    replica, upstream = member.replica, member.upstream
    transitions = (*replica.transitions, *(upstream.transitions if upstream else ()))
    marks = _marks(node, tree, member, nodes)
    path = (node.id, *ancestors(node.id, nodes))
    # The upstream of a member that chooses by another registry is known there.
    is_elsewhere = any(tree.members[name].replica.registry for name in path if name in tree.members)
    if tier == NOWHERE and replica.kind == RELAY and not is_elsewhere:
        marks = (*marks, CUT_OFF)
    return TierMember(
        id=node.id,
        kind=replica.kind,
        url=upstream.url if upstream else replica.target,
        upstream=node.parent,
        tier=tier if tier != NOWHERE else None,
        class_name=node.class_name,
        state=STUCK if STUCK in marks and node.state != INACTIVE else node.state,
        marks=marks,
        children=children,
        fanout=node.fanout if upstream else None,
        tick=node.tick if node.last is not None else None,
        batch=node.last,
        lag_s=_lag_s(tree, member),
        delay_s=replica.delay_s,
        tables=replica.tables,
        seen=member.arrived,
        interval_s=replica.interval_s,
        host=replica.host,
        user=replica.user,
        transitions=tuple(sorted(transitions, key=lambda transition: transition.time)),
        registry=replica.registry,
    )


def _marks(node: Node, tree: Tree, member: Member, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    replica = member.replica
    above = nodes.get(node.parent)
    ahead = (above.last, above.tick) if above is not None and above.last is not None else None
    idle_s = (replica.seen - (replica.progressed or replica.seen)).total_seconds()
    found = []
    if tree.is_silent(member):
        found.append("silent")
    is_paused = replica.state == INACTIVE
    if replica.state == STUCK or (not is_paused and is_stuck(node, ahead, idle_s, tree.config.beat_s, tree.settings)):
        found.append(STUCK)
    since = replica.transitions[-1].time if replica.transitions else replica.seen
    if replica.state == PENDING and (replica.seen - since).total_seconds() > tree.settings.pending_s:
        found.append("pending for long")
    return tuple(found)


def _lag_s(tree: Tree, member: Member) -> float | None:
    position, clock = member.replica.position, member.replica.clock
    if position is not None and position.tick >= tree.config.tick:
        return 0.0
    if clock is None or tree.config.write is None:
        return None
    return max((tree.config.write - clock).total_seconds(), 0.0)
