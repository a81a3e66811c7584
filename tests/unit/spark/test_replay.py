"""Replay with Spark's tasks, which run here in this process, without Spark: one job for the tables of a step."""

from __future__ import annotations

import pickle
from collections import defaultdict
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest

import wlc
import wlr
from tests.handmade import HandmadeFarm, Rows
from tests.lake import any_file, lake_contents
from tests.oracle import file_contents
from tests.scratch import attached
from wlc.farm.errors import ReplayError
from wlr.spark.replay import jobs
from wlr.spark.replay.rows import load_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlr.spark.replay.rows import SparkTask

Batches = list[pa.RecordBatch]


def sent(task: SparkTask) -> SparkTask:
    """The task as a worker gets it."""
    found: SparkTask = pickle.loads(pickle.dumps(task))
    return found


class HereJobs(jobs.Jobs):
    """Runs every task in this process, and notes what each job does and how many tasks gather."""

    cores = 2
    texts: list[str]

    def numbered(self, count: int, task: SparkTask) -> Batches:
        task = sent(task)
        return [
            batch for number in range(count) for batch in task([pa.record_batch([pa.array([number])], names=["id"])])
        ]

    def gathered(self, routed: Batches, count: int, task: SparkTask) -> Batches:
        shares: dict[int, Batches] = defaultdict(list)
        for batch in routed:
            shares[batch.column(0)[0].as_py() % count].append(batch)
        return [batch for share in shares.values() for batch in sent(task)(share)]

    def run(self, frame: Batches, text: str, *, streamed: bool = False) -> Iterator[tuple[int, bytes]]:
        self.texts.append(text)
        for row in (row for batch in frame for row in batch.to_pylist()):
            if row["error"] is not None:
                raise load_error(row["error"])
            yield row["part"], row["payload"]


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the jobs of the test were for."""
    HereJobs.texts = []
    monkeypatch.setattr(jobs, "Jobs", HereJobs)
    return HereJobs.texts


TABLES = """
    CREATE TABLE one (id INTEGER PRIMARY KEY, v VARCHAR); CREATE TABLE two (id INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE bag (x INTEGER); CREATE TABLE log (x INTEGER); CREATE TABLE empty (id INTEGER PRIMARY KEY);
    CREATE TABLE same (id INTEGER PRIMARY KEY); INSERT INTO same VALUES (1);
    INSERT INTO one SELECT i, 'a' FROM range(1000) r(i); INSERT INTO two FROM one; INSERT INTO bag FROM range(100);
    INSERT INTO log FROM range(7)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "into, jobs_of_spark",
    [("lake", ["merge 4 tables up to tick 3"]), ("copy.duckdb", ["fold 3 tables up to tick 3"])],
)
def test_tables_of_a_step_are_one_job(tmp_path: Path, texts: list[str], into: str, jobs_of_spark: list[str]) -> None:
    master, replica = tmp_path / "sales.duckdb", tmp_path / into
    with duckdb.connect(str(master)) as connection:
        connection.execute(TABLES)
    wlc.master(master)
    wlr.replicate(master, into=replica)
    with wlc.connect(master) as connection:
        connection.execute("UPDATE one SET v = 'b' WHERE id % 3 = 0; INSERT INTO log VALUES (7), (7)")
        connection.execute("BEGIN; DELETE FROM two WHERE id % 2 = 0; DELETE FROM bag WHERE x < 50; COMMIT")
        connection.execute("BEGIN; INSERT INTO empty FROM range(10); UPDATE two SET v = NULL WHERE id = 1; COMMIT")
    wlr.replicate(into=replica, engine="spark")
    assert [text.replace("tick 4", "tick 3") for text in texts] == jobs_of_spark
    assert (lake_contents(replica) if into == "lake" else file_contents(replica)) == file_contents(master)


@pytest.mark.parametrize("into", [pytest.param("lake", marks=pytest.mark.slow), "copy.duckdb"])
def test_table_at_fault_is_named_among_many(tmp_path: Path, texts: list[str], into: str) -> None:
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish([f"CREATE TABLE {name} (id INTEGER PRIMARY KEY)" for name in "abc"])
    farm.publish([Rows(name, ("1",)) for name in "abc"])
    wlr.replicate(farm.url, into=tmp_path / into)
    farm.publish([Rows("a", ("2",)), Rows("b", ("3",), ("2",)), Rows("c", ("2",))])
    with pytest.raises(ReplayError, match=r"transaction 3, table main\.b.*rows to remove"):
        wlr.replicate(into=tmp_path / into, engine="spark")


