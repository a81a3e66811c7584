"""The service: a thread for each job, so that a failing or slow job never stops the others."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from wlc.farm.clock import utc_now
from wlc.farm.errors import FarmError
from wlc.farm.rounds import rounds
from wlr.service.health import run_on_failure
from wlr.service.job_states import due_in_s, is_alarm, pause_s
from wlr.service.jobs import works_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from wlr.service.job_states import Board, Done, ServiceMemory
    from wlr.service.jobs import Work
    from wlr.service.settings import ServiceOptions, ServiceSettings

# Every log line of the service.
log = logging.getLogger("wlr.service")

# Intervals of measuring lag and free space, first and later.
_OBSERVE_FIRST_S = 2.0
_OBSERVE_EVERY_S = 30.0
# How often a waiting job checks whether the service stops, and whether a job is due: clocks are set, and machines
# sleep.
_LOOK_EVERY_S = 0.5
_DUE_EVERY_S = 60.0


class _StoppedError(Exception):
    """The service stops, and this round ends at a safe point."""


class Service:
    """All jobs of a file, in threads.

    Args:
        settings: The settings.
        board: The states of all jobs.
        memory: The last runs of scheduled jobs.
    """

    def __init__(self, settings: ServiceSettings, board: Board, memory: ServiceMemory) -> None:
        self.board = board
        self.options = settings.options
        self._settings = settings
        self._memory = memory
        self._heavy = threading.Lock()
        self._runners: dict[tuple[str, str], _Runner] = {}

    def start(self) -> None:
        """Start all jobs."""
        self._begin(works_of(self._settings))

    def change(self, settings: ServiceSettings, waiting: Callable[[], None] = lambda: None) -> int:
        """Use other settings: unchanged jobs continue, but retry at once if they fail.

        Args:
            settings: The other settings.
            waiting: Called every second while rounds end.

        Returns:
            Number of jobs that were started, ended or changed.
        """
        wanted = {work.key: work for work in works_of(settings)}
        gone = [key for key, runner in self._runners.items() if wanted.get(key) != runner.work]
        failing = [standing.item for standing in self.board.failing()]
        again = [key for key in self._runners if key not in gone and key[0] in failing]
        self._end([*gone, *again], waiting)
        for key in gone:
            self.board.forget(key)
        self._settings, self.options = settings, settings.options
        new = [work for key, work in wanted.items() if key not in self._runners]
        self._begin(new)
        return len(gone) + sum(work.key not in {*gone, *again} for work in new)

    def _begin(self, works: list[Work]) -> None:
        locks = {key[0]: runner.lock for key, runner in self._runners.items()}
        for work in works:
            lock = locks.setdefault(work.item, threading.Lock())
            self._runners[work.key] = _Runner(work, lock, self._heavy, self.board, self._memory, self)
        # A job queries its predecessors, so all jobs must be known first.
        for work in works:
            self._runners[work.key].start()

    def stop(self, waiting: Callable[[], None] = lambda: None) -> None:
        """End all jobs after their current step; arguments as for `change`."""
        self._end(list(self._runners), waiting)

    def _end(self, keys: list[tuple[str, str]], waiting: Callable[[], None]) -> None:
        for key in keys:
            self._runners[key].is_stopped.set()
        for key in keys:
            while not self._runners[key].has_ended(1.0):
                waiting()
            del self._runners[key]

    def is_pending(self, key: tuple[str, str]) -> bool:
        """Whether jobs that follow a job must wait for it; false if the settings lack that job."""
        runner = self._runners.get(key)
        return runner is not None and runner.is_pending

    @property
    def is_alive(self) -> bool:
        """Whether every job's thread lives; a dead one is a defect, and the service must restart."""
        return all(runner.is_alive for runner in self._runners.values())

    def __len__(self) -> int:
        return len(self._runners)


