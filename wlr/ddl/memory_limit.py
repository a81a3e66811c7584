"""How much memory a statement from the farm may take: DuckDB does not count the texts that it makes for one vector.

The address space of the process is limited meanwhile, so that an allocation fails before the machine has no memory.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from wlr.plan.failure import StepError
from wlr.plan.memory import MEMORY_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

# For threads, their stacks and heaps, and what else the process does meanwhile.
_REST_BYTES = (1 << 30) + (os.cpu_count() or 1) * (1 << 27)
_STATM = Path("/proc/self/statm")
_SIZE = re.compile(r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@contextmanager
def bounded(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let the process grow by DuckDB's memory limit, and not much more, while a connection runs a statement.

    Only Linux tells how large a process is; elsewhere DuckDB's own limit alone applies.

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
    """The limit of the process, which the first of several threads sets and the last one takes back."""

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
    """Read a size as DuckDB shows it; None if there is no limit, which is shown as more than any machine has."""
    found = _SIZE.fullmatch(size)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None
