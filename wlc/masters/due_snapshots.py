"""Snapshots that are due by policy: the publisher takes them beside publishing, one process at a time."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from wlc.farm.clock import utc_now
from wlc.farm.errors import FarmError
from wlc.farm.keeping import read_policy
from wlc.farm.lease import taking_snapshot
from wlc.farm.paths import manifest_path, parse_snapshot_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.keeping import KeepPolicy
    from wlc.farm.model import Manifest
    from wlc.masters.contract import Source

_log = logging.getLogger("wlc")

# How often a publisher checks whether a snapshot is due, and how long it waits after a failed one.
_LOOK_EVERY_S = 60.0
_AFTER_FAILURE_S = 600.0


def is_due(policy: KeepPolicy | None, tick: int, newest: int | None, arrived: datetime | None, now: datetime) -> bool:
    """Decide whether a snapshot is due.

    Args:
        policy: The owner's policy; None without one.
        tick: Last published tick.
        newest: Tick of the newest snapshot, None without one.
        arrived: When the store received it; None if unknown. A time further in the future than the interval of
            snapshots is from a wrong clock.
        now: The present.
    """
    if policy is None or policy.snapshot_every is None or tick <= (newest or 0):
        return False
    return newest is None or arrived is None or abs(now - arrived) >= policy.snapshot_every


def find_due(database: FarmDatabase) -> bool:
    """Ask a farm whether a snapshot is due; one request if no policy is set."""
    policy = read_policy(database)
    if policy is None or policy.snapshot_every is None:
        return False
    config = database.config()
    newest = parse_snapshot_folder(config.snapshot)
    listed = database.store.list(manifest_path(newest)) if newest is not None else []
    arrived = max((entry.arrived for entry in listed), default=None)
    return is_due(policy, config.tick, newest, arrived, utc_now())


def take_due(source: Source, database: FarmDatabase) -> Manifest | None:
    """Take a snapshot if one is due and no other process is taking it; None otherwise.

    Raises:
        FarmError: The snapshot failed.
    """
    if not find_due(database):
        return None
    with taking_snapshot(database.store, database.name) as is_ours:
        # Another process may have taken it between the check and the lease.
        if not is_ours or not find_due(database):
            return None
        with source.working():
            return source.take_snapshot(database, is_first=False)


def try_take_due(source: Source, database: FarmDatabase) -> bool:
    """Take a snapshot if one is due; log a failure and return False: published transactions stay published."""
    try:
        take_due(source, database)
    except FarmError as error:
        _log.warning("no snapshot of %s was taken, although one is due: %s", database.name, error)
        return False
    return True


class SnapshotKeeper:
    """Takes due snapshots in a separate thread, so that publishing continues.

    Args:
        opened: Opens the source, and its place in the farm, for the thread.
    """

    def __init__(self, opened: Callable[[], AbstractContextManager[tuple[Source, FarmDatabase]]]) -> None:
        self._opened = opened
        self._next_look = 0.0
        self._thread: threading.Thread | None = None

    def look(self, database: FarmDatabase) -> None:
        """Start a snapshot if one is due; called after every round of publishing, returns quickly."""
        if time.monotonic() < self._next_look or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_look = time.monotonic() + _LOOK_EVERY_S
        try:
            if not find_due(database):
                return
        except FarmError as error:
            _log.warning("whether a snapshot of %s is due is not known: %s", database.name, error)
            return
        self._thread = threading.Thread(target=self._take, name=f"wlc snapshot {database.name}", daemon=True)
        self._thread.start()

    def _take(self) -> None:
        try:
            with self._opened() as (source, database):
                is_well = try_take_due(source, database)
        except FarmError as error:
            _log.warning("no snapshot was taken, although one is due: %s", error)
            is_well = False
        if not is_well:
            self._next_look = time.monotonic() + _AFTER_FAILURE_S

    def wait(self, most_s: float | None = None) -> None:
        """Wait for a running snapshot, at most `most_s` seconds."""
        if self._thread is not None:
            self._thread.join(most_s)
