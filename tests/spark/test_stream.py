"""A stream of changes goes on where it stopped, and gives every change exactly once."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.handmade import HandmadeFarm, Rows
from tests.spark.conftest import wait_for
from wlc.farm.model import Clear, Name

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

T = Name("main", "t")


class Stream:
    """A stream from a farm into Parquet files, with a checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, url: str, **options: str) -> None:
        self.spark = spark
        self.folder = folder
        self.options = {"database": url, "table": "t", "changes": "true", **options}

    def start(self, columns: tuple[str, ...] = ("i",), **trigger: object) -> StreamingQuery:
        changes = self.spark.readStream.format("dbfarm").options(**self.options).load()
        writer = changes.select(*columns, "_tick", "_weight").writeStream.format("parquet")
        writer = writer.option("path", f"{self.folder}/out").option("checkpointLocation", f"{self.folder}/checkpoint")
        return writer.trigger(**trigger).start()

    def finish(self) -> StreamingQuery:
        """Read all that there is."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(300)
        return query

    def rows(self) -> list[tuple[object, ...]]:
        """What the sink holds, in order."""
        found = self.spark.read.parquet(f"{self.folder}/out")
        return sorted(tuple(row) for row in found.collect())


def batches(query: StreamingQuery) -> list[tuple[int, int]]:
    """Numbers of the log files that the micro-batches with rows began after and ended with."""
    offsets = [progress["sources"][0] for progress in query.recentProgress if progress["numInputRows"]]
    return [(_batch(offset["startOffset"]), _batch(offset["endOffset"])) for offset in offsets]


def _batch(offset: str) -> int:
    # Where nothing was read yet, Spark reports no start.
    return int((json.loads(offset) or {"batch": 0})["batch"])


def test_every_change_comes_once_whatever_happens(spark: SparkSession, tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE TABLE t (i INTEGER)"], *[[Rows("t", added=(str(tick),))] for tick in (2, 3)])
    farm.publish([Rows("t", removed=("2",), added=("2",))], None)
    stream = Stream(spark, tmp_path, farm.url, maxBatchesPerTrigger="1")
    # Stopped while it waits for more.
    query = stream.start(processingTime="300 milliseconds")
    wait_for(lambda: len(batches(query)) == 2, "two log files")
    farm.publish([Clear(T, 2), Rows("t", added=("6",))])
    wait_for(lambda: len(batches(query)) == 3, "the third log file")
    query.stop()
    assert batches(query) == [(0, 1), (1, 2), (2, 3)]
    first = [(2, 2, 1), (2, 4, -1), (2, 4, 1), (2, 6, -1), (3, 3, 1), (3, 6, -1), (6, 6, 1)]
    assert stream.rows() == first
    # Killed after the rows were written and before Spark noted that they were: it has to read the same again.
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink()
    shutil.rmtree(tmp_path / "out" / "_spark_metadata" / "2", ignore_errors=True)
    farm.publish([Rows("t", added=("7",))], [Rows("t", added=("8",))])
    farm.publish([Rows("t", added=("9",))])
    assert batches(stream.finish())[-2:] == [(3, 4), (4, 5)]
    assert stream.rows() == sorted([*first, (7, 7, 1), (8, 8, 1), (9, 9, 1)])
    assert batches(stream.finish()) == []
    assert len(stream.rows()) == len(first) + 3


def test_farm_from_another_past_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE TABLE t (i INTEGER)", Rows("t", added=("1",))])
    stream = Stream(spark, tmp_path, farm.url)
    stream.finish()
    shutil.rmtree(tmp_path / "farm")
    other = HandmadeFarm(tmp_path / "farm", history="h2")
    other.publish(["CREATE TABLE t (i INTEGER)", Rows("t", added=("2",))])
    other.publish([Rows("t", added=("3",))])
    query = stream.start(availableNow=True)
    with pytest.raises(Exception, match="does not follow the batch before it"):
        query.awaitTermination(300)
    assert stream.rows() == [(1, 1, 1)]


def test_streams_are_of_changes_and_open_ended(spark: SparkSession, tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE TABLE t (i INTEGER)", Rows("t", added=("1",))])
    with pytest.raises(Exception, match="a stream has no option 'to_tick'"):
        Stream(spark, tmp_path, farm.url, to_tick="1").finish()
    rows = spark.readStream.format("dbfarm").option("database", farm.url).option("table", "t").load()
    writer = rows.writeStream.format("parquet").option("path", f"{tmp_path}/rows")
    with pytest.raises(Exception, match="a stream is of changes"):
        writer.option("checkpointLocation", f"{tmp_path}/rows_checkpoint").start().awaitTermination(300)


def test_a_column_that_is_gone_ends_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    """`tests/unit/reading/test_trace.py` has all kinds of schema change."""
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE TABLE t (i INTEGER, v VARCHAR)", Rows("t", added=("1, 'a'",))])
    stream = Stream(spark, tmp_path, farm.url)
    query = stream.start(processingTime="300 milliseconds", columns=("i", "v"))
    wait_for(lambda: len(batches(query)) == 1, "the first log file")
    changes = ["ALTER TABLE t DROP COLUMN v"], [Rows("t", removed=("1",))]
    farm.publish([Rows("t", added=("2, 'b'",))], *changes)
    with pytest.raises(Exception, match=r"transaction 3 dropped or renamed column v of table main\.t") as ended:
        query.awaitTermination(60)
    assert "from_tick 2 to_tick 2, then begin a new stream with from_tick 3" in str(ended.value)
    assert stream.rows() == [(1, "a", 1, 1)]
    # As the error says.
    options = {**stream.options, "from_tick": "2", "to_tick": "2"}
    between = spark.read.format("dbfarm").options(**options).load().select("i", "v", "_tick", "_weight")
    assert [tuple(row) for row in between.collect()] == [(2, "b", 2, 1)]
    (tmp_path / "new").mkdir()
    new = Stream(spark, tmp_path / "new", farm.url, from_tick="3")
    new.finish()
    assert new.rows() == [(1, 4, -1)]


def test_a_transaction_that_changes_rows_and_renames_a_column_ends_the_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE TABLE t (i INTEGER, v VARCHAR)", Rows("t", added=("1, 'a'",))])
    farm.publish(
        [Rows("t", added=("2, 'b'",)), "ALTER TABLE t RENAME COLUMN v TO w"],
        [Rows("t", added=("3, 'c'",), removed=("1, 'a'",))],
    )
    stream = Stream(spark, tmp_path, farm.url, from_tick="2")
    query = stream.start(availableNow=True, columns=("i", "w"))
    with pytest.raises(Exception, match="transaction 2 dropped or renamed column w") as ended:
        query.awaitTermination(60)
    assert "Read the whole table at tick 2" in str(ended.value)
    assert "begin a new stream with from_tick 3 and a new checkpoint" in str(ended.value)
    # As the error says.
    whole = spark.read.format("dbfarm").options(database=farm.url, table="t", tick="2").load()
    assert sorted(tuple(row) for row in whole.select("i", "w").collect()) == [(1, "a"), (2, "b")]
    (tmp_path / "new").mkdir()
    new = Stream(spark, tmp_path / "new", farm.url, from_tick="3")
    assert new.start(availableNow=True, columns=("i", "w")).awaitTermination(60)
    assert new.rows() == [(1, "a", 3, -1), (3, "c", 3, 1)]
