"""Rounds of a publisher and of a service, and snapshots, of a PostgreSQL master: what they notice, wait for, and cost."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import wlc
import wlr
from tests.fault.processes import wait_until
from tests.postgres.cluster import execute
from wlc.capture.postgres import slot, snapshot
from wlc.capture.postgres.master_connection import ArrowReader
from wlc.capture.postgres.source import PostgresSource
from wlc.farm.database import open_database
from wlc.farm.errors import UnavailableError
from wlc.masters import running
from wlc.masters.lookup import opened_master
from wlc.masters.running import publish_and_repair
from wlr.service import supervisor
from wlr.service.job_states import Board, ServiceMemory
from wlr.service.settings_file import read_settings
from wlr.service.supervisor import Service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres.cluster import Cluster
    from wlc.farm.errors import FarmError
    from wlc.masters.publish import Flushed

# What is noticed -------------------------------------------------------------------------------------------------------


@pytest.fixture
def master(database_url: str, tmp_path: Path) -> str:
    execute(database_url, "CREATE TABLE t (a int PRIMARY KEY)")
    wlc.master(database_url, farm=str(tmp_path / "farm"), name="shop", beat_s=0)
    return database_url


@contextmanager
def publishing(url: str) -> Iterator[list[Flushed | FarmError]]:
    """Publish in a thread; yields what its rounds gave so far."""
    is_stopped = threading.Event()
    found: list[Flushed | FarmError] = []
    thread = threading.Thread(target=lambda: wlc.run(url, is_stopped=is_stopped, each=found.append))
    thread.start()
    try:
        yield found
    finally:
        is_stopped.set()
        thread.join()


def written(url: str) -> str:
    return str(execute(url, "SELECT pg_current_wal_insert_lsn()")[0][0])


def insert(url: str, number: int) -> None:
    execute(url, f"INSERT INTO t VALUES ({number})")


def test_a_publisher_is_there_from_its_begin_on_and_closes(master: str, tmp_path: Path) -> None:
    farm = str(tmp_path / "farm")
    assert wlc.databases(farm)[0].state == "quiet"
    with publishing(master):
        wait_until(lambda: wlc.databases(farm)[0].state == "ok", "the publisher says that it is there")
    (found,) = wlc.databases(farm)
    assert (found.state, "closed" in found.why, "postgresql://" in found.why) == ("quiet", True, True)


def test_commits_are_noticed_between_two_rounds(master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A round that comes of itself is too late for the test.
    monkeypatch.setattr(running, "NEWS_MOST_S", 3600.0)
    with publishing(master) as rounds:
        for number in range(1, 4):
            insert(master, number)
            wait_until(lambda number=number: wlc.tick("shop", str(tmp_path / "farm")) == number, "it is published")
        # What others write is looked at, and the publisher comes to rest again.
        execute(master, "CREATE UNLOGGED TABLE others AS SELECT 1 AS a")
        insert(master, 4)
        wait_until(lambda: wlc.tick("shop", str(tmp_path / "farm")) == 4, "it is published")
    assert sum(flushed.batches for flushed in rounds if isinstance(flushed, wlc.Flushed)) == 4


def test_a_server_at_rest_is_not_written_to(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "NEWS_MOST_S", 0.05)
    with publishing(master) as rounds:
        insert(master, 1)

        def rests() -> bool:
            """Whether many rounds leave the server's log as it was."""
            before, had = written(master), len(rounds)
            wait_until(lambda: len(rounds) >= had + 10, "ten rounds")
            return written(master) == before

        # The server itself writes every 15 s.
        wait_until(rests, "the server's log stays as it is")
    assert not any(isinstance(outcome, Exception) for outcome in rounds)


def test_a_round_with_nothing_to_publish_follows_the_beat(master: str) -> None:
    with opened_master(master, None) as (found, database):
        publish_and_repair(found, database)
        publish_and_repair(found, database)
        assert found.is_idle()
        wlc.beat(master, 7)
        assert publish_and_repair(found, database).batches == 0
        assert found.beat_s == 7


