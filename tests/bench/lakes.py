"""What the benchmarks of Parquet replicas share: a master and its changes, copies of a replica, a Spark session."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

import wlc
import wlr
from tests.bench import tables
from tests.bench.measure import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

COLUMNS = ("id", "a", "b", "c", "d")
# The ids of the start lie so far apart that new ones can come between them, anywhere in the table, once for each turn.
STEP = 4
SEED = 20261121
# Plain DuckDB may not take the memory of the other sides, which are there at the same time.
MEMORY = "8GB"


@dataclass(frozen=True, slots=True)
class World:
    """A master with its farm and a Parquet replica of its start.

    Attributes:
        lake: The replica, which is never rolled forward: copies of it are.
        rows: What the table holds at the start.
    """

    folder: Path
    rows: int

    @property
    def master(self) -> Path:
        return self.folder / "t.duckdb"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def change_files(self) -> list[str]:
        """The farm's data files with changes, in the order in which they were made."""
        return sorted(str(file) for file in (self.folder / "farm" / "t" / "wlc_logs").rglob("*.parquet"))


def make(folder: Path, rows: int) -> World:
    """Make a master with so many rows, its farm, and a Parquet replica."""
    world = World(tables.fresh(folder), rows)
    values = tables.rows_sql(0, rows).replace("SELECT i,", f"SELECT i * {STEP},", 1)
    tables.make_plain(world.master, tables.KEYED, f"INSERT INTO t {values}")
    tables.make_master(world.master)
    wlr.replicate(str(folder / "farm" / "t"), into=f"{world.lake}/", register=False)
    return world


def change(
    world: World, changes: int, batches: int = 1, *, turn: int = 1, low: int = 0, high: int | None = None
) -> int:
    """Change rows between two ids: of ten changes eight update, one deletes, one inserts; each batch is published.

    Every key is changed once, and chosen at random, the same ones each time.

    Args:
        world: Whose master is changed.
        changes: Their number, at most that of the rows of the start in the range.
        batches: Transactions, and so log files, that they are shared out among.
        turn: 1 to 3, another one each time: it chooses other rows.
        low: Smallest id that may change; `high`: the greatest one.

    Returns:
        The tick of the last batch.
    """
    first, after = -(-low // STEP), (world.rows * STEP if high is None else high) // STEP
    with wlc.connect(world.master) as connection:
        # DuckDB would write most of the table anew after each batch; once, in the end, is enough here.
        connection.execute("SET checkpoint_threshold = '16GB'")
        order = f"hash(k + {SEED + turn * 10**9})"
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE drawn AS FROM range({first}, {after}) r(k) ORDER BY {order} LIMIT {changes}"
        )
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE change AS SELECT k * {STEP} AS id, rowid % {batches} AS batch,"
            f" rowid // {batches} % 10 AS kind FROM drawn"
        )
        for batch in range(batches):
            chosen = f"SELECT id FROM change WHERE batch = {batch} AND kind"
            connection.execute("BEGIN")
            connection.execute(f"UPDATE t SET a = a + 1, b = b || '!', c = -c WHERE id IN ({chosen} < 8)")
            connection.execute(f"DELETE FROM t WHERE id IN ({chosen} = 8)")
            connection.execute(
                f"INSERT INTO t SELECT id + {turn}, 1, 'new ' || id, 0.5, TIMESTAMP '2027-01-01' FROM ({chosen} = 9)"
            )
            connection.execute("COMMIT")
            wlc.flush(world.master)
    return wlc.tick(world.master)


def copy(lake: Path, into: Path) -> Path:
    """Copy a replica; its data files never change, so that both have the same ones, in the page cache alike."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(lake, into, copy_function=_link_data)
    return into


def _link_data(source: str, target: str) -> None:
    (os.link if source.endswith(".parquet") else shutil.copy)(source, target)


def read(files: Sequence[str]) -> str:
    """SQL that reads Parquet files."""
    return f"read_parquet({list(files)}, hive_partitioning = false)"


def digest(files: Sequence[str]) -> tuple[int, int]:
    """Rows of a table's files and a number that depends on all of them, whatever their order."""
    # Delta's timestamps and Spark's may come with another precision or zone, and mean the same.
    columns = "id, a, b, c, CAST(d AS TIMESTAMP)"
    with plain() as connection:
        query = f"SELECT count(*), bit_xor(hash({columns})) FROM {read(files)}"
        rows, number = connection.execute(query).fetchall()[0]
        return rows, number


def plain() -> duckdb.DuckDBPyConnection:
    """A connection of DuckDB alone."""
    return duckdb.connect(config={"memory_limit": MEMORY, "preserve_insertion_order": False})


@contextmanager
def session(folder: Path) -> Iterator[SparkSession]:
    """A local Spark session of two cores, or the one that is there."""
    import wlr.spark
    from wlr.spark.session import spark_session

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "16",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(tables.fresh(folder / "spark")),
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }
    with spark_session("local[2]", settings) as spark:
        spark.dataSource.register(wlr.spark.FarmDataSource)
        yield spark


# Memory --------------------------------------------------------------------------------------------------------------


def peak_gb(process: int | str = "self") -> float:
    """The most memory that a process had, resident; zero if it has gone."""
    # Not ru_maxrss, which a child inherits from its parent.
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**20
    return 0.0


def workers() -> list[int]:
    """Numbers of the Python processes that do the work of the Spark session of this process."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    mine, found = {os.getpid()}, []
    while more := {child for child, parent in parents.items() if parent in mine} - mine:
        mine |= more
    for number in mine:
        with suppress(OSError):
            # The daemon forks workers, which have its command line.
            if "pyspark.daemon" in Path(f"/proc/{number}/cmdline").read_text() and parents.get(number) in mine:
                found.append(number)
    return found


def forget_peaks() -> None:
    """Let the peaks of the workers begin anew."""
    for number in workers():
        with suppress(OSError):
            Path(f"/proc/{number}/clear_refs").write_text("5")


def workers_peak_gb() -> float:
    """The most memory that one worker had since `forget_peaks`; workers live on for a while when a task is done."""
    return max(map(peak_gb, workers()), default=0.0)
