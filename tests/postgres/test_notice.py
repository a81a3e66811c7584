"""A publisher with a beat of 0 notices a commit at once, and leaves a server at rest alone."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import wlc
from tests.fault.processes import wait_until
from tests.postgres.cluster import execute
from wlc.capture.postgres import slot
from wlc.capture.postgres.master_connection import ArrowReader
from wlc.capture.postgres.source import PostgresSource
from wlc.farm.errors import UnavailableError
from wlc.masters import running
from wlc.masters.lookup import opened_master
from wlc.masters.running import publish_and_settle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.farm.errors import FarmError
    from wlc.masters.publish import Flushed


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
        publish_and_settle(found, database)
        publish_and_settle(found, database)
        assert found.is_idle()
        wlc.beat(master, 7)
        assert publish_and_settle(found, database).batches == 0
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
            assert publish_and_settle(found, database).batches == 1
        assert len(opened) == 1
        # A transaction that stays open would keep the server from cleaning up.
        assert {state for (state,) in execute(master, f"SELECT state {others}")} == {"idle"}
        ((pid,),) = found.connection.execute("SELECT pg_backend_pid()").fetchall()
        execute(master, f"SELECT pg_terminate_backend(pid) {others} AND pid <> {pid}")
        insert(master, 3)
        with pytest.raises(UnavailableError):
            publish_and_settle(found, database)
        assert publish_and_settle(found, database).batches == 1
        assert len(opened) == 2
