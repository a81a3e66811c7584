"""Row images that a slot gives, on their way to data files.

They are held as they come, as Arrow views into the server's messages, and data files are written straight from there.
What exceeds a part of the memory limit moves into tables of a DuckDB database in memory, which moves to disk what does
not fit. Rows are text until they are written to Parquet.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from wlc.capture.postgres import misfits
from wlc.dialect.duckdb.parquet_sql import KEPT
from wlc.dialect.postgres.text import read_text_sql
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import store_sql
from wlc.farm.model import Layout, file_column

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.capture.postgres.changes import Segment
    from wlc.capture.postgres.pgoutput import Rows

# Environment variable with the most memory a publisher may use for rows, such as "2GB".
MEMORY_VARIABLE = "WLC_MEMORY_LIMIT"
_MEMORY = "1GB"
# One in so many bytes of it holds views; the rest is DuckDB's.
_HELD_SHARE = 4
_VIEW_BYTES = 16
_ROW_GROUP_BYTES = 16 << 20


def row_group_rows(row_bytes: float) -> int:
    """Return how many rows of a size to write to Parquet at a time: a writer holds all of them in memory."""
    return int(min(max(_ROW_GROUP_BYTES / max(row_bytes, 1), 2048), 122_880))


def memory_limit() -> str:
    """Return how much memory rows may take, as the environment or the default says."""
    return os.environ.get(MEMORY_VARIABLE, _MEMORY)


class RowDatabase:
    """DuckDB in memory for row stores, one after the other: opening it takes longer than writing a small file."""

    def __init__(self) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._held_bytes_max = 0

    def lend(self, folder: Path) -> tuple[duckdb.DuckDBPyConnection, int]:
        """Return a connection, and how many bytes may be held outside of it.

        Args:
            folder: For what does not fit into memory.
        """
        try:
            if self._connection is not None:
                self._connection.execute(f"SET temp_directory = {literal(str(folder))}")
        except duckdb.NotImplementedException:
            # It has used its last one.
            self.close()
        if self._connection is None:
            self._connection = duckdb.connect(config={"python_enable_replacements": "false"})
            self._connection.execute(f"SET temp_directory = {literal(str(folder))}; SET TimeZone = 'UTC'")
            self._connection.execute(f"SET memory_limit = {literal(memory_limit())}")
            query = "SELECT parse_formatted_bytes(current_setting('memory_limit'))"
            ((limit,),) = self._connection.execute(query).fetchall()
            self._held_bytes_max = int(limit) // _HELD_SHARE
            self._connection.execute(f"SET memory_limit = '{int(limit) - self._held_bytes_max}B'")
        return self._connection, self._held_bytes_max

    def close(self) -> None:
        """Close the database; the next one to be lent is another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class RowStore:
    """Keeps the rows of segments in the order in which they were added.

    Args:
        folder: For what does not fit into memory.
        database: Is used again afterwards.

    Attributes:
        connection: To DuckDB, which also reads the data files that were written.
        held_bytes_max: Size of messages and views beyond which rows move into tables.
    """

    def __init__(self, folder: Path, database: RowDatabase) -> None:
        self._held: dict[int, list[pa.Table]] = {}
        self._held_bytes = 0
        # By address: rows of several tables are in one block of messages.
        self._blocks: set[int] = set()
        self._tables: dict[int, Segment] = {}
        self._segments: dict[int, Segment] = {}
        self._text_bytes: dict[int, int] = {}
        self._database = database
        self._has_tables = False
        self.connection, self.held_bytes_max = database.lend(folder)

    def close(self) -> None:
        """Discard all rows."""
        self._held.clear()
        if self._has_tables:
            # It may hold memory, and it may use the folder, which DuckDB then takes no other for.
            self._database.close()

    def add(self, segment: Segment, rows: Rows, smallest: int) -> None:
        """Add those rows whose weight is at least `smallest`."""
        names = ["number", "weight", *(f"c{index}" for index in range(len(rows.columns)))]
        block = pa.table([pa.array(rows.transactions), pa.array(rows.weights), *rows.columns], names=names)
        number = segment.number
        self._segments[number] = segment
        self._text_bytes[number] = self._text_bytes.get(number, 0) + rows.text_bytes
        if smallest > -1:
            self._insert(self._table(segment), block, f" WHERE weight >= {smallest}")
            return
        self._hold(rows)
        self._held.setdefault(number, []).append(block)
        if self._held_bytes > self.held_bytes_max:
            for held in list(self._held):
                self._table(self._segments[held])
            self._blocks.clear()
            self._held_bytes = 0

    def _hold(self, rows: Rows) -> None:
        self._held_bytes += len(rows.weights) * _VIEW_BYTES * (1 + len(rows.columns))
        messages = rows.columns[0].buffers()[2] if rows.columns else None
        if messages is not None and messages.address not in self._blocks:
            self._blocks.add(messages.address)
            self._held_bytes += messages.size

    def remove(self, segment: Segment, number: int) -> None:
        """Remove the rows of a transaction."""
        self.connection.execute(f"DELETE FROM {self._table(segment)} WHERE number = {number}")

    def set_apart(self, segment: Segment, other: Segment) -> list[int]:
        """Move the rows of transactions with a value that does not fit to another segment; returns their numbers."""
        self._segments[other.number] = self._tables[other.number] = other
        self._text_bytes[other.number] = self._text_bytes[segment.number]
        return misfits.set_apart(self.connection, self._table(segment), segment.layout, other.table)

    def write(self, segment: Segment, first_tick: int, target: Path) -> Layout:
        """Write the rows of a segment to a data file, and forget them.

        Args:
            segment: Has rows.
            first_tick: Tick of transaction 0.
            target: The file.

        Returns:
            The layout of the file. If the segment is that of values that do not fit, their columns are text.

        Raises:
            MisfitError: A value does not fit the type of its column, and the segment is not made for that. Its rows
                are still there.
        """
        columns = list(segment.layout.stored)
        if segment.has_misfits:
            is_misfit = misfits.columns(self.connection, self._table(segment), segment.layout)
            columns = [replace(c, type="VARCHAR") if bad else c for c, bad in zip(columns, is_misfit, strict=True)]
        layout = Layout(tuple(columns), segment.layout.primary_key)
        values = misfits.checked(layout)
        stored = "".join(
            f", {store_sql(column, value)} AS {quote(file_column(column.name))}"
            for column, value in zip(columns, values, strict=True)
        )
        rows = f"ROW_GROUP_SIZE {row_group_rows(self._text_bytes[segment.number] / segment.rows)}"
        with self._source(segment) as source:
            read = "".join(f", c{i}, {read_text_sql(c.type, f'c{i}')} AS v{i}" for i, c in enumerate(columns))
            query = f"SELECT number + {first_tick} AS _tick, weight AS _weight{stored} FROM"
            query = f"{query} (SELECT number, weight{read} FROM {source})"
            with misfits.noticed():
                self.connection.execute(f"COPY ({query}) TO {literal(str(target))} ({KEPT}, {rows})")
        self._forget(segment)
        return layout

    @contextmanager
    def _source(self, segment: Segment) -> Iterator[str]:
        """Yield what to read all rows of a segment from, in their order."""
        if segment.number in self._tables:
            yield self._table(segment)
            return
        self.connection.register("held", pa.concat_tables(self._held[segment.number]))
        try:
            yield "held"
        finally:
            self.connection.unregister("held")

    def _table(self, segment: Segment) -> str:
        """Return the table that has all rows of a segment from now on."""
        if segment.number not in self._tables:
            columns = "".join(f", c{index} VARCHAR" for index in range(len(segment.layout.stored)))
            self._has_tables = True
            self.connection.execute(f"CREATE TABLE {segment.table} (number BIGINT, weight TINYINT{columns})")
            self._tables[segment.number] = segment
        if held := self._held.pop(segment.number, None):
            self._insert(segment.table, pa.concat_tables(held))
        return segment.table

    def _insert(self, table: str, rows: pa.Table, where: str = "") -> None:
        self.connection.register("added", rows)
        self.connection.execute(f"INSERT INTO {table} SELECT * FROM added{where}")
        self.connection.unregister("added")

    def _forget(self, segment: Segment) -> None:
        self._held.pop(segment.number, None)
        if self._tables.pop(segment.number, None):
            self.connection.execute(f"DROP TABLE {segment.table}")
