"""A limit of bytes per second that several threads share."""

from __future__ import annotations

import threading
import time

from wlc.farm.errors import UnavailableError


class RateLimit:
    """Lets threads wait until they may move so many bytes; on average, for each object is moved as fast as it can be.

    Args:
        bytes_per_s: None for no limit.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    @property
    def is_bounded(self) -> bool:
        """Whether there is a limit."""
        return self._bytes_per_s is not None

    def of_one_run(self) -> RunLimit:
        """Return this limit for one of the runs that share it."""
        return RunLimit(self)

    def note(self, size: int) -> float:
        """Note `size` more bytes, and return the seconds until all that were noted before are over."""
        if self._bytes_per_s is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + size / self._bytes_per_s
        return begin - now


class RunLimit:
    """A limit as one run sees it, which can be stopped without stopping others."""

    def __init__(self, limit: RateLimit) -> None:
        self.is_bounded = limit.is_bounded
        self._limit = limit
        self._is_stopped = threading.Event()

    def spend(self, size: int) -> None:
        """Wait until all bytes that were spent before are over, and note `size` more.

        Raises:
            UnavailableError: The run was stopped, with or without a limit.
        """
        if self._is_stopped.wait(self._limit.note(size)):
            raise UnavailableError("copying was stopped", hint="Run it again: it goes on where it stopped.")

    def stop(self) -> None:
        """Let no thread wait any longer."""
        self._is_stopped.set()
