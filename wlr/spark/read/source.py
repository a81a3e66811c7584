"""Spark's data source "dbfarm": a table of a farm as of a moment, or its change feed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

from wlc.farm.errors import InvalidError
from wlr import log_reader
from wlr.reading.contents import narrowed
from wlr.reading.feed import plan_feed
from wlr.spark.read import catalog_table, filters
from wlr.spark.read.options import read_options
from wlr.spark.read.resolved_options import FoundTable
from wlr.spark.read.stream import FarmStreamReader
from wlr.spark.read.tasks import ReadJob, ReadTask, feed_tasks, table_tasks
from wlr.spark.task_reading import speaking

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, Filter, InputPartition
    from pyspark.sql.types import StructType


class FarmDataSource(DataSource):  # type: ignore[misc]  # pyspark has no types that mypy follows.
    """Reads a table of a farm database, or the changes of one, on any farm URL.

    Register it with `spark.dataSource.register(wlr.spark.FarmDataSource)`, then `spark.read.format("dbfarm")`. The
    package has to be installed where Spark's Python workers run. docs/spark.md lists the options.
    """

    _found: FoundTable | None = None

    @classmethod
    def name(cls) -> str:
        return "dbfarm"

    def schema(self) -> StructType:
        with speaking():
            if catalog_table.is_created(self.options):
                options = catalog_table.options_given(self.options)
                return catalog_table.carrying(FoundTable(read_options(options)).schema, options)
            return self._find(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        with speaking():
            found = self._find({**catalog_table.carried(schema), **self.options})
            found.check(schema)
            return (FilteringReader if found.options.pushdown else FarmReader)(found, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name.
        with speaking():
            found = self._find({**catalog_table.carried(schema), **self.options}, is_stream=True)
            found.check(schema)
            return FarmStreamReader(found, schema)

    def _find(self, options: Mapping[str, str], *, is_stream: bool = False) -> FoundTable:
        # Spark keeps this object for the whole query, so that all parts of the query see the same moment.
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
        # If there are no tasks, Spark makes one of its own.
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
        # The first transaction of a history can be the first of a feed, as nothing is wanted of what was before it.
        batches = log_reader.batches_of(database, first or 1, last, after=first)
        plan = plan_feed(database, batches, self.found.table, (first or 1, last))
        return feed_tasks(self.found.layout, plan, options.partitions)


class FilteringReader(FarmReader):
    """A reader that leaves out rows that Spark would only drop.

    A class of its own, because Spark refuses a reader that takes filters unless its setting
    `spark.sql.python.filterPushdown.enabled` is on.
    """

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name.
        self.job = replace(self.job, conditions=filters.conditions(filters_, self.job.schema))
        if self.found.options.changes:
            self.ticks = filters.tick_range(filters_)
        # Spark applies all filters again: those applied here only save work.
        return filters_
