"""What a query reads from the disk: columns and filters reach the files, and no file is compared with its checksum twice.

The tasks run in this process, whose reads the kernel counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import duckdb
import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan
from pyspark.sql.types import IntegerType, StructField, StructType

import wlc
from wlc.farm.errors import CorruptError
from wlr.spark import FarmDataSource

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNTERS = Path("/proc/self/io")
ROWS = 800_000
ID = StructType([StructField("id", IntegerType())])


class Big(NamedTuple):
    """A database whose table has one data file in its snapshot, and a little log."""

    url: str
    file: Path


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Big:
    if not COUNTERS.exists():
        pytest.skip("this kernel does not count what a process reads")
    folder = tmp_path_factory.mktemp("big")
    path = folder / "big.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a UUID, b UUID)")
        connection.execute(f"INSERT INTO t SELECT i, uuid(), uuid() FROM range({ROWS}) r(i)")
    wlc.master(path, farm=str(folder / "farm"))
    with wlc.connect(path) as connection:
        connection.execute("UPDATE t SET a = b WHERE id = 5")
    wlc.flush(path)
    (file,) = (folder / "farm" / "big" / "snapshots").rglob("*.parquet")
    return Big(f"{folder}/farm/big", file)


def bytes_read() -> int:
    return int(COUNTERS.read_text().split("rchar:")[1].split()[0])


def read(big: Big, schema: StructType | None = None, filters: Sequence[Filter] = (), **options: str) -> tuple[int, int]:
    """Run all tasks of a read; return the number of rows that Spark gets, and the bytes read."""
    source = FarmDataSource({"database": big.url, "table": "t", "pushdown": "true", **options})
    reader = source.reader(schema or source.schema())
    reader.pushFilters(list(filters))
    tasks = reader.partitions()
    before = bytes_read()
    rows = sum(batch.num_rows for task in tasks for batch in reader.read(task))
    return rows, bytes_read() - before


def test_files_are_compared_once_and_read_once(big: Big) -> None:
    size = big.file.stat().st_size
    rows, everything = read(big, partitions="8")
    assert rows == ROWS
    # Once for the checksum, once by the tasks, of which each reads the columns of its row groups.
    assert 1.9 * size < everything < 2.3 * size
    rows, unchecked = read(big, partitions="8", verify="false")
    assert rows == ROWS
    assert unchecked < 1.3 * size


def test_columns_and_filters_reach_the_files(big: Big) -> None:
    size = big.file.stat().st_size
    rows, column = read(big, ID, verify="false")
    assert rows == ROWS
    assert column < 0.25 * size
    rows, group = read(big, None, [EqualTo(("id",), 5)], verify="false")
    assert rows == 1
    assert group < 0.25 * size
    rows, nothing = read(big, ID, [GreaterThan(("id",), 2 * ROWS)], verify="false")
    assert rows == 0
    assert nothing < 0.05 * size


def test_the_first_task_of_a_file_finds_damage(big: Big) -> None:
    data = bytearray(big.file.read_bytes())
    damaged = data.copy()
    damaged[len(data) // 2] ^= 1
    source = FarmDataSource({"database": big.url, "table": "t"})
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    assert [task.checks for task in tasks[1:]].count(frozenset()) == len(tasks) - 1
    big.file.write_bytes(damaged)
    try:
        with pytest.raises(CorruptError, match="is damaged"):
            next(reader.read(tasks[0]))
    finally:
        big.file.write_bytes(data)