class _Runner:
    """Runs one job until it is stopped."""

    def __init__(
        self,
        work: Work,
        lock: threading.Lock,
        heavy: threading.Lock,
        board: Board,
        memory: ServiceMemory,
        service: Service,
    ) -> None:
        self.work = work
        self.lock = lock
        self.is_stopped = threading.Event()
        self._heavy = heavy
        self._board = board
        self._memory = memory
        self._service = service
        self._is_done = self._is_reported = False
        name = " ".join(work.key)
        # A thread that does not end must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._observer = threading.Thread(target=self._observe, name=f"{name} observer", daemon=True)

    def start(self) -> None:
        if last := self._memory.last(self.work.key, utc_now()):
            self._board.change(self.work.key, lambda before: replace(before, last_success=before.last_success or last))
        else:
            self._board.change(self.work.key, lambda before: before)
        self._thread.start()
        if self.work.every is None:
            self._observer.start()

    def has_ended(self, within_s: float) -> bool:
        # The observer, too: a daemon thread inside DuckDB aborts the process when Python ends.
        for thread in (self._thread, self._observer):
            if thread.ident:
                thread.join(within_s)
        return not (self._thread.is_alive() or self._observer.is_alive())

    @property
    def is_pending(self) -> bool:
        """Whether jobs that follow this one must wait; see `Work.follows`."""
        standing = self._board.get(self.work.key)
        if self.work.every is None:
            return not standing.last_success
        return not standing.failing_since and self._due_in_s(self.work.every) <= 0

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() or self._is_done

    def _run(self) -> None:
        with self.work.keepalive or nullcontext():
            for done in rounds(
                self._round,
                self._wait_s,
                self._failed,
                reads=self.work.reads,
                passing=(Exception,),
                pause=lambda error, last_s: pause_s(error, last_s, is_heavy=self.work.is_heavy),
                is_stopped=self.is_stopped,
            ):
                if done is None:
                    continue
                self.note(done)
                if self.work.is_once:
                    self._is_done = True
                    return

    def _wait_s(self) -> float:
        if self.work.every is not None:
            return min(self._due_in_s(self.work.every), _DUE_EVERY_S)
        return self.work.beat_s()

    def _due_in_s(self, every: timedelta) -> float:
        if any(self._service.is_pending((self.work.item, name)) for name in self.work.follows):
            return _LOOK_EVERY_S
        now = utc_now()
        self._board.change(self.work.key, lambda before: before.as_of(now))
        return due_in_s(self._memory.last(self.work.key, now), every, now)

    def _round(self) -> Done | None:
        """Do a round; None if it was not due, or the service stops."""
        if self.work.every is not None and self._due_in_s(self.work.every) > 0:
            return None
        try:
            with self._holding(self._heavy) if self.work.is_heavy else nullcontext(), self._holding(self.lock):
                done = self.work.do_round(self)
        except _StoppedError:
            return None
        if self.work.every is not None:
            self._memory.note(self.work.key, utc_now())
        return done

    @contextmanager
    def _holding(self, lock: threading.Lock) -> Iterator[None]:
        """Wait until no other job of the item, or no other heavy job, runs."""
        while not lock.acquire(timeout=_LOOK_EVERY_S):
            self.progress(0, 0)
        try:
            yield
        finally:
            lock.release()

    def progress(self, done: int, total: int, what: str = "") -> None:  # noqa: ARG002 - the signature of progress callbacks
        """End the round if the service stops."""
        if self.is_stopped.is_set():
            raise _StoppedError

    def note(self, outcome: Done | Exception) -> None:
        """Record the result of a round, or its failure."""
        if isinstance(outcome, Exception):
            self._failed(outcome, is_new=str(outcome) != self._board.get(self.work.key).message)
            return
        before = self._board.get(self.work.key)
        self._board.change(self.work.key, lambda standing: standing.after(outcome, utc_now()))
        subject = " ".join(self.work.key)
        if before.failing_since:
            log.info("%s: succeeds again", subject)
        self._is_reported = False
        if outcome.facts:
            log.info("%s", subject, extra={"facts": outcome.facts})

    def _failed(self, error: Exception, *, is_new: bool) -> None:
        if self.is_stopped.is_set():
            return
        now = utc_now()
        standing = self._board.change(self.work.key, lambda before: before.after_failure(error, now))
        if is_new:
            hint = error.hint if isinstance(error, FarmError) else None
            said = str(error) if isinstance(error, FarmError | OSError) else f"{type(error).__name__}: {error}"
            log.error("%s: %s", " ".join(self.work.key), said, extra={"hint": hint, "cause": error})
        options: ServiceOptions = self._service.options
        since = standing.failing_since or now
        if options.on_failure and not self._is_reported and is_alarm(error, since, now, options.on_failure_after):
            self._is_reported = True
            run_on_failure(options, standing, error)

    def _observe(self) -> None:
        wait_s = _OBSERVE_FIRST_S
        while not self.is_stopped.wait(wait_s):
            standing = self._board.get(self.work.key)
            if standing.last_success or standing.failing_since:
                wait_s = _OBSERVE_EVERY_S
            # Rounds report failures; this only measures.
            with suppress(Exception):
                observed = self.work.observe(standing)
                self._board.change(self.work.key, partial(replace, observed=observed))
