"""What the service looks at beside its rounds: lag, what waits to be published, free space."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wlc
from wlr.replica_status import lag
from wlr.service.job_states import Observed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wlr.service.job_states import WorkStanding


def reader(url: Callable[[], str], options: Mapping[str, Any] | None, into: str, standing: WorkStanding) -> Observed:
    """Look at how far a replica, feed or relay is behind the farm, whether or not its rounds go well.

    Args:
        url: Folder of the database in the farm.
        options: Options of the farm's file system.
        into: Where the replica is.
        standing: Where it stands.
    """
    free = free_bytes(into)
    if standing.tick is None:
        return Observed(free_bytes=free)
    lag_s, lag_transactions = lag(url(), standing.tick, standing.clock, options)
    return Observed(lag_s, lag_transactions, free_bytes=free)


def master(source: str, options: Mapping[str, Any] | None, _: WorkStanding) -> Observed:
    """Look at what a master has not published, and what its server keeps for that."""
    found = wlc.status(source, storage_options=options)
    free = free_bytes(found.farm)
    return Observed(None, None, found.unpublished, found.retained_bytes, free, found.tick)


def database(url: Callable[[], str], options: Mapping[str, Any] | None, _: WorkStanding) -> Observed:
    """Look at a database of a farm."""
    place = url()
    return Observed(free_bytes=free_bytes(place), tick=wlc.tick(place, storage_options=options))


def free_bytes(place: str) -> int | None:
    """Return the free space of the disk that holds a local path; None for anything else."""
    if "://" in place:
        return None
    folder = next((each for each in (Path(place), *Path(place).absolute().parents) if each.is_dir()), None)
    return shutil.disk_usage(folder).free if folder else None
