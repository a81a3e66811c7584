"""Whether a file is open, and when it was last opened, from Linux, beyond DuckDB's own locks.

Connections to a replica's file, and the errors of opening one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import select
import shlex
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.duckdb.opening import alone
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import FarmError, InvalidError, UnavailableError
from wlr.engine.calculator import (
    CORRUPT,
    close_aside,
    connect_free_of,
    corrupt,
    first_line,
    full,
    home_beside,
)
from wlr.replay.plan.failure import DISK_FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


# DuckDB opens a file three times: it reads the start of the file, reads the headers, and only then locks it. In
# between, a pending reader is invisible, for microseconds, or longer if the process waits for a core.
QUIET_S = 0.005
# Limit of the wait for readers that open the file without pause.
_QUIET_LIMIT_S = 2.0
_IN_OPEN = 0x20


def is_open_elsewhere(path: Path) -> bool | None:
    """Return whether any process has a file open, this one included; None if unknown.

    The kernel grants a lease for writing only while no process has the file open.
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
    """Watch a file; give a function that waits until no process has opened it for a moment.

    It returns after two seconds at the latest, and at once if the system does not report opens.
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


_HOLDER = re.compile(r"lock is held in (.*?) ?\(PID (\d+)\)")


def attach(
    path: Path,
    catalog: str,
    *,
    read_only: bool = False,
    spare: duckdb.DuckDBPyConnection | None = None,
    storage_version: str = "",
) -> duckdb.DuckDBPyConnection:
    """Open a database file under the name `catalog`, regardless of the file's name.

    Args:
        path: The file.
        catalog: The name.
        read_only: Do not lock it for writing.
        spare: Connection that `detach` left, for opening the file; closed if that fails.
        storage_version: Of a new file; empty for the newest one.

    Raises:
        InvalidError: The file is no database, or cannot be opened.
        UnavailableError: Another process, or this one, has it open.
    """
    connection = connect_free_of(catalog, spare)
    with _opening(path, connection):
        mode = " (READ_ONLY)" if read_only else ""
        mode = f" (STORAGE_VERSION {literal(storage_version)})" if storage_version else mode
        with alone(path):
            connection.execute(f"ATTACH {literal(str(path))} AS {quote(catalog)}{mode}")
        connection.execute(f"USE {quote(catalog)}.main")
    return connection


def detach(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Close the file of `attach` and keep its connection: creating another one takes as long as a small step."""
    connection.execute(f"USE {home_beside(catalog)}; DETACH {quote(catalog)}")


def detach_for_good(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Close the file of `attach`, and close the connection in the background, which takes longer."""
    try:
        detach(connection, catalog)
    except duckdb.Error:
        connection.close()
    else:
        close_aside(connection)


@contextmanager
def _opening(path: Path, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        connection.close()
        raise _opening_error(path, error) from error


def _opening_error(path: Path, error: duckdb.Error) -> FarmError:
    text, where = str(error), str(path)
    if CORRUPT in text:
        return corrupt(path, error)
    # Holder and remedy in one line: cron mails it when a run meets the previous one.
    if holder := _HOLDER.search(text):
        message = f"{path} is in use by process {holder.group(2)} ({holder.group(1)}): try again when it is done"
        return UnavailableError(message, path=where)
    if "Could not set lock" in text:
        return UnavailableError(f"{path} is in use by another process: try again later", path=where)
    if "already attached" in text or "Unique file handle" in text:
        return UnavailableError(f"{path} is open in this process: close that connection first", path=where)
    if DISK_FULL in text:
        return full(path)
    if "Could not write" in text:
        message = f"{path} cannot be written to: {first_line(error)}"
        return UnavailableError(message, hint="Nothing was lost: free disk space, then run it again.", path=where)
    if "Read-only file system" in text:
        message = f"{path} is on a file system that is mounted read-only"
        return InvalidError(message, hint="replicate into a folder that can be written to", path=where)
    if "Permission denied" in text:
        return InvalidError(f"no permission to open {path}", hint=f"ls -l {shlex.quote(where)}", path=where)
    if "not a valid DuckDB" in text:
        hint = "replicate into a file that does not exist yet"
        return InvalidError(f"{path} is not a DuckDB database", hint=hint, path=where)
    message = f"{path} cannot be opened as a DuckDB database: {first_line(error)}"
    return InvalidError(message, hint="Replicate into a file that does not exist yet.", path=where)


def has_table(connection: duckdb.DuckDBPyConnection, catalog: str, schema: str, table: str) -> bool:
    """Return whether a table exists."""
    found = connection.execute(
        "SELECT count(*) FROM duckdb_tables() WHERE database_name = ? AND schema_name = ? AND table_name = ?",
        [catalog, schema, table],
    ).fetchall()
    return bool(found[0][0])


def work_folder(into: Path) -> Path:
    """Return the folder for temporary files, on the replica's own disk."""
    return into.with_name(f".{into.name}.work")


def present_before(into: Path) -> Path:
    """Return the name under which a swap keeps the current file until it is replaced."""
    return into.with_name(f".{into.name}.old")
