"""The states of all jobs: last success, position, number of failures.

The last runs of scheduled jobs: stored on this machine, so that a restarted service does not repeat them.

The schedule of jobs: pure functions of values and times.
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
    """The result of a round.

    Attributes:
        tick: Position of the replica, feed, relay or farm afterwards; `clock`: the commit time there.
        transactions: Transactions of this round; `rows`: row images or records; `bytes`: bytes of files.
        facts: Facts for a log line; empty without changes.
        rejected: Rows that a site rejected, or learned to be rejected by other sites.
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
    """Measurements between rounds; None for unknown or missing values.

    Attributes:
        lag_s: Seconds behind the farm; `lag_transactions`: ticks behind.
        unpublished: Transactions that a master has not published.
        retained_bytes: Log that a PostgreSQL server keeps for a slot.
        free_bytes: Free space where the replica or farm is.
        tick: Last published tick of a database or master.
        entry: State of a database.
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
    """The state of one job: following a replica, drilling a database.

    Attributes:
        item: Section of the file, such as `replicas.copy`; `work`: `follow`, `publish`, `prune` …
        last_success: Time of the last successful round, idle ones included.
        failing_since: Time of the first failure since the last success; None without one.
        message: The last failure.
        failures: Number of failures, by class.
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
        """Return the same state without future times, which a clock that was set back leaves."""
        last, since = self.last_success, self.failing_since
        return replace(self, last_success=last and min(last, now), failing_since=since and min(since, now))

    def after(self, done: Done, now: datetime) -> WorkStanding:
        """Return the state of the job after a successful round."""
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
        """Return the state of the job after a failed round."""
        name = class_of(error)
        return replace(
            self,
            failing_since=min(self.failing_since or now, now),
            message=str(error),
            failures={**self.failures, name: self.failures.get(name, 0) + 1},
        )


class Board:
    """The states of all jobs, for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._standings: dict[tuple[str, str], WorkStanding] = {}

    def change(self, key: tuple[str, str], change: Callable[[WorkStanding], WorkStanding]) -> WorkStanding:
        """Replace a state by the result of a function, and return it."""
        with self._lock:
            self._standings[key] = change(self._standings.get(key) or WorkStanding(*key))
            return self._standings[key]

    def get(self, key: tuple[str, str]) -> WorkStanding:
        """Return a state; an empty one before the first round."""
        with self._lock:
            return self._standings.get(key) or WorkStanding(*key)

    def forget(self, key: tuple[str, str]) -> None:
        """Drop a removed job."""
        with self._lock:
            self._standings.pop(key, None)

    def all(self) -> list[WorkStanding]:
        """Return all states by item and job."""
        with self._lock:
            return [self._standings[key] for key in sorted(self._standings)]

    def failing(self) -> list[WorkStanding]:
        """Return the jobs whose last round failed."""
        return [standing for standing in self.all() if standing.failing_since]

    def wrong(self) -> list[FarmEntry]:
        """Return the databases that need attention."""
        entries = (standing.observed.entry for standing in self.all())
        return [entry for entry in entries if entry is not None and entry.is_wrong]


# systemd's variable for the folder of a service.
STATE_VARIABLE = "STATE_DIRECTORY"


def memory_file(config: Path) -> Path:
    """Return the state file of a settings file."""
    folder = os.environ.get(STATE_VARIABLE)
    base = Path(folder.partition(":")[0]) if folder else cache_folder()
    return base / f"serve-{checksum(str(config.absolute()).encode())[:24]}.json"


class ServiceMemory:
    """Times by job; a lost or damaged file costs one more run of every job."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._times = _read(file)

    def last(self, key: tuple[str, str], now: datetime) -> datetime | None:
        """Return the last run of a job; None if unknown.

        A future time, which a clock that was set back leaves, is replaced by the present: otherwise, the job would not
        be due for as long as the clock was ahead.
        """
        with self._lock:
            last = self._times.get(" ".join(key))
        if last is not None and last > now:
            self.note(key, now)
            return now
        return last

    def note(self, key: tuple[str, str], time: datetime) -> None:
        """Store that a job has run."""
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
    """Return the seconds until a job is due again, 0 if it is due now.

    Args:
        last: Its last run, None for never; see `ServiceMemory.last` for a future time.
        every: Its interval.
        now: The present.
    """
    if last is None:
        return 0.0
    return max((last + every - now).total_seconds(), 0.0)


def passes(error: Exception) -> bool:
    """Return whether an error passes by itself: an unreachable place, a file in use."""
    return isinstance(error, AWAY)


def pause_s(error: Exception, last_s: float, *, is_heavy: bool = False) -> float:
    """Return the pause before a failed job is retried.

    For an error that passes by itself: 1 s, 2 s, … at most 60 s. For other errors and heavy jobs: 1 min, 2 min, … at
    most 1 h.

    Args:
        error: The failure.
        last_s: The last such pause, 0 after a success.
        is_heavy: It takes long or costs much.
    """
    return longer(last_s) if passes(error) and not is_heavy else much_longer(last_s)


def is_alarm(error: Exception, failing_since: datetime, now: datetime, patience: timedelta) -> bool:
    """Return whether a failure needs attention: a lasting one at once, a passing one after a while."""
    return not passes(error) or now - failing_since >= patience


def class_of(error: BaseException) -> str:
    """Return the class of a failure for a label: one of the error tree, or of a few others."""
    if isinstance(error, AWAY):
        return UnavailableError.__name__
    name = type(error).__name__
    return name if name in FAILURE_CLASSES else "OSError" if isinstance(error, OSError) else "Other"
