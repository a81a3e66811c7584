"""Background publication of a master by the process that writes it."""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

from wlc.farm.errors import FarmError
from wlc.farm.retry import UNPUBLISHED_S
from wlc.masters.due_snapshots import SnapshotKeeper, try_take_due
from wlc.masters.fence import remembering_fence
from wlc.masters.publish import publish
from wlc.masters.signs import Signs

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.masters.contract import Source

_log = logging.getLogger("wlc")


class Publisher:
    """Publishes on every beat until it is stopped, and on request; takes snapshots that are due.

    Attributes:
        database: The master's place in the farm.
        failure: Why the last attempt failed; None if it succeeded.
    """

    def __init__(self, source: Source, database: FarmDatabase) -> None:
        self.database = database
        self.failure: FarmError | None = None
        self._source = source
        self._snapshots = SnapshotKeeper(lambda: nullcontext((source, self.database)))
        self._signs = Signs(source, lambda: self.database, lambda: self.failure.message if self.failure else "")
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Publish on every beat from now on."""
        if self._thread is None:
            self._is_stopped.clear()
            self._thread = threading.Thread(target=self._beat, name=f"wlc beat {self._source}", daemon=True)
            self._thread.start()
            self._signs.start()

    def stop(self) -> None:
        """End the background thread; return when the thread and any running snapshot have ended."""
        if self._thread is not None:
            self._is_stopped.set()
            self._thread.join()
            self._thread = None
        self._signs.stop()
        # The snapshot reads the database, which its owner may close now.
        self._snapshots.wait()

    def close(self) -> FarmError | None:
        """Stop, publish pending transactions, and give the closing sign; return the failure, None on success."""
        self.stop()
        self.try_publish()
        self._signs.close()
        return self.failure

    def reconcile(self) -> None:
        """Publish if the database was fenced off; compare a site with its own log before its first commit."""
        if self._source.require_state().fence is not None:
            self.try_publish()
            return
        try:
            with self._source.working(), self._source.publishing(), remembering_fence(self._source, self.database):
                self._source.require_site().reconcile_log(self.database)
        except FarmError as error:
            self.failure = error
            _log.warning("%s was not compared with its own log: %s", self._source, error)

    def try_publish(self) -> None:
        """Publish, and keep the reason of a failure: the commit stands, and the next beat retries."""
        try:
            with self._source.working(), self._source.publishing():
                publish(self._source, self.database)
            self.failure = None
        except FarmError as error:
            self.failure = error
            _log.warning("%s was not published: %s", self._source, error)

    def try_snapshot(self) -> None:
        """Take a snapshot if one is due: a short program may end before the next beat."""
        if self.failure is None:
            try_take_due(self._source, self.database)

    def _beat(self) -> None:
        while not self._is_stopped.wait(self._source.beat_s or UNPUBLISHED_S):
            self.try_publish()
            if self.failure is None:
                self._snapshots.look(self.database)
