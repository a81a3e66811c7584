"""Databases that their user cuts off from files or whose settings are locked: what capture needs is set before.

DuckDB writes the data files of a batch itself. After `enable_external_access = false` it does so only in folders that
were allowed before, and after `lock_configuration = true` no setting can be changed any more.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from wlc.dialect.sql import literal

if TYPE_CHECKING:
    from collections.abc import Mapping

# In the order in which they must be set.
_LAST = ("enable_external_access", "lock_configuration")


def split(config: Mapping[str, Any] | None) -> tuple[dict[str, object], dict[str, str]]:
    """Part the settings of a connection from those that must be set last."""
    first, last = dict[str, object](), dict[str, str]()
    for name, value in (config or {}).items():
        if name.lower() in _LAST:
            last[name.lower()] = str(value).lower()
        else:
            first[name] = value
    return first, last


def confine(connection: duckdb.DuckDBPyConnection, last: Mapping[str, str], *, writes: bool) -> Path | None:
    """Set what capture needs in a database that was just opened, and then what must be set last.

    Returns:
        The folder where DuckDB may write whatever happens later, once there is one.
    """
    # DuckDB looks up a user's variables in the frames of its callers. Our own frames are the nearest ones.
    connection.execute("SET GLOBAL python_scan_all_frames = true")
    work = allow(connection, None) if writes and last else None
    for name in _LAST:
        if name in last:
            connection.execute(f"SET GLOBAL {name} = {literal(last[name])}")
    return work


def allow(connection: duckdb.DuckDBPyConnection, work: Path | None) -> Path | None:
    """Allow DuckDB to write in a folder of our own, now that its user is going to cut it off.

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
