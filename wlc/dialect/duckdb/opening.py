"""Only one process at a time opens a database file or closes one that it has written.

DuckDB 2.0 reads the header of a file before it locks the file. If another process writes its last changes and closes
the file in between, the header is out of date: DuckDB reports that the write-ahead log does not fit, or, worse,
continues from the older state and loses the other process's commits. So a process locks the file's folder while it
opens a file, and while it closes one that it has written. Programs that open the file with DuckDB alone take no lock.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterator

_held = threading.local()


def refuse_path(path: str | os.PathLike[str], unfit: str = "?\\") -> None:
    """Refuse a path that DuckDB would split: it cuts a database's path at `?`, and any path at a backslash.

    Raises:
        InvalidError: The path has one of the `unfit` letters.
    """
    for letter in unfit:
        if letter in os.fspath(path):
            message = f"DuckDB cannot write to {os.fspath(path)}, because the path has a {letter}"
            raise InvalidError(message, hint="choose another path, without ? and \\", path=os.fspath(path))


def wal_of(file: Path) -> Path:
    """Return the path of a file's write-ahead log; without it, the file is an older state."""
    return file.with_name(f"{file.name}.wal")


def has_log(file: Path) -> bool:
    """Say whether something is not yet moved into a file."""
    try:
        return wal_of(file).stat().st_size > 0
    except FileNotFoundError:
        return False


@contextmanager
def alone(file: str | os.PathLike[str]) -> Iterator[None]:
    """Lock the folder of a database file while the file is opened or closed; other processes wait for a moment.

    May be nested. The kernel releases the lock when the process dies. On a file system without locks nothing is locked.
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
        # Opening the file will fail, and report what is wrong with its folder.
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
