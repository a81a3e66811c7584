"""Who has a file open, and when it was last opened: what Linux knows beyond DuckDB's own locks."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# DuckDB opens a file three times: it reads how the file begins, reads the headers, and only then locks it. In between,
# nothing shows that somebody is about to read it. That takes microseconds, unless the process has to wait for a core.
QUIET_S = 0.005
# Readers that open the file without pause are not waited for without end.
_QUIET_LIMIT_S = 2.0
_IN_OPEN = 0x20


def is_open_elsewhere(path: Path) -> bool | None:
    """Say whether anybody has a file open, in this process or another; None where that is unknown.

    The kernel gives a lease for writing only while nobody has the file open.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return None
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        # Network file systems have no leases.
        return True if error.errno == errno.EAGAIN else None
    finally:
        os.close(descriptor)
    return False


@contextmanager
def watched_opens(path: Path) -> Iterator[Callable[[], None]]:
    """Watch who opens a file; gives a function that returns when nobody has opened it for a moment.

    It returns after two seconds in any case, and at once where the system does not report opens.
    """
    descriptor = _watch(path)
    try:
        yield lambda: _await_quiet(descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _watch(path: Path) -> int | None:
    try:
        library = ctypes.CDLL(None, use_errno=True)
        descriptor = int(library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, AttributeError):
        return None
    if descriptor < 0:
        return None
    if library.inotify_add_watch(descriptor, os.fsencode(path), _IN_OPEN) < 0:
        os.close(descriptor)
        return None
    return descriptor


def _await_quiet(descriptor: int | None) -> None:
    end = time.monotonic() + _QUIET_LIMIT_S
    while descriptor is not None and time.monotonic() < end:
        if not select.select([descriptor], [], [], QUIET_S)[0]:
            return
        os.read(descriptor, 1 << 16)
