"""The executor that gives large work on a Parquet replica to Spark, whose tasks run the kernel.

A routing task reads some data files of the farm and writes a Parquet file for each base file that they touch. Spark
carries these files to the task of that base file as opaque bytes. So every type survives, base files never pass
through the JVM, and a row is read once before it is merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlr.fold import kernel
from wlr.fold.files import assemble
from wlr.spark.replay.jobs import route_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from wlc.farm.model import TableFile
    from wlr.fold.files import Alteration, Executor, FilePart, MergedFiles, MergeJob
    from wlr.fold.sql import TargetTable
    from wlr.spark.replay.jobs import Jobs
    from wlr.spark.replay.tasks import MergeWork

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

    def merge(self, job: MergeJob, fetch: Callable[[TableFile], Path]) -> MergedFiles:
        # Copies of a bag's row may be in any of its files: one place decides which of them are removed.
        is_here = _needs_whole_table(job) or any(read.is_local for read in job.change.reads)
        if is_here or not self._is_large(job.change.added + job.change.removed, job.parts):
            return self.local.merge(job, fetch)
        from wlr.spark.replay.tasks import MergeWork, merged_of

        parts = job.parts if job.table.key else ()
        slots = len(parts) if job.table.key else -(-job.change.added // kernel.ROWS_PER_FILE)
        work = MergeWork(
            table=job.table,
            parts=tuple(parts),
            slots=max(slots, 1),
            tick=job.tick,
            target=self.url,
            target_options=self.storage_options,
            farm=self.jobs.farm,
            tasks=route_tasks(job.change.reads),
        )
        # Files of new rows come behind those of a bag.
        first = 0 if job.table.key else len(job.parts)
        found = self._run(work, f"merge {job.table.name} up to tick {job.tick}")
        return assemble(job.parts, {first + number: merged_of(payload) for number, payload in found})

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

    def _run(self, work: MergeWork, text: str) -> Iterator[tuple[int, bytes]]:
        from wlr.spark.replay.tasks import MergeTask, RouteTask
        from wlr.spark.session import cores

        routed = self.jobs.numbered(len(work.tasks), RouteTask(work))
        # One task may merge several base files: few base files are worth the start of a task.
        tasks = min(work.slots, _TASKS_PER_CORE * cores(self.jobs.spark))
        return self.jobs.run(self.jobs.gathered(routed, tasks, MergeTask(work)), text)


def _needs_whole_table(job: MergeJob) -> bool:
    return not job.table.key and bool(job.change.removed)
