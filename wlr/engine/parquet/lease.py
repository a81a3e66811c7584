"""A lease on a folder or bucket, so that one run at a time writes to a replica.

A run that died on this machine is found out at once, by its process; one elsewhere when it has not been heard of for
a while. Nothing depends on that being right: whoever takes a lease over also changes the pointer (see `folder`), so
that the one before, should it live, cannot commit any more.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from wlc import fields
from wlc.clock import format_time, utc_now
from wlc.errors import FarmError, UnavailableError
from wlc.store import AlreadyExistsError, ConflictError, MissingError

if TYPE_CHECKING:
    from wlc.store import Store

PATH = "wlr.lease"
_RENEWED_EVERY_S = 20.0
_DEAD_AFTER = timedelta(seconds=120)
# Runs of this process that hold a lease, or may: one whose request to take or give up a lease failed does not.
_running: set[str] = set()


class Lease:
    """The right to write, until it is given up; renewed by a thread meanwhile.

    Attributes:
        run: Random id of this run.
    """

    def __init__(self, store: Store) -> None:
        self.run = secrets.token_hex(6)
        self._store = store
        self._version = self._take()
        _running.add(self.run)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="wlr lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Let others write."""
        self._ended.set()
        self._thread.join()
        _running.discard(self.run)
        with suppress(FarmError):
            if self._store.read_versioned(PATH)[1] == self._version:
                self._store.delete(PATH)

    def _take(self) -> str:
        """Write the lease, in place of a dead one if there is one, and return its version.

        Raises:
            UnavailableError: Another run holds it.
        """
        version = None
        try:
            data, version = self._store.read_versioned(PATH)
            _refuse_live(data, self._store.url)
        except MissingError:
            pass
        try:
            return self._store.replace(PATH, self._document(), version)
        except (ConflictError, AlreadyExistsError) as error:
            raise UnavailableError(f"{self._store.url} is in use by another run: try again when it is done") from error

    def _document(self) -> bytes:
        said = {"run": self.run, "host": socket.gethostname(), "process": os.getpid(), "seen": format_time(utc_now())}
        return json.dumps(said).encode()

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWED_EVERY_S):
            try:
                self._version = self._store.replace(PATH, self._document(), self._version)
            except ConflictError:
                # Somebody took it over; the next commit will fail.
                return
            except FarmError:
                # The store may come back before the lease is taken for dead.
                continue


def _refuse_live(data: bytes, url: str) -> None:
    try:
        said: dict[str, Any] = json.loads(data)
        run, host = str(said["run"]), str(said["host"])
        process, seen = fields.as_count(said["process"]), fields.as_time(said["seen"])
    except (KeyError, ValueError, TypeError, RecursionError):
        # A lease that nobody can read holds nobody off.
        return
    # A process of that number may be another one by now: in a container that was started again they often are alike.
    # One of the future would hold everybody off until then.
    is_alive = abs(utc_now() - seen) < _DEAD_AFTER and (host != socket.gethostname() or _is_running(process, run))
    if is_alive:
        message = f"{url} is in use by process {process} on {host}: try again when it is done"
        raise UnavailableError(message, path=url)


def _is_running(process: int, run: str) -> bool:
    if process == os.getpid():
        return run in _running
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
