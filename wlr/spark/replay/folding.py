"""Folds large backlogs for a database in Spark; the database then applies the net change in one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from wlr.plan.cut import Limits
from wlr.spark.replay.jobs import route_tasks

if TYPE_CHECKING:
    from pathlib import Path

    from wlr.fold.sql import TargetTable
    from wlr.plan.step import TableChange
    from wlr.spark.replay.jobs import Jobs

_BUCKET_ROWS = 500_000


@dataclass(slots=True)
class SparkFold:
    """Folds the changes of a table in Spark's tasks and fetches the net change.

    Attributes:
        limits: How much a step may hold; the target applies all of it in one transaction.
        jobs: Spark's jobs.
        work: Folder for the net changes.
    """

    limits: ClassVar[Limits] = Limits(rows=50_000_000, transactions=2_000_000, files=4096)

    jobs: Jobs
    work: Path
    _count: int = 0

    def __call__(self, table: TargetTable, change: TableChange) -> list[str] | None:
        # Changes that only add rows cannot be folded further.
        if not change.removed or any(read.is_local for read in change.reads):
            return None
        from wlr.spark.replay.tasks import FoldWork, GatherTask, ScatterTask

        buckets = -(-(change.added + change.removed) // _BUCKET_ROWS)
        work = FoldWork(table, self.jobs.farm, route_tasks(change.reads), buckets)
        routed = self.jobs.numbered(len(work.tasks), ScatterTask(work))
        folded = self.jobs.gathered(routed, buckets, GatherTask(work))
        files = []
        text = f"fold {table.name} up to tick {change.reads[-1].last}"
        for _, payload in self.jobs.run(folded, text, streamed=True):
            self._count += 1
            file = self.work / f"folded {self._count}.parquet"
            file.write_bytes(payload)
            files.append(str(file))
        return files

    def close(self) -> None:
        """Stop a session that was started for this."""
        self.jobs.close()
