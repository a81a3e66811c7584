"""A limit of bytes per second that several threads share."""

from __future__ import annotations

import re
import threading
import time

from wlc.farm.errors import InvalidError, UnavailableError

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?(?:/s)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


class RateLimit:
    """Lets threads wait until they may move so many bytes; on average, for each object is moved as fast as it can be.

    Args:
        bytes_per_s: None for no limit.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()

    def spend(self, size: int) -> None:
        """Wait until all bytes that were spent before are over, and note `size` more.

        Raises:
            UnavailableError: The work was stopped meanwhile.
        """
        if self._bytes_per_s is None:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + size / self._bytes_per_s
        if self._is_stopped.wait(begin - now):
            raise UnavailableError("copying was stopped", hint="Run it again: it goes on where it stopped.")

    def stop(self) -> None:
        """Let no thread wait any longer."""
        self._is_stopped.set()


def parse_rate(text: str) -> float:
    """Read bytes per second as people type them: `500k`, `10M`, `1.5 GB/s`; a letter is a power of 1,000.

    Raises:
        InvalidError: The text is not a rate above 0.
    """
    found = _RATE.fullmatch(text.strip())
    rate = float(found.group(1)) * _UNITS[found.group(2).lower()] if found else 0.0
    if rate <= 0:
        raise InvalidError(f"{text!r} is not a number of bytes per second", hint="Write 500k, 10M or 1G.")
    return rate
