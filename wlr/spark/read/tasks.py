"""The independent tasks of a read: each fetches some files and yields their rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from wlr.reading import query
from wlr.spark.read.types import spark_sql
from wlr.spark.task_reading import files_of, grouped, run, speaking

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from wlc.farm.model import DataFile, Layout, TableFile
    from wlr.reading.place import LocalCopies
    from wlr.reading.query import FileSlice
    from wlr.reading.trace import FeedPlan, FeedTransaction, TableContents
    from wlr.replay.plan.step import Read
    from wlr.spark.task_reading import FarmPlace

# Rows in a row group of DuckDB; a slice that ends inside a row group reads all of it.
_GROUP_ROWS = 122_880
# Fewer rows are not worth a task; more net changes than a bucket's are worth another task.
TASK_ROWS = 4 * _GROUP_ROWS
_BUCKET_ROWS = 4_000_000


@dataclass(frozen=True, slots=True)
class ReadJob:
    """The shared data of all tasks of a read.

    Attributes:
        place: The farm.
        schema: The requested columns.
        is_checked: Data files are compared with their checksums.
        conditions: Conditions on the rows.
    """

    place: FarmPlace
    schema: StructType
    is_checked: bool = True
    conditions: tuple[str, ...] = ()

    @property
    def wanted(self) -> list[str]:
        """Names of the requested columns, in Spark's order."""
        return [field.name for field in self.schema.fields]

    def sql(self, layout: Layout, stored: str) -> str:
        """Return the query that converts the stored rows of a table for Spark."""
        return query.output_sql(layout, self.wanted, stored, spark_sql, self.conditions)


