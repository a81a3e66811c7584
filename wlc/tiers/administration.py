"""Administration of a tree of tiers by its owner: settings, fan-outs, service of upstreams, removal of members."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wlc.farm.clock import utc_now
from wlc.farm.errors import InvalidError
from wlc.farm.human_form import ForPeople
from wlc.farm.paths import claim_path, feed_lease_path, feed_path, parse_feed_id, replica_path, upstream_path
from wlc.farm.registry import ACTIVE, INACTIVE, moved_to, this_host, this_user
from wlc.masters.lookup import resolve
from wlc.tiers.tier_settings import change_fanout, change_settings
from wlc.tiers.tree import read_tree
from wlc.tiers.upstreams import (
    ORIGIN,
    Upstream,
    change_upstream,
    claims,
    refuse_absent,
    unknown_upstream,
    upstream_object,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from wlc.farm.database import FarmDatabase
    from wlc.tiers.tier_settings import TierSettings

_FANOUT_MOST = 10**6


@dataclass(frozen=True, slots=True)
class Fanout(ForPeople):
    """The fan-out of an upstream and its source.

    Attributes:
        used: Claimed slots.
        decided_by: The `registry`'s number for all, the `relay` itself, or an `override` for this upstream.
    """

    upstream: str
    fanout: int
    used: int
    decided_by: str


@dataclass(frozen=True, slots=True)
class Forgotten(ForPeople):
    """The removed documents of a former member."""

    id: str
    was_replica: bool
    was_upstream: bool
    claims: int


def set_tiers(
    db: str | os.PathLike[str],
    pairs: Sequence[str],
    *,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TierSettings:
    """Change settings of the registry, given as `name=value`, and return all of them.

    Raises:
        InvalidError: A setting or a value is invalid. Nothing was changed.

    Examples:
        >>> wlc.set_tiers("sales", ["keepalive_s=30"]).keepalive_s
        30.0
    """
    database = resolve(db, farm, storage_options=storage_options, changes=True)
    refuse_absent(database)
    return change_settings(database, tuple(pairs))


def set_upstream(
    db: str | os.PathLike[str],
    upstream: str,
    *,
    is_active: bool,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Upstream:
    """Take an upstream out of service, or put it back; its readers move with their next round.

    Args:
        db: Name in the farm, URL of the database's folder, or a source that knows its farm.
        upstream: Id, as `tier_tree` shows it; `origin` for the place that holds the registry.
        is_active: Whether it serves.
        farm: URL of the farm, for a bare name.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: There is no such upstream.

    Examples:
        >>> wlc.set_upstream("sales", "origin", is_active=False).state
        'inactive'
    """
    database = _opened(db, farm, storage_options)
    now = utc_now()

    def change(before: Upstream | None) -> Upstream:
        if before is None:
            if upstream != ORIGIN:
                raise unknown_upstream(database, upstream)
            before = Upstream(ORIGIN, database.url, this_host(), this_user())
        state, word = (ACTIVE, "active") if is_active else (INACTIVE, "inactive")
        transitions = moved_to(before.transitions, state, f"wlc tier upstream --{word}", now)
        return replace(before, transitions=transitions)

    return change_upstream(database, upstream, change)


def fanout(
    db: str | os.PathLike[str],
    number: int | None = None,
    *,
    upstream: str | None = None,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Fanout]:
    """Return or set the fan-out, the number of readers of one upstream.

    Args:
        db: Name in the farm, URL of the database's folder, or a source that knows its farm.
        number: The new number for all upstreams that set none themselves; None changes nothing.
        upstream: Set it only for this upstream, overriding its own number.
        farm: URL of the farm, for a bare name.
        storage_options: Options of the farm's file system.

    Returns:
        The effective number of each upstream, the origin first.

    Raises:
        InvalidError: The number is invalid, or there is no such upstream.

    Examples:
        >>> [(place.upstream, place.fanout) for place in wlc.fanout("sales", 5)]
        [('origin', 5)]
    """
    database = _opened(db, farm, storage_options)
    if number is not None and not 0 <= number <= _FANOUT_MOST:
        raise InvalidError(f"a fan-out of {number} is invalid", hint="Give a number from 0 on.")
    if upstream is not None and upstream != ORIGIN and upstream_object(database, upstream).load() is None:
        raise unknown_upstream(database, upstream)
    if upstream is not None:
        change_fanout(database, upstream, number)
    elif number is not None:
        change_settings(database, (f"fanout={number}",))
    tree = read_tree(database, utc_now())
    children, found = tree.children(), []
    for node in tree.nodes():
        member = tree.members.get(node.id)
        own = member.upstream.fanout if member and member.upstream else None
        decided_by = "override" if node.id in tree.settings.fanouts else "registry" if own is None else "relay"
        found.append(Fanout(node.id, node.fanout, children[node.id], decided_by))
    return found


def forget(
    db: str | os.PathLike[str],
    member: str,
    *,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Forgotten:
    """Remove a former member: registration, claims and entry as an upstream. Pruning no longer waits for it.

    A live member registers again with its next round.

    Raises:
        InvalidError: The id is unknown, or it is the origin, which holds the registry itself.

    Examples:
        >>> retired = wlc.readers("sales")[0]
        >>> wlc.forget("sales", retired.id).was_replica
        True
    """
    database = _opened(db, farm, storage_options)
    if member == ORIGIN:
        raise InvalidError(
            f"the origin is {database.url} itself and cannot be removed",
            hint=f"to take it out of service: wlc tier upstream {shlex.quote(database.url)} {ORIGIN} --inactive",
            path=database.url,
        )
    paths = replica_path(member), upstream_path(member)
    was_replica, was_upstream = map(database.store.exists, paths)
    held = _claims_of(database, member)
    if not (was_replica or was_upstream or held):
        raise unknown_upstream(database, member)
    # Delete the registration last: a repeated call finds the other documents by it.
    feed = parse_feed_id(member)
    remembered = (feed_path(feed), feed_lease_path(feed)) if feed else ()
    for path in (*held, *remembered, paths[1], paths[0]):
        database.store.delete(path)
    return Forgotten(member, was_replica, was_upstream, len(held))


def _claims_of(database: FarmDatabase, member: str) -> list[str]:
    """Return the paths of the slots that a member holds, and of the slots of the member as an upstream."""
    held = (claim for claim in claims(database) if member in (claim.upstream, claim.holder))
    return [claim_path(claim.upstream, claim.slot) for claim in held]


def _opened(
    db: str | os.PathLike[str], farm: str | os.PathLike[str] | None, options: Mapping[str, Any] | None
) -> FarmDatabase:
    database = resolve(db, farm, storage_options=options, changes=True)
    database.config()  # Refuse a name that the farm does not hold.
    return database
