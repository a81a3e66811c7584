"""Limits the memory and the time of a statement from the farm.

Memory: DuckDB does not count the texts that it makes for one vector. So the address space of the process is limited
while the statement runs: an allocation fails before the machine runs out of memory.

Time: an attacker with write access to the farm can write a statement that never ends.
"""

from __future__ import annotations

import math
import os
import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from wlc.farm.errors import InvalidError
from wlr.replay.plan.failure import MEMORY_VARIABLE, StepError

if TYPE_CHECKING:
    from collections.abc import Iterator


# For stacks and heaps of threads, and the other work of the process.
_REST_BYTES = (1 << 30) + (os.cpu_count() or 1) * (1 << 27)
_STATM = Path("/proc/self/statm")
_SIZE = re.compile(r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@contextmanager
def bounded(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let the process grow by DuckDB's memory limit, and not much more, while a connection runs a statement.

    Only Linux reports the size of a process; elsewhere only DuckDB's own limit applies.

    Raises:
        StepError: The statement needs more.
    """
    limit = str(connection.execute("SELECT current_setting('memory_limit')").fetchall()[0][0])
    try:
        with _space.limited(_bytes(limit)):
            yield
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        cause = f"the statement needs more memory than {limit}; export {MEMORY_VARIABLE}=8GB sets another limit"
        raise StepError(cause) from error


class _AddressSpace:
    """The limit of the process, which the first of several threads sets and the last one resets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = (0, 0)

    @contextmanager
    def limited(self, more: int | None) -> Iterator[None]:
        if more is None or not _STATM.exists():
            yield
            return
        # Windows has no such module.
        import resource

        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = soft, hard = resource.getrlimit(resource.RLIMIT_AS)
                most = int(_STATM.read_text("ascii").split()[0]) * resource.getpagesize() + more + _REST_BYTES
                others = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
                resource.setrlimit(resource.RLIMIT_AS, (min([most, *others]), hard))
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    resource.setrlimit(resource.RLIMIT_AS, self._before)


_space = _AddressSpace()


def _bytes(size: str) -> int | None:
    """Parse a size as DuckDB shows it; None if there is no limit, which DuckDB shows as more than any machine has."""
    found = _SIZE.fullmatch(size)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


LIMIT_VARIABLE = "WLR_STATEMENT_LIMIT_S"
LIMIT_S = 60.0
# For statements that read or rewrite the rows of a table.
LIMIT_OF_ROWS_S = 3600.0
_OF_ROWS = re.compile(
    r"\s*(ALTER\s+(MATERIALIZED|TABLE)|CREATE\s+(UNIQUE\s+)?INDEX|CREATE\s+MATERIALIZED|REFRESH)\b", re.IGNORECASE
)


def limit_s(statement: str) -> float:
    """Return the limit of a statement in seconds, more than 0.

    Raises:
        InvalidError: The environment has no such number.
    """
    text = os.environ.get(LIMIT_VARIABLE)
    if not text:
        return LIMIT_OF_ROWS_S if _OF_ROWS.match(statement) else LIMIT_S
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < threading.TIMEOUT_MAX:
        message = f"{LIMIT_VARIABLE}={text} is not a number of seconds"
        raise InvalidError(message, hint=f"export {LIMIT_VARIABLE}={LIMIT_OF_ROWS_S:g}")
    return found


def overrun(seconds: float) -> StepError:
    """Build the error for a statement that was stopped."""
    more = f"export {LIMIT_VARIABLE}={seconds * 10:g} allows more"
    return StepError(f"the statement was stopped after {seconds:g} seconds; {more}")


@contextmanager
def limited(connection: duckdb.DuckDBPyConnection, statement: str) -> Iterator[None]:
    """Interrupt a connection whose statements in the body take too long.

    DuckDB checks for an interruption between two vectors of rows and between two parts of a plan.

    Raises:
        StepError: It was stopped.
    """
    seconds, is_over = limit_s(statement), threading.Event()

    def stop() -> None:
        is_over.set()
        connection.interrupt()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except duckdb.InterruptException as error:
        if is_over.is_set():
            raise overrun(seconds) from error
        raise
    finally:
        timer.cancel()
