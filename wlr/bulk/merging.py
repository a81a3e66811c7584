"""What Spark's tasks do for a bulk replay: route changes to base files, merge base files, rewrite altered ones.

A task that fails, or runs twice, leaves nothing that counts: its files have names of their own, and count once the
replica's manifest names them, which it does with what the winning attempt has answered.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException

from wlc import errors
from wlc.errors import FarmError, UnavailableError
from wlc.store import open_store
from wlr.bulk.reading import files_of
from wlr.engine import StepError
from wlr.engine.duckdb.changes import sources
from wlr.engine.duckdb.connection import applying
from wlr.engine.parquet import kernel
from wlr.engine.parquet.alter import alter
from wlr.engine.parquet.connection import connect
from wlr.engine.parquet.executor import fetched, publish
from wlr.engine.parquet.version import part_json
from wlr.plan import TableChange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import duckdb

    from wlr.bulk.reading import FarmPlace, Files
    from wlr.engine.parquet.alter import Alteration
    from wlr.engine.parquet.kernel import Merged
    from wlr.engine.parquet.version import Part
    from wlr.fold import Source, TargetTable
    from wlr.plan import Read

# What DuckDB may use in a task before it writes to disk, unless the environment of the executors says otherwise.
MEMORY = "1GB"
# What a routing task answers, as Spark's SQL and as Arrow say it.
ROUTED = "part INT, payload BINARY"
_ROUTED = pa.schema([("part", pa.int32()), ("payload", pa.binary())])
_DONE = pa.schema([("done", pa.string())])
_FOLDED = pa.schema([("payload", pa.binary())])


@dataclass(frozen=True, slots=True)
class Work:
    """What all tasks of a merge are told.

    Attributes:
        parts: The table's base files; none if all rows are new.
        slots: Number of merges; those of a keyed table are numbered as its base files are.
        tasks: What each task routes.
        target: URL of the replica; `target_options` may hold secrets and are shown nowhere.
    """

    table: TargetTable
    parts: tuple[Part, ...]
    slots: int
    tick: int
    target: str
    target_options: Mapping[str, Any] = field(repr=False)
    farm: FarmPlace
    tasks: tuple[tuple[Read, ...], ...]


@dataclass(frozen=True, slots=True)
class Route:
    """Routes the changes of each task whose number comes in."""

    work: Work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the changes of each base file as the bytes of a Parquet file."""
        for number in _numbers(batches):
            yield from self._route(number)

    def _route(self, number: int) -> Iterator[pa.RecordBatch]:
        work = self.work
        with _working() as (connection, folder), files_of(work.farm) as files:
            found = _sources(work.table, work.tasks[number], files)
            lows = [part.low for part in work.parts]
            routed = kernel.route(connection, work.table, found, lows, folder / "changes")
            for part, changes in routed.items():
                # New rows that have no place of their own are shared out among the tasks that write them.
                slot = part if work.parts else number % work.slots
                yield from _payloads(slot, changes)


@dataclass(frozen=True, slots=True)
class Merge:
    """Merges each base file whose changes come in."""

    work: Work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Say for each base file what came in its place."""
        with _working() as (connection, folder):
            changes = _gathered(batches, folder)
            for number, files in sorted(changes.items()):
                with _telling() as told:
                    merged, parts = self._merge(connection, number, files, folder / str(number))
                    told.update(part=number, keeps_base=merged.keeps_base, removed=merged.removed, added=merged.added)
                    told["total"] = merged.total
                    told["parts"] = [part_json(part) for part in parts]
                yield _answer(told)

    def _merge(
        self, connection: duckdb.DuckDBPyConnection, number: int, files: list[Path], into: Path
    ) -> tuple[Merged, tuple[Part, ...]]:
        work = self.work
        store = open_store(work.target, dict(work.target_options))
        part = work.parts[number] if work.parts else None
        into.mkdir()
        with fetched(store, part) if part else nullcontext() as base:
            merged = kernel.merge(connection, work.table, base, files, into)
        return merged, publish(store, work.table.name, work.tick, merged.pieces)


@dataclass(frozen=True, slots=True)
class Alter:
    """Rewrites each base file whose number comes in, after its table was altered."""

    alteration: Alteration
    parts: tuple[Part, ...]
    tick: int
    target: str
    target_options: Mapping[str, Any] = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Say for each base file what came in its place."""
        for number in _numbers(batches):
            with _telling() as told, _working() as (_, folder):
                store = open_store(self.target, dict(self.target_options))
                with fetched(store, self.parts[number]) as base:
                    piece = alter(self.alteration, base, folder)
                parts = publish(store, self.alteration.name, self.tick, [piece])
                told.update(part=number, parts=[part_json(part) for part in parts])
            yield _answer(told)


