"""A lease in a store, so that one run at a time writes to a Parquet replica or a feed's state.

The death of a run on this machine is detected at once, by its process; elsewhere, the lease expires when the run has
not renewed it for a while. Correctness does not depend on this detection: the new holder also changes the object that
its commits replace (the pointer of a Parquet replica, the state of a feed), so that the former holder, if it is still
alive, can no longer commit.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from wlc.farm import json_fields as fields
from wlc.farm.clock import format_time, utc_now
from wlc.farm.errors import FarmError, UnavailableError, UnsupportedError
from wlc.farm.paths import SNAPSHOT_LEASE
from wlc.farm.store import ConflictError
from wlc.farm.store.contract import PROBE
from wlc.farm.versioned import VersionedObject

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from wlc.farm.store import Store

_RENEWED_EVERY_S = 20.0
_DEAD_AFTER = timedelta(seconds=120)
# Runs of this process that hold a lease or may hold one: not runs whose request to take or release it failed.
_running: set[str] = set()
# Stores that this process has tested to honour preconditions. Another process tests them again.
_proved: set[object] = set()


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The stated holder of a lease: a run in a process of a host, and when it last renewed the lease."""

    run: str
    host: str
    process: int
    seen: datetime


class Lease:
    """The right to write until `release`; a thread renews it meanwhile.

    Args:
        store: The store that holds the lease.
        path: Path of the lease in the store.
        what: Name of the protected object, for messages; the store's URL if omitted.

    Attributes:
        run: Random id of this run.
    """

    def __init__(self, store: Store, path: str, what: str = "") -> None:
        self.run = secrets.token_hex(6)
        self._taken = time.time()
        self._store = store
        self._what = what or store.url
        self._object = VersionedObject(store, path, _encode_holder, _decode_holder, is_stamped=True)
        self._version = self._take()
        _running.add(self.run)
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="wlr lease", daemon=True)
        self._thread.start()

    @property
    def age_s(self) -> float:
        """Seconds since this run asked for the lease, by the clock that dates files."""
        return time.time() - self._taken

    def release(self) -> None:
        """Give up the lease, so that another run can write."""
        self._released.set()
        self._thread.join()
        _running.discard(self.run)
        with suppress(FarmError):
            found = self._object.load()
            if found is not None and found[1] == self._version:
                self._store.delete(self._object.path)

    def check(self) -> None:
        """Refuse to go on after another run has taken the lease over.

        Raises:
            UnavailableError: It has, or the store is unreachable.
        """
        found = self._object.load()
        holder = found[0] if found else None
        if holder is None or holder.run != self.run:
            by = f"process {holder.process} on {holder.host}" if holder else "another run"
            raise UnavailableError(f"{self._what} was taken over by {by}", path=self._what)

    def _take(self) -> str:
        """Write the lease, replacing an expired one, and return its version.

        Raises:
            UnavailableError: Another run holds it.
            UnsupportedError: The store ignores preconditions, so that a lease protects nothing in it.
        """
        holder, version = self._object.load() or (None, None)
        if holder is not None:
            self._refuse_live(holder)
        ours = self._holder()
        try:
            taken = self._object.replace(ours, version)
        except ConflictError as error:
            raise UnavailableError(f"{self._what} is in use by another run: try again when it is done") from error
        place = self._store.place()
        if place is None or place not in _proved:
            try:
                self._object.prove(ours)
            except UnsupportedError:
                self._store.delete(self._object.path)
                raise
            _proved.add(place)
        return taken

    def _refuse_live(self, holder: LeaseHolder) -> None:
        is_here = holder.host == socket.gethostname()
        if is_here and not _is_running(holder.process, holder.run):
            return
        # A time in the future would stop other runs until then. Another machine's clock may differ by hours.
        age = abs(utc_now() - holder.seen) if is_here else self._age_of(holder)
        if age < _DEAD_AFTER:
            where = f"process {holder.process} on {holder.host}"
            raise UnavailableError(f"{self._what} is in use by {where}: try again when it is done", path=self._what)

    def _age_of(self, holder: LeaseHolder) -> timedelta:
        """Return how long ago the lease was written, by the store's clock."""
        path = f"{PROBE}{secrets.token_hex(8)}"
        arrived: dict[str, datetime] = {}
        with suppress(FarmError):
            self._store.create(path, b"")
            for name in (path, self._object.path):
                arrived |= {entry.path: entry.arrived for entry in self._store.list(name)}
        with suppress(FarmError):
            self._store.delete(path)
        if path not in arrived or self._object.path not in arrived:
            return abs(utc_now() - holder.seen)
        return arrived[path] - arrived[self._object.path]

    def _holder(self) -> LeaseHolder:
        return LeaseHolder(self.run, socket.gethostname(), os.getpid(), utc_now())

    def _renew(self) -> None:
        while not self._released.wait(_RENEWED_EVERY_S):
            try:
                self._version = self._object.replace(self._holder(), self._version)
            except ConflictError:
                # Another run took it over; the next commit will fail.
                return
            except FarmError:
                # The store may come back before the lease expires.
                continue


@contextmanager
def taking_snapshot(store: Store, database: str) -> Iterator[bool]:
    """Hold the right to take the next due snapshot of a database; yields False if another process is taking one."""
    try:
        lease = Lease(store, SNAPSHOT_LEASE, f"the next snapshot of {database}")
    except (UnavailableError, UnsupportedError):
        yield False
        return
    try:
        yield True
    finally:
        lease.release()


def _encode_holder(holder: LeaseHolder | None) -> bytes:
    return json.dumps({**asdict(holder), "seen": format_time(holder.seen)}).encode() if holder else b""


def _decode_holder(data: bytes) -> LeaseHolder | None:
    """Read a lease, None for one that is damaged: it does not stop other runs."""
    try:
        said: dict[str, Any] = json.loads(data)
        process, seen = fields.as_count(said["process"]), fields.as_time(said["seen"])
        return LeaseHolder(str(said["run"]), str(said["host"]), process, seen)
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


def _is_running(process: int, run: str) -> bool:
    # Another process may have the same number by now: in a restarted container, often this process.
    if process == os.getpid():
        return run in _running
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
