"""The tasks of a bulk replay: route changes to base files, merge base files, rewrite altered ones, fold a backlog.

A task that fails, or runs twice, leaves nothing that counts: its files have names of their own, and count once the
replica's manifest names them, which it does with the result of the attempt that succeeded.

The rows that Spark carries from task to task and back: a payload for a numbered part, or an error.

An error that trying again would not mend is not raised in a task, where Spark would try again and then report its own
failure. It travels as a row, and whoever reads the row raises it: the next task, or in the end the driver.

Spark's jobs of one replay: a session that exists or is started with the first job, and what all jobs share.
"""

from __future__ import annotations

import pickle
import tempfile
from abc import ABC, abstractmethod
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wlc.farm.errors import FarmError, UnavailableError
from wlc.farm.seal.keys import for_tasks
from wlc.farm.store import open_store
from wlr.engine.alteration import alter
from wlr.engine.calculator import applying, connect
from wlr.engine.table_files import fetched, publish
from wlr.replay.fold import file_rewrite
from wlr.replay.fold.data_check import refuse_other_images
from wlr.replay.fold.net_changes import sources
from wlr.replay.plan.failure import StepError, naming
from wlr.replay.plan.step import TableChange
from wlr.spark.read.tasks import FarmPlace, files_of, grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import duckdb
    from pyspark.sql import DataFrame, SparkSession

    from wlc.dialect.duckdb.fold import RowImages, TargetTable
    from wlc.farm.database import FarmDatabase
    from wlr.reading.place import LocalCopies
    from wlr.replay.fold.file_rewrite import Merged
    from wlr.replay.fold.files import Alteration, FilePart
    from wlr.replay.plan.step import Read
    from wlr.spark.session import SparkHandle


# The same schema in Spark's SQL and in Arrow.
ROWS = "part INT, payload BINARY, error BINARY"
_SCHEMA = pa.schema([("part", pa.int32()), ("payload", pa.binary()), ("error", pa.binary())])


