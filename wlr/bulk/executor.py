"""The executor that lets Spark do large work on a Parquet replica: Spark plans, shuffles and retries, the kernel works.

Changes are routed where they lie, one task for some data files of the farm: what comes out of a task are Parquet
files, one for each base file that is touched, which Spark carries to the task of that base file as bytes it does not
look into. So every type survives, base files never pass through the JVM, and a row is read once before it is merged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlr.bulk.jobs import route_tasks
from wlr.engine.parquet import kernel
from wlr.engine.parquet.executor import Outcome, assemble
from wlr.engine.parquet.kernel import Merged
from wlr.engine.parquet.version import part_from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

    from wlc.model import TableFile
    from wlr.bulk import merging
    from wlr.bulk.jobs import Jobs
    from wlr.engine.parquet.alter import Alteration
    from wlr.engine.parquet.executor import Job, LocalExecutor
    from wlr.engine.parquet.folder import Folder
    from wlr.engine.parquet.version import Part
    from wlr.fold import TargetTable

_TASKS_PER_CORE = 2
_DONE = "done STRING"


@dataclass(slots=True)
class SparkExecutor:
    """Gives large work to Spark, and small work, and what needs a whole table at once, to this process.

    Attributes:
        local: The executor of this process.
        folder: The replica.
        jobs: Spark's jobs.
    """

    local: LocalExecutor
    folder: Folder
    jobs: Jobs

    def merge(self, job: Job, fetch: Callable[[TableFile], Path]) -> Outcome:
        # The copies of a bag's row may lie in any of its files: which of them go is decided in one place.
        if not self._is_large(job.change.added + job.change.removed, job.parts) or _needs_whole_table(job):
            return self.local.merge(job, fetch)
        from wlr.bulk import merging

        parts = job.parts if job.table.key else ()
        slots = len(parts) if job.table.key else -(-job.change.added // kernel.ROWS_PER_FILE)
        work = merging.Work(
            table=job.table,
            parts=tuple(parts),
            slots=max(slots, 1),
            tick=job.tick,
            target=self.folder.url,
            target_options=self.folder.storage_options,
            farm=self.jobs.farm,
            tasks=route_tasks(job.change.reads),
        )
        results = {}
        for done in self._run(work, f"merge {job.table.name} up to tick {job.tick}"):
            new = tuple(part_from_json(part, self.folder.url) for part in done["parts"])
            merged = Merged((), done["keeps_base"], done["removed"], done["added"], done["total"])
            results[done["part"] if job.table.key else len(job.parts) + done["part"]] = merged, new
        return assemble(job.parts, results)

    def split(self, table: TargetTable, files: Sequence[Path], tick: int) -> tuple[Part, ...]:
        return self.local.split(table, files, tick)

    def sort(self, table: TargetTable, parts: Sequence[Part], tick: int) -> tuple[Part, ...]:
        return self.local.sort(table, parts, tick)

    def alter(self, alteration: Alteration, parts: Sequence[Part], tick: int) -> tuple[Part, ...]:
        if not self._is_large(0, parts):
            return self.local.alter(alteration, parts, tick)
        from wlr.bulk import merging

        work = merging.Alter(alteration, tuple(parts), tick, self.folder.url, self.folder.storage_options)
        frame = self.jobs.numbered(len(parts), work, _DONE)
        found = self._collect(frame, f"alter {alteration.table} at tick {tick}")
        by_part = {done["part"]: [part_from_json(part, self.folder.url) for part in done["parts"]] for done in found}
        return tuple(part for number in range(len(parts)) for part in by_part[number])

    def close(self) -> None:
        self.local.close()
        self.jobs.close()

    def _is_large(self, images: int, parts: Sequence[Part]) -> bool:
        rows = images + sum(part.file.rows for part in parts)
        return self.jobs.bulk.engine == "spark" or rows >= self.jobs.bulk.spark_rows

    def _run(self, work: merging.Work, text: str) -> list[dict[str, Any]]:
        from wlr.bulk import merging
        from wlr.bulk.session import cores

        routed = self.jobs.numbered(len(work.tasks), merging.Route(work), merging.ROUTED)
        # A task may merge several base files: each costs a task's start, which few of them are worth.
        tasks = min(work.slots, _TASKS_PER_CORE * cores(self.jobs.spark))
        return self._collect(self.jobs.gathered(routed, tasks, merging.Merge(work), _DONE), text)

    def _collect(self, frame: DataFrame, text: str) -> list[dict[str, Any]]:
        from wlr.bulk import merging

        with self.jobs.running(text):
            rows = frame.collect()
        found = [json.loads(row["done"]) for row in rows]
        for done in found:
            merging.raise_told(done)
        return found


def _needs_whole_table(job: Job) -> bool:
    return not job.table.key and bool(job.change.removed)
