"""Breaks a run at one chosen call of the farm's store or of the database, and keeps what a killed process would leave.

A process that is killed leaves the farm and the bytes of its database files as they are at that moment. `Breaker` takes
a copy of the files at the chosen call and lets nothing of the unwinding reach the farm, so that a test can go on from
exactly there without a process for each of hundreds of calls. `test_killed_*.py` do the same with real processes.
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc.farm.database
from wlc.capture.duckdb import shared as shared_masters
from wlc.farm.clock import utc_now
from wlc.farm.errors import FarmError, UnavailableError
from wlc.farm.store import Store, StoredObject
from wlr.engine.duckdb import swapping
from wlr.engine.parquet import executor
from wlr.engine.parquet import folder as lakes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from pathlib import Path

    from wlc.capture.duckdb.connection import Connection
    from wlc.capture.duckdb.shared import Shared

DIES_BEFORE = "dies before"
DIES_AFTER = "dies after"
FAILS = "fails at"
LOSES_ANSWER = "loses the answer of"
TEARS = "dies in the middle of"
# Another process does something while the call is under way.
DELAYS = "takes long at"
# A request that was sent twice has its effect twice; the second answer is the one that is heard, or comes much later.
REPEATS = "is delivered twice at"
REPEATS_LATE = "is delivered once more, after everything else, at"
# A listing comes in another order, or is from before the newest object was there.
SHUFFLES = "lists in another order at"
OMITS = "lists without the newest at"
# From this call on this machine's clock is wrong.
CLOCK_BACK = "sets the clock back by a day at"
CLOCK_AHEAD = "sets the clock ahead by ten years at"
CLOCK_STOPS = "stops the clock at"
LISTINGS = (SHUFFLES, OMITS)
CLOCKS = {CLOCK_BACK: timedelta(days=-1), CLOCK_AHEAD: timedelta(days=3652), CLOCK_STOPS: None}

_WRITES = ("INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "TRUNCATE")
_ENDS = ("COMMIT", "CHECKPOINT")


class Died(BaseException):
    """The process was killed here."""


@dataclass(frozen=True)
class Fault:
    """What happens at call number `at`, counted from 0; `seed` decides what is left to chance."""

    how: str
    at: int
    seed: int = 0


class Breaker:
    """Counts calls, and breaks one of them.

    Args:
        folder: Holds the database files; copied to `image` at the moment of death.
        image: Does not exist yet.
        meanwhile: What another process does while a call takes long.
    """

    def __init__(
        self, folder: Path, image: Path, fault: Fault | None = None, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        self.folder, self.image, self.fault, self.meanwhile = folder, image, fault, meanwhile
        self.late: list[Callable[[], Any]] = []
        self.clock = Clock()
        self.calls: list[str] = []
        self.is_dead = False
        self._lock = threading.RLock()

    @property
    def broken(self) -> str:
        """The call that was broken, for messages."""
        if self.fault is None or self.fault.at >= len(self.calls):
            return "nothing was broken"
        return f"{self.fault.how} call {self.fault.at}, {self.calls[self.fault.at]}"

    @property
    def sends_late(self) -> bool:
        """Whether a request arrives once more when all is over."""
        return self.fault is not None and self.fault.how == REPEATS_LATE

    def call(self, name: str, effect: Callable[[], Any], *, error: Exception, tear: Callable[[], Any] | None) -> Any:
        """Let a call take effect, or not; `error` is how this kind of call fails, `tear` does half of it."""
        with self._lock:
            number = len(self.calls)
            self.calls.append(name)
            if self.fault is None or self.fault.at != number or self.is_dead:
                return effect()
            how = self.fault.how
            if how != DELAYS:
                return self._break(how, effect, error, tear)
        # Others, and their threads, do not wait.
        self.meanwhile()
        return effect()

    def _break(self, how: str, effect: Callable[[], Any], error: Exception, tear: Callable[[], Any] | None) -> Any:
        """Let the chosen call fail, or take another effect."""
        if how in SURVIVABLE:
            return self._survive(how, effect)
        if how == FAILS:
            raise error
        if how == TEARS and tear is not None:
            tear()
        if how in (DIES_BEFORE, TEARS):
            self._die()
        result = effect()
        if how == LOSES_ANSWER:
            raise error
        self._die()
        return result

    def _survive(self, how: str, effect: Callable[[], Any]) -> Any:
        if how in CLOCKS:
            self.clock.set(CLOCKS[how])
        result = effect()
        if how == REPEATS:
            return effect()
        if how == REPEATS_LATE:
            self.late.append(effect)
        if not isinstance(result, list):
            return result  # The calls of threads come in another order now and then.
        if how == SHUFFLES:
            random.Random(f"{self.fault}").shuffle(result)
        return result[:-1] if how == OMITS else result

    def deliver_late(self) -> None:
        """Let what was on its way arrive."""
        for effect in self.late:
            # Nobody listens for the answer any more.
            with suppress(FarmError):
                effect()

    def _die(self) -> None:
        # DuckDB keeps its files as a killed process would leave them: what is committed is in the file or its log.
        shutil.copytree(self.folder, self.image)
        self.is_dead = True
        raise Died(self.broken)


class BreakableStore(Store):
    """A store whose every call goes through a breaker, or which only ends with its process."""

    def __init__(self, store: Store, breaker: Breaker, *, breaks: bool) -> None:
        self._store, self._breaker, self.url, self._breaks = store, breaker, store.url, breaks

    def _call(self, method: str, path: str, effect: Callable[[], Any], tear: Callable[[], Any] | None = None) -> Any:
        if self._breaker.is_dead:
            raise Died(f"{method} after death")
        if not self._breaks:
            return effect()
        name = f"{method} {self.url.rpartition('/')[2]}/{path}"
        return self._breaker.call(name, effect, error=UnavailableError(f"no answer to {name}"), tear=tear)

    def read(self, path: str) -> bytes:
        return self._call("read", path, lambda: self._store.read(path))

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        return self._call("read_versioned", path, lambda: self._store.read_versioned(path))

    def fetch(self, path: str, bytes_max: int | None = None) -> Path:
        return self._call("fetch", path, lambda: self._store.fetch(path, bytes_max))

    def prepare(self) -> None:
        self._store.prepare()

    def release(self, file: Path) -> None:
        self._store.release(file)

    def list(self, prefix: str = "", *, recursive: bool = True, after: str = "") -> list[StoredObject]:
        return self._call("list", prefix, lambda: self._store.list(prefix, recursive=recursive, after=after))

    def exists(self, path: str) -> bool:
        return self._call("exists", path, lambda: self._store.exists(path))

    def create(self, path: str, data: bytes | Path) -> None:
        if self._breaker.sends_late and not isinstance(data, bytes):
            # What is on its way is no file that might be gone when it arrives.
            data = data.read_bytes()
        self._call("create", path, lambda: self._store.create(path, data), lambda: self._tear(path, data))

    def replace(self, path: str, data: bytes, version: str | None) -> str:
        write = lambda: self._store.replace(path, data, version)  # noqa: E731
        return self._call("replace", path, write, lambda: self._tear(path, data))

    def delete(self, path: str) -> None:
        self._call("delete", path, lambda: self._store.delete(path))

    def _tear(self, path: str, data: bytes | Path) -> None:
        """Leave what a killed writer leaves of an upload; a store that keeps objects whole elsewhere shows nothing."""
        root = getattr(self._store, "root", None)
        if root is not None:
            content = data if isinstance(data, bytes) else data.read_bytes()
            folder = (root / path).parent
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f".{len(self._breaker.calls):032x}.tmp").write_bytes(content[: len(content) // 2])


SURVIVABLE = (DELAYS, REPEATS, REPEATS_LATE, *LISTINGS, *CLOCKS)


class Clock:
    """This machine's clock, which can be set or stopped."""

    def __init__(self) -> None:
        self._ahead = timedelta()
        self._stopped: datetime | None = None

    def set(self, ahead: timedelta | None) -> None:
        """Set it by so much; None stops it."""
        if ahead is None:
            self._stopped = self.now()
        else:
            self._ahead = ahead

    def now(self) -> datetime:
        """The time that it shows."""
        return self._stopped or utc_now() + self._ahead


