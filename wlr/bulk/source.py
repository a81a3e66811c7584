"""Spark's data source "dbfarm": a table of a farm as of a moment, or its change feed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

from wlc.errors import InvalidError
from wlc.model import file_column
from wlr.bulk import filters, log, query
from wlr.bulk.feed import contents_at, feed_tasks, refuse_broken
from wlr.bulk.options import read_options
from wlr.bulk.reading import speaking
from wlr.bulk.tasks import Job, Task, table_tasks
from wlr.bulk.types import spark_schema, table_schema
from wlr.plan import Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, Filter, InputPartition
    from pyspark.sql.types import StructType

    from wlc.model import Layout, Name
    from wlr.bulk.options import Options


class FarmDataSource(DataSource):  # type: ignore[misc]  # pyspark has no types that mypy follows.
    """Reads a table of a farm database, or the changes of one, on any farm URL.

    Register it with `spark.dataSource.register(wlr.spark.FarmDataSource)`, then `spark.read.format("dbfarm")`. The
    package has to be installed where Spark's Python workers run. docs/spark.md lists the options.
    """

    _found: Found | None = None

    @classmethod
    def name(cls) -> str:
        return "dbfarm"

    def schema(self) -> StructType:
        with speaking():
            return self._find().schema

    def reader(self, schema: StructType) -> DataSourceReader:
        with speaking():
            found = self._find()
            found.check(schema)
            return (FilteringReader if found.options.pushdown else FarmReader)(found, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name.
        from wlr.bulk.stream import FarmStreamReader

        with speaking():
            found = self._find(is_stream=True)
            found.check(schema)
            return FarmStreamReader(found, schema)

    def _find(self, *, is_stream: bool = False) -> Found:
        # Spark asks for the schema once and keeps this object: later parts of the query see the same moment.
        if self._found is None:
            self._found = Found(read_options(self.options))
        if is_stream and not self._found.options.changes:
            raise InvalidError("a stream is of changes", hint='Add .option("changes", "true").')
        return self._found


class Found:
    """What the options mean in the farm as it is now.

    Attributes:
        table: Name of the table as it is written in the log.
        tick: The last transaction that counts.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        target = options.target
        self.table: Name
        self.layout: Layout
        self.table, contents, self.tick = contents_at(options.place.open(), options.table, target)
        self.layout = contents.layout
        if not options.changes:
            refuse_broken(self.table, contents)

    @property
    def schema(self) -> StructType:
        """The columns that there are."""
        if not self.options.changes:
            return table_schema(self.layout)
        columns = [(file_column(column.name), column.type) for column in self.layout.stored]
        return spark_schema([*columns, *query.FEED])

    def check(self, schema: StructType) -> None:
        """Refuse a schema, given by the user, with a column that is not there or has another type."""
        there = {field.name: field.dataType for field in self.schema.fields}
        for field in schema.fields:
            if field.name not in there:
                message = f"there is no column {field.name} in {self.table}"
                raise InvalidError(message, hint=f"Columns are: {', '.join(there)}")
            if field.dataType != there[field.name]:
                message = f"column {field.name} of {self.table} is {there[field.name].simpleString()}"
                raise InvalidError(f"{message}, not {field.dataType.simpleString()}")
            if not field.nullable:
                raise InvalidError(f"column {field.name} of {self.table} has to be nullable in a schema for Spark")


class FarmReader(DataSourceReader):  # type: ignore[misc]
    """Plans and reads a table or a change feed."""

    def __init__(self, found: Found, schema: StructType) -> None:
        self.found = found
        self.job = Job(found.options.place, schema)
        self.ticks: tuple[int | None, int | None] = (None, None)

    def partitions(self) -> list[Task]:
        with speaking():
            return self._changes() if self.found.options.changes else self._table()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without any task, Spark makes one of its own.
        return partition.read(self.job) if isinstance(partition, Task) else iter(())

    def _table(self) -> list[Task]:
        options = self.found.options
        _, contents, _ = contents_at(options.place.open(), self.found.table, Target(tick=self.found.tick))
        return table_tasks(contents, options.partitions)

    def _changes(self) -> list[Task]:
        options, (low, high) = self.found.options, self.ticks
        first, last = options.first, self.found.tick
        first = max(first or 1, low or 1) if first or low else None
        last = last if high is None else min(high, last)
        if first is not None and first > last:
            return []
        database = options.place.open()
        start = log.batch_of(database, first or 1)
        end = log.batch_of(database, last)
        batches = log.batches(database, start, min(end, _newest(database.batch_numbers())))
        return feed_tasks(
            database, batches, self.found.table, self.found.layout, (first or 1, last), options.partitions
        )


def _newest(numbers: list[int]) -> int:
    return numbers[-1] if numbers else 0


class FilteringReader(FarmReader):
    """A reader that leaves out rows that Spark would only throw away.

    A class of its own, because Spark refuses a reader that takes filters unless its setting
    `spark.sql.python.filterPushdown.enabled` is on.
    """

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name.
        self.job = Job(self.job.place, self.job.schema, filters.conditions(filters_, self.job.schema))
        if self.found.options.changes:
            self.ticks = filters.tick_range(filters_)
        # Spark applies all of them again: what we leave out is an economy, not a promise.
        return filters_
