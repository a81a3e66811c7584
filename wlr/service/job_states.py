"""What is known of everything that the service does: when it last went well, how far it is, how often it failed.

When scheduled work was last done: remembered on this machine, so that a service that restarts does not repeat it.

Decides when the service does what: pure functions of values and times.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.clock import format_time, read_time
from wlc.farm.errors import UnavailableError
from wlc.farm.retry import longer, much_longer
from wlc.farm.rounds import AWAY
from wlc.farm.seal.checksum import checksum
from wlr.care.farm_audit import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime, timedelta

    from wlc import FarmEntry


@dataclass(frozen=True, slots=True)
class Done:
    """What a round did.

    Attributes:
        tick: Where the replica, feed, relay or farm stands afterwards; `clock`: the commit time there.
        transactions: Applied or published in this round; `rows`: row images or records; `bytes`: of files.
        facts: What a log line says of it; empty if nothing has changed.
        rejected: Rows that a site rejected, or of which it learned that others rejected them.
    """

    tick: int | None = None
    clock: datetime | None = None
    transactions: int = 0
    rows: int = 0
    bytes: int = 0
    facts: Mapping[str, object] = field(default_factory=dict)
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Observed:
    """What is looked at between rounds; None for what is unknown or does not exist.

    Attributes:
        lag_s: Seconds behind the farm; `lag_transactions`: ticks behind.
        unpublished: Transactions that a master has not published.
        retained_bytes: Log that a PostgreSQL server keeps for a slot.
        free_bytes: Free space where the replica or farm is.
        tick: Last published one, of a database or master.
        entry: How a database is.
    """

    lag_s: float | None = None
    lag_transactions: int | None = None
    unpublished: int | None = None
    retained_bytes: int | None = None
    free_bytes: int | None = None
    tick: int | None = None
    entry: FarmEntry | None = None


@dataclass(frozen=True, slots=True)
class WorkStanding:
    """One work: following a replica, drilling a database.

    Attributes:
        item: Section of the file, such as `replicas.copy`; `work`: `follow`, `publish`, `prune` …
        last_success: When a round last went well, idle ones included.
        failing_since: When the first of the failures began that no success has ended; None if all is well.
        message: The last failure.
        failures: How many there were, by class.
    """

    item: str
    work: str
    last_success: datetime | None = None
    failing_since: datetime | None = None
    message: str = ""
    tick: int | None = None
    clock: datetime | None = None
    transactions: int = 0
    rows: int = 0
    bytes: int = 0
    rejected: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    observed: Observed = Observed()

    def as_of(self, now: datetime) -> WorkStanding:
        """Return the same standing without times to come, which a clock that was set back leaves."""
        last, since = self.last_success, self.failing_since
        return replace(self, last_success=last and min(last, now), failing_since=since and min(since, now))

    def after(self, done: Done, now: datetime) -> WorkStanding:
        """Return where the work stands after a round that went well."""
        return replace(
            self,
            last_success=now,
            failing_since=None,
            message="",
            tick=self.tick if done.tick is None else done.tick,
            clock=done.clock or self.clock,
            transactions=self.transactions + done.transactions,
            rows=self.rows + done.rows,
            bytes=self.bytes + done.bytes,
            rejected=self.rejected + done.rejected,
        )

    def after_failure(self, error: BaseException, now: datetime) -> WorkStanding:
        """Return where the work stands after a round that failed."""
        name = class_of(error)
        return replace(
            self,
            failing_since=min(self.failing_since or now, now),
            message=str(error),
            failures={**self.failures, name: self.failures.get(name, 0) + 1},
        )


class Board:
    """The standings of all works, for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._standings: dict[tuple[str, str], WorkStanding] = {}

    def change(self, key: tuple[str, str], change: Callable[[WorkStanding], WorkStanding]) -> WorkStanding:
        """Replace a standing by what a function makes of it, and return that."""
        with self._lock:
            self._standings[key] = change(self._standings.get(key) or WorkStanding(*key))
            return self._standings[key]

    def get(self, key: tuple[str, str]) -> WorkStanding:
        """Return a standing; an empty one if nothing has happened."""
        with self._lock:
            return self._standings.get(key) or WorkStanding(*key)

    def forget(self, key: tuple[str, str]) -> None:
        """Drop a work that is no longer done."""
        with self._lock:
            self._standings.pop(key, None)

    def all(self) -> list[WorkStanding]:
        """Return all standings by item and work."""
        with self._lock:
            return [self._standings[key] for key in sorted(self._standings)]

    def failing(self) -> list[WorkStanding]:
        """Return those whose last round failed."""
        return [standing for standing in self.all() if standing.failing_since]

    def wrong(self) -> list[FarmEntry]:
        """Return the databases that need someone."""
        entries = (standing.observed.entry for standing in self.all())
        return [entry for entry in entries if entry is not None and entry.is_wrong]


