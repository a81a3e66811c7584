"""What a command shows while it works: nothing for a second, then a bar on a terminal or a line every ten seconds."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from wlc.farm.addresses import without_password

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


@contextmanager
def working(what: str, place: object = "") -> Iterator[Advance]:
    """Show on standard error that `what` is going on, once it has lasted for a second.

    Args:
        what: The work, as in "taking a snapshot" or "copying {}".
        place: The path, URL or name in it, which is shown without a password.

    Yields:
        A function that reports progress; without a call the bar shows only the time.
    """
    if is_logging():
        # A log says what has changed, and nothing else.
        yield lambda *_: None
        return
    what = printable(what.replace("{}", without_password(str(place))))
    shown = _Bar(what) if sys.stderr.isatty() else _Lines(what)
    timer = threading.Timer(PATIENCE_S, shown.start)
    timer.daemon = True
    timer.start()
    try:
        yield shown.advance
    finally:
        timer.cancel()
        shown.stop()


class _Bar:
    """A rich progress bar that appears after a second and disappears at the end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._state: tuple[int, int | None] = (0, None)
        self._lock = threading.Lock()
        self._progress: Any = None
        self._stopped = False

    def start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._stopped:
                return
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
            )
            self._progress = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self._progress.add_task(self._what, total=self._state[1], completed=self._state[0])
            self._progress.start()

    def advance(self, done: int, total: int, what: str = "") -> None:
        with self._lock:
            self._state = (done, total)
            if self._progress is not None:
                self._progress.update(0, completed=done, total=total, description=printable(what or self._what))

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
        self._next_line_s = now() + PATIENCE_S

    def start(self) -> None:
        print(f"{self._what} …", file=sys.stderr, flush=True)
        self._next_line_s = self._now() + LINE_EVERY_S

    def advance(self, done: int, total: int, what: str = "") -> None:
        if self._now() >= self._next_line_s:
            print(printable(f"{what or self._what}: {done} of {total}"), file=sys.stderr, flush=True)
            self._next_line_s = self._now() + LINE_EVERY_S

    def stop(self) -> None:
        """Do nothing: there is nothing to remove from the screen."""
