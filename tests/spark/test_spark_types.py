"""Every type that DuckDB has arrives in Spark with its value, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
from tests.handmade import HandmadeFarm, Rows
from tests.scenario.test_types_end_to_end import SAMPLES, TYPES
from tests.scratch import attached
from tests.spark.reading import read
from wlc.dialect.types import load_sql, storage_type
from wlc.farm.model import Column, Layout
from wlr.spark.read.types import table_schema

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

WIDTH = 80
# As docs/spark.md lists them.
DOCUMENTED = {
    "BOOLEAN": "boolean",
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "INTEGER": "int",
    "BIGINT": "bigint",
    "UTINYINT": "smallint",
    "USMALLINT": "int",
    "UINTEGER": "bigint",
    "UBIGINT": "decimal(20,0)",
    "HUGEINT": "string",
    "UHUGEINT": "string",
    "BIGNUM": "string",
    "DECIMAL(18,3)": "decimal(18,3)",
    "FLOAT": "float",
    "DOUBLE": "double",
    "VARCHAR": "string",
    "ENUM('a')": "string",
    "BIT": "string",
    "UUID": "string",
    "JSON": "string",
    "BLOB": "binary",
    "GEOMETRY": "binary",
    "DATE": "date",
    "TIMESTAMP": "timestamp_ntz",
    "TIMESTAMP_S": "timestamp_ntz",
    "TIMESTAMP_MS": "timestamp_ntz",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
    "TIMESTAMP_NS": "string",
    "TIMESTAMPTZ_NS": "string",
    "TIME": "string",
    "TIME_NS": "string",
    "TIME WITH TIME ZONE": "string",
    "INTERVAL": "string",
    "VARIANT": "struct<metadata:binary,value:binary>",
    "INTEGER[]": "array<int>",
    "INTEGER[3]": "array<int>",
    "STRUCT(a UTINYINT, b TIME[])": "struct<a:smallint,b:array<string>>",
    "STRUCT": "boolean",
    "UNION(a INTEGER, b VARCHAR)": "struct<tag:smallint,a:int,b:string>",
    "MAP(INTEGER, UBIGINT)": "map<int,decimal(20,0)>",
    "MAP(MAP(INTEGER, INTEGER), INTEGER)": "array<struct<key:map<int,int>,value:int>>",
}


@pytest.mark.parametrize("declared", DOCUMENTED)
def test_types_are_those_of_the_documentation(declared: str) -> None:
    (field,) = table_schema(Layout((Column("c", declared),))).fields
    assert (field.dataType.simpleString(), field.nullable) == (DOCUMENTED[declared], True)


def samples() -> list[tuple[str, list[str]]]:
    """The types of the end-to-end test with those of their values that Spark has."""
    with duckdb.connect() as connection:
        connection.execute(SAMPLES)
        return [
            (declared, [value for value in values if not is_infinite(connection, declared, value)])
            for declared, values in TYPES
        ]


def is_infinite(connection: duckdb.DuckDBPyConnection, declared: str, value: str) -> bool:
    if "DATE" not in declared and "TIMESTAMP" not in declared:
        return False
    text = connection.execute(f"SELECT CAST(({value})::{declared} AS VARCHAR)").fetchone()
    # Nanoseconds are text in Spark, which knows infinity.
    return "infinity" in str(text) and "_NS" not in declared


def fill(connection: duckdb.DuckDBPyConnection, typed: list[tuple[str, list[str]]]) -> None:
    """Fill a table for every run of types; row 0 is NULL and there twice, the others hold the values."""
    connection.execute(SAMPLES)
    for first in range(0, len(typed), WIDTH):
        part = typed[first : first + WIDTH]
        columns = ", ".join(f"c{number} {declared}" for number, (declared, _) in enumerate(part))
        connection.execute(f"CREATE TABLE t{first} (r INTEGER, {columns})")
        connection.execute(f"INSERT INTO t{first} (r) VALUES (0), (0)")
        for row in range(max(len(values) for _, values in part)):
            values = (f"({v[row]})::{declared}" if row < len(v) else "NULL" for declared, v in part)
            connection.execute(f"INSERT INTO t{first} SELECT {row + 1}, {', '.join(values)}")


def test_every_value_comes_through(spark: SparkSession, tmp_path: Path) -> None:
    """Through a snapshot, and past a net change that compares all of them."""
    typed, path = samples(), tmp_path / "types.duckdb"
    assert len(typed) > 150
    with duckdb.connect(str(path)) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        fill(connection, typed)
    wlc.master(path, farm=str(tmp_path / "farm"))
    with wlc.connect(path) as master:
        for first in range(0, len(typed), WIDTH):
            master.execute(f"DELETE FROM t{first} WHERE r = 2")
            master.execute(f"INSERT INTO t{first} SELECT * REPLACE (99 AS r) FROM t{first} WHERE r = 1")
    wlc.flush(path)
    with attached(path) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for first in range(0, len(typed), WIDTH):
            connection.register("got", read(spark, f"{tmp_path}/farm/types", f"t{first}").toArrow())
            for number, (declared, _) in enumerate(typed[first : first + WIDTH]):
                column = Column(f"c{number}", declared)
                value = load_sql(column, f"CAST(c{number} AS {storage_type(declared)})")
                got = connection.execute(f"SELECT r, CAST({value} AS VARCHAR) FROM got ORDER BY r").fetchall()
                held = connection.execute(f"SELECT r, CAST(c{number} AS VARCHAR) FROM t{first} ORDER BY r").fetchall()
                assert got == held, declared
                assert got[0] == (0, None)


@pytest.mark.parametrize(
    "declared, value",
    [
        ("DATE", "'infinity'"),
        ("TIMESTAMP", "'-infinity'"),
        ("TIMESTAMP WITH TIME ZONE", "'infinity'"),
        ("STRUCT(a DATE[])", "{'a': [DATE 'infinity']}"),
    ],
)
def test_infinities_are_refused_by_column(spark: SparkSession, tmp_path: Path, declared: str, value: str) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish([f"CREATE TABLE t (i INTEGER, d {declared})", Rows("t", added=(f"1, {value}",))])
    with pytest.raises(Exception, match="column d holds a value that Spark cannot represent: -?infinity"):
        read(spark, farm.url, "t").collect()
