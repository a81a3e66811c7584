"""DuckDB as the calculator of every engine: confined connections in memory, and the meaning of DuckDB's errors.

All engines fold changes, run schema statements and read data files with DuckDB, whatever stores their replicas.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.duckdb import engine
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import CorruptError, InvalidError, UnavailableError
from wlr.replay.plan.failure import DISK_FULL, MEMORY_HINT, MEMORY_VARIABLE, StepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

# Start of DuckDB's message about a wrong checksum of a block.
CORRUPT = "Corrupt database file"
_MACHINE = (
    duckdb.IOException,
    duckdb.FatalException,
    duckdb.InterruptException,
    duckdb.ConnectionException,
)
# Start of DuckDB's message about an internal error, which the same statement and rows repeat.
_INTERNAL = "INTERNAL Error"
_MEMORY_FULL = re.compile(r"^.*Failed to commit: .*\bblock of size .* used\)")
# Name of the database in memory that a connection starts with. A target may have the same name.
_MEMORY = "memory"
_made_ahead: list[duckdb.DuckDBPyConnection] = []
_closing: list[threading.Thread] = []


def connect(work: Path, *, threads: int | None = None, memory: str | None = None) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that spills into a folder.

    Args:
        work: Folder for spilled data.
        threads: Maximal number of threads; all cores if omitted.
        memory: Memory limit, such as "2GB", unless the environment sets one; DuckDB's own default if omitted.
    """
    connection = engine.connect(config={"python_enable_replacements": "false"})
    connection.execute(f"SET temp_directory = {literal(str(work / 'spill'))}")
    # Keys are kept as text, and the text of a zoned time depends on the session's zone.
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    if threads:
        connection.execute(f"SET threads = {threads}")
    if limit := os.environ.get(MEMORY_VARIABLE) or memory:
        connection.execute(f"SET memory_limit = {literal(limit)}")
    return connection


