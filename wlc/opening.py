"""Database files are opened, and closed by their writers, by one process at a time.

DuckDB 2.0 reads the header of a file before it locks the file. Where another process writes its last changes and closes
the file in between, the header is out of date: the opener is told that the write-ahead log does not fit, or, worse,
goes on from the older state, and what the other has committed is gone. So whoever opens a file, and whoever closes one
that it has written to, holds the file's folder for that moment. Programs that open the file with DuckDB alone do not.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_held = threading.local()


@contextmanager
def alone(file: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the folder of a database file while the file is opened or closed; others wait for a moment.

    May be nested. The kernel gives the folder up when the process dies. Where a file system has no locks, none is held.
    """
    folder = str(Path(file).absolute().parent)
    folders: set[str] = _held.__dict__.setdefault("folders", set())
    if folder in folders:
        yield
        return
    descriptor = _lock(folder)
    folders.add(folder)
    try:
        yield
    finally:
        folders.discard(folder)
        if descriptor is not None:
            os.close(descriptor)


def _lock(folder: str) -> int | None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        # Whoever opens the file will say what is wrong with its folder.
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
