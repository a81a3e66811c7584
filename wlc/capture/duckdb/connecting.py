"""A DuckDB file is opened, or it is said why not."""

from __future__ import annotations

import re
import shlex
from typing import Any

import duckdb

from wlc.dialect.duckdb.opening import alone
from wlc.farm.errors import InvalidError, UnavailableError

# DuckDB names whoever has the file open: Conflicting lock is held in /usr/bin/python3 (PID 42) by user ann.
_LOCK_HOLDER = re.compile(r"held in (\S+).*?\(PID (\d+)\)")


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
            return duckdb.connect(source, read_only=read_only, config=config or {})
    except duckdb.IOException as error:
        text = str(error)
        if "lock" in text.lower():
            holder = _LOCK_HOLDER.search(text)
            who = f"process {holder[2]} ({holder[1]})" if holder else "another process"
            raise UnavailableError(
                f"database {source} is open in {who}",
                hint="wait for it or end it; what is published can be asked of the farm: wlc status NAME --farm URL",
                path=source,
            ) from error
        raise _opening_error(source, text.partition("\n")[0]) from error


def _opening_error(source: str, text: str) -> InvalidError:
    if "Permission denied" in text:
        return InvalidError(f"no permission to open {source}", hint=f"ls -l {shlex.quote(source)}", path=source)
    if "not a valid DuckDB" in text:
        hint = f"file {shlex.quote(source)} says what it is"
        return InvalidError(f"{source} is not a DuckDB database", hint=hint, path=source)
    return InvalidError(f"{source} cannot be opened: {text}", path=source)
