"""Folds large backlogs for a database in Spark; the database then applies the net change in one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from wlr.replay.plan.log_steps import Limits
from wlr.spark.replay.jobs import numbered, route_tasks, shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wlc.dialect.duckdb.fold import TargetTable
    from wlc.farm.model import Name
    from wlr.replay.plan.step import TableChange
    from wlr.spark.replay.jobs import Jobs

_BUCKET_ROWS = 500_000


@dataclass(slots=True)
class SparkFold:
    """Folds the changes of tables in Spark's tasks, all in one job, and fetches the net changes.

    Attributes:
        limits: Size limits of a step, which the target applies in one transaction.
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
        # Small tables share folding tasks.
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
        """Stop a session that this object started."""
        self.jobs.close()
