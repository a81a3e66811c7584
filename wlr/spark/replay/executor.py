"""The executor that gives large work on a Parquet replica to Spark, whose tasks run the kernel.

A routing task reads some data files of the farm and writes a Parquet file for each base file that they touch. Spark
carries these files to the task of that base file as opaque bytes. So every type survives, base files never pass through
the JVM, and a row is read once before it is merged.

Folds large backlogs for a database in Spark; the database then applies the net change in one transaction.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from wlr.replay.fold import file_rewrite
from wlr.replay.fold.files import assemble
from wlr.replay.plan.log_steps import Limits
from wlr.spark.replay.tasks import numbered, route_tasks, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from wlc.dialect.duckdb.fold import TargetTable
    from wlc.farm.model import Name, TableFile
    from wlr.replay.fold.file_rewrite import Merged
    from wlr.replay.fold.files import Alteration, Executor, FilePart, MergedFiles, MergeJob
    from wlr.replay.plan.step import TableChange
    from wlr.spark.replay.tasks import Jobs


_TASKS_PER_CORE = 2


@dataclass(slots=True)
class SparkExecutor:
    """Gives large work to Spark, and small work, and what needs a whole table at once, to this process.

    Attributes:
        local: The executor of this process.
        url: Path or URL of the replica.
        storage_options: Options of the replica's file system.
        jobs: Spark's jobs.
        from_rows: Row images, and rows in the files they may touch, from which on Spark does the work.
    """

    local: Executor
    url: str
    storage_options: Mapping[str, Any]
    jobs: Jobs
    from_rows: int

    def merge(self, jobs: Sequence[MergeJob], fetch: Callable[[TableFile], Path]) -> list[MergedFiles]:
        images = sum(job.change.added + job.change.removed for job in jobs)
        is_large = self._is_large(images, [part for job in jobs for part in job.parts])
        are_there = [is_large and _can_be_shared_out(job) for job in jobs]
        there = [job for job, is_there in zip(jobs, are_there, strict=True) if is_there]
        here = [job for job, is_there in zip(jobs, are_there, strict=True) if not is_there]
        if not there:
            return self.local.merge(here, fetch)
        with ThreadPoolExecutor(1, "wlr merges") as pool:
            # This process would be idle while Spark works.
            here_merged = pool.submit(self.local.merge, here, fetch)
            there_merged = self._merge(there)
        found = {True: iter(there_merged), False: iter(here_merged.result())}
        return [next(found[is_there]) for is_there in are_there]

    def _merge(self, jobs: Sequence[MergeJob]) -> list[MergedFiles]:
        """Merge all tables in one job of Spark: small ones together cost little more than one."""
        from wlr.spark.replay.tasks import MergeTask, MergeWork, RouteTask, TableMerge, merged_of

        slots = numbered(_slots(job) for job in jobs)
        work = MergeWork(
            tables=tuple(
                TableMerge(job.table, job.parts if job.table.key else (), own)
                for job, own in zip(jobs, slots, strict=True)
            ),
            tick=jobs[0].tick,
            target=self.url,
            target_options=self.storage_options,
            farm=self.jobs.farm,
            tasks=route_tasks([job.change.reads for job in jobs], self.jobs.cores),
        )
        routed = self.jobs.numbered(len(work.tasks), RouteTask(work))
        # One task may merge several base files: few base files are worth the start of a task.
        tasks = min(slots[-1].stop, _TASKS_PER_CORE * self.jobs.cores)
        frame = self.jobs.gathered(routed, tasks, MergeTask(work))
        text = f"merge {shown([job.table for job in jobs])} up to tick {work.tick}"
        found = {number: merged_of(payload) for number, payload in self.jobs.run(frame, text)}
        return [_assembled(job, own, found) for job, own in zip(jobs, slots, strict=True)]

    def split(self, table: TargetTable, files: Sequence[Path], tick: int) -> tuple[FilePart, ...]:
        return self.local.split(table, files, tick)

    def sort(self, table: TargetTable, parts: Sequence[FilePart], tick: int) -> tuple[FilePart, ...]:
        return self.local.sort(table, parts, tick)

    def alter(self, alteration: Alteration, parts: Sequence[FilePart], tick: int) -> tuple[FilePart, ...]:
        if not self._is_large(0, parts):
            return self.local.alter(alteration, parts, tick)
        from wlr.spark.replay.tasks import AlterTask, altered_of

        task = AlterTask(alteration, tuple(parts), tick, self.url, self.storage_options)
        frame = self.jobs.numbered(len(parts), task)
        found = dict(self.jobs.run(frame, f"alter {alteration.table} at tick {tick}"))
        return tuple(part for number in range(len(parts)) for part in altered_of(found[number]))

    def close(self) -> None:
        self.local.close()
        self.jobs.close()

    def _is_large(self, images: int, parts: Sequence[FilePart]) -> bool:
        rows = images + sum(part.file.rows for part in parts)
        return rows >= self.from_rows


def _slots(job: MergeJob) -> int:
    slots = len(job.parts) if job.table.key else -(-job.change.added // file_rewrite.ROWS_PER_FILE)
    return max(slots, 1)


def _assembled(job: MergeJob, slots: range, found: Mapping[int, tuple[Merged, tuple[FilePart, ...]]]) -> MergedFiles:
    # Files of new rows come behind those of a bag.
    first = 0 if job.table.key else len(job.parts)
    return assemble(job.parts, {first + number - slots.start: found[number] for number in slots if number in found})


def _can_be_shared_out(job: MergeJob) -> bool:
    # Copies of a bag's row may be in any of its files: one place decides which of them are removed.
    needs_whole_table = not job.table.key and bool(job.change.removed)
    return not needs_whole_table and not any(read.is_local for read in job.change.reads)


_BUCKET_ROWS = 500_000


@dataclass(slots=True)
class SparkFold:
    """Folds the changes of tables in Spark's tasks, all in one job, and fetches the net changes.

    Attributes:
        limits: How much a step may hold; the target applies all of it in one transaction.
        jobs: Spark's jobs.
        work: Folder for the net changes.
    """

    limits: ClassVar[Limits] = Limits(rows=50_000_000, transactions=2_000_000, files=4096)

    jobs: Jobs
    work: Path
    _count: int = 0

    def __call__(self, changes: Sequence[tuple[TargetTable, TableChange]]) -> list[list[str] | None]:
        # Changes that only add rows cannot be folded further.
        there = [
            (table, change)
            for table, change in changes
            if change.removed and not any(read.is_local for read in change.reads)
        ]
        found = self._fold(there) if there else {}
        return [found.get(table.name) for table, _ in changes]

    def _fold(self, changes: Sequence[tuple[TargetTable, TableChange]]) -> dict[Name, list[str]]:
        """Return the files with the net change of each table."""
        from wlr.spark.replay.tasks import FoldWork, GatherTask, ScatterTask, TableFold

        images = [change.added + change.removed for _, change in changes]
        tasks = route_tasks([change.reads for _, change in changes], self.jobs.cores)
        buckets = numbered(-(-count // _BUCKET_ROWS) for count in images)
        tables = tuple(TableFold(table, own) for (table, _), own in zip(changes, buckets, strict=True))
        work = FoldWork(tables, self.jobs.farm, tasks)
        routed = self.jobs.numbered(len(work.tasks), ScatterTask(work))
        # Small tables share the tasks that fold them.
        folded = self.jobs.gathered(routed, -(-sum(images) // _BUCKET_ROWS), GatherTask(work))
        tick = max(change.reads[-1].last for _, change in changes)
        text = f"fold {shown([of.table for of in tables])} up to tick {tick}"
        files: dict[Name, list[str]] = {of.table.name: [] for of in tables}
        for bucket, payload in self.jobs.run(folded, text, streamed=True):
            self._count += 1
            file = self.work / f"folded {self._count}.parquet"
            file.write_bytes(payload)
            of = next(of for of in tables if bucket in of.buckets)
            files[of.table.name].append(str(file))
        return files

    def close(self) -> None:
        """Stop a session that was started for this."""
        self.jobs.close()
