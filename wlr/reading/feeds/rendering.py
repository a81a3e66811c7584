"""Renders rows of data files as lines of a feed: one DuckDB query for many transactions, read as Arrow batches."""

from __future__ import annotations

import tempfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pyarrow as pa
import pyarrow.compute as pc

from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.sql import literal, quote
from wlc.farm.model import WEIGHT, Ddl, file_column
from wlr.engine import calculator
from wlr.reading.feeds.formats import Gap, RecordMoment, key_columns, object_sql, told_apart_sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import duckdb
    from numpy.typing import NDArray

    from wlc.farm.model import Layout, Manifest, Name, SnapshotTable, TableFile
    from wlr.reading.feeds.formats import Format, Note, RowChange, RowsRun


# Rows in a vector of DuckDB.
_VECTOR_ROWS = 2048
_BATCH_ROWS_MAX = 122_880
_MEMORY_LEAST = 1 << 30
# The `op` of a line that is not a row.
NOTE = "!"
_MARKS = "marks"
_ROW_NUMBER = "file_row_number"


@dataclass(frozen=True, slots=True)
class FeedPiece:
    """Consecutive records of a feed.

    Attributes:
        records: Arrow batch with `line`, `key` (JSON text, NULL without a primary key), `tick`, `n` and `op` (`+`, `-`,
            `~` for an update; `!` for a line that is not a row),
            and `lane`, one number for all rows of a table without a primary key.
        history: The history of their ticks.
        layout: Layout of all records, None if they have several layouts or none.
        dropped: Number of dropped records that the line in this piece reports, if any.
    """

    records: pa.RecordBatch
    history: str
    layout: Layout | None = None
    dropped: int = 0

    @property
    def first(self) -> tuple[int, int]:
        """Tick and number of the first record."""
        return self.records["tick"][0].as_py(), self.records["n"][0].as_py()

    @property
    def last(self) -> tuple[int, int]:
        """Tick and number of the last record."""
        return self.records["tick"][-1].as_py(), self.records["n"][-1].as_py()

    @property
    def ends(self) -> NDArray[numpy.int32]:
        """End of each record in `text`."""
        offsets = self._offsets()
        ends: NDArray[numpy.int32] = offsets[1:] - offsets[0]
        return ends

    @property
    def bytes(self) -> int:
        """Bytes of the text."""
        offsets = self._offsets()
        return int(offsets[-1] - offsets[0])

    @property
    def text(self) -> memoryview:
        """The contiguous lines, without a copy."""
        offsets = self._offsets()
        return memoryview(self.records["line"].buffers()[2] or b"")[offsets[0] : offsets[-1]]

    def _offsets(self) -> NDArray[numpy.int32]:
        lines = self.records["line"]
        offsets: NDArray[numpy.int32]
        offsets = numpy.frombuffer(lines.buffers()[1], numpy.int32)[lines.offset : lines.offset + len(lines) + 1]
        return offsets

    def after(self, written: tuple[int, int]) -> FeedPiece:
        """Return the records after a tick and number."""
        ticks, numbers = self.records["tick"].to_numpy(), self.records["n"].to_numpy()
        done = (ticks < written[0]) | ((ticks == written[0]) & (numbers <= written[1]))
        return self.part(int(done.sum()))

    @property
    def is_note(self) -> bool:
        """Whether it is one line without a row."""
        return bool(self.records["op"][0].as_py() == NOTE)

    def part(self, first: int, end: int | None = None) -> FeedPiece:
        """Return some of the records, by their numbers in this piece."""
        length = None if end is None else end - first
        return FeedPiece(self.records.slice(first, length), self.history, self.layout, self.dropped)


