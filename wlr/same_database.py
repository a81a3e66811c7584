"""Whether a farm database is the one that a replica or a feed is of, and with which keys it is read."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from wlc.farm.database import open_database
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlr.engine.contract import Target
    from wlr.engine.state import ReplicaState


def with_keys(verify: str, database: FarmDatabase) -> FarmDatabase:
    """Return the database with keys to verify that a replica or a feed remembers, unless some are given.

    What was made with such keys demands signatures, whether the keys are given again or not.
    """
    if not verify or database.keys.verifying:
        return database
    options = {**(database.storage_options or {}), "verify_key": verify}
    return open_database(database.url, storage_options=options)


def is_same_database(state: ReplicaState, database: FarmDatabase) -> bool:
    """Say whether a replica reads this database; its folder may have been moved, but keeps its name."""
    return state.master.rstrip("/").rpartition("/")[2] == database.name


def refuse_other_database(state: ReplicaState, database: FarmDatabase, target: Target) -> None:
    """Refuse to go on from another database; its folder may have been moved, but keeps its name.

    Raises:
        InvalidError: It is another one.
    """
    name = state.master.rstrip("/").rpartition("/")[2]
    if name != database.name:
        raise InvalidError(
            f"{target} is a replica of database {name} ({state.master}), not of {database.name} ({database.url})",
            hint=f"wlr replicate --into {shlex.quote(str(target))} goes on with {name}; replicate {database.name} into"
            " a new place.",
            path=str(target),
            position=state.position,
        )
