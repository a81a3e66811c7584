"""Spark reads tables of a farm as of any moment, and their changes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

import wlc
from tests.handmade import HandmadeFarm, Rows, time_of
from tests.new_master import new_master
from tests.scratch import attached
from tests.spark.reading import expected, read, tasks_rows, texts
from wlc.farm.clock import format_time
from wlc.farm.database import open_database
from wlc.farm.model import Clear, Name
from wlr.spark import FarmDataSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import Filter

T = Name("main", "t")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of a database with a keyed table and a bag, a snapshot in the middle, and changes on both sides of it."""
    folder = tmp_path_factory.mktemp("shop")
    path = folder / "shop.duckdb"
    with new_master(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what VARCHAR, price DOUBLE)")
        connection.execute("INSERT INTO orders SELECT i, 'thing ' || i, i / 4 FROM range(1000) t(i)")
        connection.execute("CREATE TABLE visits (who VARCHAR, pages FLOAT)")
        zero = "CASE WHEN i % 2 = 0 THEN 0.0 ELSE -0.0 END"
        connection.execute(f"INSERT INTO visits SELECT 'v' || i % 5, {zero} FROM range(50) t(i)")
        wlc.flush(path)
        wlc.snapshot(path)
        connection.execute("UPDATE orders SET price = price + 1 WHERE id % 10 = 0")
        connection.execute("DELETE FROM orders WHERE id % 7 = 0")
        connection.execute("INSERT INTO orders VALUES (5000, NULL, 'nan'), (0, 'again', -0.0)")
        connection.execute("DELETE FROM visits WHERE rowid IN (SELECT min(rowid) FROM visits WHERE signbit(pages))")
        connection.execute("INSERT INTO visits VALUES ('v1', -0.0), ('v1', -0.0), (NULL, NULL)")
        wlc.flush(path)
        connection.execute("UPDATE visits SET who = 'x' WHERE who = 'v2'")
    return str(folder / "farm" / "shop")


def end(url: str) -> int:
    return open_database(url).config().tick


@pytest.mark.parametrize("table, made_at", [("orders", 1), ("visits", 3)])
def test_table_is_what_the_log_says_at_every_tick(spark: SparkSession, shop: str, table: str, made_at: int) -> None:
    for tick in range(made_at, end(shop) + 1):
        assert texts(read(spark, shop, table, tick=tick)) == expected(shop, f"main.{table}", tick), tick
    assert texts(read(spark, shop, table)) == expected(shop, f"main.{table}", end(shop))


def test_weights_of_all_changes_add_up_to_the_table(spark: SparkSession, shop: str) -> None:
    changes = read(spark, shop, "visits", changes=True)
    assert changes.columns == ["who", "pages", "_tick", "_weight", "_change_type", "_committed", "_user"]
    assert [field.dataType.simpleString() for field in changes.schema.fields[2:]] == [
        "bigint",
        "tinyint",
        "string",
        "timestamp",
        "string",
    ]
    total: Counter[tuple[str | None, ...]] = Counter()
    for row, copies in texts(changes.drop("_tick", "_change_type", "_committed", "_user")).items():
        total[row[:2]] += int(row[2] or 0) * copies
    assert +total == expected(shop, "main.visits", end(shop))


def test_a_read_is_of_the_moment_in_which_it_was_made(spark: SparkSession, tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER)", Rows("t", added=("1",))])
    frame, changes = read(spark, farm.url, "t"), read(spark, farm.url, "t", changes=True)
    farm.publish([Rows("t", added=("2",))])
    assert texts(frame) == {("1",): 1}
    assert texts(changes.select("i")) == {("1",): 1}
    assert texts(read(spark, farm.url, "t")) == {("1",): 1, ("2",): 1}
    assert texts(read(spark, farm.url, "T", time=format_time(time_of(1)))) == {("1",): 1}


# Changes of the schema -----------------------------------------------------------------------------------------------


