"""Endless rounds: a pause until there may be a new batch, and longer pauses after failures.

Waiting for the next batch: a new file in a local folder is noticed at once, a bucket is polled on the beat.
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


# How often watchfiles reports events of the kernel, and how long it groups them, milliseconds.
_STEP_MS = _DEBOUNCE_MS = 5


class News:
    """Waits for log files of a farm database.

    Args:
        url_of: Returns the URL of the database's folder in the current upstream; "" if nothing can be watched.
        is_stopped: Ends every wait when it is set.
    """

    def __init__(self, url_of: Callable[[], str], is_stopped: threading.Event | None = None) -> None:
        self._url_of = url_of
        self._is_stopped = is_stopped
        self._url = ""
        self._watcher: RustNotify | None = None

    def wait(self, seconds: float) -> None:
        """Return once a log file was published since the last call, at the latest after `seconds`.

        A call that begins to watch a folder returns soon, because a file may have appeared there before.
        """
        # Asking for the upstream of a reader in a bucket costs requests, and a bucket cannot be watched.
        if "://" not in self._url and self._watch(self._url_of()):
            seconds = min(seconds, PAUSE_LEAST_S)
        if self._watcher is None:
            self.sleep(seconds)
        elif self._watcher.watch(_DEBOUNCE_MS, _STEP_MS, max(round(seconds * 1000), 1), self._is_stopped) == "signal":
            # The handler's exception was raised inside of the watcher, which swallows it.
            raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`, even if a log file is published, or when the wait is stopped."""
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
        # Imported here, because only waiting needs them.
        from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

        from wlc.farm.database import open_database

        try:
            folder = open_database(url).logs.url
            if "://" not in folder and Path(folder).is_dir():
                self._watcher = RustNotify([folder], False, False, 0, False, False)
        except (FarmError, OSError, WatchfilesRustInternalError):
            # The folder is missing, or the machine's limit of watches is reached: fall back to the beat.
            self._watcher = None
        return self._watcher is not None

    def close(self) -> None:
        """Stop watching."""
        if self._watcher is not None:
            self._watcher.close()
        self._watcher, self._url = None, ""


# Errors that pass: a server that restarts, a disk that is not mounted.
AWAY = (UnavailableError, MissingError)

_Done = TypeVar("_Done")
_Part = TypeVar("_Part", covariant=True)


class Failed(Protocol[_Part]):
    """Called for every failed round that will be retried."""

    def __call__(self, error: Exception, *, is_new: bool) -> _Part | None:
        """Note a failure, and return the partial result of the round, if any; raise to end the rounds.

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
    """Run a round at once, then one after every pause, and yield the result of each.

    Args:
        do_round: One round; it is never interrupted.
        beat_s: Longest time between two rounds, seconds; asked after a round that did not fail.
        failed: Called for every round that will be retried.
        reads: URL of the database's folder that the rounds read: if it is local, a new log file begins a round at once.
        passing: After these errors a round is tried again; others are raised.
        pause: Returns the next pause after a failure, given the error and the last such pause (0 for the first).
        is_stopped: Set it to end after the current round, or at once during a pause.
    """
    reported, retry_s, is_first = "", 0.0, True
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
                part = failed(error, is_new=str(error) != reported)
                reported = str(error)
                if part is not None:
                    yield part
            else:
                reported, retry_s, is_first = "", 0.0, False
                yield done
