"""Progress of a command: nothing for a second, then a bar on a terminal or a line every ten seconds."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from wlc.farm.addresses import without_password
from wlc.farm.human_form import duration, format_bytes

from .log_lines import is_logging
from .output import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 1.0
LINE_EVERY_S = 10.0


class Advance(Protocol):
    """Report the progress of the work."""

    def __call__(self, done: int, total: int, what: str = "") -> None:
        """Report that `done` of `total` units are finished; `what` names the current work."""


# Set by --quiet.
_is_quiet = threading.Event()


@contextmanager
def without_progress(*, wanted: bool) -> Iterator[None]:
    """Show no progress in this context if `--quiet` asks for it."""
    if wanted:
        _is_quiet.set()
    try:
        yield
    finally:
        _is_quiet.clear()


@contextmanager
def working(what: str, place: object = "") -> Iterator[Advance]:
    """Show on standard error that `what` is going on, once it has lasted for a second.

    Args:
        what: The work, as in "taking a snapshot" or "copying {}".
        place: The path, URL or name in it; the last part is shown.

    Yields:
        A function that reports progress; without a call the bar shows only the time.
    """
    if is_logging() or _is_quiet.is_set():
        # A log reports changes only.
        yield lambda *_: None
        return
    name = without_password(str(place)).rstrip("/").rpartition("/")[2]
    what = printable(what.replace("{}", name))
    shown = _Bar(what) if sys.stderr.isatty() else _Lines(what)
    timer = threading.Timer(PATIENCE_S, shown.start)
    timer.daemon = True
    timer.start()
    try:
        yield shown.advance
    finally:
        timer.cancel()
        shown.stop()


class _Course:
    """Progress of one task: done, speed, and time left.

    Args:
        now: A clock that never goes back, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began: float | None = None
        self._first = 0
        self.done, self.total, self.what = 0, 0, ""

    def note(self, done: int, total: int, what: str) -> None:
        """Note that `done` of `total` units are finished."""
        # Another part of the task counts other units.
        if self._began is None or done < self.done or total != self.total:
            self._began, self._first = self._now(), done
        self.done, self.total, self.what = done, total, what

    def __str__(self) -> str:
        """Return percent, rows and bytes a second, and the time left, as far as known."""
        seconds = 0.0 if self._began is None else self._now() - self._began
        facts = [f"{100 * self.done // self.total} %"] if self.total else []
        rows, size = getattr(self.what, "rows", None), getattr(self.what, "bytes", None)
        if seconds >= PATIENCE_S:
            facts += [f"{rows / seconds:,.0f} rows/s"] if rows else []
            facts += [f"{format_bytes(round(size / seconds))}/s"] if size else []
            if self.done - self._first > 0 and self.done < self.total:
                left = seconds * (self.total - self.done) / (self.done - self._first)
                facts.append(f"{duration(timedelta(seconds=round(left)))} left")
        return ", ".join(facts)


class _Bar:
    """A rich progress bar that appears after a second and disappears at the end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._course = _Course()
        self._lock = threading.Lock()
        self._progress: Any = None
        self._stopped = False

    def start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._stopped:
                return
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[facts]}", markup=False),
            )
            self._progress = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self._progress.add_task(self._what, total=None, facts="")
            self._show()
            self._progress.start()

    def advance(self, done: int, total: int, what: str = "") -> None:
        with self._lock:
            self._course.note(done, total, what)
            if self._progress is not None:
                self._show()

    def _show(self) -> None:
        course = self._course
        what = f"{self._what}: {printable(course.what)}" if course.what else self._what
        self._progress.update(0, completed=course.done, total=course.total or None, description=what, facts=str(course))

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._progress is not None:
                self._progress.stop()


class _Lines:
    """Plain lines for a log file or a mail from cron."""

    def __init__(self, what: str, now: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._now = now
        self._course = _Course(now)
        # `start` was not called, so that the first line names the task.
        self._next_line_s = float("inf")

    def start(self) -> None:
        print(f"{self._what} …", file=sys.stderr, flush=True)
        self._next_line_s = self._now() + LINE_EVERY_S

    def advance(self, done: int, total: int, what: str = "") -> None:
        self._course.note(done, total, what)
        if self._now() >= self._next_line_s:
            parts = (self._what, printable(what), str(self._course))
            print(": ".join(part for part in parts if part), file=sys.stderr, flush=True)
            self._next_line_s = self._now() + LINE_EVERY_S

    def stop(self) -> None:
        """Do nothing: lines stay."""