def altered(tmp_path: Path) -> HandmadeFarm:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE a (id INTEGER PRIMARY KEY, v VARCHAR)", Rows("a", added=("1, 'x'", "2, 'y'"))])
    farm.publish(["ALTER TABLE a ADD COLUMN w VARCHAR DEFAULT 'it''s'"], [Rows("a", removed=("1, 'x', 'it''s'",))])
    farm.publish(["ALTER TABLE a RENAME COLUMN v TO vv"], ["ALTER TABLE a ADD COLUMN n HUGEINT"])
    farm.publish(["ALTER TABLE a RENAME TO b"], [Rows("b", added=("3, 'z', NULL, 5",))])
    return farm


def test_simple_alterations_are_followed(spark: SparkSession, tmp_path: Path) -> None:
    farm = altered(tmp_path)
    frame = read(spark, farm.url, "b")
    assert frame.columns == ["id", "vv", "w", "n"]
    assert texts(frame) == {("2", "y", "it's", None): 1, ("3", "z", None, "5"): 1}
    farm.publish(["ALTER TABLE b DROP COLUMN vv"], [Rows("b", removed=("2, 'it''s', NULL",))])
    assert texts(read(spark, farm.url, "b")) == {("3", None, "5"): 1}
    assert texts(read(spark, farm.url, "a", tick=2)) == {("1", "x", "it's"): 1, ("2", "y", "it's"): 1}


def test_what_cannot_be_followed_is_refused_by_its_tick(spark: SparkSession, tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER)", Rows("t", added=("1",))], ["ALTER TABLE t ALTER COLUMN i TYPE VARCHAR"])
    with pytest.raises(Exception, match="transaction 2 altered table main.t .* read a Parquet replica"):
        read(spark, farm.url, "t")
    assert texts(read(spark, farm.url, "t", tick=1)) == {("1",): 1}
    made = "CREATE OR REPLACE TABLE t (i INTEGER)"
    computed = "ALTER TABLE t ADD COLUMN r DOUBLE DEFAULT random()"
    farm.publish([made, Rows("t", added=("1",)), computed])
    with pytest.raises(Exception, match="transaction 3 altered table main.t"):
        read(spark, farm.url, "t")


def test_rows_written_anew_need_no_following(spark: SparkSession, tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER)", Rows("t", added=("1",))])
    farm.publish(["ALTER TABLE t ALTER COLUMN i TYPE BIGINT", Clear(T, 1), Rows("t", added=("1",))])
    assert read(spark, farm.url, "t").schema.simpleString() == "struct<i:bigint>"
    assert texts(read(spark, farm.url, "t")) == {("1",): 1}
    feed = texts(read(spark, farm.url, "t", changes=True).select("i", "_tick", "_weight"))
    assert feed == {("1", "1", "1"): 1, ("1", "2", "-1"): 1, ("1", "2", "1"): 1}


def test_a_table_made_anew_forgets_the_old_one(spark: SparkSession, tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER)", Rows("t", added=("1", "1"))])
    farm.publish(["CREATE OR REPLACE TABLE t (s VARCHAR, i INTEGER)"], [Rows("t", added=("'x', 2",))])
    assert texts(read(spark, farm.url, "t")) == {("x", "2"): 1}
    farm.publish(["DROP TABLE t"])
    with pytest.raises(Exception, match="there is no table main.t at tick 4"):
        read(spark, farm.url, "t")
    feed = texts(read(spark, farm.url, "t", changes=True, to_tick=3).select("s", "i", "_tick", "_weight"))
    assert feed == {(None, "1", "1", "1"): 2, (None, "1", "2", "-1"): 2, ("x", "2", "3", "1"): 1}


# Change feed ---------------------------------------------------------------------------------------------------------


