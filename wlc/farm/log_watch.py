"""Waiting for the next batch: a new file in a local folder is noticed at once, a bucket is looked at on the beat."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.errors import FarmError
from wlc.farm.retry import PAUSE_LEAST_S

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

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
