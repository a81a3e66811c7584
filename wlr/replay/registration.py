"""Registers a replica at the farm that it reads.

Checks that a farm database is the one that a replica or a feed reads, and with which keys.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from wlc.farm.clock import utc_now
from wlc.farm.database import open_database
from wlc.farm.errors import InvalidError
from wlc.farm.registry import Replica, this_host, this_user
from wlc.tiers.attachment import Membership, register_reader

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlr.engine.contract import Target
    from wlr.engine.replica_state import ReplicaState


def register_replica(
    database: FarmDatabase,
    state: ReplicaState,
    target: Target,
    membership: Membership | None = None,
    *,
    delay_s: float = 0.0,
    is_level: bool = False,
) -> None:
    """Register a replica's position; raises as `wlc.farm.registry.register` does."""
    replica = as_replica(state, target, delay_s)
    failure = f"transaction {state.failure.tick} failed" if state.failure else ""
    try:
        register_reader(database, replica, membership, is_level=is_level, failure=failure)
    except InvalidError as error:
        read_only = f"wlr replicate {shlex.quote(database.url)} --into {shlex.quote(str(target))} --no-register"
        error.hint = f"a replica that may only read the farm: {read_only}; otherwise: {error.hint}"
        raise


def as_replica(state: ReplicaState, target: Target, delay_s: float = 0.0) -> Replica:
    """Return the registration of a replica."""
    position = state.position if state.position.history else None
    here = this_host(), this_user()
    return Replica(
        state.id, str(target), position, state.clock, utc_now(), *here, delay_s=delay_s, tables=tuple(state.tables)
    )


def with_keys(verify: str, database: FarmDatabase) -> FarmDatabase:
    """Return the database with the verification keys that a replica or a feed remembers, unless some are given.

    A replica that was made with such keys demands signatures, whether the keys are given again or not.
    """
    if not verify or database.keys.verifying:
        return database
    options = {**(database.storage_options or {}), "verify_key": verify}
    return open_database(database.url, storage_options=options)


def is_same_database(state: ReplicaState, database: FarmDatabase) -> bool:
    """Return whether a replica reads this database, whose folder may have moved but keeps its name."""
    return state.master.rstrip("/").rpartition("/")[2] == database.name


def refuse_other_database(state: ReplicaState, database: FarmDatabase, target: Target) -> None:
    """Refuse to continue from another database; the folder may have moved, but keeps its name.

    Raises:
        InvalidError: It is another database.
    """
    name = state.master.rstrip("/").rpartition("/")[2]
    if name != database.name:
        raise InvalidError(
            f"{target} is a replica of database {name} ({state.master}), not of {database.name} ({database.url})",
            hint=f"wlr replicate --into {shlex.quote(str(target))} continues {name}; replicate {database.name} into"
            " a new place.",
            path=str(target),
            position=state.position,
        )