def test_a_cleared_table_gives_all_its_rows_back(spark: SparkSession, shop: str, tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER)", Rows("t", added=("1", "1", "2"))], [Rows("t", removed=("1",))])
    farm.publish([Rows("t", added=("7",))], [Clear(T, 3), Rows("t", added=("9",))])
    feed = read(spark, farm.url, "t", changes=True, from_tick=4)
    assert texts(feed.select("i", "_tick", "_weight", "_user")) == {
        ("1", "4", "-1", "ann"): 1,
        ("2", "4", "-1", "ann"): 1,
        ("7", "4", "-1", "ann"): 1,
        ("9", "4", "1", "ann"): 1,
    }
    assert texts(feed.select("_committed").distinct()) == {("2026-01-01 00:00:04+00",): 1}


def test_range_of_changes_includes_both_ends(spark: SparkSession, tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER)"], *[[Rows("t", added=(str(tick),))] for tick in range(2, 5)])
    farm.publish(*[[Rows("t", added=(str(tick),))] for tick in range(5, 8)], None)
    feed = read(spark, farm.url, "t", changes=True, from_tick=3, to_tick=6)
    assert sorted(texts(feed.select("i", "_tick"))) == [(str(tick), str(tick)) for tick in range(3, 7)]
    assert texts(read(spark, farm.url, "t", changes=True, from_tick=9)) == {}
    with pytest.raises(Exception, match="tick 9 is not published: the farm's last one is 8"):
        read(spark, farm.url, "t", changes=True, to_tick=9)
    times = {"from_time": format_time(time_of(3)), "to_time": format_time(time_of(6))}
    assert sorted(tasks_rows(farm.url, "t", "i", changes="true", **times)) == [(str(tick),) for tick in range(3, 7)]
    long_ago = tasks_rows(farm.url, "t", "i", changes="true", from_time="2000-01-01", to_tick="2")
    assert long_ago == {("2",): 1}
    assert tasks_rows(farm.url, "t", "i", changes="true", from_time="now") == {}


def test_changes_have_types(tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER, j INTEGER, v VARCHAR, PRIMARY KEY (i, j))", "CREATE TABLE b (v VARCHAR)"])
    farm.publish([Rows("t", added=("1, 1, 'a'", "1, 2, 'b'")), Rows("b", added=("'x'",))])
    farm.publish(
        [Rows("t", removed=("1, 1, 'a'", "1, 2, 'b'"), added=("1, 1, 'c'", "1, 3, 'b'"))],
        # A key that another transaction of the same file removed is none that this one updates.
        [Rows("t", removed=("1, 1, 'c'",)), Rows("b", removed=("'x'",), added=("'y'",))],
        [Rows("t", added=("1, 1, 'd'",))],
    )
    farm.publish([Clear(T, 2), Rows("t", added=("1, 1, 'e'",))])
    feed = tasks_rows(farm.url, "t", "_tick", "i", "j", "v", "_change_type", "_weight", changes="true")
    assert sorted(feed) == [
        ("2", "1", "1", "a", "insert", "1"),
        ("2", "1", "2", "b", "insert", "1"),
        ("3", "1", "1", "a", "update_preimage", "-1"),
        ("3", "1", "1", "c", "update_postimage", "1"),
        ("3", "1", "2", "b", "delete", "-1"),
        ("3", "1", "3", "b", "insert", "1"),
        ("4", "1", "1", "c", "delete", "-1"),
        ("5", "1", "1", "d", "insert", "1"),
        ("6", "1", "1", "d", "delete", "-1"),
        ("6", "1", "1", "e", "insert", "1"),
        ("6", "1", "3", "b", "delete", "-1"),
    ]
    bag = tasks_rows(farm.url, "b", "_tick", "v", "_change_type", changes="true")
    assert sorted(bag) == [("2", "x", "insert"), ("4", "x", "delete"), ("4", "y", "insert")]