class Renderer:
    """Renders runs of changes and rows of snapshots in a format.

    Args:
        form: The format.
        fetch: Returns a local copy of a data file of the log.
        bytes_max: Approximate memory for rendered records; 0 for no limit.
        folders: Folders with data files, which are read in place.
    """

    def __init__(
        self, form: Format, fetch: Callable[[TableFile], Path], bytes_max: int, folders: Sequence[Path] = ()
    ) -> None:
        self._form = form
        self._fetch = fetch
        self._bytes_max = bytes_max
        self._work = tempfile.TemporaryDirectory(prefix="wlr-feed-")
        self._scratch = calculator.Scratch(Path(self._work.name) / "spill", folders)
        self._connection: duckdb.DuckDBPyConnection | None = None

    def note(self, note: Note, n: int) -> FeedPiece:
        """Render a record without rows."""
        moment = _moment(note.history, note)
        layout = note.record.layout if isinstance(note.record, Ddl) else None
        return _line(self._form.note(note, moment, n), note.history, (moment.tick, n), layout)

    def gap(self, gap: Gap, layout: Layout | None) -> FeedPiece:
        """Render the line that reports dropped records, before records of a layout."""
        return _line(self._form.gap(gap), gap.history, gap.last, layout, gap.dropped)

    def rows(self, run: RowsRun, base: int) -> Iterator[FeedPiece]:
        """Render changed rows.

        Args:
            run: The changes, all of one history.
            base: Number of earlier records of the first transaction.
        """
        files = run.files
        local = {path: self._fetch(file) for path, file in files.items()}
        by_file: dict[str, list[RowChange]] = {path: [] for path in files}
        for change in run.changes:
            by_file[change.file.file.path].append(change)
        layouts = {file.layout.stored: file.layout for file in files.values()}
        layout = next(iter(layouts.values())) if len(layouts) == 1 else None
        with self._readable(local.values()) as paths:
            connection = self._connected()
            connection.register(_MARKS, _marks(self._form, run.changes, {path: n for n, path in enumerate(files)}))
            parts = [
                part
                for number, (changes, path) in enumerate(zip(by_file.values(), paths, strict=True))
                for part in self._parts(connection, changes, path, number)
            ]
            query = _ordered_sql(self._form.line_parts(is_snapshot=False), parts)
            last = run.first, base
            for batch in self._batches(connection, query):
                piece = FeedPiece(_numbered(batch, last), run.changes[0].history, layout)
                last = piece.last
                yield piece

    def snapshot(
        self, manifest: Manifest, table: SnapshotTable, local: Sequence[Path], base: int
    ) -> Iterator[FeedPiece]:
        """Render the rows of a snapshot's table as records that were read.

        Args:
            manifest: Manifest of the snapshot.
            table: The table.
            local: Local copies of its files, in order.
            base: Number of earlier records of the snapshot.
        """
        position = manifest.position
        head, tail = self._form.around(
            RecordMoment(position.history, position.tick, manifest.clock, None, is_snapshot=True)
        )
        key = object_sql(key_columns(table.layout)) if table.layout.primary_key else "CAST(NULL AS VARCHAR)"
        image, name = self._form.image_sql(table.layout), literal(self._form.table(table.table))
        for path in local:
            with self._readable([path]) as (reachable,):
                source = (
                    f"SELECT CAST(NULL AS VARCHAR) AS before, {image} AS after, {key} AS key,"
                    f" {literal(head)} AS head, {literal(tail)} AS tail, {name} AS name FROM {rows_of(reachable)}"
                )
                query = (
                    f"SELECT {_listed(self._form.line_parts(is_snapshot=True))}, key, '+' AS op,"
                    f" CAST({position.tick} AS BIGINT) AS tick, {_lane(table.table)} AS lane FROM ({source})"
                )
                for batch in self._batches(self._connected(), query):
                    numbered = _numbered(batch, (position.tick, base))
                    yield FeedPiece(numbered, position.history, table.layout)
                    base += len(batch)

    def _batches(self, connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query, in parts of about the allowed number of bytes, or at least a vector.

        The length of rows as text is known only afterwards: Parquet records their compressed size.
        """
        if not self._bytes_max:
            yield from (batch for batch in connection.sql(query).to_arrow_reader(_BATCH_ROWS_MAX) if len(batch))
            return
        gathered: list[pa.RecordBatch] = []
        for batch in connection.sql(query).to_arrow_reader(_VECTOR_ROWS):
            if gathered and sum(each.nbytes for each in gathered) + batch.nbytes > self._bytes_max:
                yield from _joined(gathered)
                gathered = []
            gathered.append(batch)
            if sum(map(len, gathered)) >= _BATCH_ROWS_MAX:
                yield from _joined(gathered)
                gathered = []
        yield from _joined(gathered)

    def close(self) -> None:
        """Close the database in memory."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._scratch.remove()
        self._work.cleanup()

    @contextmanager
    def _readable(self, files: Iterable[Path]) -> Iterator[list[str]]:
        """Return paths where the database in memory can read files; temporary links are removed afterwards."""
        self._connected()
        paths = [self._scratch.reachable(file) for file in files]
        try:
            with calculator.reading("data files of the farm"):
                yield paths
        finally:
            for path in paths:
                if Path(path).is_relative_to(self._scratch.folder):
                    Path(path).unlink(missing_ok=True)

    def _connected(self) -> duckdb.DuckDBPyConnection:
        """Return the database in memory, which can read only the farm's files."""
        if self._connection is None:
            memory = f"{max(_MEMORY_LEAST, self._bytes_max) >> 20}MB" if self._bytes_max else None
            self._connection = calculator.connect(Path(self._work.name), memory=memory)
            self._scratch.confine(self._connection)
        return self._connection

    def _parts(
        self, connection: duckdb.DuckDBPyConnection, changes: Sequence[RowChange], path: str, number: int
    ) -> Iterator[str]:
        """Select the records of a data file, each with the images before and after.

        The records of a transaction, and their order, depend only on its own images: another run with another start
        numbers them alike.
        """
        file = changes[0].file
        layout, keyed = file.layout, bool(file.layout.primary_key)
        key = object_sql(key_columns(layout)) if keyed else "CAST(NULL AS VARCHAR)"
        columns = f"{key} AS k, {self._form.image_sql(layout)} AS image, {told_apart_sql(layout.stored)} AS exact"
        name = literal(self._form.table(file.table))
        for is_paired in (False, True):
            some = [change for change in changes if _is_paired(change) == is_paired]
            if not some:
                continue
            ticks = f"_tick BETWEEN {some[0].transaction.tick} AND {some[-1].transaction.tick}"
            if len(some) < len(changes):
                wanted = "is_paired" if is_paired else "NOT is_paired"
                ticks += f" AND _tick IN (SELECT tick FROM {_MARKS} WHERE file = {number} AND {wanted})"
            images = _images_sql(path, layout, columns, ticks)
            if not is_paired:
                records = _alone_sql(images)
            elif not keyed:
                records = _copies_sql(_net_sql(images))
            else:
                is_repeated = _is_repeated(connection, path, layout, ticks)
                records = _joined_sql(_net_sql(images) if is_repeated else images)
            yield (
                f"SELECT m.tick, m.place, p.r, p.k, p.before, p.after, m.head, m.tail, {name} AS name,"
                f" {_lane(file.table)} AS lane FROM ({records}) AS p"
                f" JOIN {_MARKS} AS m ON m.tick = p.tick AND m.file = {number}"
            )


def _line(line: str, history: str, place: tuple[int, int], layout: Layout | None = None, dropped: int = 0) -> FeedPiece:
    """Make a piece of one line without a row."""
    tick, n = place
    columns = {
        "line": [line],
        "key": pa.array([None], pa.string()),
        "tick": [tick],
        "n": [n],
        "op": [NOTE],
        "lane": [0],
    }
    return FeedPiece(pa.RecordBatch.from_pydict(columns), history, layout, dropped)


def _joined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Concatenate batches; None if they have no rows."""
    return pa.Table.from_batches(batches).combine_chunks().to_batches() if any(map(len, batches)) else []


def _moment(history: str, of: RowChange | Note) -> RecordMoment:
    return RecordMoment(history, of.transaction.tick, of.transaction.committed, of.transaction.user)


def _is_paired(change: RowChange) -> bool:
    """Return whether images before and after may belong to one row."""
    return bool(change.change.added and change.change.removed)


def _marks(form: Format, changes: Sequence[RowChange], numbers: Mapping[str, int]) -> pa.Table:
    """Yield for every change the parts of its lines about the transaction, and its number within it."""
    around = [form.around(_moment(change.history, change)) for change in changes]
    columns = {
        "tick": pa.array([change.transaction.tick for change in changes], pa.int64()),
        "file": pa.array([numbers[change.file.file.path] for change in changes], pa.int32()),
        "place": pa.array([change.place for change in changes], pa.int32()),
        "is_paired": pa.array([_is_paired(change) for change in changes], pa.bool_()),
        "head": pa.array([head for head, _ in around], pa.string()),
        "tail": pa.array([tail for _, tail in around], pa.string()),
    }
    return pa.table(columns)


# Statements ----------------------------------------------------------------------------------------------------------


def _lane(table: Name) -> str:
    return f"CAST({zlib.crc32(str(table).encode())} AS BIGINT)"


def _images_sql(path: str, layout: Layout, columns: str, ticks: str) -> str:
    """Select the images of a data file, with their row number as `r`."""
    if any(column.name.lower() == _ROW_NUMBER for column in layout.stored):
        # The name is taken by a column. `row_number()` gives the same, at a higher cost.
        source = f"(SELECT *, row_number() OVER () AS _place FROM {rows_of(path)}) AS i"
        return f"SELECT _tick AS tick, {WEIGHT} AS w, _place AS r, {columns} FROM {source} WHERE {ticks}"
    source = rows_of(path, options=f"{_ROW_NUMBER} = true")
    return f"SELECT _tick AS tick, {WEIGHT} AS w, {_ROW_NUMBER} AS r, {columns} FROM {source} WHERE {ticks}"


def _is_repeated(connection: duckdb.DuckDBPyConnection, path: str, layout: Layout, ticks: str) -> bool:
    """Return whether a transaction has several images of one key and sign, of which some cancel out."""
    keys = ", ".join(quote(file_column(name)) for name in layout.primary_key)
    query = f"SELECT 1 FROM {rows_of(path)} WHERE {ticks} GROUP BY _tick, {WEIGHT}, {keys} HAVING count(*) > 1 LIMIT 1"
    return bool(connection.execute(query).fetchall())


def _net_sql(images: str) -> str:
    """Leave out images that cancel out within their transaction."""
    return (
        f"SELECT tick, sum(w) AS w, min(r) AS r, k, image, exact FROM ({images})"
        " GROUP BY tick, k, image, exact HAVING sum(w) <> 0"
    )


def _joined_sql(images: str) -> str:
    """Select a record per key and transaction: both images of an update in one."""
    return (
        f"WITH i AS ({images}), o AS (SELECT * FROM i WHERE w < 0), a AS (SELECT * FROM i WHERE w > 0)"
        " SELECT coalesce(a.tick, o.tick) AS tick, coalesce(a.r, o.r) AS r, coalesce(a.k, o.k) AS k,"
        " o.image AS before, a.image AS after FROM o FULL JOIN a ON o.tick = a.tick AND o.k = a.k"
        " WHERE o.image IS DISTINCT FROM a.image OR o.exact IS DISTINCT FROM a.exact"
    )


def _alone_sql(images: str) -> str:
    """Select a record per image."""
    return (
        "SELECT tick, r, k, CASE WHEN w < 0 THEN image END AS before, CASE WHEN w > 0 THEN image END AS after"
        f" FROM ({images})"
    )


def _copies_sql(images: str) -> str:
    """Select a record per image and copy."""
    return f"{_alone_sql(images)} AS i, range(CAST(abs(i.w) AS BIGINT)) AS copy(number)"


def _ordered_sql(line: Sequence[str], parts: Sequence[str]) -> str:
    """Select the parts of the lines in the order of the records."""
    operation = "CASE WHEN before IS NULL THEN '+' WHEN after IS NULL THEN '-' ELSE '~' END"
    return (
        f"SELECT {_listed(line)}, k AS key, {operation} AS op, tick, lane"
        f" FROM ({' UNION ALL '.join(parts)}) ORDER BY tick, place, r"
    )


def _listed(line: Sequence[str]) -> str:
    return ", ".join(f"{part} AS part{number}" for number, part in enumerate(line))


def _numbered(batch: pa.RecordBatch, last: tuple[int, int]) -> pa.RecordBatch:
    """Number records within their transactions, and join their lines.

    Args:
        batch: Records in order: the parts of their lines, and the columns of a piece.
        last: Tick and number of the record before.
    """
    ticks = batch["tick"].to_numpy()
    is_first = numpy.concatenate(([True], ticks[1:] != ticks[:-1]))
    places = numpy.arange(len(ticks))
    numbers = places - places[is_first][numpy.cumsum(is_first) - 1] + 1
    numbers[ticks == last[0]] += last[1]
    text, is_update = pa.array(numbers).cast(pa.string()), pc.equal(batch["op"], "~")
    line = [batch["part0"], text, batch["part1"]]
    if "part2" in batch.schema.names:
        line += [pc.if_else(is_update, text, ""), batch["part2"]]
    columns = {name: batch[name] for name in ("key", "tick", "op", "lane")}
    columns |= {"line": pc.binary_join_element_wise(*line, ""), "n": pa.array(numbers, pa.int64())}
    return pa.RecordBatch.from_pydict(columns)