@contextmanager
def breakable_clock(clock: Clock) -> Iterator[None]:
    """Whoever asks for the time is told that of this clock."""
    asking = [module for name, module in sys.modules.items() if name.startswith(("wlc.", "wlr."))]
    with pytest.MonkeyPatch.context() as patch:
        for module in asking:
            if module.__dict__.get("utc_now") is utc_now:
                patch.setattr(module, "utc_now", clock.now)
        yield


@contextmanager
def breakable_store(breaker: Breaker, *, breaks: bool) -> Iterator[None]:
    """Every store that is opened goes through the breaker, or only ends with its process."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (wlc.farm.database, lakes):
            opened = module.open_store
            wrapped = lambda url, options=None, opened=opened: BreakableStore(  # noqa: E731
                opened(url, options), breaker, breaks=breaks
            )
            patch.setattr(module, "open_store", wrapped)
        # One at a time, so that a call number always means the same call.
        patch.setattr(wlc.farm.database, "_UPLOADS", 1)
        patch.setattr(executor, "_AT_ONCE", 1)
        yield


@contextmanager
def breakable_database(breaker: Breaker) -> Iterator[None]:
    """What makes something durable goes through the breaker: commits, writes outside of one, new names of files."""
    execute = duckdb.DuckDBPyConnection.execute
    open_transactions: defaultdict[int, bool] = defaultdict(bool)

    def breakable_execute(self: duckdb.DuckDBPyConnection, query: Any, *args: Any, **options: Any) -> Any:
        word = query.split(None, 1)[0].upper().rstrip(";") if isinstance(query, str) else ""
        is_open = open_transactions[id(self)]
        open_transactions[id(self)] = word == "BEGIN" or (is_open and word not in ("COMMIT", "ROLLBACK"))
        effect = lambda: execute(self, query, *args, **options)  # noqa: E731
        if word in _ENDS or (word in _WRITES and not is_open and " TEMP " not in query[:40]):
            name = " ".join(query.split())[:80]
            return breaker.call(name, effect, error=duckdb.IOException(f"disk full at {name}"), tear=None)
        return effect()

    def breakable_name(change: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def changed(present: Path, name: Path) -> None:
            said = f"{change.__name__} {present.name} {name.name}"
            breaker.call(said, lambda: change(present, name), error=OSError(5, f"failed: {said}"), tear=None)

        return changed

    duckdb.DuckDBPyConnection.execute = breakable_execute  # type: ignore[method-assign]
    try:
        with pytest.MonkeyPatch.context() as patch:
            for change in (swapping.link, swapping.rename):
                patch.setattr(swapping, change.__name__, breakable_name(change))
            yield
    finally:
        duckdb.DuckDBPyConnection.execute = execute  # type: ignore[method-assign]


def abandon_masters() -> None:
    """Close what a run that died has left open in this process."""
    for shared in list(shared_masters._open.values()):
        abandon_master(shared)


def abandon_master(shared: Shared) -> None:
    """Close one of them."""
    shared.close()
    for key in [key for key, found in shared_masters._open.items() if found is shared]:
        del shared_masters._open[key]


def kill_master(connection: Connection, file: Path) -> None:
    """End the program that has a master open, as `kill -9` does: its files stay as they are at this moment."""
    image = {each: each.read_bytes() for each in file.parent.glob(f"{file.name}*") if each.is_file()}
    connection._finalizer.detach()
    abandon_master(connection._shared)
    for each in file.parent.glob(f"{file.name}*"):
        if each.is_file() and each not in image:
            each.unlink()
    for each, data in image.items():
        each.write_bytes(data)
