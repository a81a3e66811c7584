"""A table in a bucket, rolled forward by Spark to the moment before a mistake, and queried by Spark and by DuckDB.

Starts an S3 server of its own (moto, on loopback), makes a DuckDB database a master whose farm is in a bucket, and
keeps a Parquet replica in the same bucket. Compares what comes out with the master as it was at that moment; exits with
1 if anything differs. `--rows` says how large the table is.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import s3fs

import wlc
import wlr
import wlr.spark
from wlr.spark.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

COMMANDS = Path(sys.executable).absolute().parent
FARM, LAKE = "s3://walkthrough/farm", "s3://walkthrough/lake"
SCHEMA = "id BIGINT, customer INT, product STRING, amount DECIMAL(10, 2), ordered TIMESTAMP_NTZ"
SUMMARY = """
    SELECT product, count(*) AS orders, sum(amount) AS amount, sum(id) AS ids, max(ordered) AS latest
    FROM orders GROUP BY product ORDER BY product"""
TRANSACTIONS = 10

Summary = list[tuple[Any, ...]]


def main() -> int:
    """Run the story and return the number of answers that differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the table (default 200,000)")
    rows = parser.parse_args().rows
    work = Path(tempfile.mkdtemp(prefix="dbfarm-lake-"))
    os.chdir(work)
    server = start_s3()
    try:
        return tell(rows, work)
    finally:
        server.stop()


def tell(rows: int, work: Path) -> int:
    """Run the story in the current folder."""
    master, before = Path("shop.duckdb"), Path("before-the-mistake.duckdb")

    say(f"1. A database with a table of {rows:,} orders becomes a master; its farm is in a bucket")
    create_database(master, rows)
    run("wlc", "master", master, "--farm", FARM, "--beat", "1")

    say("2. A Parquet replica in the bucket starts from the master's first snapshot")
    run("wlr", "replicate", "shop", "--farm", FARM, "--into", LAKE)

    say("3. A day's work, through wlc.connect()")
    work_for_a_day(master)
    # What the master is at this moment; it is needed to compare with, and for nothing else.
    shutil.copy(master, before)
    moment = datetime.now(UTC).isoformat()

    say("4. A mistake that goes unnoticed at first")
    run("wlc", "sql", master, "DELETE FROM orders WHERE customer < 1000")
    run("wlc", "log", master, "--tick", f"{TRANSACTIONS}:")

    say("5. Spark rolls the replica forward to the moment before")
    run("wlr", "replicate", "--into", LAKE, "--until", moment, "--engine", "spark", "--master", "local[2]")
    run("wlr", "status", LAKE)
    run("wlr", "lake", "files", LAKE, "orders")

    say("6. The same question to all of them")
    with duckdb.connect(str(before), read_only=True) as connection:
        expected = summary(connection)
        print(f"\n   The master as it was at {moment}:{SUMMARY}\n")
        connection.sql(SUMMARY).show()
    answers = {"the replica, read by DuckDB": by_duckdb(wlr.files(LAKE, "orders"))}
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    with spark_session("local[2]", settings) as spark:
        answers["the replica, read by Spark"] = by_spark(spark, replica_in_spark(spark, wlr.files(LAKE, "orders")))
        answers["the farm at that time, read by Spark"] = by_spark(spark, farm_in_spark(spark, moment))
    differing = 0
    for name, answer in answers.items():
        print(f"   {name:<38}{'equal' if answer == expected else 'DIFFERENT'}")
        differing += answer != expected

    say("7. The replica and the master as it was, all columns of all rows")
    differing += compare(before, wlr.files(LAKE, "orders"))
    say(f"{'Everything is equal' if not differing else f'{differing} answers DIFFER'}. The database is in {work}")
    return differing


