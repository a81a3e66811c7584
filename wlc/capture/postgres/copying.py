"""Tables of a PostgreSQL master as of a moment, copied into data files."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from wlc.capture.postgres.connection import ArrowReader
from wlc.capture.postgres.row_store import MEMORY_VARIABLE, memory_limit, row_group_rows
from wlc.capture.postgres.types import always_fits, duckdb_type
from wlc.dialect.duckdb.parquet_sql import KEPT
from wlc.dialect.postgres.text import read_text_sql
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import store_sql
from wlc.farm import paths
from wlc.farm.database import describe_file
from wlc.farm.errors import UnavailableError
from wlc.farm.model import Column, DataFile, Layout, Name, file_column

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.capture.postgres.described import DescribedTable

_READERS = 2
# Columns of these types come as they are; all others as text.
_AS_THEY_ARE = {"boolean", "smallint", "integer", "bigint", "real", "double precision", "text"}
# A cast to text gives these the form that the log has. Others may lose blanks at the end or get a netmask.
_CAST_IS_SAME = re.compile(r"(numeric|character varying|bytea|date|uuid|jsonb?|interval|time|timestamp|oid)\b.*")

# The layout that the file of a table has, and the file; none if the table is empty.
Copied = list[tuple[Layout, tuple[DataFile, ...]]]


def copy_tables(url: str, snapshot: str, tables: list[DescribedTable], folder: Path) -> Copied:
    """Copy tables into data files.

    Args:
        url: The master.
        snapshot: Name of an exported snapshot of the server, which decides what the copies hold.
        tables: What to copy; none is partitioned.
        folder: For the files.

    Returns:
        What the copies are, in the order of the tables.
    """
    with ExitStack() as stack, ThreadPoolExecutor(_READERS) as pool:
        free: SimpleQueue[_Copier] = SimpleQueue()
        for number, _ in enumerate(tables[:_READERS]):
            free.put(stack.enter_context(_Copier(url, snapshot, folder, folder / f"memory-{number}")))

        def copy(number: int, table: DescribedTable) -> tuple[Layout, tuple[DataFile, ...]]:
            copier = free.get()
            try:
                return copier.copy(number, table)
            finally:
                free.put(copier)

        return list(pool.map(copy, range(len(tables)), tables))


class _Copier:
    """Copies one table after another over a connection.

    Args:
        url: The master.
        snapshot: Name of an exported snapshot of the server.
        folder: For the files.
        memory: Folder for what does not fit into memory.
    """

    def __init__(self, url: str, snapshot: str, folder: Path, memory: Path) -> None:
        self._snapshot = snapshot
        self._folder = folder
        self._stack = ExitStack()
        self._reader = self._stack.enter_context(ArrowReader(url))
        self._connection = self._stack.enter_context(duckdb.connect(config={"python_enable_replacements": "false"}))
        self._connection.execute(f"SET memory_limit = {literal(memory_limit())}; SET TimeZone = 'UTC'; SET threads = 1")
        self._connection.execute(f"SET temp_directory = {literal(str(memory))}")
        self._connection.execute("SET arrow_large_buffer_size = true")

    def __enter__(self) -> _Copier:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def copy(self, number: int, table: DescribedTable) -> tuple[Layout, tuple[DataFile, ...]]:
        """Copy a table into the data file with a number."""
        layout = table.layout
        path = paths.snapshot_data_path(number)
        target = self._folder / path
        bases = {column.name: column.base for column in table.columns}
        columns = list(layout.stored)
        while True:
            misfit = self._write(table.qualified, [(c, bases[c.name]) for c in columns], target)
            if isinstance(misfit, int):
                break
            # A value of this column does not fit its type: the file holds the column as text.
            columns = [replace(c, type="VARCHAR") if c.name == misfit else c for c in columns]
        layout = Layout(tuple(columns), layout.primary_key)
        return layout, (describe_file(target, path, misfit),) if misfit else ()

    def _write(self, name: Name, columns: list[tuple[Column, str]], target: Path) -> int | str:
        """Write the rows of a table; returns how many, or the name of a column with a value that does not fit."""
        asked, stored = [], []
        for index, (column, base) in enumerate(columns):
            raw = base in _AS_THEY_ARE and column.type == duckdb_type(base)
            asked.append(f"{quote(column.name) if raw else _as_logged(column.name, base)} AS c{index}")
            value = f"c{index}" if raw else _checked(column, f"c{index}", index)
            stored.append(f"{store_sql(column, value)} AS {quote(file_column(column.name))}")
        self._reader.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self._reader.run(f"SET TRANSACTION SNAPSHOT {literal(self._snapshot)}")
        blocks = self._reader.blocks(f"SELECT {', '.join(asked) or 'NULL AS c0'} FROM ONLY {name.sql}")
        try:
            first = next(blocks, None)
            if first is None:
                return 0
            self._connection.register(
                "rows_of_table", pa.RecordBatchReader.from_batches(first.schema, _chained(first, blocks))
            )
            group = f"ROW_GROUP_SIZE {row_group_rows(first.nbytes / max(first.num_rows, 1))}"
            options = f"{KEPT}, {group}"
            sql = f"COPY (SELECT {', '.join(stored)} FROM rows_of_table) TO {literal(str(target))} ({options})"
            ((rows,),) = self._connection.execute(sql).fetchall()
        except duckdb.InvalidInputException as error:
            for index, (column, _) in enumerate(columns):
                if f"misfit {index}." in str(error):
                    return str(column.name)
            raise
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            hint = f"free disk space, or give more memory: {MEMORY_VARIABLE}"
            raise UnavailableError(f"table {name} could not be copied: {error}", hint=hint) from error
        finally:
            self._connection.unregister("rows_of_table")
            blocks.close()
            # Locks on tables are not held longer than it takes to copy them.
            self._reader.end()
        return int(rows)


def _as_logged(column: str, base: str) -> str:
    """Return SQL for the text form that a value has in the log."""
    name = quote(column)
    if _CAST_IS_SAME.fullmatch(base):
        return f"{name}::text"
    return f"CASE WHEN {name} IS DISTINCT FROM NULL THEN format('%s', {name}) END"


def _checked(column: Column, text: str, index: int) -> str:
    """Return SQL that reads a text form, and fails if it does not fit."""
    value = read_text_sql(column.type, text)
    if always_fits(column.type):
        return value
    return f"CASE WHEN {text} IS NOT NULL AND {value} IS NULL THEN error('misfit {index}.') ELSE {value} END"


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
