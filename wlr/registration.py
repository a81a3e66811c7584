"""Makes a replica known to the farm that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.attachment import Membership, register_reader
from wlc.farm.clock import utc_now
from wlc.farm.registry import Replica, this_host, this_user

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlr.engine.contract import Target
    from wlr.engine.state import ReplicaState


def register_replica(
    database: FarmDatabase,
    state: ReplicaState,
    target: Target,
    membership: Membership | None = None,
    *,
    delay_s: float = 0.0,
    is_level: bool = False,
) -> None:
    """Say how far a replica has come; raises as `wlc.farm.registry.register` does."""
    replica = as_replica(state, target, delay_s)
    failure = f"transaction {state.failure.tick} failed" if state.failure else ""
    register_reader(database, replica, membership, is_level=is_level, failure=failure)


def as_replica(state: ReplicaState, target: Target, delay_s: float = 0.0) -> Replica:
    """Return what a replica says of itself."""
    position = state.position if state.position.history else None
    here = this_host(), this_user()
    return Replica(
        state.id, str(target), position, state.clock, utc_now(), *here, delay_s=delay_s, tables=tuple(state.tables)
    )