def start_s3() -> Any:
    """Start an S3 server on loopback with an empty bucket, and let every program that is started here use it."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        raise SystemExit("error: the S3 server moto is missing\nhint: pip install 'moto[server,s3]'")
    from moto.server import ThreadedMotoServer

    # It would print a line for every request.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://{host}:{port}",
        AWS_ACCESS_KEY_ID="walkthrough",
        AWS_SECRET_ACCESS_KEY="walkthrough",  # noqa: S106 - the server takes any
        AWS_DEFAULT_REGION="us-east-1",
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=sys.executable,
    )
    s3fs.S3FileSystem().mkdir("walkthrough")
    return server


def create_database(master: Path, rows: int) -> None:
    """Create the table with plain DuckDB; ids leave room between them."""
    with duckdb.connect(str(master)) as connection:
        connection.execute(f"""
            CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INTEGER, product VARCHAR, amount DECIMAL(10, 2),
                                 ordered TIMESTAMP);
            INSERT INTO orders
                SELECT i * 2, hash(i) % 5000, ['cocoa', 'coffee', 'milk', 'tea'][(hash(i, 1) % 4)::INTEGER + 1],
                       hash(i, 2) % 10000 / 100, TIMESTAMP '2026-01-01' + to_seconds(i)
                FROM range({rows}) r(i);
        """)


def work_for_a_day(master: Path) -> None:
    """Change one row in ten, everywhere in the table: of ten changes eight update, one deletes, one inserts."""
    started, changes = time.perf_counter(), 0
    with wlc.connect(str(master)) as connection:
        # A checkpoint after each transaction would write most of the file anew, with or without dbfarm.
        connection.execute("SET checkpoint_threshold = '4GB'")
        for number in range(TRANSACTIONS):
            chosen = f"id // 2 % {TRANSACTIONS * 10} = {number}"
            connection.begin()
            insert = "INSERT INTO orders SELECT id + 1, customer, product, 1, ordered FROM orders"
            for statement in (
                f"{insert} WHERE {chosen} AND hash(id) % 10 = 0",
                f"DELETE FROM orders WHERE {chosen} AND hash(id) % 10 = 1",
                f"UPDATE orders SET amount = amount + 1 WHERE {chosen} AND hash(id) % 10 > 1 AND id % 2 = 0",
            ):
                changes += int((connection.execute(statement).fetchone() or (0,))[0])
            connection.commit()
    print(f"   {TRANSACTIONS} transactions with {changes:,} changes in {time.perf_counter() - started:.1f} s")


def run(program: str, *arguments: str | Path) -> None:
    """Run a command of dbfarm as a person would type it, and show it with its output."""
    words = [program, *map(str, arguments)]
    print(f"\n$ {shlex.join(words)}", flush=True)
    started = time.perf_counter()
    done = subprocess.run([COMMANDS / program, *words[1:]], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program} ended with exit code {done.returncode}")
    print(f"{done.stdout}({time.perf_counter() - started:.1f} s)", flush=True)


# Questions -----------------------------------------------------------------------------------------------------------


def summary(connection: duckdb.DuckDBPyConnection) -> Summary:
    """Ask DuckDB."""
    return connection.execute(SUMMARY).fetchall()


def open_replica(connection: duckdb.DuckDBPyConnection, files: list[str]) -> None:
    """Make a view of a replica's files, which DuckDB reads through the file system of s3fs."""
    connection.register_filesystem(s3fs.S3FileSystem())
    connection.execute(f"CREATE TEMP VIEW orders AS FROM read_parquet({files}, hive_partitioning = false)")


def by_duckdb(files: list[str]) -> Summary:
    """Ask DuckDB about the replica's files."""
    with duckdb.connect() as connection:
        open_replica(connection, files)
        return summary(connection)


def by_spark(spark: SparkSession, orders: DataFrame) -> Summary:
    """Ask Spark."""
    orders.createOrReplaceTempView("orders")
    return [tuple(row) for row in spark.sql(SUMMARY).collect()]


def replica_in_spark(spark: SparkSession, files: list[str]) -> DataFrame:
    """Read a replica's files in Spark, one task for each.

    Where Spark has the jars for buckets, `spark.read.parquet(*files)` does the same.
    """

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet

        for batch in batches:
            for path in batch.column(0).to_pylist():
                with s3fs.S3FileSystem().open(path) as file:
                    yield from pyarrow.parquet.ParquetFile(file).iter_batches()

    paths = spark.createDataFrame([(file,) for file in files], "file STRING").repartition(len(files))
    return paths.mapInArrow(read, SCHEMA)


def farm_in_spark(spark: SparkSession, moment: str) -> DataFrame:
    """Read the farm's table as of a time, without any replica."""
    spark.dataSource.register(wlr.spark.FarmDataSource)
    reader = spark.read.format("dbfarm").option("farm", FARM).option("database", "shop")
    # Each task downloads the snapshot file that it reads from: a few large tasks download less.
    return reader.option("table", "orders").option("partitions", 4).option("time", moment).load()


def compare(master: Path, files: list[str]) -> int:
    """Compare two tables by the number of their rows and a number that depends on every value; 0 if they are equal."""
    found = []
    with duckdb.connect() as connection:
        open_replica(connection, files)
        connection.execute(f"ATTACH '{master}' AS master (READ_ONLY)")
        for name, relation in (("master", "master.main.orders"), ("replica", "orders")):
            query = f"SELECT count(*), bit_xor(hash(t)) FROM {relation} AS t"
            found.append(connection.execute(query).fetchall()[0])
            print(f"   {name:<10}{found[-1][0]:>14,} rows   {found[-1][1]:016x}")
    return int(found[0] != found[1])


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
