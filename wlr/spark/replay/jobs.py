"""Spark's jobs of one replay: a session that exists or is started with the first job, and what all jobs share."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.farm.seal.keys import for_tasks
from wlr.spark.reading import FarmPlace, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from wlc.farm.database import FarmDatabase
    from wlr.plan.step import Read
    from wlr.spark.replay.rows import SparkTask
    from wlr.spark.session import SparkHandle

# About as many row images as one task routes at most: few enough for its memory, enough to be worth a task.
_ROUTED_ROWS = 1_000_000


@dataclass(slots=True)
class Jobs:
    """Builds and runs the jobs of a replay. pyspark is imported with the first one.

    Attributes:
        database: The farm's database.
        spark_master: Spark master to start a session at; that of the environment if omitted.
    """

    database: FarmDatabase
    spark_master: str | None = None
    _session: SparkHandle | None = None

    @property
    def spark(self) -> SparkSession:
        """The session; one is started unless the program has one."""
        from wlr.spark.session import spark_session

        if self._session is None:
            self._session = spark_session(self.spark_master)
        return self._session.spark

    @property
    def farm(self) -> FarmPlace:
        """Where tasks find the farm."""
        return FarmPlace(self.database.url, None, for_tasks(self.database.storage_options))

    def numbered(self, count: int, task: SparkTask) -> DataFrame:
        """Plan `count` tasks that each get their number, from 0 on."""
        from wlr.spark.replay.rows import ROWS
        from wlr.spark.session import quiet

        with quiet():
            return self.spark.range(0, count, 1, count).mapInArrow(task, ROWS)

    def gathered(self, routed: DataFrame, count: int, task: SparkTask) -> DataFrame:
        """Plan `count` tasks that each get the payloads of one or several numbered parts."""
        from wlr.spark.replay.rows import ROWS
        from wlr.spark.session import quiet

        with quiet():
            return routed.repartitionById(count, routed["part"]).mapInArrow(task, ROWS)

    def run(self, frame: DataFrame, text: str, *, streamed: bool = False) -> Iterator[tuple[int, bytes]]:
        """Run a job and give the payloads of its tasks with their numbers.

        Args:
            frame: What to run.
            text: What it does, for Spark's user interface.
            streamed: Fetch the payloads one task after the other, because all together may not fit into memory.

        Raises:
            StepError, FarmError: As a task met it.
            UnavailableError: Spark failed.
        """
        from wlr.spark.replay.rows import load_error

        with self._running(text):
            for row in frame.toLocalIterator() if streamed else frame.collect():
                if row["error"] is not None:
                    raise load_error(bytes(row["error"]))
                yield row["part"], bytes(row["payload"])

    @contextmanager
    def _running(self, text: str) -> Iterator[None]:
        from wlr.spark.session import described, few_rows_at_once, translated

        with described(self.spark, f"dbfarm: {text}"), few_rows_at_once(self.spark), translated():
            yield

    def close(self) -> None:
        """Stop a session that was started for this."""
        if self._session is not None and self._session.started:
            self._session.spark.stop()


def route_tasks(reads: Sequence[Read]) -> tuple[tuple[Read, ...], ...]:
    """Gather reads into tasks that route about the same number of images: the last one ends when the others do."""
    rows = sum(read.file.file.rows for read in reads)
    tasks = max(1, -(-rows // _ROUTED_ROWS))
    return tuple(map(tuple, grouped(reads, -(-rows // tasks))))
