"""A master that is published on the beat by a process of its own."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from wlc.farm.errors import FarmError, UnavailableError
from wlc.farm.retry import PAUSE_LEAST_S, longer
from wlc.farm.store import MissingError
from wlc.masters import adapters
from wlc.masters.due_snapshots import SnapshotKeeper
from wlc.masters.fence import settle
from wlc.masters.lookup import opened_master
from wlc.masters.publish import Flushed, publish

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from wlc.farm.database import FarmDatabase
    from wlc.masters.contract import Source

_log = logging.getLogger("wlc")

# Whoever stops a service waits so long for a snapshot; one that is cut short leaves nothing that counts.
_SNAPSHOT_WAIT_S = 5.0


def run(
    source: str | os.PathLike[str],
    *,
    is_stopped: threading.Event,
    tell: Callable[[Flushed], None] | None = None,
    each: Callable[[Flushed | FarmError], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Flushed:
    """Publish what a master commits on the beat, until stopped.

    Where the source or the farm cannot be reached, `run` waits and tries again.

    Args:
        source: URL of the master. A DuckDB master is published by the process that writes it.
        is_stopped: Set it to finish the batch that is being published and return.
        tell: Called after every round that published something.
        each: Called after every round with what it published, if only nothing, or with why it failed and is tried
            again, which is a log line otherwise.
        storage_options: Options of the farm's file system, over those that the database remembers.

    Returns:
        What all rounds published.

    Raises:
        InvalidError: The source is published by the process that writes it.
    """
    adapters.module_of(source).check_run(os.fspath(source))
    total = Flushed(0, 0, 0, 0)
    snapshots = SnapshotKeeper(lambda: opened_master(source, storage_options))
    wait_s = 0.0
    while not is_stopped.wait(wait_s):
        try:
            with opened_master(source, storage_options) as (found, database):
                is_first = True
                while not is_stopped.wait(0 if is_first else wait_s):
                    flushed = publish_and_settle(found, database)
                    if is_first:
                        found.warn_bypassed()
                    is_first = False
                    total += flushed
                    if tell and flushed.batches:
                        tell(flushed)
                    if each:
                        each(flushed)
                    snapshots.look(database)
                    wait_s = max(found.beat_s, PAUSE_LEAST_S)
        except (UnavailableError, MissingError) as error:
            # A farm that is not there may be a disk that is not mounted.
            wait_s = longer(wait_s)
            if each:
                each(error)
            else:
                _log.warning("%s; trying again in %.0f s", error, wait_s)
    snapshots.wait(_SNAPSHOT_WAIT_S)
    return total


def publish_and_settle(source: Source, database: FarmDatabase) -> Flushed:
    """Publish what waits now, and repair `wlc.config` where needed."""
    with source.publishing():
        flushed = publish(source, database)
        settle(database, source.require_state())
        return flushed
