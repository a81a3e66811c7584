"""What the options of a read mean in the farm: the table, its columns, the last transaction that counts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from wlc.farm.errors import InvalidError
from wlr.plan.stop import Stop
from wlr.reading.contents import contents_at, refuse_broken, tick_at
from wlr.reading.query import CHANGE_TYPE, FEED, feed_column
from wlr.spark.read.types import spark_schema, table_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from wlr.reading.trace import TableContents
    from wlr.spark.read.options import ReadOptions


class FoundTable:
    """The table that the options of a read name.

    Attributes:
        table: Name of the table as it is written in the log.
        first: The first transaction that counts in a change feed; None for the beginning of the log.
        tick: The last transaction that counts.
        contents: What the table holds then, so that the log is read once for a query; None for a change feed.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        stop = options.stop
        database = options.place.open()
        self.table, contents, self.tick = contents_at(database, str(options.table), stop)
        self.first = options.first
        if options.since is not None:
            # What was committed at that very time counts, too.
            self.first = tick_at(database, Stop(until=options.since - timedelta(microseconds=1))) + 1
        self.layout = contents.layout
        self.contents: TableContents | None = None
        if not options.changes:
            refuse_broken(self.table, contents)
            self.contents = contents

    @property
    def schema(self) -> StructType:
        """The columns that can be read."""
        if not self.options.changes:
            return table_schema(self.layout)
        columns = [(feed_column(column.name), column.type) for column in self.layout.stored]
        tick, weight, *others = FEED
        return spark_schema([*columns, tick, weight, (CHANGE_TYPE, "VARCHAR"), *others])

    def check(self, schema: StructType) -> None:
        """Refuse a schema given by the user if a column does not exist, has another type, or is not nullable."""
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