def test_looks_share_a_connection_until_it_fails(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ArrowReader] = []

    class Reader(ArrowReader):
        def __init__(self, url: str) -> None:
            super().__init__(url)
            opened.append(self)

    monkeypatch.setattr(slot, "ArrowReader", Reader)
    others = (
        "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state IS NOT NULL"
    )
    with opened_master(master, None) as (found, database):
        assert isinstance(found, PostgresSource)
        for number in range(3):
            insert(master, number)
            assert publish_and_repair(found, database).batches == 1
        assert len(opened) == 1
        # A transaction that stays open would keep the server from cleaning up.
        assert {state for (state,) in execute(master, f"SELECT state {others}")} == {"idle"}
        ((pid,),) = found.connection.execute("SELECT pg_backend_pid()").fetchall()
        execute(master, f"SELECT pg_terminate_backend(pid) {others} AND pid <> {pid}")
        insert(master, 3)
        with pytest.raises(UnavailableError):
            publish_and_repair(found, database)
        assert publish_and_repair(found, database).batches == 1
        assert len(opened) == 2


# Snapshots -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(database_url: str, tmp_path: Path) -> str:
    execute(database_url, "CREATE TABLE t (a int PRIMARY KEY)")
    wlc.master(database_url, farm=str(tmp_path / "farm"), name="x")
    return database_url


def rows_of_snapshot(tmp_path: Path) -> tuple[int, int]:
    """The tick of the newest snapshot, and how many rows it has."""
    database = open_database("x", str(tmp_path / "farm"))
    tick = database.snapshot_ticks()[-1]
    return tick, sum(file.rows for table in database.read_manifest(tick).tables for file in table.files)


