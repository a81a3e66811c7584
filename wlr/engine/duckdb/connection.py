"""Connections to a target file, and what DuckDB's errors mean here."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from wlc.errors import CorruptError, FarmError, InvalidError, UnavailableError
from wlc.model import literal, quote
from wlc.opening import alone
from wlr.engine import MEMORY_VARIABLE, StepError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_HOLDER = re.compile(r"lock is held in (.*?) ?\(PID (\d+)\)")
_MACHINE = (
    duckdb.IOException,
    duckdb.FatalException,
    duckdb.InternalException,
    duckdb.InterruptException,
    duckdb.ConnectionException,
)
# How DuckDB begins to say that the checksum of a block is not right.
_CORRUPT = "Corrupt database file"
# The name of the database in memory that a connection starts with, which must not be that of the target.
_OWN = "memory"


def attach(path: Path, catalog: str, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """Open a database file under the name `catalog`, whatever the file is called.

    Raises:
        InvalidError: The file is no database, or cannot be opened.
        UnavailableError: Another process, or this one, has it open.
    """
    connection = connect_free_of(catalog)
    with _opening(path, connection):
        mode = " (READ_ONLY)" if read_only else ""
        with alone(path):
            connection.execute(f"ATTACH {literal(str(path))} AS {quote(catalog)}{mode}")
        connection.execute(f"USE {quote(catalog)}.main")
    return connection


def connect_free_of(catalog: str) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that leaves a name free, for another one to be attached under it."""
    # A connection in memory is called `memory`; a master may be called so, too, and then a connection to the file
    # itself under another name is needed. DuckDB names a file after its stem and takes no other name, so a second
    # database in memory is attached, and `memory` freed by detaching it.
    connection = duckdb.connect(config={"python_enable_replacements": "false"})
    if catalog.lower() == _OWN:
        connection.execute("ATTACH ':memory:' AS wlr_scratch")
        connection.execute("USE wlr_scratch")
        connection.execute(f"DETACH {_OWN}")
    return connection


class Scratch:
    """A folder for what does not fit into memory, and the only place besides `folders` that the engine may read.

    Args:
        work: Made by `confine`, removed by `remove`.
        folders: Folders with data files.
    """

    def __init__(self, work: Path, folders: Sequence[Path]) -> None:
        self._work = work
        self._folders = [folder.resolve() for folder in folders]
        self._links = 0

    @property
    def folder(self) -> Path:
        """The folder, once it is made."""
        return self._work.resolve()

    def confine(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Keep statements from the farm away from the machine; the connection has attached all it needs."""
        # What a killed run left there is gone with it.
        self.remove()
        self._work.mkdir(parents=True)
        self._folders.append(self._work.resolve())
        connection.execute(f"SET temp_directory = {literal(str(self._work))}")
        if limit := os.environ.get(MEMORY_VARIABLE):
            connection.execute(f"SET memory_limit = {literal(limit)}")
        allowed = ", ".join(literal(str(folder)) for folder in self._folders)
        connection.execute(f"SET allowed_directories = [{allowed}]")
        connection.execute("SET enable_external_access = false")

    def reachable(self, file: Path) -> str:
        """Return where the engine can read a data file; if need be it is linked or copied."""
        file = file.resolve()
        if any(file.is_relative_to(folder) for folder in self._folders):
            return str(file)
        self._links += 1
        link = self._work / f"{self._links}_{file.name}"
        try:
            link.hardlink_to(file)
        except OSError:
            shutil.copyfile(file, link)
        return str(link)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self._work, ignore_errors=True)


@contextmanager
def _opening(path: Path, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        connection.close()
        raise _opening_error(path, error) from error


def _opening_error(path: Path, error: duckdb.Error) -> FarmError:
    text, where = str(error), str(path)
    if _CORRUPT in text:
        return _corrupt(path, error)
    # Who and what to do in one line: this is what cron mails when a run meets the one before it.
    if holder := _HOLDER.search(text):
        message = f"{path} is in use by process {holder.group(2)} ({holder.group(1)}): try again when it is done"
        return UnavailableError(message, path=where)
    if "Could not set lock" in text:
        return UnavailableError(f"{path} is in use by another process: try again later", path=where)
    if "already attached" in text or "Unique file handle" in text:
        return UnavailableError(f"{path} is open in this process: close that connection first", path=where)
    if "Could not write" in text or "No space left" in text:
        message = f"{path} cannot be written to: {_first_line(error)}"
        return UnavailableError(message, hint="Nothing was lost: free disk space, then run it again.", path=where)
    message = f"{path} cannot be opened as a DuckDB database: {_first_line(error)}"
    return InvalidError(message, hint="Replicate into a file that does not exist yet.", path=where)


@contextmanager
def applying(path: Path) -> Iterator[None]:
    """Turn DuckDB's errors while a step is applied into `StepError`, or `UnavailableError` where the machine failed.

    Where a block of the file has another checksum than DuckDB wrote, it is `CorruptError`: no transaction is at fault.
    """
    try:
        yield
    except duckdb.Error as error:
        raise _step_error(path, error) from error


def _step_error(path: Path, error: duckdb.Error) -> Exception:
    if _CORRUPT in str(error):
        return _corrupt(path, error)
    if isinstance(error, duckdb.OutOfMemoryException):
        return StepError(_first_line(error), is_shortage=True)
    if isinstance(error, _MACHINE):
        hint = "Nothing was lost: run it again."
        return UnavailableError(f"writing to {path} failed: {_first_line(error)}", hint=hint, path=str(path))
    return StepError(_first_line(error), is_reference="foreign key" in str(error))


def _corrupt(path: Path, error: duckdb.Error) -> CorruptError:
    return CorruptError(f"{path} is damaged: {_first_line(error)}", hint="Make the replica anew.", path=str(path))


@contextmanager
def using(path: Path) -> Iterator[None]:
    """Turn DuckDB's errors outside of steps into `UnavailableError`, or `CorruptError` where the file is damaged."""
    try:
        yield
    except duckdb.Error as error:
        if _CORRUPT in str(error):
            raise _corrupt(path, error) from error
        hint = "Nothing was lost: run it again."
        raise UnavailableError(f"{path}: {_first_line(error)}", hint=hint, path=str(path)) from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].partition(". If this is an unexpected")[0]


def has_table(connection: duckdb.DuckDBPyConnection, catalog: str, schema: str, table: str) -> bool:
    """Say whether a table exists."""
    found = connection.execute(
        "SELECT count(*) FROM duckdb_tables() WHERE database_name = ? AND schema_name = ? AND table_name = ?",
        [catalog, schema, table],
    ).fetchall()
    return bool(found[0][0])
