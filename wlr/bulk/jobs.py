"""Spark's jobs of one replay: a session that is there or is started with the first job, and what all jobs share."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.keys import for_tasks
from wlr.bulk.reading import FarmPlace, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from wlr.bulk.session import Session
    from wlr.engine import Bulk
    from wlr.plan import Read

# Most row images that one task routes, about: little enough for its memory, much enough to be worth a task.
_ROUTED_ROWS = 1_000_000


@dataclass(slots=True)
class Jobs:
    """Builds and runs the jobs of a replay.

    Attributes:
        bulk: Where Spark and the farm are.
    """

    bulk: Bulk
    _session: Session | None = None

    @property
    def spark(self) -> SparkSession:
        """The session; one is started if there is none."""
        # pyspark is imported only where there is work for it.
        from wlr.bulk.session import spark_session

        if self._session is None:
            self._session = spark_session(self.bulk.spark_master)
        return self._session.spark

    @property
    def farm(self) -> FarmPlace:
        """Where tasks find the farm."""
        database = self.bulk.database
        return FarmPlace(database.url, None, for_tasks(database.storage_options))

    def numbered(self, count: int, work: Any, schema: str) -> DataFrame:
        """Have `count` tasks that each get their number, from 0 on, and give rows of a schema."""
        from wlr.bulk import merging

        with merging.quiet():
            return self.spark.range(0, count, 1, count).mapInArrow(work, schema)

    def gathered(self, routed: DataFrame, count: int, work: Any, schema: str) -> DataFrame:
        """Have `count` tasks that each get the payloads of one or several numbered parts, and give rows of a schema."""
        from wlr.bulk import merging

        with merging.quiet():
            return routed.repartitionById(count, routed["part"]).mapInArrow(work, schema)

    @contextmanager
    def running(self, text: str) -> Iterator[None]:
        """Say in Spark's user interface what is done inside; errors of Spark become `UnavailableError`."""
        from wlr.bulk import merging
        from wlr.bulk.session import described, few_rows_at_once

        with described(self.spark, f"dbfarm: {text}"), few_rows_at_once(self.spark), merging.translated():
            yield

    def close(self) -> None:
        """Stop a session that was started for this."""
        if self._session is not None and self._session.started:
            self._session.spark.stop()


def route_tasks(reads: Sequence[Read]) -> tuple[tuple[Read, ...], ...]:
    """Gather reads into tasks that route their images, each about as many: the last one ends when the others do."""
    rows = sum(read.file.file.rows for read in reads)
    tasks = max(1, -(-rows // _ROUTED_ROWS))
    return tuple(map(tuple, grouped(reads, -(-rows // tasks))))
