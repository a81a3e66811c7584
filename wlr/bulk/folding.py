"""Large backlogs for a target that is a database: Spark folds them, and the target applies the net change in one go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from wlr.bulk.jobs import route_tasks
from wlr.plan import Limits

if TYPE_CHECKING:
    from pathlib import Path

    from wlr.bulk.jobs import Jobs
    from wlr.fold import TargetTable
    from wlr.plan import TableChange

_BUCKET_ROWS = 500_000
_FOLDED = "payload BINARY"


@dataclass(slots=True)
class SparkFold:
    """Folds the changes of a table in Spark's tasks and brings the net change here.

    Attributes:
        limits: How much a step may hold: all of it becomes visible in one transaction, whose rows the target holds.
        jobs: Spark's jobs.
        work: Folder that the net changes are put into.
    """

    limits: ClassVar[Limits] = Limits(rows=50_000_000, transactions=2_000_000, files=4096)

    jobs: Jobs
    work: Path
    _count: int = 0

    def __call__(self, table: TargetTable, change: TableChange) -> list[str] | None:
        # What only adds has nothing to be folded.
        if not change.removed:
            return None
        from wlr.bulk import merging

        buckets = -(-(change.added + change.removed) // _BUCKET_ROWS)
        work = merging.Folding(table, self.jobs.farm, route_tasks(change.reads), buckets)
        routed = self.jobs.numbered(len(work.tasks), merging.Scatter(work), merging.ROUTED)
        folded = self.jobs.gathered(routed, buckets, merging.Gather(work), _FOLDED)
        files = []
        with self.jobs.running(f"fold {table.name} up to tick {change.reads[-1].last}"):
            for row in folded.toLocalIterator():
                self._count += 1
                file = self.work / f"folded {self._count}.parquet"
                file.write_bytes(row["payload"])
                files.append(str(file))
        return files