@dataclass(frozen=True, slots=True)
class Folding:
    """What all tasks of a fold are told.

    Attributes:
        tasks: What each task reads.
        buckets: Number of tasks that fold, each its share of the keys.
    """

    table: TargetTable
    farm: FarmPlace
    tasks: tuple[tuple[Read, ...], ...]
    buckets: int


@dataclass(frozen=True, slots=True)
class Scatter:
    """Shares out the changes of each task whose number comes in among the tasks that fold."""

    work: Folding

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the changes of each bucket as the bytes of a Parquet file."""
        work = self.work
        for number in _numbers(batches):
            with _working() as (connection, folder), files_of(work.farm) as files:
                found = _sources(work.table, work.tasks[number], files)
                routed = kernel.route_evenly(connection, work.table, found, work.buckets, folder / "changes")
                for bucket, changes in routed.items():
                    yield from _payloads(bucket, changes)


@dataclass(frozen=True, slots=True)
class Gather:
    """Folds each bucket whose changes come in."""

    work: Folding

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the net change of each bucket as the bytes of a Parquet file."""
        with _working() as (connection, folder):
            for bucket, files in sorted(_gathered(batches, folder).items()):
                file = folder / f"net {bucket}.parquet"
                kernel.fold_all(connection, self.work.table, files, file)
                yield pa.record_batch([pa.array([file.read_bytes()], pa.binary())], schema=_FOLDED)


def _sources(table: TargetTable, reads: tuple[Read, ...], files: Files) -> list[Source]:
    files.fetch_log(read.file for read in reads)
    change = TableChange(table.name, reads, 0, 0)
    return sources(change, lambda read: files.local[read.file.file.path])


def _payloads(number: int, files: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    for file in files:
        payload = pa.array([file.read_bytes()], pa.binary())
        yield pa.record_batch([pa.array([number], pa.int32()), payload], schema=_ROUTED)


def _gathered(batches: Iterable[pa.RecordBatch], folder: Path) -> dict[int, list[Path]]:
    """Write payloads to files as they come: all of a task's together need not fit into memory."""
    changes: dict[int, list[Path]] = defaultdict(list)
    for batch in batches:
        for number, payload in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
            file = folder / f"{number} {len(changes[number])}.parquet"
            file.write_bytes(payload.as_buffer())
            changes[number].append(file)
    return changes


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _answer(told: dict[str, Any]) -> pa.RecordBatch:
    return pa.record_batch([pa.array([json.dumps(told)])], schema=_DONE)


@contextmanager
def _working() -> Iterator[tuple[duckdb.DuckDBPyConnection, Path]]:
    """A connection for one task, which has one core, and a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="wlr-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        connection = connect(folder, threads=1, memory=MEMORY)
        try:
            yield connection, folder
        finally:
            connection.close()


# Errors --------------------------------------------------------------------------------------------------------------


@contextmanager
def _telling() -> Iterator[dict[str, Any]]:
    """Catch what is wrong with the step or the farm, for the driver: trying the task again would not help."""
    told: dict[str, Any] = {}
    try:
        with applying(Path("the replica")):
            yield told
    except StepError as error:
        told["step_error"] = {
            "cause": error.cause,
            "table": error.table,
            "key": error.key,
            "is_shortage": error.is_shortage,
        }
    except UnavailableError:
        # Spark tries again.
        raise
    except FarmError as error:
        told["farm_error"] = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}


def raise_told(done: dict[str, Any]) -> None:
    """Raise the error that a task has told of, if it has.

    Raises:
        StepError: What changed does not fit what is there.
        FarmError: As the task met it.
    """
    if "step_error" in done:
        raise StepError(**done["step_error"])
    if "farm_error" in done:
        said = done["farm_error"]
        raise getattr(errors, said["kind"], FarmError)(said["message"], hint=said["hint"])


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out pyspark's warning about the version of pandas, which nothing here uses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet", category=FutureWarning)
        yield


@contextmanager
def translated() -> Iterator[None]:
    """Turn Spark's own errors into `UnavailableError`."""
    try:
        yield
    except PySparkException as error:
        last = str(error).strip().splitlines()
        told = next((line for line in reversed(last) if "Error" in line), last[0] if last else "")
        hint = "Nothing was lost: run it again, or with --engine local. Spark's log says more."
        raise UnavailableError(f"Spark failed: {told.strip()[:300]}", hint=hint) from error