def test_others_publish_while_a_snapshot_waits(begun: str, tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def take() -> None:
        try:
            wlc.snapshot(begun)
        except BaseException as error:
            failed.append(error)

    waiting = threading.Thread(target=take)
    with psycopg.connect(begun) as user:
        user.execute("INSERT INTO t VALUES (1)")
        waiting.start()
        slots = "SELECT 1 FROM pg_replication_slots WHERE temporary AND database = current_database()"
        wait_until(lambda: bool(execute(begun, slots)), "the snapshot waits")
        execute(begun, "INSERT INTO t VALUES (2)")
        assert wlc.flush(begun).transactions == 1
    waiting.join(30)
    assert not failed
    assert rows_of_snapshot(tmp_path) == (2, 2)


@pytest.mark.parametrize("overtaken", [1, snapshot.MOMENTS])
def test_a_moment_that_was_overtaken_is_not_taken(
    begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overtaken: int
) -> None:
    exported, moments = snapshot.exported, []

    @contextmanager
    def overtaking(*arguments: Any, **options: Any) -> Iterator[snapshot.Moment]:
        with exported(*arguments, **options) as moment:
            moments.append(moment)
            if len(moments) <= overtaken:
                execute(begun, f"INSERT INTO t VALUES ({len(moments)})")
                wlc.flush(begun)
            yield moment

    monkeypatch.setattr(snapshot, "exported", overtaking)
    wlc.snapshot(begun)
    assert len(moments) == overtaken + 1
    assert rows_of_snapshot(tmp_path) == (overtaken, overtaken)


# Many tables -----------------------------------------------------------------------------------------------------------


TABLES = 60


@pytest.fixture
def many(database_url: str) -> str:
    """The URL of a database with many tables: two with rows, the second with a value that DuckDB has no type for."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        for number in range(TABLES):
            connection.execute(f"CREATE TABLE t{number} (a int PRIMARY KEY, b int[])")
        connection.execute("INSERT INTO t1 VALUES (1, '{1}'); INSERT INTO t2 VALUES (2, '{{1},{2}}')")
    return database_url


def calls_in(connection: psycopg.Connection) -> dict[str, int]:
    """How often functions of the capture were called in a transaction."""
    query = "SELECT funcname, calls FROM pg_stat_xact_user_functions WHERE schemaname = 'wlc'"
    return {name: calls for name, calls in connection.execute(query).fetchall()}


@pytest.mark.slow
def test_tables_share_connections_to_the_master(many: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    class Reader(ArrowReader):
        def __init__(self, url: str) -> None:
            opened.append(url)
            super().__init__(url)

    monkeypatch.setattr(snapshot, "ArrowReader", Reader)
    wlc.master(many, farm=str(tmp_path / "farm"), name="x")
    assert 0 < len(opened) <= 2
    database = open_database("x", str(tmp_path / "farm"))
    copied = {found.table.name: found for found in database.read_manifest(0).tables}
    assert len(copied) == TABLES
    assert {name: [f.rows for f in table.files] for name, table in copied.items() if table.files} == {
        "t1": [1],
        "t2": [1],
    }
    assert [c.type for c in (*copied["t2"].layout.columns, *copied["t1"].layout.columns)] == [
        "INTEGER",
        "VARCHAR",
        "INTEGER",
        "INTEGER[]",
    ]

    # The names of tables are compared with an index: no table is compared with every other one.
    with psycopg.connect(many) as connection:
        connection.execute("SELECT wlc.note_all()")
        query = "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE schemaname = 'wlc' AND relname = 'tables'"
        ((read,),) = connection.execute(query).fetchall()
        assert connection.execute("SELECT count(*) FROM wlc.tables").fetchone() == (TABLES,)
        assert read < TABLES * 5
        connection.rollback()

    # The catalog is read once by each function that begins the capture, and what the server knows by itself is not asked.
    with psycopg.connect(many, autocommit=True) as connection:
        connection.execute(
            "SET track_functions = 'all'; SELECT wlc.finish(); BEGIN; SELECT wlc.note_all(), wlc.start()"
        )
        calls = calls_in(connection)
        assert calls["describe"] == 2 * TABLES
        assert not calls.keys() & {"base_type", "shape"}
        assert calls["describe_object"] < 2 * TABLES
        assert calls["is_captured"] < 15 * TABLES
        connection.rollback()

    # A session that avoids the usual plans does not make its schema changes look at every table.
    looks: list[int] = []
    with psycopg.connect(many) as connection:
        for value in ("on", "off"):
            for method in ("nestloop", "hashjoin", "sort", "indexscan", "bitmapscan"):
                connection.execute(f"SET LOCAL enable_{method} = {value}")
            connection.execute("SET LOCAL track_functions = 'all'")
            connection.execute("CREATE INDEX ON t3 (b)")
            looks.append(calls_in(connection)["is_captured"])
            # This leaves the counts as they are.
            connection.rollback()
    assert looks[1] == 2 * looks[0] > 0


# A service -------------------------------------------------------------------------------------------------------------


PATIENCE_S = 120.0


def test_a_master_is_published_and_its_slot_is_seen(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_OBSERVE_EVERY_S", 0.2)
    source = cluster.create_database()
    execute(source, "CREATE TABLE t (a INTEGER PRIMARY KEY)")
    wlc.master(source, farm=str(tmp_path / "farm"), name="shop", beat_s=0)
    file = tmp_path / "dbfarm.toml"
    file.write_text(
        f'[farms.main]\nurl = "farm"\n[masters.shop]\nsource = "{source}"\n'
        '[replicas.copy]\ndatabase = "shop"\ninto = "copy.duckdb"\n'
    )
    board = Board()
    service = Service(read_settings(file), board, ServiceMemory(tmp_path / "memory.json"))
    service.start()
    try:
        execute(source, "INSERT INTO t SELECT generate_series(1, 10)")
        end = time.monotonic() + PATIENCE_S
        master, copy = board.get(("masters.shop", "publish")), board.get(("replicas.copy", "follow"))
        while copy.rows < 10 or master.observed.retained_bytes is None or copy.observed.lag_transactions != 0:
            assert time.monotonic() < end, (master, copy)
            time.sleep(0.05)
            master, copy = board.get(("masters.shop", "publish")), board.get(("replicas.copy", "follow"))
        assert (master.rows, master.tick, master.failing_since) == (10, copy.tick, None)
    finally:
        service.stop()
    assert wlr.tick(tmp_path / "copy.duckdb") == wlc.tick("shop", str(tmp_path / "farm"))
    assert board.failing() == []
