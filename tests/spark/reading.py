"""What the tests of this folder share: a short way to read, and rows in a form that can be compared."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import duckdb

from tests.oracle import contents, replayed
from wlc.dialect.sql import quote
from wlr.spark import FarmDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Texts = Counter[tuple[str | None, ...]]


def read(spark: SparkSession, url: str, table: str, **options: object) -> DataFrame:
    reader = spark.read.format("dbfarm").option("database", url).option("table", table)
    for name, value in options.items():
        reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    return reader.load()


def texts(frame: DataFrame) -> Texts:
    """Rows as DuckDB writes them: Spark has other texts for floats."""
    arrow = frame.toArrow()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("got", arrow)
        columns = ", ".join(f"CAST({quote(name)} AS VARCHAR)" for name in frame.columns)
        return Counter(connection.execute(f"SELECT {columns} FROM got").fetchall())


def tasks_rows(url: str, table: str, *columns: str, **options: str) -> Texts:
    """Run the tasks of a read in this process and return their rows as text."""
    source = FarmDataSource({"database": url, "table": table, **options})
    schema = source.schema()
    reader = source.reader(schema)
    names = columns or tuple(field.name for field in schema.fields)
    found: Texts = Counter()
    with duckdb.connect() as connection:
        for task in reader.partitions():
            for batch in reader.read(task):
                connection.register("got", batch)
                listed = ", ".join(f"CAST({quote(name)} AS VARCHAR)" for name in names)
                found.update(connection.execute(f"SELECT {listed} FROM got").fetchall())
    return found


def expected(url: str, table: str, tick: int) -> Texts:
    """What the oracle says of a table, from the first batch on, past all snapshots: nothing was pruned."""
    made = replayed(url, tick)
    made.db.snapshot_ticks = list  # type: ignore[method-assign]
    with made as (connection, catalog):
        return contents(connection, catalog)[table]
