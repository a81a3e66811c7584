"""The tie between a master and its place in the farm: `wlc.config` names the history that owns the place."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.clock import format_time, utc_now
from wlc.farm.config import STOPPED, naming_snapshot
from wlc.farm.errors import CorruptError, FarmError, FencedError
from wlc.farm.health import read_health
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


def fence(database: FarmDatabase, config: Config, state: MasterState) -> None:
    """Refuse to publish into a farm database that belongs to another master.

    Raises:
        FencedError: Another history has begun there, or the database was stopped or its log files moved by another
            process.
    """
    if config.history != state.history:
        if (successor := _successor(database, state)) is not None:
            raise successor
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


def _successor(database: FarmDatabase, state: MasterState) -> FencedError | None:
    """Build the error for a master whose place a promoted copy has taken; None if none has."""
    try:
        batch, _ = database.read_batch(state.batch + 1)
        sign = read_health(database).publisher
    except FarmError:
        return None
    if not batch.continues or batch.parent is None:
        return None
    time, user = format_time(batch.clock or batch.transactions[0].started), batch.transactions[0].user
    place = f", {sign.source} on {sign.host}," if sign is not None and sign.history == batch.history else ""
    lost = f"; ticks after {batch.parent.tick} count no more" if state.tick > batch.parent.tick else ""
    return FencedError(
        f"a copy{place} is the master of {state.name} since {time}, when {user} promoted it{lost}",
        hint="wlc stop SOURCE --rest-to FOLDER keeps what is not published; programs open the new master's file",
        path=database.url,
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
    if (successor := _successor(database, state)) is not None:
        return successor
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
    fence(database, config, state)
    if config.batches > state.batch + 1:
        raise outdated(database, state, state.batch + 1)
    return database.rebuild_config() if config.batches <= state.batch else config
