"""Let a replica read another place that holds the same bytes: a relay instead of the original, or the other way."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import wlc
from wlc.farm.database import open_database
from wlc.farm.errors import FarmError
from wlc.farm.registry import unregister
from wlc.farm.same_past import is_same_place, prove_same_past
from wlr.engine.adapters import target_at
from wlr.registration import register_replica
from wlr.replication import refuse_other_database, with_keys

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from wlc.farm.database import FarmDatabase
    from wlr.engine.state import ReplicaState


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

    A replica that chooses its upstream is pinned to the place; `wlr replicate --upstream auto` ends that.

    Args:
        into: The replica.
        upstream: Name in the farm or URL of the database's folder there, for example of a relay.
        farm: URL of the farm, for a bare name.
        storage_options: Options of the file systems of replica and farm.
        register: Note the replica in the place, so that pruning there keeps what it needs.

    Raises:
        InvalidError: There is no replica or no such database, or the place does not hold the replica's position yet.
        ExpiredError: The place begins after the replica's position.
        CorruptError: The place has another past. The replica goes on with the one before.
    """
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
    if state.attachment is not None:
        wlc.detach(
            open_database(state.attachment.registry, storage_options=storage_options), state.attachment, state.id
        )
    before = open_database(state.master, storage_options=storage_options)
    if not is_same_place(before, database):
        # The place before may be gone, which can be why the replica leaves it.
        with suppress(FarmError):
            unregister(before, state.id)
    return Switched(state.position.tick, state.master, database.url)


def _prove_again(database: FarmDatabase, state: ReplicaState) -> None:
    """Check that nothing was pruned before the replica was registered; then the place before may forget it."""
    try:
        prove_same_past(database, state.position)
    except FarmError:
        if state.master != database.url:
            with suppress(FarmError):
                unregister(database, state.id)
        raise