def test_older_layouts_map_by_name(spark: SparkSession, tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER, gone INTEGER, _tick VARCHAR)", Rows("t", added=("1, 2, 'x'",))])
    farm.publish(["ALTER TABLE t DROP COLUMN gone"], ["ALTER TABLE t ADD COLUMN more HUGEINT DEFAULT 3"])
    farm.publish([Rows("t", added=("2, 'y', 4",))])
    feed = read(spark, farm.url, "t", changes=True)
    assert feed.columns == ["i", "__tick", "more", "_tick", "_weight", "_change_type", "_committed", "_user"]
    assert texts(feed.select("i", "__tick", "more", "_tick")) == {("1", "x", None, "1"): 1, ("2", "y", "4", "4"): 1}
    assert read(spark, farm.url, "t").columns == ["i", "_tick", "more"]


def test_renamed_tables_and_values_that_do_not_fit_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="transaction 6 renamed a table"):
        read(spark, altered(tmp_path / "1").url, "b", changes=True).collect()
    farm = HandmadeFarm(tmp_path / "2")
    farm.publish(["CREATE TABLE t (i VARCHAR)", Rows("t", added=("'01'",))])
    farm.publish(["ALTER TABLE t ALTER COLUMN i TYPE BIGINT", Clear(T, 1), Rows("t", added=("1",))])
    with pytest.raises(Exception, match="column i was VARCHAR, and has a value that BIGINT cannot hold: 01"):
        read(spark, farm.url, "t", changes=True).collect()


# Planning ------------------------------------------------------------------------------------------------------------


def test_large_snapshots_are_read_by_several_tasks(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "big.duckdb"
    with new_master(path) as connection:
        connection.execute("CREATE TABLE t (i BIGINT PRIMARY KEY, j BIGINT)")
        connection.execute("INSERT INTO t SELECT i, i % 97 FROM range(1500000) t(i)")
        wlc.flush(path)
        wlc.snapshot(path)
        connection.execute("DELETE FROM t WHERE i % 3 = 0")
        connection.execute("UPDATE t SET j = -1 WHERE i % 300 = 1")
    frame = read(spark, f"{tmp_path}/farm/big", "t")
    # Three slices of the snapshot, and the net change.
    assert frame.rdd.getNumPartitions() == 4
    sums = frame.selectExpr("count(*)", "sum(i)", "sum(j)").collect()[0]
    with attached(path) as connection:
        assert tuple(sums) == connection.execute("SELECT count(*), sum(i), sum(j) FROM t").fetchone()


def rows_read(url: str, table: str, filters: list[Filter], **options: str) -> tuple[int, list[Filter]]:
    """Count the rows that the tasks of a read give to Spark, in this process, and return what is left to Spark."""
    source = FarmDataSource({"database": url, "table": table, "pushdown": "true", **options})
    reader = source.reader(source.schema())
    left = reader.pushFilters(filters)
    return sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)), list(left)


@pytest.mark.parametrize(
    "filters, condition",
    [
        ([EqualTo(("id",), 5)], "id = 5"),
        ([GreaterThanOrEqual(("id",), 10), LessThan(("id",), 30)], "id BETWEEN 10 AND 29"),
        ([Not(In(("id",), (1, 2, 3)))], "id NOT IN (1, 2, 3)"),
        ([StringStartsWith(("what",), "thing 1%")], "false"),
        ([StringContains(("what",), "ing 12")], "contains(what, 'ing 12')"),
        ([EqualTo(("what",), "it's"), IsNotNull(("id",))], "false"),
        ([IsNull(("what",))], "what IS NULL"),
        ([GreaterThan(("price",), 3.0)], "true"),
    ],
)
def test_filters_leave_rows_out(shop: str, filters: list[Filter], condition: str) -> None:
    count, left = rows_read(shop, "orders", filters)
    assert left == filters
    with attached(shop.replace("/farm/shop", "/shop.duckdb")) as connection:
        assert (count,) == connection.execute(f"SELECT count(*) FROM orders WHERE {condition}").fetchone()


