"""The tasks of a bulk replay: route changes to base files, merge base files, rewrite altered ones, fold a backlog.

A failed or repeated task has no effect: its files have unique names, and become visible only when the replica's
manifest names them, which it does for the successful attempt.
"""

from __future__ import annotations

import pickle
import tempfile
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm.store import open_store
from wlr.engine.alteration import alter
from wlr.engine.calculator import applying, connect
from wlr.engine.table_files import fetched, publish
from wlr.replay.fold import file_rewrite
from wlr.replay.fold.data_check import refuse_other_images
from wlr.replay.fold.net_changes import sources
from wlr.replay.plan.failure import naming
from wlr.replay.plan.step import TableChange
from wlr.spark.replay.rows import SparkTask, numbers, payloads
from wlr.spark.task_reading import files_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import duckdb
    import pyarrow as pa

    from wlc.dialect.duckdb.fold import RowImages, TargetTable
    from wlr.reading.place import LocalCopies
    from wlr.replay.fold.file_rewrite import Merged
    from wlr.replay.fold.files import Alteration, FilePart
    from wlr.replay.plan.step import Read
    from wlr.spark.replay.jobs import Share
    from wlr.spark.task_reading import FarmPlace

# DuckDB's memory limit in a task, after which it spills to disk, unless the executors' environment sets one.
MEMORY = "1GB"


@dataclass(frozen=True, slots=True)
class TableMerge:
    """A table of a merge.

    Attributes:
        parts: The table's base files; empty if all rows are new.
        slots: Numbers of its merges in the job; for a keyed table, in the order of its base files.
    """

    table: TargetTable
    parts: tuple[FilePart, ...]
    slots: range


@dataclass(frozen=True, slots=True)
class MergeWork:
    """The shared data of all tasks of a merge.

    Attributes:
        tables: In the order of their slots.
        tasks: The reads of each routing task.
        target: URL of the replica; `target_options` may hold secrets and are never shown.
    """

    tables: tuple[TableMerge, ...]
    tick: int
    target: str
    target_options: Mapping[str, Any] = field(repr=False)
    farm: FarmPlace
    tasks: tuple[tuple[Share, ...], ...]


@dataclass(frozen=True)
class RouteTask(SparkTask):
    """Yields the changes of each base file as the bytes of Parquet files."""

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
                        # New rows without a base file are distributed over the tasks that write them.
                        slot = merge.slots[part if merge.parts else number % len(merge.slots)]
                        yield from ((slot, file.read_bytes()) for file in changes)


@dataclass(frozen=True)
class MergeTask(SparkTask):
    """Merges each base file with its incoming changes, and yields the input of `merged_of`."""

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
        # The pieces are temporary files of this task.
        return replace(merged, pieces=()), publish(store, of.table.name, work.tick, merged.pieces)


def merged_of(payload: bytes) -> tuple[Merged, tuple[FilePart, ...]]:
    """Decode the result of a merge task: the state of a base file, and the files that replace it."""
    found: tuple[Merged, tuple[FilePart, ...]] = pickle.loads(payload)  # noqa: S301 - Only our own tasks write it.
    return found


@dataclass(frozen=True)
class AlterTask(SparkTask):
    """Rewrites each base file of an altered table by its incoming number; yields the input of `altered_of`."""

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
    """Decode the files that replace an altered one."""
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
    """The shared data of all tasks of a fold.

    Attributes:
        tables: In the order of their buckets.
        tasks: The reads of each task.
    """

    tables: tuple[TableFold, ...]
    farm: FarmPlace
    tasks: tuple[tuple[Share, ...], ...]


@dataclass(frozen=True)
class ScatterTask(SparkTask):
    """Yields the changes of each bucket as the bytes of Parquet files."""

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
    """Yields the net change of each bucket of incoming changes as the bytes of a Parquet file."""

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
    # The driver checks the total number of rows of all tasks.
    refuse_other_images(connection, change, found, is_whole=False)
    return found


@contextmanager
def _about(table: TargetTable) -> Iterator[None]:
    """Add the table to errors of DuckDB and of the step."""
    with naming(table.name), applying(Path("the replica")):
        yield


def _gathered(batches: Iterable[pa.RecordBatch], folder: Path) -> dict[int, list[Path]]:
    """Write payloads to files one by one: all payloads of a task may not fit into memory."""
    changes: dict[int, list[Path]] = defaultdict(list)
    for number, payload in payloads(batches):
        file = folder / f"{number} {len(changes[number])}.parquet"
        file.write_bytes(payload)
        changes[number].append(file)
    return changes


@contextmanager
def _working() -> Iterator[tuple[duckdb.DuckDBPyConnection, Path]]:
    """Open a connection for one task, which has one core, and a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="wlr-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        connection = connect(folder, threads=1, memory=MEMORY)
        try:
            yield connection, folder
        finally:
            connection.close()
