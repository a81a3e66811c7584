"""Publication of a master on the beat by a separate process."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from wlc.farm.errors import FarmError, UnavailableError
from wlc.farm.retry import NEWS_FIRST_S, NEWS_MOST_S, PAUSE_LEAST_S, longer
from wlc.farm.store import MissingError
from wlc.masters import adapters
from wlc.masters.due_snapshots import SnapshotKeeper
from wlc.masters.fence import repair_config
from wlc.masters.lookup import opened_master
from wlc.masters.publish import Flushed, publish
from wlc.masters.signs import giving_signs

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from wlc.farm.database import FarmDatabase
    from wlc.masters.contract import Source

_log = logging.getLogger("wlc")

# How long a stopping service waits for a snapshot. Files of an interrupted snapshot are ignored.
_SNAPSHOT_WAIT_S = 5.0


def check_run(source: str | os.PathLike[str]) -> None:
    """Refuse a master that `run` cannot publish.

    Raises:
        InvalidError: The process that writes it publishes it, or the engine's packages are not installed.
    """
    adapters.module_of(source).check_run(os.fspath(source))


def run(
    source: str | os.PathLike[str],
    *,
    is_stopped: threading.Event,
    tell: Callable[[Flushed], None] | None = None,
    each: Callable[[Flushed | FarmError], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Flushed:
    """Publish a master's commits on the beat until stopped.

    If the source or the farm cannot be reached, `run` waits and retries.

    Args:
        source: URL of the master. The process that writes a DuckDB master publishes it.
        is_stopped: Set it to finish the current batch and return.
        tell: Called after every round that published something.
        each: Called after every round with its result, even an empty one, or with the error that will be retried, which
            is logged otherwise.
        storage_options: Options of the farm's file system, over those that the database remembers.

    Returns:
        The total of all rounds.

    Raises:
        InvalidError: The process that writes the source publishes it.

    Examples:
        >>> stopped = threading.Event()
        >>> before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        >>> wlc.run("postgresql://db.example.com/sales", is_stopped=stopped).transactions
        0
    """
    check_run(source)
    total = Flushed(0, 0, 0, 0)
    snapshots = SnapshotKeeper(lambda: opened_master(source, storage_options))
    wait_s = 0.0
    while not is_stopped.wait(wait_s):
        try:
            with opened_master(source, storage_options) as (found, database), giving_signs(found, database):
                is_first = True
                pause = _Pause(found, is_stopped)
                while not is_stopped.is_set():
                    flushed = publish_and_repair(found, database)
                    if is_first:
                        found.warn_bypassed()
                    is_first = False
                    total += flushed
                    if tell and flushed.batches:
                        tell(flushed)
                    if each:
                        each(flushed)
                    snapshots.look(database)
                    wait_s = 0.0
                    pause.after(flushed)
        except (UnavailableError, MissingError) as error:
            # A missing farm may be an unmounted disk.
            wait_s = longer(wait_s)
            if each:
                each(error)
            else:
                _log.warning("%s; trying again in %.0f s", error, wait_s)
    snapshots.wait(_SNAPSHOT_WAIT_S)
    return total


class _Pause:
    """Waits between two rounds: for a beat, or with a beat of 0 until something may have been committed."""

    def __init__(self, source: Source, is_stopped: threading.Event) -> None:
        self._source = source
        self._is_stopped = is_stopped
        self._wait_s = NEWS_FIRST_S

    def after(self, flushed: Flushed) -> None:
        """Wait after a round.

        If other writers fill the source's log continuously, rounds without result become less frequent.
        """
        if self._source.beat_s > 0:
            self._is_stopped.wait(max(self._source.beat_s, PAUSE_LEAST_S))
            return
        until = time.monotonic() + NEWS_MOST_S
        self._wait_s = NEWS_FIRST_S if flushed.batches else min(2 * self._wait_s, PAUSE_LEAST_S)
        while not self._is_stopped.wait(self._wait_s) and time.monotonic() < until and self._source.is_idle():
            self._wait_s = NEWS_FIRST_S


def publish_and_repair(source: Source, database: FarmDatabase) -> Flushed:
    """Publish pending transactions now, and repair `wlc.config` if needed."""
    with source.publishing():
        flushed = publish(source, database)
        # The owner can change the beat there even while nothing is published.
        source.beat_s = repair_config(database, source.require_state()).beat_s
        return flushed
