"""Reads in one task: fetches data files, makes Arrow batches of them with DuckDB, and removes the copies."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from wlc.dialect.duckdb import engine
from wlc.dialect.sql import literal
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import CorruptError, FarmError, UnavailableError, UnsupportedError
from wlr.reading.place import LocalCopies

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    import pyarrow as pa

MEMORY = "1GB"
Item = TypeVar("Item")
_BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class FarmPlace:
    """A database of a farm, for tasks; storage options may hold secrets and are never shown.

    Attributes:
        memory: DuckDB's memory limit in a task, after which it spills to disk, such as "1GB".
    """

    database: str
    farm: str | None
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)
    memory: str = MEMORY

    def open(self) -> FarmDatabase:
        """Open the folder of the database in the farm."""
        return open_database(self.database, self.farm, dict(self.storage))


@contextmanager
def speaking() -> Iterator[None]:
    """Add the hint of an error to its message, since Spark shows only the message.

    Leave out the cause, because the texts of drivers can hold credentials.
    """
    try:
        yield
    except FarmError as error:
        message = f"{error.message}. {error.hint}" if error.hint else error.message
        said = type(error)(message, hint=error.hint, path=error.path, position=error.position)
    else:
        return
    raise said from None


def grouped(items: Iterable[Item], rows: Callable[[Item], int], enough: int) -> list[list[Item]]:
    """Group consecutive items into runs of about `enough` rows; can be empty."""
    runs: list[list[Item]] = []
    gathered = enough
    for item in items:
        if gathered >= enough:
            runs.append([])
            gathered = 0
        runs[-1].append(item)
        gathered += rows(item)
    return runs


@contextmanager
def files_of(place: FarmPlace, *, is_checked: bool = True, only: Container[str] | None = None) -> Iterator[LocalCopies]:
    """Open the farm for one task; local copies of its files are removed afterwards. See `LocalCopies`."""
    files = LocalCopies(place.open(), is_checked=is_checked, only=only)
    try:
        yield files
    finally:
        files.release()


def run(
    sql: str, files: LocalCopies, memory: str, schema: pa.Schema, tables: Mapping[str, pa.Table] | None = None
) -> Iterator[pa.RecordBatch]:
    """Run a query over fetched files and yield its rows as batches of exactly `schema`.

    Args:
        sql: One query.
        files: The only files that the query can read.
        memory: DuckDB's memory limit, after which it spills to disk.
        schema: Names, types and nullability that Spark expects.
        tables: Arrow tables that the query names.

    Raises:
        UnsupportedError: Spark cannot represent a value.
        UnavailableError: The machine failed.
        CorruptError: A file has other columns than in the log.
    """
    with tempfile.TemporaryDirectory(prefix="dbfarm-spark-") as scratch, _reading(), engine.connect() as connection:
        # A task has one core; other tasks use the other cores.
        connection.execute("SET threads = 1")
        connection.execute(f"SET memory_limit = {literal(memory)}")
        connection.execute(f"SET temp_directory = {literal(scratch)}")
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET preserve_insertion_order = false")
        connection.execute(f"SET allowed_paths = [{', '.join(map(literal, files.local.values()))}]")
        connection.execute("SET enable_external_access = false")
        for name, table in (tables or {}).items():
            connection.register(name, table)
        for batch in connection.sql(sql).to_arrow_reader(_BATCH_ROWS):
            yield batch.cast(schema)


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (duckdb.OutOfMemoryException, duckdb.IOException, duckdb.FatalException) as error:
        hint = 'Give DuckDB more memory with option("memory", "4GB"), or look at the disk for temporary files.'
        raise UnavailableError(f"reading the farm failed: {_first_line(error)}", hint=hint) from error
    except (duckdb.InvalidInputException, duckdb.ConversionException) as error:
        raise UnsupportedError(_first_line(error)) from error
    except duckdb.Error as error:
        raise CorruptError(f"data files of the farm cannot be read: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].removeprefix("Invalid Input Error: ")
