"""The tie between a master and its place in the farm: `wlc.config` names the history that owns the place."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.clock import utc_now
from wlc.farm.config import STOPPED, naming_snapshot
from wlc.farm.errors import CorruptError, FencedError
from wlc.farm.store import MissingError
from wlc.masters.master_state import Fence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Config
    from wlc.masters.contract import Source
    from wlc.masters.master_state import MasterState


def own(config: Config, state: MasterState) -> Config:
    """Return the config if it belongs to this history.

    Raises:
        FencedError: It belongs to another one.
    """
    if config.history != state.history:
        raise FencedError(f"another master took {config.name} over meanwhile", hint="choose another name with --name")
    return config


def fence(config: Config, state: MasterState) -> None:
    """Refuse to publish into a farm database that belongs to another master.

    Raises:
        FencedError: Another history has begun there, or the database was stopped or its log files moved by another
            process.
    """
    if config.history != state.history:
        raise FencedError(
            f"farm database {config.name} is at history {config.history}, this master at {state.history}",
            hint="another copy became its master; to publish this one, too: wlc stop SOURCE, then"
            " wlc master SOURCE --name OTHER",
        )
    # An attacker who can write wlc.config must not be able to redirect the master's rows to another place.
    if config.logs != state.logs:
        raise FencedError(
            f"wlc.config of farm database {config.name} says logs={config.logs}, this master knows {state.logs}",
            hint="put logs= right there, then: wlc flush SOURCE; to publish elsewhere:"
            " wlc stop SOURCE, then wlc master SOURCE --logs URL",
        )
    if config.state == STOPPED:
        raise FencedError(
            f"farm database {config.name} was stopped",
            hint="wlc stop SOURCE, then wlc master SOURCE, which starts a new history from a snapshot",
        )


@contextmanager
def remembering_fence(source: Source, database: FarmDatabase) -> Iterator[None]:
    """Store in the source that it is fenced off, and clear the mark once it is not.

    Raises:
        FencedError: It is fenced off.
    """
    try:
        if (state := source.require_state()).fence is not None:
            repair_config(database, state)
            source.remember(replace(state, fence=None))
        yield
    except FencedError as error:
        state = source.require_state()
        since = state.fence.since if state.fence else utc_now()
        source.remember(replace(state, fence=Fence(error.message, error.hint or "", since)))
        raise


def outdated(database: FarmDatabase, state: MasterState, number: int) -> FencedError:
    """Build the error for a published batch that contradicts this master's stored state."""
    hint = "to go on from this copy: wlc stop SOURCE, then wlc master SOURCE, which starts a new history"
    if state.site is not None and state.circle is not None:
        hint = state.site.how_to_go_on(database, hint)
    return FencedError(
        f"batch {number} of {database.name} was published by another master, or by this one before it was restored",
        hint=f"run exactly one master; {hint}",
        path=database.url,
    )


def present_config(database: FarmDatabase, state: MasterState) -> Config:
    """Return the present config. Rebuild a lost or damaged one from the log files and the master's state."""
    try:
        return database.config()
    except (MissingError, CorruptError):
        return database.rebuild_config(state.config())


def advance_config(database: FarmDatabase, batch: Batch) -> None:
    """Update `wlc.config` after a published batch; another history's config stays and fences the next publication."""

    def follow(config: Config) -> Config:
        if config.batches > batch.number or config.history != batch.history:
            return config
        return replace(config, batches=batch.number + 1, tick=batch.last, write=batch.clock or config.write)

    database.change_config(follow)


def announce_snapshot(database: FarmDatabase, state: MasterState) -> None:
    """Name the snapshot at the last published tick in `wlc.config`.

    Raises:
        FencedError: The farm's database is another master's.
    """
    database.change_config(lambda config: naming_snapshot(own(config, state), state.tick))


def repair_config(database: FarmDatabase, state: MasterState) -> Config:
    """Repair `wlc.config` after publishing, if it was lost, damaged or left behind by an earlier run.

    Returns:
        The config.

    Raises:
        FencedError: The farm's database is another master's.
    """
    config = present_config(database, state)
    fence(config, state)
    if config.batches > state.batch + 1:
        raise outdated(database, state, state.batch + 1)
    return database.rebuild_config() if config.batches <= state.batch else config
