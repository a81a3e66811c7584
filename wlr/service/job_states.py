"""What is known of everything that the service does: when it last went well, how far it is, how often it failed."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlr.service.schedule import class_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class Done:
    """What a round did.

    Attributes:
        tick: Where the replica, feed, relay or farm stands afterwards; `clock`: the commit time there.
        transactions: Applied or published in this round; `rows`: row images or records; `bytes`: of files.
        facts: What a log line says of it; empty if nothing has changed.
    """

    tick: int | None = None
    clock: datetime | None = None
    transactions: int = 0
    rows: int = 0
    bytes: int = 0
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observed:
    """What is looked at between rounds; None for what is unknown or does not exist.

    Attributes:
        lag_s: Seconds behind the farm; `lag_transactions`: ticks behind.
        unpublished: Transactions that a master has not published.
        retained_bytes: Log that a PostgreSQL server keeps for a slot.
        free_bytes: Free space where the replica or farm is.
        tick: Last published one, of a database or master.
    """

    lag_s: float | None = None
    lag_transactions: int | None = None
    unpublished: int | None = None
    retained_bytes: int | None = None
    free_bytes: int | None = None
    tick: int | None = None


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
