"""Makes a replica known to the farm that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.clock import utc_now
from wlc.farm.registry import Replica, register, this_host, this_user

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlr.engine.contract import Target
    from wlr.engine.state import ReplicaState


def register_replica(database: FarmDatabase, state: ReplicaState, target: Target) -> None:
    """Say how far a replica has come; raises as `wlc.farm.registry.register` does."""
    position = state.position if state.position.history else None
    register(database, Replica(state.id, str(target), position, state.clock, utc_now(), this_host(), this_user()))