def connect_free_of(catalog: str, spare: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that leaves a name free, to attach another database under it.

    Args:
        catalog: The name.
        spare: An unused connection of this kind.
    """
    # A database in memory is called `memory`, and so may be a master, whose file must then be attached under that name.
    # So a second database in memory is attached, and `memory` is freed by detaching it.
    connection = spare or _taken_ahead() or _connect_free()
    if (home := home_beside(catalog)) != _MEMORY:
        connection.execute(f"ATTACH ':memory:' AS {home}")
        connection.execute(f"USE {home}")
        connection.execute(f"DETACH {_MEMORY}")
    return connection


def home_beside(catalog: str) -> str:
    """Return the name of the database in memory of a connection that leaves a name free."""
    return "wlr_scratch" if catalog.lower() == _MEMORY else _MEMORY


def close_aside(connection: duckdb.DuckDBPyConnection) -> None:
    """Close a connection without files in the background: it takes as long as a small step."""
    thread = threading.Thread(target=connection.close)
    _closing.append(thread)
    thread.start()


def _await_closed() -> None:
    with suppress(IndexError):
        while True:
            _closing.pop().join()


def connect_ahead() -> None:
    """Create the database of the next `connect_free_of` in advance: it takes longer than a small step."""
    if not _made_ahead:
        _made_ahead.append(_connect_free())


def _taken_ahead() -> duckdb.DuckDBPyConnection | None:
    # One of two concurrent threads finds the list empty.
    with suppress(IndexError):
        return _made_ahead.pop()
    return None


def _connect_free() -> duckdb.DuckDBPyConnection:
    connection = engine.connect(config={"python_enable_replacements": "false"})
    # The log records the time zone of a statement that ran in another one.
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    return connection


def open_scratch(name: str, file: Path | None = None) -> duckdb.DuckDBPyConnection:
    """Open an empty database under a name, in memory or in a new file, and use it."""
    connection = connect_free_of(name)
    connection.execute(f"ATTACH {literal(str(file or ':memory:'))} AS {quote(name)}; USE {quote(name)}.main")
    return connection


class Scratch:
    """A folder for spilled data, and the only place besides `folders` that the engine may read.

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
        """The folder, after `confine`."""
        return self._work.resolve()

    def confine(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Confine statements from the farm; the connection has attached all databases that it needs."""
        # Each user removes its own files there.
        _await_closed()
        # This also removes files of a killed run.
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
        """Return the path where the engine can read a data file, after linking or copying it if needed."""
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
        """Remove the folder with its content."""
        shutil.rmtree(self._work, ignore_errors=True)


# Errors -------------------------------------------------------------------------------------------------------------


@contextmanager
def applying(path: Path) -> Iterator[None]:
    """Translate DuckDB's errors while a step is applied.

    Args:
        path: The written file, for messages.

    Raises:
        StepError: The step does not fit, or needs more memory.
        UnavailableError: The machine failed.
        CorruptError: A block of the file has a wrong checksum: no transaction is at fault.
    """
    try:
        yield
    except duckdb.Error as error:
        raise _step_error(path, error) from error


def _step_error(path: Path, error: duckdb.Error) -> Exception:
    if CORRUPT in str(error):
        return corrupt(path, error)
    if DISK_FULL in str(error):
        return full(path)
    # A COMMIT that runs out of memory is reported under another class.
    at_commit = isinstance(error, duckdb.TransactionException) and _MEMORY_FULL.search(str(error))
    if isinstance(error, duckdb.OutOfMemoryException) or at_commit:
        return StepError(first_line(error), is_shortage=True)
    if isinstance(error, _MACHINE) and _INTERNAL not in str(error):
        hint = "Nothing was lost: run it again."
        return UnavailableError(f"writing to {path} failed: {first_line(error)}", hint=hint, path=str(path))
    is_constraint = isinstance(error, duckdb.ConstraintException)
    return StepError(first_line(error), is_reference="foreign key" in str(error), is_constraint=is_constraint)


def is_broken(connection: duckdb.DuckDBPyConnection) -> bool:
    """Return whether DuckDB has invalidated the databases after an internal error, so they must be reopened."""
    try:
        connection.execute("SELECT 1")
    except (duckdb.FatalException, duckdb.InternalException):
        return True
    except duckdb.Error:
        return False
    return False


def full(path: Path) -> UnavailableError:
    """Build the error for a disk without space, which DuckDB reports under several classes."""
    hint = "Nothing was lost: free disk space, then run it again."
    return UnavailableError(f"writing to {path} failed: {DISK_FULL}", hint=hint, path=str(path))


def corrupt(path: Path, error: duckdb.Error) -> CorruptError:
    """Build the error for a damaged file."""
    return CorruptError(f"{path} is damaged: {first_line(error)}", hint="Rebuild the replica.", path=str(path))


@contextmanager
def using(path: Path) -> Iterator[None]:
    """Translate DuckDB's errors outside of steps.

    Raises:
        UnavailableError: The machine failed.
        CorruptError: The file is damaged, or was changed.
    """
    try:
        yield
    except duckdb.Error as error:
        if CORRUPT in str(error):
            raise corrupt(path, error) from error
        if DISK_FULL in str(error):
            raise full(path) from error
        machine = (*_MACHINE, duckdb.InternalException, duckdb.OutOfMemoryException, duckdb.TransactionException)
        if not isinstance(error, machine):
            # Our own statement does not fit the file, and a retry would not help.
            message = f"{path} was changed since the replay: {first_line(error)}"
            raise CorruptError(message, hint="Rebuild the replica.", path=str(path)) from error
        hint = "Nothing was lost: run it again."
        raise UnavailableError(f"{path}: {first_line(error)}", hint=hint, path=str(path)) from error


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Translate DuckDB's errors while files are only read.

    Args:
        what: The files, in the plural, for messages.

    Raises:
        UnavailableError: The machine failed, or lacks memory.
        CorruptError: A file contradicts the log.
    """
    try:
        yield
    except (*_MACHINE, duckdb.OutOfMemoryException) as error:
        is_memory = isinstance(error, duckdb.OutOfMemoryException)
        hint = MEMORY_HINT if is_memory else "Nothing was lost: run it again."
        raise UnavailableError(f"{what} cannot be read now: {first_line(error)}", hint=hint) from error
    except duckdb.Error as error:
        raise CorruptError(f"{what} cannot be read: {first_line(error)}") from error


@contextmanager
def evaluating(condition: str, table: object) -> Iterator[None]:
    """Translate errors of a condition that fails for some row.

    The message does not contain the value, which may be confidential.

    Raises:
        InvalidError: There is such a row.
    """
    try:
        yield
    except (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException) as error:
        kind = str(error).partition(":")[0]
        raise InvalidError(
            f"where {condition} fails for a row of {table} ({kind})",
            hint=f"--where '{table}: TRY({condition})' leaves such rows out",
        ) from error


@contextmanager
def refused(what: str, hint: Callable[[str], str] | None = None) -> Iterator[None]:
    """Translate DuckDB's errors about SQL that the user wrote.

    Args:
        what: Start of the message.
        hint: Returns the remedy, given DuckDB's message.

    Raises:
        InvalidError: The SQL does not fit.
    """
    try:
        yield
    except duckdb.Error as error:
        said = first_line(error).partition(": ")[2] or first_line(error)
        raise InvalidError(f"{what}: {said}", hint=hint(said) if hint else None) from error


def first_line(error: BaseException) -> str:
    """Return DuckDB's message without advice for its developers."""
    return str(error).partition("\n")[0].partition(". If this is an unexpected")[0]
