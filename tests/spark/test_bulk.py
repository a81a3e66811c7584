"""Bulk replay on Spark: what comes out is what the other engines make of the same log, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.handmade import HandmadeFarm, Rows
from tests.lake import folder_of, lake_contents, version_of
from tests.oracle import file_contents
from tests.postgres.held import held_by_duckdb, held_by_postgres
from tests.scenario.test_end_to_end import new_master
from tests.spark.conftest import ROOT
from wlc.farm.errors import CorruptError, ReplayError
from wlr.replay.fold import file_rewrite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = """
    CREATE TYPE mood AS ENUM ('sad', 'glad');
    CREATE TABLE keyed (a INTEGER, b VARCHAR, n DOUBLE, h HUGEINT, m mood, l STRUCT(x INTERVAL, y INTEGER[]),
        PRIMARY KEY (a, b));
    CREATE TABLE "odd "" name" (id BIGINT PRIMARY KEY, "_tick" INTEGER, part VARCHAR);
    CREATE TABLE bag (x INTEGER, y DOUBLE);
"""
KEYED = (
    "SELECT i % 40, 'k' || i, i / 7, (i * 10::HUGEINT ** 30)::HUGEINT, ['sad', 'glad'][1 + i % 2],"
    " {{'x': to_days(i::INTEGER), 'y': [i, NULL]}} FROM range({}, {}) r(i)"
)


def statements(seed: int, next_id: int = 3000) -> list[str]:
    """Transactions of all kinds, the same for the same seed."""
    rng = random.Random(seed)
    made: list[str] = []
    for _ in range(14):
        kind = rng.randrange(9)
        if kind < 2:
            made.append(f"INSERT INTO keyed (a, b, n, h, m, l) {KEYED.format(next_id, next_id + 300)}")
            made.append(f'INSERT INTO "odd "" name" SELECT i, i, \'p\' FROM range({next_id}, {next_id + 300}) r(i)')
            next_id += 300
        elif kind == 2:
            made.append(f"UPDATE keyed SET n = -0.0, m = NULL WHERE a = {rng.randrange(40)}")
        elif kind == 3:
            made.append(f"UPDATE keyed SET b = b || 'x' WHERE a = {rng.randrange(40)}")
        elif kind == 4:
            made.append(
                f"DELETE FROM keyed WHERE a = {rng.randrange(40)}; DELETE FROM bag WHERE x = {rng.randrange(5)}"
            )
        elif kind == 5:
            made.append(f"INSERT INTO bag SELECT i % 5, 0.0 FROM range({rng.randrange(50)}) r(i)")
        elif kind == 6:
            made.append('DELETE FROM "odd "" name" WHERE id % 7 = 1; UPDATE bag SET y = -y')
        elif kind == 7:
            made.append(f"ALTER TABLE keyed ADD COLUMN c{len(made)} INTEGER DEFAULT {rng.randrange(9)}")
        else:
            made.append('ALTER TABLE "odd "" name" RENAME part TO p; ALTER TABLE "odd "" name" RENAME p TO part')
    return made


def make_master(folder: Path, *, rows: int = 3000) -> Path:
    path = folder / "sales.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(TABLES)
        connection.execute(f"INSERT INTO keyed {KEYED.format(0, rows)}")
        connection.execute(f'INSERT INTO "odd "" name" SELECT i, NULL, NULL FROM range({rows}) r(i)')
        connection.execute("INSERT INTO bag SELECT i % 3, i % 2 FROM range(200) r(i)")
    wlc.master(path)
    return path


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_serial_local_and_spark_give_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # Small files, so that every table has several. Spark's workers are other processes, and keep the usual size.
    monkeypatch.setattr(file_rewrite.split, "__kwdefaults__", {"rows_per_file": 500})
    master = make_master(tmp_path)
    lakes = {name: tmp_path / name for name in ("serial", "local", "spark")}
    for lake in lakes.values():
        wlr.replicate(master, into=lake, engine="local")
    assert len(wlr.files(lakes["spark"], "keyed")) == 6
    with wlc.connect(master) as connection:
        for statement in statements(seed):
            connection.execute(statement)
    for tick in range(1, wlc.tick(master) + 1):
        wlr.replicate(into=lakes["serial"], tick=tick, engine="local")
    for engine in ("local", "spark"):
        wlr.replicate(into=lakes[engine], engine=engine)
    expected = file_contents(master)
    assert {name: lake_contents(lake) == expected for name, lake in lakes.items()} == dict.fromkeys(lakes, True)


def test_spark_folds_for_postgresql(spark: SparkSession, tmp_path: Path, database_url: str) -> None:
    source = new_master(
        tmp_path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR); CREATE TABLE bag (id INTEGER, v VARCHAR);"
        " INSERT INTO t SELECT i, 'a' FROM range(1000) r(i); INSERT INTO bag SELECT i % 7, '' FROM range(1000) r(i)",
    )
    wlr.replicate(source, into=database_url)
    with wlc.connect(source) as connection:
        for table in ("t", "bag"):
            connection.execute(f"UPDATE {table} SET v = 'b' WHERE id % 2 = 0; DELETE FROM {table} WHERE id % 3 = 0")
            connection.execute(f"UPDATE {table} SET v = NULL WHERE id % 4 = 0; INSERT INTO {table} VALUES (-5, '')")
        connection.execute("UPDATE t SET id = id + 10000 WHERE id % 5 = 0")
    wlc.flush(source)
    wlr.replicate(into=database_url, engine="spark")
    assert held_by_postgres(database_url) == held_by_duckdb(source)


def test_database_is_rolled_forward_with_a_fold_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    master = make_master(tmp_path)
    wlr.replicate(master, into=tmp_path / "copy.duckdb")
    with wlc.connect(master) as connection:
        for statement in statements(4):
            connection.execute(statement)
    result = wlr.replicate(into=tmp_path / "copy.duckdb", engine="spark")
    assert result.tick == wlc.tick(master)
    assert file_contents(tmp_path / "copy.duckdb") == file_contents(master)


def test_transaction_that_does_not_fit_is_found_and_named(spark: SparkSession, tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)", Rows("t", ("1, 'a'", "2, 'b'"))])
    farm.publish([Rows("t", ("3, 'c'",))], [Rows("t", (), ("2, 'other'",))], [Rows("t", ("4, 'd'",))])
    lake = tmp_path / "lake"
    with pytest.raises(
        ReplayError, match=r"transaction 3, table main\.t.*1 of 1 rows to remove are not in the replica"
    ):
        wlr.replicate(farm.url, into=lake, engine="spark")
    assert (wlr.tick(lake), wlr.status(lake).failure.tick) == (2, 3)
    wlr.accept(lake)
    assert wlr.replicate(into=lake, engine="spark").tick == 4
    rows = duckdb.read_parquet(wlr.files(lake, "t")).order("id").fetchall()
    assert rows == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    farm.publish([Rows("t", ("2, 'c'",))])
    with pytest.raises(ReplayError, match=r"a row to add to main\.t exists in the replica already: id = 2"):
        wlr.replicate(into=lake, engine="spark")


def test_everything_in_buckets(
    spark: SparkSession, s3_url: str, s3_environment: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sales.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)")
        connection.execute("INSERT INTO t SELECT i, 'a' FROM range(5000) r(i)")
    wlc.master(path, farm=f"{s3_url}/farm")
    lake = f"{s3_url}/lake"
    # Spark's workers were there before the variables that this test sets.
    options = {
        "endpoint_url": s3_environment,
        "key": "testing",
        "secret": "topsecretvalue",
        "client_kwargs": {"region_name": "us-east-1"},
    }
    wlr.replicate(f"{s3_url}/farm/sales", into=lake, storage_options=options)
    before = wlr.files(lake, "t")
    with wlc.connect(path) as connection:
        connection.execute("UPDATE t SET v = 'b' WHERE id % 2 = 0")
        connection.execute("DELETE FROM t WHERE id % 5 = 0")
    result = wlr.replicate(into=lake, engine="spark", storage_options=options)
    assert result.tick == wlr.tick(lake) == 2
    assert lake_contents(lake) == file_contents(path)
    assert wlr.files(lake, "t") != before
    assert wlr.files(lake, "t", tick=0) == before
    assert "topsecretvalue" not in "".join(capfd.readouterr())


REPLICATE = [sys.executable, "-c", "from cli.wlr import main; main()", "replicate"]


def environment(**more: str) -> dict[str, str]:
    settings = {"spark.executor.memory": "500m", "spark.executorEnv.PYTHONPATH": str(ROOT), "spark.ui.enabled": "false"}
    submit = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell",
        **more,
    }


@pytest.mark.deep
def test_cluster_of_two_workers(spark_cluster: str, tmp_path: Path) -> None:
    """The command itself, against a standalone cluster; meanwhile a worker's Python is killed, and Spark tries again."""
    master = make_master(tmp_path, rows=150_000)
    lake = tmp_path / "lake"
    wlr.replicate(master, into=lake, engine="local")
    with wlc.connect(master) as connection:
        for statement in ("UPDATE keyed SET n = n + 1 WHERE a % 3 = 0", *statements(5, 150_000)):
            connection.execute(statement)
    command = [*REPLICATE, "--into", str(lake), "--engine", "spark", "--master", spark_cluster, "--json"]
    running = subprocess.Popen(
        command,
        env=environment(PYSPARK_PYTHON=sys.executable),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    killed: list[int] = []
    killer = threading.Thread(target=kill_one_worker, args=(running, killed))
    killer.start()
    out, err = running.communicate(timeout=300)
    killer.join()
    assert running.returncode == 0, err
    assert json.loads(out)["tick"] == wlc.tick(master)
    assert lake_contents(lake) == file_contents(master)
    assert killed, "no worker was there to be killed"
    # What a task that failed has written counts for nothing, and goes with the next pruning.
    wlr.prune(lake, keep="0")
    named = {part.file.path for table in version_of(lake).tables for part in table.parts}
    assert {path for _, path, _ in folder_of(lake).data_files()} == named


def kill_one_worker(running: subprocess.Popen[str], killed: list[int]) -> None:
    """Kill a Python worker of an executor as soon as one has opened DuckDB for its task."""
    while running.poll() is None:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                if b"pyspark.daemon" in command and b"_duckdb" in (process / "maps").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
                    killed.append(int(process.name))
                    return
            except (OSError, ValueError):
                continue
        time.sleep(0.01)


@pytest.mark.deep
@pytest.mark.parametrize("how", ["--master", "SPARK_REMOTE"])
def test_command_alone_starts_a_session(java: None, tmp_path: Path, how: str) -> None:
    """No session is there, and Python is not the first one on the path; once through Spark Connect."""
    master = make_master(tmp_path)
    lake = tmp_path / "lake"
    wlr.replicate(master, into=lake, engine="local")
    with wlc.connect(master) as connection:
        connection.execute("UPDATE keyed SET n = 1 WHERE a = 7")
    bare = {name: value for name, value in environment().items() if name != "PYSPARK_PYTHON"}
    command = [*REPLICATE, "--into", str(lake), "--engine", "spark"]
    if how == "--master":
        command += ["--master", "local[1]"]
    else:
        bare["SPARK_REMOTE"] = "local[1]"
    done = subprocess.run(command, env={**bare, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert lake_contents(lake) == file_contents(master)


def test_auto_takes_spark_for_large_work_only(
    java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    master = make_master(tmp_path)
    lake = tmp_path / "lake"
    wlr.replicate(master, into=lake)
    used: list[str] = []
    from wlr.spark.replay.jobs import Jobs

    run = Jobs.run

    def noted(self: Jobs, *arguments: Any) -> object:
        used.append(arguments[1])
        return run(self, *arguments)

    monkeypatch.setattr(Jobs, "run", noted)
    for number, threshold in enumerate(("1000000", "3000")):
        monkeypatch.setenv("WLR_SPARK_ROWS", threshold)
        with wlc.connect(master) as connection:
            connection.execute(f"UPDATE keyed SET n = {number} WHERE a = 7")
        wlr.replicate(into=lake)
        assert used == (["merge main.keyed up to tick 2"] if number else [])
    assert lake_contents(lake) == file_contents(master)


@pytest.mark.parametrize("kind", ["lake", "copy.duckdb"])
def test_damaged_file_of_the_farm_is_what_the_command_reports(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """What is wrong with the farm is found in a task, and keeps its class and its exit code on the way here."""
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)", Rows("t", ("1, 'a'", "2, 'b'"))])
    into = tmp_path / kind
    wlr.replicate(farm.url, into=into)
    farm.publish([Rows("t", ("3, 'c'",), ("1, 'a'",))])
    (damaged,) = Path(farm.url).glob("wlc_logs/*2.d/*.parquet")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptError, match=damaged.name) as caught:
        wlr.replicate(into=into, engine="spark")
    assert caught.value.exit_code == 6
    assert wlr.tick(into) == 1
    damaged.unlink()
    with pytest.raises(wlr.FarmError) as here:
        wlr.replicate(into=into, engine="local")
    local = here.value
    with pytest.raises(type(local)) as there:
        wlr.replicate(into=into, engine="spark")
    assert (there.value.message, there.value.exit_code) == (local.message, local.exit_code)
