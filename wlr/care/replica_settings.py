"""The owner's settings of a replica: its beat, pause and lock.

Removes a replica from a database with other objects.

Removes old ticks of a Parquet replica, and the files that only they need.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import wlc
from wlc.farm.config import BEAT_MOST_S
from wlc.farm.errors import FarmError, InvalidError
from wlr.engine.adapters import target_at
from wlr.engine.contract import DELETE_PLACE, DatabaseFile, Guarded, Lake

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from wlr.engine.contract import Target
    from wlr.engine.replica_state import ReplicaState
    from wlr.replay.plan.retention import PrunedTicks


def beat(
    into: str | os.PathLike[str], beat_s: float | None = None, *, storage_options: Mapping[str, Any] | None = None
) -> float:
    """Return, or set, how often a following replica checks for new log files, in seconds.

    The default is the master's beat, as of the last replication.

    Raises:
        InvalidError: The beat is negative or not a number.

    Examples:
        >>> wlr.beat("copy.duckdb", 5)
        5.0
    """
    target = target_at(into, storage_options)
    if beat_s is None:
        return target.read_state().beat_s
    if not 0 <= beat_s <= BEAT_MOST_S:
        raise InvalidError(f"a beat of {beat_s} seconds is invalid", hint="Give 0 or more seconds.")
    with target.open() as replica:
        replica.remember(replace(replica.state, beat_s=float(beat_s), follows_beat=False))
    return float(beat_s)


def place_read(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> str:
    """Return the URL of the database's folder that a replica reads now: its master's, or that of an upstream.

    Raises:
        InvalidError: There is no replica.
    """
    state = target_at(into, storage_options).read_state()
    chosen = state.attachment
    return (chosen.pinned or chosen.url or chosen.registry) if chosen else state.master


def pause(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> None:
    """Pause a replica or a feed: rounds of any caller do nothing until `resume`.

    Args:
        into: The replica; or the file that a feed writes, or the feed's place in the farm, `DB/feeds/NAME`.
        storage_options: Options of the file systems of both.

    Examples:
        >>> wlr.pause("copy.duckdb")
        >>> wlr.replicate(into="copy.duckdb").is_paused
        True
    """
    _set_paused(into, True, storage_options)


def resume(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> None:
    """Resume a paused replica or feed with the next round.

    Examples:
        >>> wlr.pause("copy.duckdb")
        >>> wlr.resume("copy.duckdb")
        >>> wlr.replicate(into="copy.duckdb").is_paused
        False
    """
    _set_paused(into, False, storage_options)


def _set_paused(into: str | os.PathLike[str], is_paused: bool, storage_options: Mapping[str, Any] | None) -> None:
    from wlr.reading.feeds.feed_state import feed_at, paused

    if (memory := feed_at(into, storage_options)) is not None:
        memory.change(lambda state: paused(state, is_paused))
        return
    with target_at(into, storage_options).open() as replica:
        replica.remember(replace(replica.state, is_paused=is_paused))


def unlock(into: str | os.PathLike[str]) -> None:
    """Allow direct writes to replicated tables, to repair the replica by hand, until `lock`.

    Examples:
        >>> wlr.unlock("copy.duckdb")
        >>> wlr.status("copy.duckdb").is_unlocked
        True
    """
    _set_unlocked(into, True, "wlr replica unlock")


def lock(into: str | os.PathLike[str]) -> None:
    """Refuse direct writes to replicated tables; a new replica is locked.

    Examples:
        >>> wlr.unlock("copy.duckdb")
        >>> wlr.lock("copy.duckdb")
        >>> wlr.status("copy.duckdb").is_unlocked
        False
    """
    _set_unlocked(into, False, "wlr replica lock")


def _set_unlocked(into: str | os.PathLike[str], is_unlocked: bool, asked: str) -> None:
    target = target_at(into)
    Guarded.required(target, asked)
    with target.open() as replica:
        if replica.state.not_locked:
            raise InvalidError(
                f"{target} is not locked, and cannot be: {replica.state.not_locked}",
                hint=f"wlr verify {shlex.quote(str(target))} finds direct writes",
                path=str(target),
            )
        replica.remember(replace(replica.state, is_unlocked=is_unlocked))


def refuse_unlocked(state: ReplicaState, target: Target, why: str) -> None:
    """Refuse to rebuild an unlocked replica.

    Args:
        state: Its state.
        target: The replica.
        why: The cause of the rebuild.

    Raises:
        InvalidError: It is unlocked.
    """
    if state.is_unlocked:
        raise InvalidError(
            f"{target} is unlocked, and a rebuild would lose its owner's direct writes; {why}",
            hint=f"to discard them: wlr replica lock {shlex.quote(str(target))}, then again",
            path=str(target),
        )


def drop(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Remove a replica from the DuckDB file that it was adopted into, and end its registration in the farm.

    Args:
        into: The file; its other objects stay.
        storage_options: Options of the farm's file system.

    Returns:
        Whether the farm has forgotten it. Otherwise `wlc.forget` does that.

    Raises:
        InvalidError: There is no replica, it was not adopted, or an object of the owner depends on it.
        UnavailableError: The file is in use.

    Examples:
        >>> wlr.drop("app.duckdb")
        True
    """
    target = target_at(into, storage_options)
    state = target.read_state()
    DatabaseFile.required(target, "wlr replica drop", DELETE_PLACE).remove()
    registered = state.attachment.registry if state.attachment else state.master
    try:
        wlc.forget(registered, state.id, storage_options=storage_options)
    except FarmError:
        # It was not registered, or the farm is unreachable.
        return False
    return True


def prune(
    into: str | os.PathLike[str],
    *,
    keep: str | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> PrunedTicks:
    """Remove ticks of a Parquet replica beyond its retention, and every file that no tick names.

    Args:
        into: A Parquet replica.
        keep: Retention: a number of old ticks, an age such as "3 days", or "" for all; the remembered one if omitted.
        dry_run: Only report the plan.
        storage_options: Options of the replica's file system.

    Raises:
        InvalidError: There is no such replica, or `keep` is invalid.
        UnavailableError: Another process is writing to the replica: try again.

    Examples:
        >>> wlr.prune("lake", keep="0").ticks
        (0, 1, 2)
    """
    return Lake.required(target_at(into, storage_options), "wlr lake prune").prune(keep, dry_run=dry_run)