# systemd names the folder of a service here.
STATE_VARIABLE = "STATE_DIRECTORY"


def memory_file(config: Path) -> Path:
    """Return the file that belongs to a file of settings."""
    folder = os.environ.get(STATE_VARIABLE)
    base = Path(folder.partition(":")[0]) if folder else cache_folder()
    return base / f"serve-{checksum(str(config.absolute()).encode())[:24]}.json"


class ServiceMemory:
    """Times by work; a file that is lost or damaged costs one more run of everything."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._times = _read(file)

    def last(self, key: tuple[str, str], now: datetime) -> datetime | None:
        """Return when a work was last done; None if that is not known.

        A time to come, which a clock that was set back leaves, is replaced by the present: counted from it, the work
        would not be due for as long as the clock was ahead.
        """
        with self._lock:
            last = self._times.get(" ".join(key))
        if last is not None and last > now:
            self.note(key, now)
            return now
        return last

    def note(self, key: tuple[str, str], time: datetime) -> None:
        """Remember that a work was done."""
        with self._lock:
            self._times[" ".join(key)] = time
            content = json.dumps({name: format_time(each) for name, each in self._times.items()})
            half = self._file.with_suffix(f".{os.getpid()}")
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                half.write_text(content, encoding="utf-8")
                half.replace(self._file)
            except OSError:
                half.unlink(missing_ok=True)


def _read(file: Path) -> dict[str, datetime]:
    try:
        content = json.loads(file.read_bytes())
        return {str(name): read_time(time) for name, time in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


# Labels of metrics are bounded.
FAILURE_CLASSES = (
    *("UnavailableError", "FencedError", "ReplayError", "CorruptError", "GapError", "ExpiredError"),
    *("UnsupportedError", "ExceededError", "InvalidError", "OSError", "Other"),
)


def due_in_s(last: datetime | None, every: timedelta, now: datetime) -> float:
    """Return in how many seconds something is due again, 0 if it is due now.

    Args:
        last: When it was done last, None for never; see `ServiceMemory.last` for a time to come.
        every: How often it is due.
        now: The present.
    """
    if last is None:
        return 0.0
    return max((last + every - now).total_seconds(), 0.0)


def passes(error: Exception) -> bool:
    """Say whether an error goes away by itself: a place that is away, a file in use."""
    return isinstance(error, AWAY)


def pause_s(error: Exception, last_s: float, *, is_heavy: bool = False) -> float:
    """Return how long to wait before something that failed is tried again.

    What passes by itself: 1 s, 2 s, … at most 60 s. Anything else, and what takes long: 1 min, 2 min, … at most 1 h.

    Args:
        error: Why it failed.
        last_s: The last such pause, 0 if it did not fail before.
        is_heavy: It takes long or costs much.
    """
    return longer(last_s) if passes(error) and not is_heavy else much_longer(last_s)


def is_alarm(error: Exception, failing_since: datetime, now: datetime, patience: timedelta) -> bool:
    """Say whether a failure wants somebody's attention: one that does not pass does at once, another after a while."""
    return not passes(error) or now - failing_since >= patience


def class_of(error: BaseException) -> str:
    """Return the class of a failure for a label: one of the error tree, or of the few others."""
    if isinstance(error, AWAY):
        return UnavailableError.__name__
    name = type(error).__name__
    return name if name in FAILURE_CLASSES else "OSError" if isinstance(error, OSError) else "Other"
