"""Tables of Spark's catalog over tables of a farm, and views."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

from tests.handmade import HandmadeFarm, Rows, time_of
from tests.spark.reading import texts
from wlc.farm.clock import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    made = HandmadeFarm(tmp_path)
    made.publish(
        ["CREATE TABLE t (i INTEGER, v VARCHAR)", Rows("t", added=("1, 'a'",))], [Rows("t", added=("2, 'b'",))]
    )
    return made


@pytest.fixture
def orders(spark: SparkSession, farm: HandmadeFarm) -> Iterator[str]:
    spark.sql(f"CREATE TABLE shop_orders USING dbfarm OPTIONS (database '{farm.url}', `table` 't') COMMENT 'shop'")
    yield "shop_orders"
    spark.sql("DROP TABLE shop_orders")


def test_a_table_is_read_as_of_now_and_of_any_moment(spark: SparkSession, farm: HandmadeFarm, orders: str) -> None:
    one, both = {("1", "a"): 1}, {("1", "a"): 1, ("2", "b"): 1}
    assert texts(spark.table(orders)) == both
    assert texts(spark.sql(f"SELECT * FROM {orders} WITH (tick = 1)")) == one
    assert texts(spark.sql(f"SELECT * FROM {orders} WITH (`time` = '{format_time(time_of(1))}')")) == one
    assert texts(spark.read.option("tick", 1).table(orders)) == one
    assert spark.sql(f"SELECT max(i) FROM {orders} WHERE v < 'b'").collect()[0][0] == 1
    farm.publish([Rows("t", added=("3, 'c'",))])
    assert texts(spark.table(orders)) == {**both, ("3", "c"): 1}


def test_a_table_keeps_its_columns(spark: SparkSession, farm: HandmadeFarm, orders: str) -> None:
    farm.publish(["ALTER TABLE t ADD COLUMN w INTEGER"], [Rows("t", added=("3, 'c', 3",))])
    assert texts(spark.table(orders).select("i")) == {("1",): 1, ("2",): 1, ("3",): 1}
    farm.publish(["ALTER TABLE t DROP COLUMN v"])
    with pytest.raises(Exception, match="there is no column v in main.t"):
        spark.table(orders).collect()
    assert texts(spark.sql(f"SELECT i FROM {orders} WITH (tick = 4)")) == {("1",): 1, ("2",): 1, ("3",): 1}


def test_versions_are_not_for_sources_in_python(spark: SparkSession, orders: str) -> None:
    """If Spark learns it, docs/spark.md has to say so."""
    for moment in ("VERSION AS OF 1", "TIMESTAMP AS OF '2026-01-01'"):
        with pytest.raises(AnalysisException, match="Time travel on the relation"):
            spark.sql(f"SELECT * FROM {orders} {moment}")


def test_changes_are_a_table_too_and_a_view_is_read(spark: SparkSession, farm: HandmadeFarm) -> None:
    spark.sql(f"CREATE TABLE shop_feed USING dbfarm OPTIONS (database '{farm.url}', `table` 't', changes 'true')")
    try:
        found = spark.sql("SELECT i, _tick, _change_type FROM shop_feed WITH (from_tick = 2)")
        assert texts(found) == {("2", "2", "insert"): 1}
    finally:
        spark.sql("DROP TABLE shop_feed")
    spark.sql(f"CREATE TEMPORARY VIEW shop_view USING dbfarm OPTIONS (database '{farm.url}', `table` 't')")
    try:
        assert texts(spark.sql("SELECT * FROM shop_view")) == {("1", "a"): 1, ("2", "b"): 1}
    finally:
        spark.sql("DROP VIEW shop_view")


def test_what_a_catalog_does_not_keep_is_refused(spark: SparkSession, farm: HandmadeFarm) -> None:
    secret = f"OPTIONS (database '{farm.url}', `table` 't', `storage.secret` 'hunter2')"
    with pytest.raises(AnalysisException, match="no option 'storage.secret'") as raised:
        spark.sql(f"CREATE TABLE shop_secret USING dbfarm {secret}")
    assert "hunter2" not in str(raised.value)
    spark.sql(f"CREATE TABLE shop_declared (i INT) USING dbfarm OPTIONS (database '{farm.url}', `table` 't')")
    try:
        with pytest.raises(Exception, match="create it with OPTIONS .* and without columns"):
            spark.table("shop_declared").collect()
    finally:
        spark.sql("DROP TABLE shop_declared")
