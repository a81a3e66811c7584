"""What a read is cut into: tasks that each fetch a few files and give their rows, independent of one another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from wlr.bulk import query
from wlr.bulk.reading import files_of, grouped, run, speaking

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from pyspark.sql.types import StructType

    from wlc.model import Layout
    from wlr.bulk.query import Slice
    from wlr.bulk.reading import FarmPlace, Files
    from wlr.bulk.trace import Contents
    from wlr.plan import Read

# DuckDB writes row groups of so many rows; a slice that ends inside of one reads all of it.
_GROUP_ROWS = 122_880
# Fewer rows than these are not worth a task of their own, more net changes than these one more.
TASK_ROWS = 4 * _GROUP_ROWS
_BUCKET_ROWS = 4_000_000


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of a read have in common: where to read, what Spark wants, and which rows it can do without."""

    place: FarmPlace
    schema: StructType
    conditions: tuple[str, ...] = ()

    @property
    def wanted(self) -> list[str]:
        """Names of the columns that Spark wants, in its order."""
        return [field.name for field in self.schema.fields]


class Task(InputPartition, ABC):  # type: ignore[misc]  # pyspark has no types that mypy follows.
    """Part of a read."""

    def __init__(self) -> None:
        """Tasks have names for what they hold."""

    @abstractmethod
    def fetch(self, files: Files) -> None:
        """Fetch the data files that the query reads."""

    @abstractmethod
    def sql(self, job: Job, files: Files) -> str:
        """Return the query, over fetched files."""

    def tables(self) -> dict[str, pa.Table]:
        """Return the Arrow tables that the query names."""
        return {}

    def read(self, job: Job) -> Iterator[pa.RecordBatch]:
        """Give the rows of the task."""
        schema = to_arrow_schema(job.schema, timezone="UTC")
        with speaking(), files_of(job.place) as files:
            self.fetch(files)
            yield from run(self.sql(job, files), files, job.place.memory, schema, self.tables())


# A table as of a moment ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SnapshotTask(Task):
    """Rows of a snapshot that are still there."""

    contents: Contents
    slice: Slice

    def fetch(self, files: Files) -> None:
        files.fetch_snapshot(self.contents.snapshot, [f for f in self.contents.files if f.path == self.slice.path])
        if self.contents.removed:
            files.fetch_log(part.read.file for part in self.contents.parts)

    def sql(self, job: Job, files: Files) -> str:
        stored = query.snapshot_sql(self.contents, [self.slice], files.local)
        return query.output_sql(self.contents.layout, job.wanted, stored, job.conditions)


@dataclass(frozen=True)
class NetTask(Task):
    """What the log adds to the snapshot in the end; one bucket of it."""

    contents: Contents
    bucket: int
    buckets: int

    def fetch(self, files: Files) -> None:
        _fetch_all(files, self.contents)

    def sql(self, job: Job, files: Files) -> str:
        stored = query.net_sql(self.contents, files.local, self.bucket, self.buckets)
        return query.output_sql(self.contents.layout, job.wanted, stored, job.conditions)


@dataclass(frozen=True)
class LogTask(Task):
    """Rows of some files of the log, where nothing was ever removed."""

    contents: Contents
    places: tuple[int, ...]

    def fetch(self, files: Files) -> None:
        files.fetch_log(self.contents.parts[place].read.file for place in self.places)

    def sql(self, job: Job, files: Files) -> str:
        stored = query.log_sql(self.contents, self.places, files.local)
        return query.output_sql(self.contents.layout, job.wanted, stored, job.conditions)


def table_tasks(contents: Contents, partitions: int) -> list[Task]:
    """Cut a table as of a moment into at most about so many tasks; can be empty."""
    return [*_snapshot_tasks(contents, partitions), *_log_tasks(contents, partitions)]


