"""Row images that a slot gives, on their way to data files.

They are held as Arrow views into the server's messages, and data files are written directly from these. Rows beyond a
part of the memory limit move into tables of a DuckDB database in memory, which spills to disk. Rows are text until they
are written to Parquet.

Values that do not fit the type of their column in the farm, which a data file holds as PostgreSQL's text.

Changes of table rows by transactions of a PostgreSQL master.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa

from wlc.capture.postgres.types import always_fits
from wlc.dialect.duckdb import engine
from wlc.dialect.duckdb.parquet_sql import KEPT
from wlc.dialect.postgres.text import read_text_sql
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import store_sql
from wlc.farm.log_columns import Columns, Transactions
from wlc.farm.model import Layout, file_column

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from wlc.capture.postgres.pgoutput import Begun, Positions, Rows
    from wlc.farm.model import Clear, Name


_FOUND = "a value does not fit the type of its column"


class MisfitError(Exception):
    """A value does not fit the type of its column."""


def checked(layout: Layout) -> list[str]:
    """Return SQL for every column: its value `v0`, `v1`, … that was read from `c0`, `c1`, …; it fails if none was."""
    failing = f"error({literal(_FOUND)})"
    return [
        f"v{index}"
        if always_fits(column.type)
        else f"CASE WHEN v{index} IS NULL AND c{index} IS NOT NULL THEN {failing} ELSE v{index} END"
        for index, column in enumerate(layout.stored)
    ]


@contextmanager
def noticed() -> Iterator[None]:
    """Raise `MisfitError` if SQL of `checked` fails."""
    try:
        yield
    except duckdb.InvalidInputException as error:
        if _FOUND in str(error):
            raise MisfitError from error
        raise


def misfit_columns(connection: duckdb.DuckDBPyConnection, table: str, layout: Layout) -> list[bool]:
    """Say for every column whether some value does not fit its type.

    Args:
        connection: Where rows are gathered.
        table: That gathers them.
        layout: Of its rows.
    """
    checks = [f"coalesce(bool_or({misfit}), false)" if misfit else "false" for misfit in _checks(layout)]
    if all(check == "false" for check in checks):
        return [False] * len(checks)
    return list(connection.execute(f"SELECT {', '.join(checks)} FROM {table}").fetchall()[0])


def set_apart(connection: duckdb.DuckDBPyConnection, table: str, layout: Layout, other: str) -> list[int]:
    """Move the rows of transactions that have such a value to a new table, so that all others keep their types.

    Returns:
        The numbers of these transactions, in their order.
    """
    misfit = " OR ".join(f"coalesce({check}, false)" for check in _checks(layout) if check)
    numbers = connection.execute(f"SELECT DISTINCT number FROM {table} WHERE {misfit} ORDER BY number").fetchall()
    guilty = f"number IN (SELECT number FROM {table} WHERE {misfit})"
    connection.execute(f"CREATE TABLE {other} AS FROM {table} WHERE {guilty}")
    connection.execute(f"DELETE FROM {table} WHERE number IN (SELECT number FROM {other})")
    return [number for (number,) in numbers]


def _checks(layout: Layout) -> list[str]:
    """Return for every column SQL that is true where a value does not fit; "" where all do."""
    return [
        ""
        if always_fits(column.type)
        else f"c{index} IS NOT NULL AND {read_text_sql(column.type, f'c{index}')} IS NULL"
        for index, column in enumerate(layout.stored)
    ]


@dataclass(slots=True)
class Segment:
    """Rows of one table in one layout; those of transactions with values that do not fit it are apart."""

    number: int
    oid: int
    name: Name
    layout: Layout
    rows: int = 0
    has_misfits: bool = False

    @property
    def table(self) -> str:
        """Name of the table that gathers them."""
        return f"segment_{self.number}"


@dataclass(slots=True)
class Changed:
    """A transaction changed rows of a segment.

    Attributes:
        is_resend: The event triggers sent all rows of its table, and nothing else changed them.
    """

    segment: Segment
    added: int = 0
    removed: int = 0
    is_resend: bool = False

    @property
    def oid(self) -> int:
        """The table."""
        return self.segment.oid


@dataclass(slots=True)
class Cleared:
    """A transaction removed all rows of a table; `is_resend`: they follow again."""

    oid: int
    clear: Clear
    is_resend: bool


@dataclass(slots=True)
class _Part:
    """Transactions that changed rows of a segment, by rising number, and how many rows each added and removed."""

    segment: Segment
    numbers: Positions
    added: Positions
    removed: Positions

    def where(self, chosen: NDArray[np.bool_]) -> _Part:
        return _Part(self.segment, self.numbers[chosen], self.added[chosen], self.removed[chosen])


@dataclass(slots=True)
class PlainChanges:
    """Changes of transactions that only change rows, as columns: there can be a hundred thousand of them.

    Parts come in the order in which rows were read, and within a transaction its changes are in this order, too.
    """

    _parts: list[_Part] = field(default_factory=list)
    # The parts in which the greatest number of all is the last one.
    _newest: list[_Part] = field(default_factory=list)

    def add(self, segment: Segment, numbers: Positions, added: Positions, removed: Positions) -> None:
        """Add changed rows of a segment: rising numbers of transactions, none of which was taken out."""
        if not len(numbers):
            return
        part = _Part(segment, numbers, added, removed)
        self._parts.append(part)
        newest = self._newest[0].numbers[-1] if self._newest else -1
        if numbers[-1] > newest:
            self._newest = [part]
        elif numbers[-1] == newest:
            self._newest.append(part)

    def take_out(self, number: int) -> list[Changed]:
        """Remove the changes of the transaction whose rows were read last, and return them as objects."""
        if not self._newest or self._newest[0].numbers[-1] != number:
            return []
        found: dict[int, Changed] = {}
        for part in self._newest:
            change = found.setdefault(part.segment.number, Changed(part.segment))
            change.added += int(part.added[-1])
            change.removed += int(part.removed[-1])
            part.numbers, part.added, part.removed = part.numbers[:-1], part.added[:-1], part.removed[:-1]
        self._newest.clear()
        return list(found.values())

    def move(self, numbers: Positions, segment: Segment, other: Segment) -> int:
        """Let rows of transactions in a segment be in another one, and return how many rows that are."""
        parts, self._parts, moved = self._parts, [], 0
        for part in parts:
            chosen = np.isin(part.numbers, numbers) & (part.segment is segment)
            if not chosen.any():
                self._parts.append(part)
                continue
            its = part.where(chosen)
            its.segment = other
            self._parts += [part.where(~chosen), its]
            moved += int(its.added.sum() + its.removed.sum())
        return moved

    def numbers(self) -> Positions:
        """Return the transactions, each once or several times, in any order."""
        return np.concatenate([np.zeros(0, np.int64), *(part.numbers for part in self._parts)])

    def run(self, begun: Begun, last_tick: int, segments: Sequence[Segment], where: Mapping[int, str]) -> Transactions:
        """Return the transactions as the log has them.

        Args:
            begun: Of all transactions.
            last_tick: Tick before that of transaction 0.
            segments: All, in the order of their numbers.
            where: Paths of data files, by number of the segment.
        """
        numbers = self.numbers()
        sizes = np.array([len(part.numbers) for part in self._parts], np.int64)
        files = np.repeat(np.array([part.segment.number for part in self._parts], np.int64), sizes)
        added, removed = (
            np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in self._parts)])
            for name in ("added", "removed")
        )
        order = np.argsort(numbers, kind="stable")
        numbers, files, added, removed = (column[order] for column in (numbers, files, added, removed))
        # Rows of a transaction that came in several parts are one change of it.
        _, first, places = np.unique(numbers * len(segments) + files, return_index=True, return_inverse=True)
        if len(first) < len(numbers):
            added, removed = (_summed(column, places, len(first)) for column in (added, removed))
            kept = np.sort(first)
            numbers, files, added, removed = numbers[kept], files[kept], added[places[kept]], removed[places[kept]]
        own, starts = np.unique(numbers, return_index=True)
        columns = Columns(
            ticks=own + (last_tick + 1),
            users=np.zeros(len(own), np.int64),
            started=begun.committed[own],
            committed=begun.committed[own],
            xids=begun.xids[own],
            ends=np.append(starts, len(numbers)),
            files=files,
            added=added,
            removed=removed,
            names=("",),
            targets=tuple((segment.name, where.get(segment.number, "")) for segment in segments),
        )
        return Transactions(columns)


def _summed(column: Positions, places: Positions, count: int) -> Positions:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, places, column)
    return sums


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
            self._connection = engine.connect(config={"python_enable_replacements": "false"})
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
        return set_apart(self.connection, self._table(segment), segment.layout, other.table)

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
            is_misfit = misfit_columns(self.connection, self._table(segment), segment.layout)
            columns = [replace(c, type="VARCHAR") if bad else c for c, bad in zip(columns, is_misfit, strict=True)]
        layout = Layout(tuple(columns), segment.layout.primary_key)
        values = checked(layout)
        stored = "".join(
            f", {store_sql(column, value)} AS {quote(file_column(column.name))}"
            for column, value in zip(columns, values, strict=True)
        )
        rows = f"ROW_GROUP_SIZE {row_group_rows(self._text_bytes[segment.number] / segment.rows)}"
        with self._source(segment) as source:
            read = "".join(f", c{i}, {read_text_sql(c.type, f'c{i}')} AS v{i}" for i, c in enumerate(columns))
            query = f"SELECT number + {first_tick} AS _tick, weight AS _weight{stored} FROM"
            query = f"{query} (SELECT number, weight{read} FROM {source})"
            with noticed():
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
