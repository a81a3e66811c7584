"""The change feed as a stream: log files are its offsets, so that a restart reads each exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow

from wlc.farm.errors import CorruptError, InvalidError
from wlr import log_reader
from wlr.plan.stop import Stop
from wlr.reading.feed import plan_feed, refuse_other_columns
from wlr.reading.query import feed_column
from wlr.spark.read.tasks import ReadJob, ReadTask, feed_tasks
from wlr.spark.task_reading import speaking

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from wlc.farm.database import FarmDatabase
    from wlr.spark.read.resolved_options import FoundTable

# {"batch": number of the last log file that was read, "chain": its chain hash}, and "first", a tick, until the stream
# has reached it. A query that is started again goes on from its checkpoint, whatever its options say then.
Offset = dict[str, Any]


class FarmStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads log file after log file.

    The offset carries the chain hash: a farm that was restored from another past has another one and is refused.
    """

    def __init__(self, found: FoundTable, schema: StructType) -> None:
        stop = found.options.stop
        if stop != Stop():
            name = "to_time" if stop.tick is None else "to_tick"
            raise InvalidError(f"a stream has no option {name!r}", hint="Stop it with trigger(availableNow=True).")
        self.found = found
        self.job = ReadJob(found.options.place, schema, found.options.verify)
        self._last: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, as those below.
        with speaking():
            database = self._open()
            numbers = database.batch_numbers()
            first = self.found.first
            number = log_reader.batch_of(database, first) if first is not None else (numbers[0] if numbers else 1)
            if number not in numbers:
                return _offset(database, number - 1, first)
            batch, _ = database.read_batch(number)
            # Whatever was before the oldest log file, the stream begins with it.
            return {"batch": number - 1, "chain": batch.previous, "first": batch.first if first is None else first}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        with speaking():
            database = self._open()
            numbers = database.batch_numbers(after=start["batch"])
            if self._last is not None:
                numbers = [number for number in numbers if number <= self._last]
            if isinstance(limit, ReadMaxFiles):
                numbers = numbers[: limit.max_files]
            if numbers:
                return _offset(database, numbers[-1], start.get("first"))
            return start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.found.options.batches_max
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with speaking():
            numbers = self._open().batch_numbers()
            self._last = numbers[-1] if numbers else 0

    def partitions(self, start: Offset, end: Offset) -> list[ReadTask]:
        with speaking():
            if start["batch"] == end["batch"]:
                return []
            database, options = self._open(), self.found.options
            first = start.get("first", 1)
            batches = log_reader.batches_between(
                database, start["batch"] + 1, end["batch"], start["chain"], after=first
            )
            if batches[-1][1] != end["chain"]:
                raise _other_past(database, end["batch"])
            table, columns = self.found.table, self.found.layout.stored
            plan = plan_feed(database, batches, table, (first, None))
            wanted = [column.name for column in columns if feed_column(column.name) in self.job.wanted]
            first_read = max(first, batches[0][0].first)
            refuse_other_columns(database, plan, table, wanted, first_read, has_begun="first" not in start)
            return feed_tasks(self.found.layout, plan, options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return partition.read(self.job) if isinstance(partition, ReadTask) else iter(())

    def _open(self) -> FarmDatabase:
        return self.found.options.place.open()


def _offset(database: FarmDatabase, number: int, first: int | None) -> Offset:
    last, chain = 0, ""
    if number:
        batch, chain = database.read_batch(number)
        last = batch.last
    return {"batch": number, "chain": chain, **({} if first is None or last >= first else {"first": first})}


def _other_past(database: FarmDatabase, number: int) -> CorruptError:
    return CorruptError(
        f"batch {number} of {database.url} is not the one that the stream has seen",
        hint="The master was restored from another past: begin a new stream, with a new checkpoint.",
        path=database.url,
    )
