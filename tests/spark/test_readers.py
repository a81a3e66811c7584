"""Spark reads the files of a lake, whole and with conditions; `tests/scenario/test_readers.py` has the other readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb

from tests.readable import TABLES, check, statements
from tests.readers import spark as read
from wlc.dialect.duckdb.parquet_sql import KEPT
from wlc.dialect.sql import quote
from wlc.dialect.types import store_sql
from wlc.farm.model import Column

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_files(spark: SparkSession, tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        for statement in statements():
            connection.execute(statement)
        for table in TABLES:
            described = connection.execute(f"DESCRIBE {table}").fetchall()
            stored = [f"{store_sql(Column(name, declared))} AS {quote(name)}" for name, declared, *_ in described]
            file = str(tmp_path / f"{table}.parquet")
            connection.execute(f"COPY (SELECT {', '.join(stored)} FROM {table}) TO '{file}' ({KEPT})")
            check("Spark", read, file, file, table)