def _snapshot_tasks(contents: Contents, partitions: int) -> list[Task]:
    # Every task folds the log for itself if something was removed: together they should not fold more than they read.
    images = contents.added + contents.removed if contents.removed else 0
    rows = sum(file.rows for file in contents.files)
    step = max(TASK_ROWS, images, -(-rows // partitions))
    step = -(-step // _GROUP_ROWS) * _GROUP_ROWS
    slices = (
        query.Slice(file.path, first, min(first + step, file.rows))
        for file in contents.files
        for first in range(0, file.rows, step)
    )
    return [SnapshotTask(contents, slice_) for slice_ in slices]


def _log_tasks(contents: Contents, partitions: int) -> list[Task]:
    if not contents.parts:
        return []
    if contents.removed:
        buckets = min(partitions, 1 + (contents.added + contents.removed) // _BUCKET_ROWS)
        return [NetTask(contents, bucket, buckets) for bucket in range(buckets)]
    runs = _runs([part.read for part in contents.parts], partitions)
    tasks, first = [], 0
    for run_ in runs:
        end = first + len(run_)
        parts = contents.parts[first:end]
        tasks.append(LogTask(replace(contents, parts=parts), tuple(range(len(parts)))))
        first = end
    return list(tasks)


def _runs(reads: Sequence[Read], partitions: int) -> list[list[Read]]:
    """Group files that follow each other into runs that are worth a task."""
    rows = sum(read.file.file.rows for read in reads)
    return grouped(reads, max(TASK_ROWS, -(-rows // partitions)))


def _fetch_all(files: Files, contents: Contents) -> None:
    files.fetch_log(part.read.file for part in contents.parts)
    if contents.removed:
        files.fetch_snapshot(contents.snapshot, contents.files)


# Changes -------------------------------------------------------------------------------------------------------------

# Tick, commit time and user of a transaction.
Said = tuple[int, "datetime", str]


@dataclass(frozen=True)
class ChangesTask(Task):
    """Images of some data files of the log."""

    layout: Layout
    reads: tuple[Read, ...]
    said: tuple[Said, ...]

    def fetch(self, files: Files) -> None:
        files.fetch_log(read.file for read in self.reads)

    def tables(self) -> dict[str, pa.Table]:
        return {query.TRANSACTIONS: _said_table(self.said)}

    def sql(self, job: Job, files: Files) -> str:
        selects = []
        for old, reads in groupby(self.reads, key=lambda read: read.file.layout):
            images = " UNION ALL ".join(
                query.images_sql(old, files.local[read.file.file.path], read.first, read.last) for read in reads
            )
            selects.append(query.feed_sql(self.layout, old, job.wanted, images, job.conditions))
        return " UNION ALL ".join(f"({select})" for select in selects)


@dataclass(frozen=True)
class RemovedTask(Task):
    """All that a table held when it was cleared, dropped or replaced."""

    layout: Layout
    contents: Contents
    said: Said

    def fetch(self, files: Files) -> None:
        files.fetch_log(part.read.file for part in self.contents.parts)
        files.fetch_snapshot(self.contents.snapshot, self.contents.files)

    def tables(self) -> dict[str, pa.Table]:
        return {query.TRANSACTIONS: _said_table((self.said,))}

    def sql(self, job: Job, files: Files) -> str:
        images = query.removed_sql(self.contents, files.local, self.said[0])
        return query.feed_sql(self.layout, self.contents.layout, job.wanted, images, job.conditions)


def changes_tasks(layout: Layout, reads: Sequence[Read], said: Iterable[Said], partitions: int) -> list[Task]:
    """Cut the images of data files into tasks; each knows the transactions of its own files only."""
    known = sorted(said)
    tasks: list[Task] = []
    for run_ in _runs(reads, partitions):
        first, last = min(read.first for read in run_), max(read.last for read in run_)
        own = tuple(one for one in known if first <= one[0] <= last)
        tasks.append(ChangesTask(layout, tuple(run_), own))
    return tasks


def _said_table(said: Sequence[Said]) -> pa.Table:
    ticks, times, users = zip(*said, strict=True)
    return pa.table(
        {
            "tick": pa.array(ticks, pa.int64()),
            "committed": pa.array(times, pa.timestamp("us", "UTC")),
            "user_name": pa.array(users, pa.string()),
        }
    )
