"""The executor that gives large work on a Parquet replica to Spark, whose tasks run the kernel.

A routing task reads some data files of the farm and writes a Parquet file for each base file that they touch. Spark
transports these files to the task of that base file as opaque bytes. So every type survives, base files never pass
through the JVM, and a row is read once before it is merged.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlr.replay.fold import file_rewrite
from wlr.replay.fold.files import assemble
from wlr.spark.replay.jobs import numbered, route_tasks, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from wlc.dialect.duckdb.fold import TargetTable
    from wlc.farm.model import TableFile
    from wlr.replay.fold.file_rewrite import Merged
    from wlr.replay.fold.files import Alteration, Executor, FilePart, MergedFiles, MergeJob
    from wlr.spark.replay.jobs import Jobs

_TASKS_PER_CORE = 2


@dataclass(slots=True)
class SparkExecutor:
    """Gives large work to Spark, and small work, or work on a whole table at once, to this process.

    Attributes:
        local: The executor of this process.
        url: Path or URL of the replica.
        storage_options: Options of the replica's file system.
        jobs: Spark's jobs.
        from_rows: Least number of row images, and of rows in the files they may touch, for Spark.
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
            # This process is idle while Spark works.
            here_merged = pool.submit(self.local.merge, here, fetch)
            there_merged = self._merge(there)
        found = {True: iter(there_merged), False: iter(here_merged.result())}
        return [next(found[is_there]) for is_there in are_there]

    def _merge(self, jobs: Sequence[MergeJob]) -> list[MergedFiles]:
        """Merge all tables in one job of Spark: several small ones cost little more than one."""
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
        # One task merges several base files, because starting a task per base file is too slow.
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
    # Files of new rows come after those of a bag.
    first = 0 if job.table.key else len(job.parts)
    return assemble(job.parts, {first + number - slots.start: found[number] for number in slots if number in found})


def _can_be_shared_out(job: MergeJob) -> bool:
    # Copies of a bag's row may be in any of its files: this process decides which of them are removed.
    needs_whole_table = not job.table.key and bool(job.change.removed)
    return not needs_whole_table and not any(read.is_local for read in job.change.reads)
