"""Spark's jobs of one replay: an existing session, or one started with the first job, and the jobs' shared data."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING

from wlc.farm.seal.keys import for_tasks
from wlr.spark.task_reading import FarmPlace, grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from wlc.dialect.duckdb.fold import TargetTable
    from wlc.farm.database import FarmDatabase
    from wlr.replay.plan.step import Read
    from wlr.spark.replay.rows import SparkTask
    from wlr.spark.session import SparkHandle

# Approximate maximum of row images per routing task: few enough for its memory, enough to be worth a task.
_ROUTED_ROWS = 1_000_000


@dataclass(slots=True)
class Jobs:
    """Builds and runs the jobs of a replay. The first one imports pyspark.

    Attributes:
        database: The farm's database.
        spark_master: Spark master to start a session at; that of the environment if omitted.
    """

    database: FarmDatabase
    spark_master: str | None = None
    _session: SparkHandle | None = None

    @property
    def spark(self) -> SparkSession:
        """The session; started unless the program has one."""
        from wlr.spark.session import spark_session

        if self._session is None:
            self._session = spark_session(self.spark_master)
        return self._session.spark

    @property
    def farm(self) -> FarmPlace:
        """The farm, for tasks."""
        return FarmPlace(self.database.url, None, for_tasks(self.database.storage_options))

    @property
    def cores(self) -> int:
        """Number of tasks that can run at once."""
        from wlr.spark.session import cores

        return cores(self.spark)

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
            frame: The job.
            text: Its description, for Spark's user interface.
            streamed: Fetch the payloads task by task, because all together may not fit into memory.

        Raises:
            StepError, FarmError: The error of a task.
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
        """Stop a session that this object started."""
        if self._session is not None and self._session.started:
            self._session.spark.stop()


def numbered(counts: Iterable[int]) -> list[range]:
    """Number the parts of all tables of a job, from 0 on; return the numbers of each."""
    ends = list(accumulate(counts, initial=0))
    return [range(first, end) for first, end in pairwise(ends)]


def shown(tables: Sequence[TargetTable]) -> str:
    """Name the table of a job, or count them, for Spark's user interface."""
    return str(tables[0].name) if len(tables) == 1 else f"{len(tables)} tables"


@dataclass(frozen=True, slots=True)
class Share:
    """The reads of one task in one table.

    Attributes:
        table: Number of the table in the job.
    """

    table: int
    reads: tuple[Read, ...]


def route_tasks(tables: Sequence[Sequence[Read]], at_once: int = 1) -> tuple[tuple[Share, ...], ...]:
    """Distribute the reads of tables over tasks with about the same number of images, which end together.

    Args:
        tables: The reads of each table.
        at_once: Number of tasks that may run at once; even small tables are distributed over so many tasks.
    """
    reads = [(table, read) for table, reads in enumerate(tables) for read in reads]
    rows = sum(read.file.file.rows for _, read in reads)
    tasks = max(1, -(-rows // _ROUTED_ROWS), min(at_once, len(tables)))
    runs = grouped(reads, lambda item: item[1].file.file.rows, -(-rows // tasks))
    return tuple(
        tuple(Share(table, tuple(read for _, read in of)) for table, of in groupby(run, key=lambda item: item[0]))
        for run in runs
    )
