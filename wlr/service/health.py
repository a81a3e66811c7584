"""Shows how the service is: metrics in a file, a listener, a heartbeat."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from wlr.service.hooks import send_heartbeat

if TYPE_CHECKING:
    from wlr.service.http_server import Listener
    from wlr.service.job_states import Board
    from wlr.service.metrics import Exposition
    from wlr.service.pages import Pages
    from wlr.service.settings import ServiceOptions

log = logging.getLogger("wlr.service")

_WRITE_EVERY_S = 15.0
_LOOK_EVERY_S = 1.0


class Attendant:
    """Writes metrics, listens, and sends heartbeats, each beside the others: one that hangs does not stop another.

    Args:
        options: What is wanted.
        board: What is shown.
        pages: Pages of the databases, shown beside the metrics.

    Raises:
        InvalidError: Nobody can listen at the address, or a package is missing.
    """

    def __init__(self, options: ServiceOptions, board: Board, pages: Pages | None = None) -> None:
        self._board = board
        self._options = options
        self._pages = pages
        self._is_closed = threading.Event()
        self._exposition: Exposition | None = None
        self._listener: Listener | None = None
        self._threads = [
            threading.Thread(target=self._write_on, name="metrics", daemon=True),
            threading.Thread(target=self._beat_on, name="heartbeat", daemon=True),
        ]
        self.change(options)

    def start(self) -> None:
        """Begin to write and to send."""
        for thread in self._threads:
            thread.start()

    def change(self, options: ServiceOptions) -> None:
        """Go on with other options; raises as the constructor does, and then everything stays as it was."""
        if options.listen or options.metrics:
            # Only who wants metrics needs the package.
            from wlr.service.metrics import Exposition

            self._exposition = self._exposition or Exposition(self._board)
        if self._listener is None or options.listen != self._options.listen:
            before, self._listener = self._listener, self._listening(options)
            if before:
                before.close()
        self._options = options

    def _listening(self, options: ServiceOptions) -> Listener | None:
        if not options.listen or self._exposition is None:
            return None
        from wlr.service.http_server import Listener

        return Listener(options.listen, self._board, self._exposition, self._pages)

    def close(self) -> None:
        """End, and write the metrics once more."""
        self._is_closed.set()
        if self._listener:
            self._listener.close()
        self._write("")

    @property
    def port(self) -> int | None:
        """Where it listens."""
        return self._listener.port if self._listener else None

    def _write_on(self) -> None:
        told = ""
        while not self._is_closed.is_set():
            told = self._write(told)
            self._is_closed.wait(_WRITE_EVERY_S)

    def _write(self, told: str) -> str:
        """Write the file of metrics, and say once why that fails."""
        if not (self._options.metrics and self._exposition):
            return ""
        try:
            self._exposition.write(Path(self._options.metrics))
        except OSError as error:
            if str(error) != told:
                log.warning("metrics cannot be written: %s", error)
            return str(error)
        return ""

    def _beat_on(self) -> None:
        told, last = "", float("-inf")
        while not self._is_closed.wait(_LOOK_EVERY_S):
            options = self._options
            is_due = time.monotonic() - last >= options.heartbeat_every.total_seconds()
            if not (options.heartbeat_url and is_due) or self._board.failing():
                continue
            last, why = time.monotonic(), send_heartbeat(options.heartbeat_url)
            if why and why != told:
                log.warning("the heartbeat cannot be sent: %s", why)
            told = why
