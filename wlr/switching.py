"""Let a replica read another place that holds the same bytes: a relay instead of the original, or the other way."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import wlc
from wlc.farm.attachment import Attachment
from wlc.farm.database import open_database
from wlc.farm.errors import FarmError, InvalidError
from wlc.farm.model import Position
from wlc.farm.registry import register as register_at
from wlc.farm.registry import unregister
from wlc.farm.same_past import is_same_place, prove_same_past
from wlr.engine.adapters import target_at
from wlr.feeding import feed_reader
from wlr.registration import register_replica
from wlr.replication import refuse_other_database, with_keys

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from wlc.farm.database import FarmDatabase
    from wlc.farm.versioned import VersionedObject
    from wlr.engine.state import ReplicaState
    from wlr.feeds.state import FeedState


@dataclass(frozen=True, slots=True)
class Switched:
    """Which place a replica read before, and which it reads now.

    Attributes:
        tick: Where the replica stands; no row was read or written.
    """

    tick: int
    before: str
    now: str


def switch(
    into: str | os.PathLike[str],
    upstream: str | os.PathLike[str],
    *,
    farm: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    register: bool = True,
) -> Switched:
    """Let a replica read another place from now on, once the chain of log files proves that it holds the same past.

    A replica that chooses its upstream is pinned to the place; `wlr replicate --upstream auto` ends that. A feed is
    pinned in any case; `wlr feed --upstream none` ends that.

    Args:
        into: The replica; or the file of a feed, or its place in the farm, `DB/feeds/NAME`.
        upstream: Name in the farm or URL of the database's folder there, for example of a relay.
        farm: URL of the farm, for a bare name.
        storage_options: Options of the file systems of replica and farm.
        register: Note the replica in the place, so that pruning there keeps what it needs.

    Raises:
        InvalidError: There is no replica or no such database, or the place does not hold the replica's position yet.
        ExpiredError: The place begins after the replica's position.
        CorruptError: The place has another past. The replica goes on with the one before.
    """
    from wlr.feeds.remembered import feed_at

    memory = feed_at(into, storage_options)
    if memory is not None and (found := memory.load()) is not None:
        database = wlc.resolve(upstream, farm, storage_options=storage_options)
        return _switch_feed(memory, found[0], database, registers=register)
    target = target_at(into, storage_options)
    database = wlc.resolve(upstream, farm, storage_options=storage_options)
    with target.open() as replica:
        state = replica.state
        refuse_other_database(state, database, target)
        database = with_keys(state.verify, database)
        prove_same_past(database, state.position)
        if register:
            register_replica(database, state, target)
            _prove_again(database, state)
        attachment = state.attachment and replace(state.attachment, among=(database.url,), slot=None, chosen=None)
        replica.remember(replace(state, master=database.url, attachment=attachment))
    wlc.detach(database, state.attachment, None, state.id)
    before = open_database(state.master, storage_options=storage_options)
    if not is_same_place(before, database):
        # The place before may be gone, which can be why the replica leaves it.
        with suppress(FarmError):
            unregister(before, state.id)
    return Switched(state.position.tick, state.master, database.url)


def _switch_feed(
    memory: VersionedObject[FeedState], state: FeedState, database: FarmDatabase, *, registers: bool
) -> Switched:
    """Pin a feed to a place; its next round goes on from there, and gives up what it had claimed."""
    if state.master.rstrip("/").rpartition("/")[2] != database.name:
        message = f"feed {state.name} is of {state.master}, not of {database.url}"
        raise InvalidError(message, hint="Give the database's folder in another place.", path=database.url)
    database = with_keys(state.verify, database)
    position = state.position or Position(state.history, state.snapshot or 0)
    if state.position is not None:
        prove_same_past(database, position)
    if registers:
        register_at(database, feed_reader(state))
        if state.position is not None:
            prove_same_past(database, position)

    def pinned(there: FeedState | None) -> FeedState:
        known = there or state
        before = known.attachment or Attachment(known.master, url=known.master)
        return replace(known, attachment=replace(before, among=(database.url,), chosen=None))

    memory.change(pinned)
    return Switched(position.tick, state.master, database.url)


def _prove_again(database: FarmDatabase, state: ReplicaState) -> None:
    """Check that nothing was pruned before the replica was registered; then the place before may forget it."""
    try:
        prove_same_past(database, state.position)
    except FarmError:
        if state.master != database.url:
            with suppress(FarmError):
                unregister(database, state.id)
        raise
