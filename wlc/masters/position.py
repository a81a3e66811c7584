"""Where the log of a master is, and its beat: what the farm's `wlc.config` says, in few milliseconds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wlc.farm.beat import parse_beat
from wlc.masters import adapters
from wlc.masters.lookup import resolve

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from datetime import datetime


def tick(
    db: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Return the last published tick, 0 before the first; arguments as for `resolve`."""
    return resolve(db, farm, storage_options=storage_options).config().tick


def clock(
    db: str | os.PathLike[str],
    farm: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> datetime | None:
    """Return the commit time of the last published transaction, None before the first; arguments as for `resolve`."""
    return resolve(db, farm, storage_options=storage_options).config().write


def beat(
    db: str | os.PathLike[str],
    beat_s: float | None = None,
    farm: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> float:
    """Return or set the beat, seconds; masters that are open follow at their next beat.

    Args:
        db: As for `resolve`.
        beat_s: The new beat; 0 publishes every commit.
        farm: As for `resolve`.
        storage_options: As for `resolve`.

    Raises:
        InvalidError: The beat is invalid.
        FencedError: The source is a copy of a master, whose beat it is.
    """
    database = resolve(db, farm, storage_options=storage_options, changes=beat_s is not None)
    if beat_s is None:
        return database.config().beat_s
    parse_beat(str(beat_s))
    if adapters.is_source(db):
        with adapters.opened(db) as source:
            source.remember(replace(source.require_state(), beat_s=float(beat_s)))
    return database.change_config(lambda config: replace(config, beat_s=beat_s)).beat_s
