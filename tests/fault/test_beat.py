"""When what was committed is published: with every commit, on the beat, on close, or by the next flush."""

from __future__ import annotations

import datetime
import threading
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
from tests.fault import operations
from tests.fault.breaker import DIES_AFTER, Fault
from tests.fault.processes import program, wait_until
from tests.fault.trial import Bench, Operation, check_log
from tests.new_master import make_master
from tests.oracle import file_contents, published
from wlc.farm.database import open_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fault.trial import World

EXIT_WITHOUT_CLOSE = """
import os, sys, threading, wlc
connection = wlc.connect(sys.argv[1])
for value in range(5):
    connection.execute("INSERT INTO t VALUES (?)", [value])
connection.execute("BEGIN; INSERT INTO t VALUES (99)")
print("committed", flush=True)
{end}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_master(tmp_path / "bank.duckdb", "CREATE TABLE t (i INTEGER)")


def batches(source: Path) -> list[int]:
    return open_database("bank", str(source.parent / "farm")).batch_numbers()


def check_published(source: Path) -> None:
    check_log(open_database("bank", str(source.parent / "farm")))
    assert published(str(source.parent / "farm" / "bank")) == file_contents(source)


def test_beat_0_publishes_with_every_commit(source: Path):
    wlc.beat(source, 0)
    with wlc.connect(source) as connection:
        for value in range(1, 4):
            connection.execute("INSERT INTO t VALUES (?)", [value])
            assert batches(source) == list(range(1, value + 1))
        connection.begin()
        connection.execute("INSERT INTO t VALUES (4)")
        assert len(batches(source)) == 3
        connection.commit()
        assert len(batches(source)) == 4
        with connection.cursor() as other:
            other.execute("INSERT INTO t VALUES (5)")
        assert len(batches(source)) == 5
    check_published(source)


def test_beat_publishes_in_the_background(source: Path):
    wlc.beat(source, 0.02)
    with wlc.connect(source) as connection:
        for value in range(3):
            before = len(batches(source))
            connection.execute("INSERT INTO t VALUES (?)", [value])
            wait_until(lambda before=before: len(batches(source)) > before, "the background thread publishes")
        assert [thread for thread in threading.enumerate() if thread.name.startswith("wlc beat")] != []
    assert [thread for thread in threading.enumerate() if thread.name.startswith("wlc beat")] == []
    check_published(source)


def test_close_publishes_what_is_due(source: Path):
    connection = wlc.connect(source)
    with connection.cursor() as other:
        other.execute("INSERT INTO t VALUES (1)")
    connection.execute("INSERT INTO t VALUES (2)")
    assert batches(source) == []
    connection.close()
    assert batches(source) == [1]
    check_published(source)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["os._exit(3)", "raise KeyboardInterrupt"], ids=["exit at once", "interrupt"])
def test_program_that_ends_without_close_loses_nothing(source: Path, end: str):
    with program(source, text=EXIT_WITHOUT_CLOSE.format(end=end)) as running:
        running.wait_for("committed")
        assert running.end() != 0
    if end == "os._exit(3)":
        assert batches(source) == []
    flushed = wlc.flush(source)
    assert flushed.tick == 5
    assert file_contents(source)["main.t"].total() == 5
    check_published(source)


@pytest.mark.slow
def test_beat_that_changes_after_a_lost_answer(tmp_path: Path):
    """Our own batch of many transactions is recognised although the beat now wants one in each."""

    def flush_each(world: World) -> None:
        wlc.beat(world.source, 0)
        wlc.flush(world.source)

    bench = Bench(Operation("flush", operations.FLUSH.prepare, operations.FLUSH.run, flush_each), tmp_path)
    calls = bench.calls()
    at = calls.index("create wlc_logs/sales_000000000002")
    bench.run(Fault(DIES_AFTER, at))


def test_clock_that_steps_back_between_two_programs(source: Path, monkeypatch):
    """Commit times never fall in the log, or --until would not be exact."""
    now = datetime.datetime.now(datetime.UTC)
    for step_s, value in ((0, 1), (-3600, 2), (-7200, 3)):
        with monkeypatch.context() as patch:
            time = now + datetime.timedelta(seconds=step_s)
            patch.setattr("wlc.capture.duckdb.shared.utc_now", lambda time=time: time)
            patch.setattr("wlc.masters.background.Publisher.try_publish", lambda shared: None)
            with wlc.connect(source) as connection:
                connection.execute("INSERT INTO t VALUES (?)", [value])
    wlc.flush(source)
    batch, _ = open_database("bank", str(source.parent / "farm")).read_batch(1)
    times = [transaction.committed for transaction in batch.transactions]
    assert times == [now, now, now]


def test_clock_that_was_ahead_while_the_master_began(tmp_path: Path, monkeypatch):
    """The first snapshot is never later than the first commit, or no time of the log would lead anywhere."""
    source, farm = tmp_path / "late.duckdb", str(tmp_path / "farm")
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE t (i INTEGER)")
    ahead = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    with monkeypatch.context() as patch:
        patch.setattr("wlc.capture.duckdb.setup.utc_now", lambda: ahead)
        patch.setattr("wlc.masters.master_state.utc_now", lambda: ahead)
        wlc.master(source, farm=farm)
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    batch, _ = open_database("late", farm).read_batch(1)
    assert open_database("late", farm).read_manifest(0).clock == batch.transactions[0].committed == ahead


@pytest.mark.slow
def test_snapshots_flushes_and_commits_at_once(source: Path):
    """Everything that publishes, in one process, at the same time: nobody waits for ever, and nothing is published twice."""
    wlc.beat(source, 0.01)
    failures: list[BaseException] = []

    def repeat(action) -> None:
        try:
            for _ in range(8):
                action()
        except BaseException as error:
            failures.append(error)

    with wlc.connect(source) as connection:
        cursors = [connection.cursor() for _ in range(2)]
        actions: list[Callable[[], object]] = [
            lambda cursor=cursor: cursor.execute("INSERT INTO t VALUES (1)") for cursor in cursors
        ]
        actions += [lambda: wlc.flush(source), lambda: wlc.snapshot(source)]
        threads = [threading.Thread(target=repeat, args=(action,), daemon=True) for action in actions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "they wait for one another"
        for cursor in cursors:
            cursor.close()
    assert failures == []
    assert file_contents(source)["main.t"].total() == 16
    check_published(source)


@pytest.mark.parametrize("ask", [lambda source: wlc.beat(source, 5), wlc.stop], ids=["beat", "stop"])
def test_who_dies_while_it_is_noted_leaves_what_was_noted_before(
    source: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Path], object]
) -> None:
    def die(connection: duckdb.DuckDBPyConnection, catalog: str, values: dict[str, str]) -> None:
        keys = ", ".join(f"'{key}'" for key in values)
        connection.execute(f"DELETE FROM {catalog}.wlc.state WHERE key IN ({keys})")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("wlc.capture.duckdb.journal.write_state", die)
        with pytest.raises(KeyboardInterrupt):
            ask(source)
    with duckdb.connect(str(source)) as connection:
        state = dict(connection.execute("SELECT * FROM wlc.state").fetchall())
    assert (state["beat_s"], state["state"]) == ("300", "1")
