"""Rounds that go on for ever: a pause until there may be news between two, and longer ones after failures.

Waiting for the next batch: a new file in a local folder is noticed at once, a bucket is looked at on the beat.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from wlc.farm.errors import FarmError, UnavailableError
from wlc.farm.retry import PAUSE_LEAST_S, longer
from wlc.farm.store import MissingError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from watchfiles._rust_notify import RustNotify


# How often watchfiles hands over what the kernel reported, and how long it gathers what comes together, milliseconds.
_STEP_MS = _DEBOUNCE_MS = 5


class News:
    """Waits for log files of a farm database.

    Args:
        url_of: Returns the URL of the database's folder in the place that is read now; "" if nothing can be watched.
        is_stopped: Ends every wait when it is set.
    """

    def __init__(self, url_of: Callable[[], str], is_stopped: threading.Event | None = None) -> None:
        self._url_of = url_of
        self._is_stopped = is_stopped
        self._url = ""
        self._watcher: RustNotify | None = None

    def wait(self, seconds: float) -> None:
        """Return when a log file was published since the last call, at the latest after `seconds`.

        A call that begins to watch a folder returns soon: a file may have appeared there before.
        """
        # To ask where a bucket's reader reads takes requests, and nothing is watched there.
        if "://" not in self._url and self._watch(self._url_of()):
            seconds = min(seconds, PAUSE_LEAST_S)
        if self._watcher is None:
            self.sleep(seconds)
        elif self._watcher.watch(_DEBOUNCE_MS, _STEP_MS, max(round(seconds * 1000), 1), self._is_stopped) == "signal":
            # The handler's exception was raised inside of the watcher, which swallows it.
            raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`, whatever is published, or when the wait is stopped."""
        if self._is_stopped is None:
            time.sleep(seconds)
        else:
            self._is_stopped.wait(seconds)

    def _watch(self, url: str) -> bool:
        """Watch a folder; say whether that begins now."""
        if url == self._url and self._watcher is not None:
            return False
        self.close()
        self._url = url
        if "://" in url or not url:
            return False
        # Only who waits needs them.
        from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

        from wlc.farm.database import open_database

        try:
            folder = open_database(url).logs.url
            if "://" not in folder and Path(folder).is_dir():
                self._watcher = RustNotify([folder], False, False, 0, False, False)
        except (FarmError, OSError, WatchfilesRustInternalError):
            # The folder is away, or the machine watches no more folders: the beat goes on.
            self._watcher = None
        return self._watcher is not None

    def close(self) -> None:
        """Stop watching."""
        if self._watcher is not None:
            self._watcher.close()
        self._watcher, self._url = None, ""


# What cannot be reached now comes back: a server that restarts, a disk that is not mounted.
AWAY = (UnavailableError, MissingError)

_Done = TypeVar("_Done")
_Part = TypeVar("_Part", covariant=True)


class Failed(Protocol[_Part]):
    """Hears of every round that failed and is tried again."""

    def __call__(self, error: Exception, *, is_new: bool) -> _Part | None:
        """Note a failure, and return what the round did nevertheless, if anything; raise to end the rounds.

        Args:
            error: Why the round failed.
            is_new: The round before it did not fail with the same message.
        """


def rounds(
    do_round: Callable[[], _Done],
    beat_s: Callable[[], float],
    failed: Failed[_Done],
    *,
    reads: Callable[[], str] = str,
    passing: tuple[type[Exception], ...] = AWAY,
    pause: Callable[[Exception, float], float] = lambda _, wait_s: longer(wait_s),
    is_stopped: threading.Event | None = None,
) -> Iterator[_Done]:
    """Do a round at once, then one after every pause, and yield what each did; the first is a round as any other.

    Args:
        do_round: One round; it finishes what it has begun.
        beat_s: Longest time between two rounds, seconds; asked after a round that did not fail.
        failed: Told of every round that is tried again.
        reads: URL of the database's folder that the rounds read: if it is local, a new log file begins a round at once.
        passing: After these errors a round is tried again; others are raised.
        pause: From an error and the last pause after a failure (0 for the first one), the next such pause.
        is_stopped: Set it to end after the round at hand, or at once during a pause.
    """
    told, retry_s, is_first = "", 0.0, True
    with closing(News(reads, is_stopped)) as news:
        while True:
            try:
                if retry_s:
                    news.sleep(retry_s)
                elif not is_first:
                    news.wait(max(beat_s(), PAUSE_LEAST_S))
                if is_stopped is not None and is_stopped.is_set():
                    return
                done = do_round()
            except passing as error:
                retry_s = pause(error, retry_s)
                part = failed(error, is_new=str(error) != told)
                told = str(error)
                if part is not None:
                    yield part
            else:
                told, retry_s, is_first = "", 0.0, False
                yield done