@dataclass(frozen=True)
class ReadTask(InputPartition, ABC):  # type: ignore[misc]  # pyspark has no types that mypy follows.
    """A part of a read.

    Attributes:
        checks: Paths of the data files that this task compares with their checksums; other tasks compare the rest.
    """

    checks: frozenset[str] = field(default=frozenset(), kw_only=True)

    @abstractmethod
    def log_files(self) -> list[TableFile]:
        """List the data files of the log that the query reads."""

    def snapshot_files(self) -> tuple[int | None, list[DataFile]]:
        """List the data files of a snapshot that the query reads, after its tick."""
        return None, []

    @property
    def paths(self) -> set[str]:
        """Paths of all data files that the query reads."""
        return {file.file.path for file in self.log_files()} | {file.path for file in self.snapshot_files()[1]}

    @abstractmethod
    def sql(self, job: ReadJob, files: LocalCopies) -> str:
        """Return the query, over fetched files."""

    def tables(self) -> dict[str, pa.Table]:
        """Return the Arrow tables that the query names."""
        return {}

    def read(self, job: ReadJob) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the task."""
        schema = to_arrow_schema(job.schema, timezone="UTC")
        with speaking(), files_of(job.place, is_checked=job.is_checked, only=self.checks) as files:
            files.fetch_snapshot(*self.snapshot_files())
            files.fetch_log(self.log_files())
            yield from run(self.sql(job, files), files, job.place.memory, schema, self.tables())


def checking(tasks: Sequence[ReadTask]) -> list[ReadTask]:
    """Assign the checksum comparison of every data file to the first task that reads it.

    If the first task of a query fails, the query returns no rows: Spark runs tasks in order if it does not run all.
    """
    seen: set[str] = set()
    made = []
    for task in tasks:
        made.append(replace(task, checks=frozenset(task.paths - seen)))
        seen |= task.paths
    return made


# A table as of a moment ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SnapshotTask(ReadTask):
    """The remaining rows of a snapshot."""

    contents: TableContents
    slice: FileSlice

    def log_files(self) -> list[TableFile]:
        return _log_files(self.contents) if self.contents.removed else []

    def snapshot_files(self) -> tuple[int | None, list[DataFile]]:
        return self.contents.snapshot, [file for file in self.contents.files if file.path == self.slice.path]

    def sql(self, job: ReadJob, files: LocalCopies) -> str:
        return job.sql(self.contents.layout, query.snapshot_sql(self.contents, [self.slice], files.local))


@dataclass(frozen=True)
class NetTask(ReadTask):
    """One bucket of the net rows that the log adds to the snapshot."""

    contents: TableContents
    bucket: int
    buckets: int

    def log_files(self) -> list[TableFile]:
        return _log_files(self.contents)

    def snapshot_files(self) -> tuple[int | None, list[DataFile]]:
        return self.contents.snapshot, list(self.contents.files)

    def sql(self, job: ReadJob, files: LocalCopies) -> str:
        return job.sql(self.contents.layout, query.net_sql(self.contents, files.local, self.bucket, self.buckets))


@dataclass(frozen=True)
class LogTask(ReadTask):
    """Rows of some files of a log without removals."""

    contents: TableContents

    def log_files(self) -> list[TableFile]:
        return _log_files(self.contents)

    def sql(self, job: ReadJob, files: LocalCopies) -> str:
        return job.sql(self.contents.layout, query.log_sql(self.contents, files.local))


def table_tasks(contents: TableContents, partitions: int) -> list[ReadTask]:
    """Cut a table as of a moment into at most about `partitions` tasks; none if the table has no rows."""
    return checking([*_snapshot_tasks(contents, partitions), *_log_tasks(contents, partitions)])


def _snapshot_tasks(contents: TableContents, partitions: int) -> list[ReadTask]:
    # With removed rows, every task folds the log: all tasks together should not fold more than they read.
    images = contents.added + contents.removed if contents.removed else 0
    rows = sum(file.rows for file in contents.files)
    step = max(TASK_ROWS, images, -(-rows // partitions))
    step = -(-step // _GROUP_ROWS) * _GROUP_ROWS
    slices = (
        query.FileSlice(file.path, first, min(first + step, file.rows))
        for file in contents.files
        for first in range(0, file.rows, step)
    )
    return [SnapshotTask(contents, slice_) for slice_ in slices]


def _log_tasks(contents: TableContents, partitions: int) -> list[ReadTask]:
    if not contents.parts:
        return []
    if contents.removed:
        buckets = min(partitions, 1 + (contents.added + contents.removed) // _BUCKET_ROWS)
        return [NetTask(contents, bucket, buckets) for bucket in range(buckets)]
    parts = iter(contents.parts)
    runs = _runs([part.read for part in contents.parts], partitions)
    return [LogTask(replace(contents, parts=tuple(islice(parts, len(run_))))) for run_ in runs]


def _runs(reads: Sequence[Read], partitions: int) -> list[list[Read]]:
    """Group consecutive files into runs that are worth a task."""
    rows = sum(read.file.file.rows for read in reads)
    return grouped(reads, lambda read: read.file.file.rows, max(TASK_ROWS, -(-rows // partitions)))


def _log_files(contents: TableContents) -> list[TableFile]:
    return [part.read.file for part in contents.parts]


# Changes -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChangesTask(ReadTask):
    """Images of some data files of the log."""

    layout: Layout
    reads: tuple[Read, ...]
    transactions: tuple[FeedTransaction, ...]

    def log_files(self) -> list[TableFile]:
        return [read.file for read in self.reads]

    def tables(self) -> dict[str, pa.Table]:
        return {query.TRANSACTIONS: query.transactions_table(self.transactions)}

    def sql(self, job: ReadJob, files: LocalCopies) -> str:
        selects = []
        for old, reads in groupby(self.reads, key=lambda read: read.file.layout):
            images = " UNION ALL ".join(
                query.images_sql(old, files.local[read.file.file.path], read.first, read.last) for read in reads
            )
            selects.append(query.feed_sql(self.layout, old, job.wanted, images, spark_sql, job.conditions))
        return " UNION ALL ".join(f"({select})" for select in selects)


@dataclass(frozen=True)
class RemovedTask(ReadTask):
    """The rows of a table when it was cleared, dropped or replaced."""

    layout: Layout
    contents: TableContents
    transaction: FeedTransaction

    def log_files(self) -> list[TableFile]:
        return _log_files(self.contents)

    def snapshot_files(self) -> tuple[int | None, list[DataFile]]:
        return self.contents.snapshot, list(self.contents.files)

    def tables(self) -> dict[str, pa.Table]:
        return {query.TRANSACTIONS: query.transactions_table((self.transaction,))}

    def sql(self, job: ReadJob, files: LocalCopies) -> str:
        images = query.held_sql(query.rows_sql(self.contents, files.local), self.transaction.tick, -1)
        # The rows that such a transaction adds are new, with any key.
        old = self.contents.layout
        return query.feed_sql(self.layout, old, job.wanted, images, spark_sql, job.conditions, has_updates=False)


def feed_tasks(layout: Layout, plan: FeedPlan, partitions: int) -> list[ReadTask]:
    """Cut a change feed, in the columns of `layout`, into about `partitions` tasks.

    Each task has only the transactions of its own files.
    """
    tasks: list[ReadTask] = [RemovedTask(layout, rows.contents, rows.transaction) for rows in plan.removed]
    for run_ in _runs(plan.reads, partitions):
        first, last = min(read.first for read in run_), max(read.last for read in run_)
        own = tuple(one for one, _ in plan.transactions if first <= one.tick <= last)
        tasks.append(ChangesTask(layout, tuple(run_), own))
    return checking(tasks)
