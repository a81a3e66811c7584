"""Large backlogs for a target that is a database: Spark folds them, and the target applies the net change in one go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlr.bulk.executor import farm_of, route_tasks
from wlr.plan import Limits

if TYPE_CHECKING:
    from pathlib import Path

    from wlr.bulk.session import Session
    from wlr.engine import Bulk
    from wlr.fold import TargetTable
    from wlr.plan import TableChange

_BUCKET_ROWS = 500_000
_FOLDED = "payload BINARY"
# All of a step becomes visible in one transaction, whose rows the target has to hold.
_LIMITS = Limits(rows=50_000_000, transactions=2_000_000, files=4096)


@dataclass(slots=True)
class SparkFold:
    """Folds the changes of a table in Spark's tasks and brings the net change here.

    Attributes:
        bulk: Where Spark and the farm are.
        work: Folder that the net changes are put into.
    """

    bulk: Bulk
    work: Path
    _session: Session | None = None
    _count: int = 0

    @property
    def limits(self) -> Limits:
        """How much a step may hold."""
        return _LIMITS

    def __call__(self, table: TargetTable, change: TableChange) -> list[str] | None:
        rows = change.added + change.removed
        # What only adds has nothing to be folded.
        if not change.removed:
            return None
        from wlr.bulk import merging
        from wlr.bulk.session import described, few_rows_at_once, spark_session

        if self._session is None:
            self._session = spark_session(self.bulk.spark_master)
        spark = self._session.spark
        tasks = route_tasks(change.reads)
        work = merging.Folding(table, farm_of(self.bulk), tasks, buckets=-(-rows // _BUCKET_ROWS))
        with merging.quiet():
            routed = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(merging.Scatter(work), merging.ROUTED)
            folded = routed.repartitionById(work.buckets, routed["part"]).mapInArrow(merging.Gather(work), _FOLDED)
        files = []
        text = f"dbfarm: fold {table.name} up to tick {change.reads[-1].last}"
        with described(spark, text), few_rows_at_once(spark), merging.translated():
            for row in folded.toLocalIterator():
                self._count += 1
                file = self.work / f"folded {self._count}.parquet"
                file.write_bytes(row["payload"])
                files.append(str(file))
        return files

    def close(self) -> None:
        """Stop a session that was started for this."""
        if self._session is not None and self._session.started:
            self._session.spark.stop()
