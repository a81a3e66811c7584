"""Spark's data source "dbfarm": a table of a farm as of a moment, or its change feed.

Tables of Spark's catalog: `CREATE TABLE … USING dbfarm OPTIONS (…)`.

When Spark reads such a table, it passes the source none of the table's options, only the catalog's schema (tried with
Spark 4.3.0). So the metadata of the columns holds the options. Options of the read itself, as in `SELECT * FROM orders
WITH (tick = 3)`, are passed as usual and take precedence.

The change feed as a stream: log files are its offsets, so a restart reads each exactly once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow

from wlc.farm.errors import CorruptError, InvalidError
from wlr.reading.query import feed_column
from wlr.reading.trace import narrowed, plan_feed, refuse_other_columns
from wlr.replay import log_reader
from wlr.replay.plan.bounds import Stop
from wlr.spark.read import types
from wlr.spark.read.options import FoundTable, read_options
from wlr.spark.read.tasks import ReadJob, ReadTask, feed_tasks, table_tasks
from wlr.spark.task_reading import speaking

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import Filter, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from wlc.farm.database import FarmDatabase


class FarmDataSource(DataSource):  # type: ignore[misc]  # pyspark has no types that mypy follows.
    """Reads a table of a farm database, or its changes, on any farm URL.

    Register it with `spark.dataSource.register(wlr.spark.FarmDataSource)`, then `spark.read.format("dbfarm")`. The
    package must be installed where Spark's Python workers run. docs/spark.md lists the options.

    Examples:
        >>> spark.dataSource.register(wlr.spark.FarmDataSource)
        >>> reader = spark.read.format("dbfarm").option("farm", "/srv/farm").option("database", "sales")
        >>> reader.option("table", "orders").load().count()
        2
    """

    _found: FoundTable | None = None

    @classmethod
    def name(cls) -> str:
        return "dbfarm"

    def schema(self) -> StructType:
        with speaking():
            if is_created(self.options):
                options = options_given(self.options)
                return carrying(FoundTable(read_options(options)).schema, options)
            return self._find(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        with speaking():
            found = self._find({**carried(schema), **self.options})
            found.check(schema)
            return (FilteringReader if found.options.pushdown else FarmReader)(found, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name.
        with speaking():
            found = self._find({**carried(schema), **self.options}, is_stream=True)
            found.check(schema)
            return FarmStreamReader(found, schema)

    def _find(self, options: Mapping[str, str], *, is_stream: bool = False) -> FoundTable:
        # Spark keeps this object for the whole query, so all parts of the query see the same moment.
        if self._found is None:
            self._found = FoundTable(read_options(options))
        if is_stream and not self._found.options.changes:
            raise InvalidError("a stream is of changes", hint='Add .option("changes", "true").')
        return self._found


class FarmReader(DataSourceReader):  # type: ignore[misc]
    """Plans and reads a table or a change feed."""

    def __init__(self, found: FoundTable, schema: StructType) -> None:
        self.found = found
        self.job = ReadJob(found.options.place, schema, found.options.verify)
        self.ticks: tuple[int | None, int | None] = (None, None)

    def partitions(self) -> list[ReadTask]:
        with speaking():
            return self._changes() if self.found.options.changes else self._table()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without tasks, Spark makes its own task.
        return partition.read(self.job) if isinstance(partition, ReadTask) else iter(())

    def _table(self) -> list[ReadTask]:
        assert self.found.contents is not None
        contents = narrowed(self.found.contents, self.job.wanted)
        return table_tasks(contents, self.found.options.partitions)

    def _changes(self) -> list[ReadTask]:
        options, (low, high) = self.found.options, self.ticks
        first, last = self.found.first, self.found.tick
        first = max(first or 1, low or 1) if first or low else None
        last = last if high is None else min(high, last)
        if first is not None and first > last:
            return []
        database = options.place.open()
        # A feed can start with the first transaction of a history, as it needs nothing before it.
        batches = log_reader.batches_of(database, first or 1, last, after=first)
        plan = plan_feed(database, batches, self.found.table, (first or 1, last))
        return feed_tasks(self.found.layout, plan, options.partitions)


class FilteringReader(FarmReader):
    """A reader that leaves out rows that Spark would only drop.

    A separate class, because Spark refuses a reader that accepts filters unless its setting
    `spark.sql.python.filterPushdown.enabled` is on.
    """

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name.
        self.job = replace(self.job, conditions=types.conditions(filters_, self.job.schema))
        if self.found.options.changes:
            self.ticks = types.tick_range(filters_)
        # Spark applies all filters again: filters applied here only save work.
        return filters_


_KEY = "dbfarm"
# Spark's own options for a new table; it passes every option a second time with the prefix.
_PROVIDER, _PREFIX = "provider", "option."
_SPARKS_OWN = {_PROVIDER, "owner", "comment", "location", "path", "collation", "external", "table_type"}
_STORAGE = "storage."


def is_created(options: Mapping[str, str]) -> bool:
    """Return whether Spark requests the columns of a table that it is about to create."""
    return _PROVIDER in options


def carrying(schema: spark.StructType, options: Mapping[str, str]) -> spark.StructType:
    """Return a schema with options in its metadata."""
    metadata = {_KEY: dict(options)}
    return spark.StructType([spark.StructField(f.name, f.dataType, f.nullable, metadata) for f in schema.fields])


def carried(schema: spark.StructType) -> dict[str, str]:
    """Return the options in a schema's metadata; can be empty."""
    return dict(next((field.metadata[_KEY] for field in schema.fields if _KEY in (field.metadata or {})), {}))


def options_given(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a CREATE TABLE statement.

    Raises:
        InvalidError: An option would reveal a secret to readers of the catalog.
    """
    given = {name: value for name, value in options.items() if not name.startswith(_PREFIX)}
    given = {name: value for name, value in given.items() if name not in _SPARKS_OWN}
    if secret := next((name for name in given if name.startswith(_STORAGE)), None):
        hint = "Set the variables of the store, such as AWS_ACCESS_KEY_ID, or create a temporary view instead."
        raise InvalidError(
            f"a table of Spark's catalog has no option {secret!r}: every user of the catalog can read it", hint=hint
        )
    return given


# {"batch": number of the last log file that was read, "chain": its chain hash}, and "first", a tick, until the stream
# has reached it. A restarted query continues from its checkpoint, regardless of its options.
Offset = dict[str, Any]


class FarmStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads log file after log file.

    The offset holds the chain hash: a farm that was restored from a backup has another one and is refused.
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
            # The stream begins with the oldest log file, even if older ones were pruned.
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
        f"batch {number} of {database.url} differs from the one that the stream has read",
        hint="The master was restored from a backup: begin a new stream, with a new checkpoint.",
        path=database.url,
    )
