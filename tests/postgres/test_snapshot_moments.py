"""A snapshot of a PostgreSQL master waits for open transactions; others publish meanwhile."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import wlc
from tests.fault.processes import wait_until
from tests.postgres.cluster import execute
from wlc.capture.postgres import snapshot
from wlc.farm.database import open_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def master(database_url: str, tmp_path: Path) -> str:
    execute(database_url, "CREATE TABLE t (a int PRIMARY KEY)")
    wlc.master(database_url, farm=str(tmp_path / "farm"), name="x")
    return database_url


def rows_of_snapshot(tmp_path: Path) -> tuple[int, int]:
    """The tick of the newest snapshot, and how many rows it has."""
    database = open_database("x", str(tmp_path / "farm"))
    tick = database.snapshot_ticks()[-1]
    return tick, sum(file.rows for table in database.read_manifest(tick).tables for file in table.files)


def test_others_publish_while_a_snapshot_waits(master: str, tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def take() -> None:
        try:
            wlc.snapshot(master)
        except BaseException as error:
            failed.append(error)

    waiting = threading.Thread(target=take)
    with psycopg.connect(master) as user:
        user.execute("INSERT INTO t VALUES (1)")
        waiting.start()
        slots = "SELECT 1 FROM pg_replication_slots WHERE temporary AND database = current_database()"
        wait_until(lambda: bool(execute(master, slots)), "the snapshot waits")
        execute(master, "INSERT INTO t VALUES (2)")
        assert wlc.flush(master).transactions == 1
    waiting.join(30)
    assert not failed
    assert rows_of_snapshot(tmp_path) == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("overtaken", [1, snapshot.MOMENTS])
def test_a_moment_that_was_overtaken_is_not_taken(
    master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overtaken: int
) -> None:
    exported, moments = snapshot.exported, []

    @contextmanager
    def overtaking(*arguments: Any, **options: Any) -> Iterator[snapshot.Moment]:
        with exported(*arguments, **options) as moment:
            moments.append(moment)
            if len(moments) <= overtaken:
                execute(master, f"INSERT INTO t VALUES ({len(moments)})")
                wlc.flush(master)
            yield moment

    monkeypatch.setattr(snapshot, "exported", overtaking)
    wlc.snapshot(master)
    assert len(moments) == overtaken + 1
    assert rows_of_snapshot(tmp_path) == (overtaken, overtaken)