@pytest.mark.slow
def test_settings_travel_with_statements(tmp_path: Path, texts: list[str]) -> None:
    """An altered table's files are rewritten in tasks, which have the session's settings from the log alone."""
    master, replica = tmp_path / "sales.duckdb", tmp_path / "lake"
    with duckdb.connect(str(master)) as connection:
        connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY); INSERT INTO t FROM range(10)")
    wlc.master(master)
    wlr.replicate(master, into=replica)
    with wlc.connect(master) as connection:
        for statement in (
            "SET TimeZone = 'Asia/Tokyo'",
            "ALTER TABLE t ADD COLUMN z TIMESTAMPTZ DEFAULT '2020-06-01 00:00:00'",
            "SET integer_division = true",
            "CREATE VIEW halves AS SELECT i / 2 AS h, 3 / 2 AS x FROM t",
            "ALTER TABLE t ADD COLUMN k DOUBLE DEFAULT 3 / 2",
            "ALTER TABLE t ADD COLUMN plain INTEGER DEFAULT 1",
            "UPDATE t SET k = 7 / 2 WHERE i > 5",
            "ALTER TABLE t ADD COLUMN zoned TIMETZ DEFAULT '10:00:00'",
            "RESET integer_division",
            "UPDATE t SET i = i + 100 WHERE i < 3",
        ):
            connection.execute(statement)
        halves = connection.sql("FROM halves ORDER BY ALL").fetchall()
    wlr.replicate(into=replica, engine="spark")
    assert any("merge" in text for text in texts)
    assert any("alter main.t" in text for text in texts)
    assert lake_contents(replica) == file_contents(master)
    with attached(any_file(replica)) as connection:
        assert connection.sql("FROM halves ORDER BY ALL").fetchall() == halves


@pytest.mark.slow
@pytest.mark.parametrize("into", ["lake", "copy.duckdb"])
def test_tables_that_a_filter_names(tmp_path: Path, texts: list[str], into: str) -> None:
    """A table that is renamed into the filter comes in with its rows, and one that is renamed out of it leaves."""
    farm, replica = HandmadeFarm(tmp_path / "farm"), tmp_path / into
    farm.publish(["CREATE TABLE daily (id INTEGER PRIMARY KEY)"], ["CREATE TABLE other (id INTEGER PRIMARY KEY)"])
    farm.publish(["CREATE TABLE kept (a INTEGER)", Rows("daily", ("1", "2"))], [Rows("other", ("1",))])
    wlr.replicate(farm.url, into=replica, tables=["daily", "kept"])
    farm.publish(["CREATE TABLE fresh (id INTEGER PRIMARY KEY, w DOUBLE)"], [Rows("fresh", ("5, 1", "6, 2"))])
    farm.publish(
        [Rows("kept", ("1", "1", "2"))],
        [Rows("other", ("3",), ("1",)), Rows("kept", (), ("1",)), Rows("daily", ("7",), ("1",))],
        ["ALTER TABLE daily RENAME TO old", "ALTER TABLE fresh RENAME TO daily", Rows("daily", ("8, 4",), ("6, 2",))],
        [Rows("daily", ("9, 5",), ("5, 1",)), Rows("old", (), ("2",))],
    )
    assert wlr.replicate(into=replica, engine="spark").tick == farm.tick
    assert texts
    assert not any("main.other" in text or "main.old" in text for text in texts)
    with attached(any_file(replica)) as connection:
        tables = connection.sql("SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main'").fetchall()
        assert sorted(tables) == [("daily",), ("kept",)]
        assert connection.sql("FROM daily ORDER BY ALL").fetchall() == [(8, 4.0), (9, 5.0)]
        assert connection.sql("FROM kept ORDER BY ALL").fetchall() == [(1,), (2,)]
    farm.publish(["ALTER TABLE daily RENAME TO parked", Rows("kept", ("3",), ("2",))])
    wlr.replicate(into=replica, engine="spark")
    assert [str(found.table) for found in wlr.verify(replica).tables] == ["main.kept"]