class SparkTask(ABC):
    """The work of one task: rows of Arrow come in, rows of `ROWS` go out."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Work, and let an error of the step or the farm travel as a row."""
        try:
            with applying(Path("the replica")):
                for part, payload in self.work(batches):
                    yield _row(part, payload, None)
        except UnavailableError:
            # Spark tries the task again.
            raise
        except (StepError, FarmError) as error:
            yield _row(0, None, dump_error(error))

    @abstractmethod
    def work(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
        """Give payloads, each with the number of its part."""


def numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """Read the numbers that Spark gives to tasks which begin a job."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def payloads(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Buffer]]:
    """Read the rows of other tasks.

    Raises:
        StepError, FarmError: As another task met it.
    """
    for batch in batches:
        for part, payload, error in zip(batch.column(0).to_pylist(), batch.column(1), batch.column(2), strict=True):
            if error.is_valid:
                raise load_error(error.as_py())
            yield part, payload.as_buffer()


def dump_error(error: StepError | FarmError) -> bytes:
    """Write an error of any class, without what caused it: the texts of drivers can hold credentials."""
    return pickle.dumps(error)


def load_error(data: bytes) -> StepError | FarmError:
    """Read what `dump_error` wrote."""
    # Only our own tasks write it, and Spark's tasks run what the driver sends them anyway.
    error: StepError | FarmError = pickle.loads(data)  # noqa: S301
    return error


def _row(part: int, payload: bytes | None, error: bytes | None) -> pa.RecordBatch:
    columns = [pa.array([part], pa.int32()), pa.array([payload], pa.binary()), pa.array([error], pa.binary())]
    return pa.record_batch(columns, schema=_SCHEMA)


# About as many row images as one task routes at most: few enough for its memory, enough to be worth a task.
_ROUTED_ROWS = 1_000_000


@dataclass(slots=True)
class Jobs:
    """Builds and runs the jobs of a replay. pyspark is imported with the first one.

    Attributes:
        database: The farm's database.
        spark_master: Spark master to start a session at; that of the environment if omitted.
    """

    database: FarmDatabase
    spark_master: str | None = None
    _session: SparkHandle | None = None

    @property
    def spark(self) -> SparkSession:
        """The session; one is started unless the program has one."""
        from wlr.spark.session import spark_session

        if self._session is None:
            self._session = spark_session(self.spark_master)
        return self._session.spark

    @property
    def farm(self) -> FarmPlace:
        """Where tasks find the farm."""
        return FarmPlace(self.database.url, None, for_tasks(self.database.storage_options))

    @property
    def cores(self) -> int:
        """How many tasks can run at once."""
        from wlr.spark.session import cores

        return cores(self.spark)

    def numbered(self, count: int, task: SparkTask) -> DataFrame:
        """Plan `count` tasks that each get their number, from 0 on."""
        from wlr.spark.session import quiet

        with quiet():
            return self.spark.range(0, count, 1, count).mapInArrow(task, ROWS)

    def gathered(self, routed: DataFrame, count: int, task: SparkTask) -> DataFrame:
        """Plan `count` tasks that each get the payloads of one or several numbered parts."""
        from wlr.spark.session import quiet

        with quiet():
            return routed.repartitionById(count, routed["part"]).mapInArrow(task, ROWS)

    def run(self, frame: DataFrame, text: str, *, streamed: bool = False) -> Iterator[tuple[int, bytes]]:
        """Run a job and give the payloads of its tasks with their numbers.

        Args:
            frame: What to run.
            text: What it does, for Spark's user interface.
            streamed: Fetch the payloads one task after the other, because all together may not fit into memory.

        Raises:
            StepError, FarmError: As a task met it.
            UnavailableError: Spark failed.
        """
        with self._running(text):
            for row in frame.toLocalIterator() if streamed else frame.collect():
                if row["error"] is not None:
                    raise load_error(bytes(row["error"]))
                yield row["part"], bytes(row["payload"])

    @contextmanager
    def _running(self, text: str) -> Iterator[None]:
        from wlr.spark.session import described, few_rows_at_once, translated

        with described(self.spark, f"dbfarm: {text}"), few_rows_at_once(self.spark), translated():
            yield

    def close(self) -> None:
        """Stop a session that was started for this."""
        if self._session is not None and self._session.started:
            self._session.spark.stop()


def numbered(counts: Iterable[int]) -> list[range]:
    """Number the parts of all tables of a job, from 0 on; return the numbers of each."""
    ends = list(accumulate(counts, initial=0))
    return [range(first, end) for first, end in pairwise(ends)]


def shown(tables: Sequence[TargetTable]) -> str:
    """Name the table of a job, or count them, for Spark's user interface."""
    return str(tables[0].name) if len(tables) == 1 else f"{len(tables)} tables"


@dataclass(frozen=True, slots=True)
class Share:
    """What one task reads of one table.

    Attributes:
        table: Number of the table in the job.
    """

    table: int
    reads: tuple[Read, ...]


def route_tasks(tables: Sequence[Sequence[Read]], at_once: int = 1) -> tuple[tuple[Share, ...], ...]:
    """Gather the reads of tables into tasks that route about the same number of images: all of them end together.

    Args:
        tables: What is read of each table.
        at_once: How many tasks may run at once. Tables are shared out among so many of them, however small they are.
    """
    reads = [(table, read) for table, reads in enumerate(tables) for read in reads]
    rows = sum(read.file.file.rows for _, read in reads)
    tasks = max(1, -(-rows // _ROUTED_ROWS), min(at_once, len(tables)))
    runs = grouped(reads, lambda item: item[1].file.file.rows, -(-rows // tasks))
    return tuple(
        tuple(Share(table, tuple(read for _, read in of)) for table, of in groupby(run, key=lambda item: item[0]))
        for run in runs
    )


# How much memory DuckDB may use in a task before it writes to disk, unless the executors' environment says otherwise.
MEMORY = "1GB"


@dataclass(frozen=True, slots=True)
class TableMerge:
    """A table of a merge.

    Attributes:
        parts: The table's base files; empty if all rows are new.
        slots: Numbers of its merges in the job; those of a keyed table are in the order of its base files.
    """

    table: TargetTable
    parts: tuple[FilePart, ...]
    slots: range


@dataclass(frozen=True, slots=True)
class MergeWork:
    """What all tasks of a merge know.

    Attributes:
        tables: In the order of their slots.
        tasks: What each task routes.
        target: URL of the replica; `target_options` may hold secrets and are shown nowhere.
    """

    tables: tuple[TableMerge, ...]
    tick: int
    target: str
    target_options: Mapping[str, Any] = field(repr=False)
    farm: FarmPlace
    tasks: tuple[tuple[Share, ...], ...]


@dataclass(frozen=True)
class RouteTask(SparkTask):
    """Gives the changes of each base file as the bytes of Parquet files."""

    merge: MergeWork

    def work(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
        work = self.merge
        for number in numbers(batches):
            with _working() as (connection, folder), files_of(work.farm) as files:
                for share in work.tasks[number]:
                    merge = work.tables[share.table]
                    with _about(merge.table):
                        found = _sources(connection, merge.table, share.reads, files)
                        lows = [part.low for part in merge.parts]
                        routed = file_rewrite.route(
                            connection, merge.table, found, lows, folder / f"changes {share.table}"
                        )
                    for part, changes in routed.items():
                        # New rows that have no place of their own are shared out among the tasks that write them.
                        slot = merge.slots[part if merge.parts else number % len(merge.slots)]
                        yield from ((slot, file.read_bytes()) for file in changes)


@dataclass(frozen=True)
class MergeTask(SparkTask):
    """Merges each base file whose changes come in, and gives what `merged_of` reads."""

    merge: MergeWork

    def work(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
        with _working() as (connection, folder):
            for number, files in sorted(_gathered(batches, folder).items()):
                yield number, pickle.dumps(self._merge(connection, number, files, folder / str(number)))

    def _merge(
        self, connection: duckdb.DuckDBPyConnection, number: int, files: list[Path], into: Path
    ) -> tuple[Merged, tuple[FilePart, ...]]:
        work = self.merge
        of = next(of for of in work.tables if number in of.slots)
        store = open_store(work.target, dict(work.target_options))
        part = of.parts[number - of.slots.start] if of.parts else None
        into.mkdir()
        with _about(of.table), fetched(store, part) if part else nullcontext() as base:
            merged = file_rewrite.merge(connection, of.table, base, files, into)
        # The pieces are files of this task, which are gone when it ends.
        return replace(merged, pieces=()), publish(store, of.table.name, work.tick, merged.pieces)


def merged_of(payload: bytes) -> tuple[Merged, tuple[FilePart, ...]]:
    """Read what a merge task says of a base file: what became of it, and the files that came in its place."""
    found: tuple[Merged, tuple[FilePart, ...]] = pickle.loads(payload)  # noqa: S301 - Only our own tasks write it.
    return found


@dataclass(frozen=True)
class AlterTask(SparkTask):
    """Rewrites each base file whose number comes in, after its table was altered; gives what `altered_of` reads."""

    alteration: Alteration
    parts: tuple[FilePart, ...]
    tick: int
    target: str
    target_options: Mapping[str, Any] = field(repr=False)

    def work(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
        for number in numbers(batches):
            with _working() as (_, folder):
                store = open_store(self.target, dict(self.target_options))
                with fetched(store, self.parts[number]) as base:
                    piece = alter(self.alteration, base, folder)
                yield number, pickle.dumps(publish(store, self.alteration.name, self.tick, [piece]))


def altered_of(payload: bytes) -> tuple[FilePart, ...]:
    """Read the files that came in the place of an altered one."""
    found: tuple[FilePart, ...] = pickle.loads(payload)  # noqa: S301 - Only our own tasks write it.
    return found


@dataclass(frozen=True, slots=True)
class TableFold:
    """A table of a fold.

    Attributes:
        buckets: Numbers of its folds in the job, each for a share of the keys.
    """

    table: TargetTable
    buckets: range


@dataclass(frozen=True, slots=True)
class FoldWork:
    """What all tasks of a fold know.

    Attributes:
        tables: In the order of their buckets.
        tasks: What each task reads.
    """

    tables: tuple[TableFold, ...]
    farm: FarmPlace
    tasks: tuple[tuple[Share, ...], ...]


@dataclass(frozen=True)
class ScatterTask(SparkTask):
    """Gives the changes of each bucket as the bytes of Parquet files."""

    fold: FoldWork

    def work(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
        work = self.fold
        for number in numbers(batches):
            with _working() as (connection, folder), files_of(work.farm) as files:
                for share in work.tasks[number]:
                    of, into = work.tables[share.table], folder / f"changes {share.table}"
                    with _about(of.table):
                        found = _sources(connection, of.table, share.reads, files)
                        routed = file_rewrite.route_evenly(connection, of.table, found, len(of.buckets), into)
                    for bucket, changes in routed.items():
                        yield from ((of.buckets[bucket], file.read_bytes()) for file in changes)


@dataclass(frozen=True)
class GatherTask(SparkTask):
    """Gives the net change of each bucket whose changes come in as the bytes of a Parquet file."""

    fold: FoldWork

    def work(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
        with _working() as (connection, folder):
            for bucket, files in sorted(_gathered(batches, folder).items()):
                file = folder / f"net {bucket}.parquet"
                table = next(of.table for of in self.fold.tables if bucket in of.buckets)
                with _about(table):
                    file_rewrite.fold_all(connection, table, files, file)
                yield bucket, file.read_bytes()


def _sources(
    connection: duckdb.DuckDBPyConnection, table: TargetTable, reads: tuple[Read, ...], files: LocalCopies
) -> list[RowImages]:
    files.fetch_log(read.file for read in reads)
    change = TableChange(table.name, reads, 0, 0)
    found = sources(change, lambda read: files.local[read.file.file.path])
    # How many rows all tasks together should find is checked where their results meet.
    refuse_other_images(connection, change, found, is_whole=False)
    return found


@contextmanager
def _about(table: TargetTable) -> Iterator[None]:
    """Name the table in errors of DuckDB and of the step."""
    with naming(table.name), applying(Path("the replica")):
        yield


def _gathered(batches: Iterable[pa.RecordBatch], folder: Path) -> dict[int, list[Path]]:
    """Write payloads to files as they come: a task's payloads together need not fit into memory."""
    changes: dict[int, list[Path]] = defaultdict(list)
    for number, payload in payloads(batches):
        file = folder / f"{number} {len(changes[number])}.parquet"
        file.write_bytes(payload)
        changes[number].append(file)
    return changes


@contextmanager
def _working() -> Iterator[tuple[duckdb.DuckDBPyConnection, Path]]:
    """Open a connection for one task, which has one core, and a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="wlr-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        connection = connect(folder, threads=1, memory=MEMORY)
        try:
            yield connection, folder
        finally:
            connection.close()
