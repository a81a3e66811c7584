"""What the owner of a replica sets: its beat, whether it is paused or may be written to, which failure is accepted."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wlc.farm.beat import BEAT_MOST_S
from wlc.farm.errors import InvalidError
from wlr.engine.adapters import target_at
from wlr.engine.contract import Guarded

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from wlr.engine.contract import Target
    from wlr.engine.state import ReplicaState


def beat(
    into: str | os.PathLike[str], beat_s: float | None = None, *, storage_options: Mapping[str, Any] | None = None
) -> float:
    """Return, or set, how often a following replica looks for new log files, in seconds.

    Until it is set, that is the master's beat, as of the last replication.

    Raises:
        InvalidError: The beat is negative or not a number.
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
    """Return the URL of the database's folder that a replica reads at present: its master's, or that of an upstream.

    Raises:
        InvalidError: There is no replica.
    """
    state = target_at(into, storage_options).read_state()
    chosen = state.attachment
    return (chosen.pinned or chosen.url or chosen.registry) if chosen else state.master


def pause(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> None:
    """Let a replica or a feed stay where it is: rounds do nothing, whoever calls them, until `resume`.

    Args:
        into: The replica; or the file that a feed writes, or the feed's place in the farm, `DB/feeds/NAME`.
        storage_options: Options of the file systems of both.
    """
    _set_paused(into, True, storage_options)


def resume(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> None:
    """Let a paused replica or feed go on with the next round."""
    _set_paused(into, False, storage_options)


def _set_paused(into: str | os.PathLike[str], is_paused: bool, storage_options: Mapping[str, Any] | None) -> None:
    from wlr.feeds.lookup import feed_at
    from wlr.feeds.state import paused

    if (memory := feed_at(into, storage_options)) is not None:
        memory.change(lambda state: paused(state, is_paused))
        return
    with target_at(into, storage_options).open() as replica:
        replica.remember(replace(replica.state, is_paused=is_paused))


def unlock(into: str | os.PathLike[str]) -> None:
    """Allow direct writes to replicated tables, to repair the replica by hand; `lock` ends it."""
    _set_unlocked(into, True, "wlr unlock")


def lock(into: str | os.PathLike[str]) -> None:
    """Refuse direct writes to replicated tables; a new replica is locked."""
    _set_unlocked(into, False, "wlr lock")


def _set_unlocked(into: str | os.PathLike[str], is_unlocked: bool, asked: str) -> None:
    target = target_at(into)
    Guarded.required(target, asked)
    with target.open() as replica:
        replica.remember(replace(replica.state, is_unlocked=is_unlocked))


def refuse_unlocked(state: ReplicaState, target: Target, why: str) -> None:
    """Refuse to make an unlocked replica anew.

    Args:
        state: What it remembers.
        target: The replica.
        why: It would have to be made anew.

    Raises:
        InvalidError: It is unlocked.
    """
    if state.is_unlocked:
        raise InvalidError(
            f"{target} is unlocked, and making it anew would lose what its owner wrote to its tables; {why}",
            hint=f"to lose that: wlr lock {shlex.quote(str(target))}, then again",
            path=str(target),
        )