def test_filters_on_ticks_leave_files_out(shop: str) -> None:
    everything, _ = rows_read(shop, "orders", [], changes="true")
    late, _ = rows_read(shop, "orders", [GreaterThan(("_tick",), 5), LessThanOrEqual(("_tick",), 6)], changes="true")
    assert everything > 1000
    source = FarmDataSource({"database": shop, "table": "orders", "pushdown": "true", "changes": "true"})
    reader = source.reader(source.schema())
    reader.pushFilters([GreaterThan(("_tick",), 5), LessThanOrEqual(("_tick",), 6)])
    assert [(read.first, read.last) for task in reader.partitions() for read in task.reads] == [(6, 6)]
    assert 0 < late < 200


def test_spark_takes_part_in_filters(spark: SparkSession, shop: str) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        wanted = "id >= 5 AND id < 30 AND what LIKE 'thing 1%' AND NOT (id = 11) AND price IS NOT NULL"
        with_all = texts(read(spark, shop, "orders").where(wanted))
        assert texts(read(spark, shop, "orders", pushdown=True).where(wanted)) == with_all
        assert len(with_all) > 5
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_schema_chooses_columns(spark: SparkSession, shop: str) -> None:
    reader = spark.read.format("dbfarm").option("database", shop).option("table", "orders")
    frame = reader.schema("price DOUBLE, id INT").load()
    everything = read(spark, shop, "orders").select("price", "id")
    assert texts(frame) == texts(everything)
    with pytest.raises(Exception, match="column id of main.orders is int, not bigint"):
        reader.schema("id BIGINT").load().collect()
    with pytest.raises(Exception, match="there is no column x in main.orders"):
        reader.schema("x BIGINT").load().collect()


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, said",
    [
        ({"tick": 3, "time": "now"}, "'tick' and 'time' exclude each other"),
        ({"tikc": 3}, "unknown option 'tikc'"),
        ({"versionAsOf": 3}, "It is called 'tick' here"),
        ({"from_tick": 3, "from_time": "now", "changes": True}, "'from_tick' and 'from_time' exclude each other"),
        ({"to_time": "now"}, "option 'to_time' needs option"),
        ({"tick": -3}, "option 'tick' is a number from 0 on, not '-3'"),
        ({"from_tick": 3}, "option 'from_tick' needs option"),
        ({"tick": 3, "changes": True}, "use from_tick and to_tick"),
        ({"tick": 99}, "tick 99 is not published"),
        ({"changes": "maybe"}, "is true or false"),
        ({"time": "yesterdayish"}, "is not a time"),
    ],
)
def test_wrong_options_are_refused(spark: SparkSession, shop: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(Exception, match=said):
        read(spark, shop, "orders", **options)


def test_errors_and_plans_tell_no_secrets(spark: SparkSession) -> None:
    reader = spark.read.format("dbfarm").option("farm", "s3://bucket/farm").option("database", "sales")
    reader = (
        reader.option("table", "t").option("storage.endpoint_url", "http://127.0.0.1:9").option("storage.key", "AKIDX")
    )
    reader = reader.option("storage.secret", "hunter2hunter2")
    with pytest.raises(Exception, match="no answer from the store") as raised:
        reader.load()
    assert "s3://bucket/farm/sales" in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert "AKIDX" not in str(raised.value)


def test_damaged_files_are_named(spark: SparkSession, tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER)", Rows("t", added=("1",))])
    frame: DataFrame = read(spark, farm.url, "t")
    (file,) = tmp_path.rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(Exception, match="data file .*0.parquet is damaged"):
        frame.collect()


# A cluster -----------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_cluster_of_processes_reads_the_same(
    spark_cluster: str, shop: str, run_on: Callable[[str, str], str]
) -> None:
    found = run_on(
        spark_cluster,
        f"""
        frame = spark.read.format("dbfarm").option("database", {shop!r}).option("table", "orders").load()
        print(*frame.selectExpr("count(*)", "sum(id)").collect()[0])
        """,
    )
    rows = expected(shop, "main.orders", end(shop))
    assert found == f"{sum(rows.values())} {sum(int(row[0] or 0) for row in rows)}"
