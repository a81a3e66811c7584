"""Opening a DuckDB file, with an explaining error on failure.

Databases that are confined (cut off from files, or with locked settings): the capture's settings are set before.

DuckDB writes the data files of a batch itself. After `enable_external_access = false` it does so only in folders that
were allowed before, and after `lock_configuration = true` no setting can be changed any more.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from wlc.capture.duckdb import home
from wlc.dialect.duckdb import engine
from wlc.dialect.duckdb.opening import alone
from wlc.dialect.sql import literal
from wlc.farm.errors import InvalidError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping


# DuckDB names the process that has the file open: Conflicting lock is held in /usr/bin/python3 (PID 42) by user ann.
_LOCK_HOLDER = re.compile(r"held in (\S+).*?\(PID (\d+)\)")


class FileInUseError(UnavailableError, duckdb.IOException):
    """Another process has the file open; programs that wait for that catch DuckDB's class."""


def create_file(source: str) -> None:
    """Make an empty database."""
    connect(source, read_only=False, config=None).close()


def connect(source: str, *, read_only: bool, config: dict[str, Any] | None) -> duckdb.DuckDBPyConnection:
    """Open a database.

    Raises:
        InvalidError: The file is not a DuckDB database.
        UnavailableError: Another process has it open.
    """
    try:
        with alone(source):
            return engine.connect(source, read_only=read_only, config=config or {})
    except duckdb.IOException as error:
        text = str(error)
        if "lock" in text.lower():
            holder = _LOCK_HOLDER.search(text)
            who = f"process {holder[2]} ({holder[1]})" if holder else "another process"
            raise FileInUseError(
                f"database {source} is open in {who}",
                hint=f"wait for it or end it; meanwhile read the farm: wlc status {_asked(source)}",
                path=source,
            ) from error
        raise _opening_error(source, text.partition("\n")[0]) from error


def _asked(source: str) -> str:
    return "NAME --farm URL" if home.noted_place(source) is None else shlex.quote(source)


def _opening_error(source: str, text: str) -> InvalidError:
    if "Permission denied" in text:
        return InvalidError(f"no permission to open {source}", hint=f"ls -l {shlex.quote(source)}", path=source)
    if "not a valid DuckDB" in text:
        hint = f"file {shlex.quote(source)} says what it is"
        return InvalidError(f"{source} is not a DuckDB database", hint=hint, path=source)
    return InvalidError(f"{source} cannot be opened: {text}", path=source)


# In the order in which they must be set.
_LAST = ("enable_external_access", "lock_configuration")


def split(config: Mapping[str, Any] | None) -> tuple[dict[str, object], dict[str, str]]:
    """Split a connection's settings from those that must be set last."""
    first, last = dict[str, object](), dict[str, str]()
    for name, value in (config or {}).items():
        if name.lower() in _LAST:
            last[name.lower()] = str(value).lower()
        else:
            first[name] = value
    return first, last


def confine(connection: duckdb.DuckDBPyConnection, last: Mapping[str, str], *, writes: bool) -> Path | None:
    """Apply the capture's settings to a database that was just opened, then those that must be set last.

    Returns:
        The folder in which DuckDB may always write, once there is one.
    """
    work = allow(connection, None) if writes and last else None
    for name in _LAST:
        if name in last:
            connection.execute(f"SET GLOBAL {name} = {literal(last[name])}")
    return work


def allow(connection: duckdb.DuckDBPyConnection, work: Path | None) -> Path | None:
    """Allow DuckDB to write in a separate folder, before its user cuts it off from files.

    Args:
        connection: To the database.
        work: The folder that was allowed before, if any; the user may have replaced the list since.
    """
    ((access, allowed),) = connection.execute(
        "SELECT current_setting('enable_external_access'), current_setting('allowed_directories')"
    ).fetchall()
    if not access or (work is not None and any(Path(folder) == work for folder in allowed)):
        return work
    work = work or Path(tempfile.mkdtemp(prefix="wlc-"))
    # If the configuration is locked, the user's own statement fails as well.
    with suppress(duckdb.InvalidInputException):
        listed = ", ".join(literal(folder) for folder in (*allowed, f"{work}/"))
        connection.execute(f"SET GLOBAL allowed_directories = [{listed}]")
    return work
