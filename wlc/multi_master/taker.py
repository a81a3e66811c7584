"""Taking for a process that has a site's database open: on request, or in the background."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from wlc.farm.errors import FarmError
from wlc.farm.retry import PAUSE_LEAST_S
from wlc.masters.lookup import beat
from wlc.multi_master.take_round import TakenFrom, take, what_to_take_as

if TYPE_CHECKING:
    from collections.abc import Mapping


_log = logging.getLogger("wlc")


class Taker:
    """Takes for the process that has a site's database open: `connection.wlc`.

    Attributes:
        failure: Why the last round in the background failed; None if it succeeded.
    """

    def __init__(self, source: str, storage_options: Mapping[str, Any] | None, beat_s: float | None) -> None:
        self.failure: FarmError | None = None
        self._source, self._options, self._beat_s = source, storage_options, beat_s
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, site: str | None = None) -> list[TakenFrom]:
        """Take the other sites' transactions now; see `wlc.take`."""
        return take(self._source, site=site, storage_options=self._options)

    def start(self) -> None:
        """Take now and on every beat, until `stop`.

        Raises:
            InvalidError: The database is not one of several sites.
        """
        what_to_take_as(self._source)
        self._thread = threading.Thread(target=self._rounds, name=f"wlc site take {self._source}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the background thread; returns when it has ended."""
        self._is_stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _rounds(self) -> None:
        pause_s = self._beat_s
        with suppress(FarmError):
            pause_s = self._beat_s if self._beat_s is not None else beat(self._source, storage_options=self._options)
        while not self._is_stopped.is_set():
            try:
                self.take()
                self.failure = None
            except FarmError as error:
                if self.failure is None or self.failure.message != error.message:
                    _log.warning("%s did not take everything: %s", self._source, error)
                self.failure = error
            self._is_stopped.wait(max(pause_s or 0, PAUSE_LEAST_S))
