"""Threads that insert at a time: their rows, ticks and times are captured exactly, whatever is published meanwhile."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
from tests.oracle import contents, published
from wlc.capture.duckdb import independent_insert
from wlc.capture.duckdb.prepared import PreparedStatements
from wlc.farm.database import open_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

INSERT = "INSERT INTO item VALUES (?, ?)"
THREADS, ROUNDS, WAIT_S = 4, 8, 60


@pytest.fixture
def master(tmp_path: Path) -> Iterator[tuple[Any, str]]:
    source = tmp_path / "shop.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, v VARCHAR); CREATE TABLE bag (v INTEGER)")
        connection.execute("CREATE TABLE part (id INTEGER PRIMARY KEY, of INTEGER REFERENCES item)")
    wlc.master(source, farm=str(tmp_path / "farm"), beat_s=1e6)
    with wlc.connect(source) as connection:
        yield connection, str(tmp_path / "farm" / "shop")


def at_once(*works: Callable[[], None]) -> list[BaseException]:
    """Run each in a thread of its own; returns the errors."""
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    return failures


class Pauses:
    """Prepared statements of chosen rows wait before they run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rows: int) -> None:
        self.reached = {row: threading.Event() for row in rows}
        self.may_go = {row: threading.Event() for row in rows}
        execute = PreparedStatements.execute

        def wait(statements: PreparedStatements, key: Any, name: str, values: str) -> int:
            for row in rows:
                if values.startswith(f"'{row}',"):
                    self.reached[row].set()
                    assert self.may_go[row].wait(WAIT_S)
            return execute(statements, key, name, values)

        monkeypatch.setattr(PreparedStatements, "execute", wait)


def learn(connection: Any, first: int) -> None:
    """Insert as often as it takes until the statement is prepared."""
    for number in range(first, first + 3):
        connection.execute(INSERT, [number, "x"])


def read(farm: str) -> list[Any]:
    database = open_database(farm)
    return [t for number in database.batch_numbers() for t in database.read_batch(number)[0].transactions]


def test_nothing_is_published_behind_an_insert_that_still_runs(
    master: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, farm = master
    path = connection._shared.path
    with connection.cursor() as slow, connection.cursor() as fast:
        learn(slow, 100)
        learn(fast, 200)
        first = wlc.flush(path).tick
        pauses = Pauses(monkeypatch, 1)
        running = threading.Thread(target=slow.execute, args=[INSERT, [1, "slow"]])
        running.start()
        assert pauses.reached[1].wait(WAIT_S)
        # Another insert does not wait for it, and commits first.
        fast.execute(INSERT, [2, "fast"])
        assert connection.execute("SELECT id FROM item WHERE id < 100").fetchall() == [(2,)]
        flushed: list[Any] = []
        flush = threading.Thread(target=lambda: flushed.append(wlc.flush(path)))
        flush.start()
        flush.join(0.2)
        assert flush.is_alive()
        assert wlc.tick("shop", farm=farm.removesuffix("/shop")) == first
        pauses.may_go[1].set()
        running.join(WAIT_S)
        flush.join(WAIT_S)
    assert [batch.transactions for batch in flushed] == [2]
    assert [t.tick for t in read(farm)][-2:] == [first + 1, first + 2]
    assert published(farm) == contents(connection._raw, "shop")


def test_who_removes_rows_waits_for_an_insert_that_still_runs(
    master: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, farm = master
    with connection.cursor() as slow, connection.cursor() as other:
        learn(slow, 100)
        other.execute("DELETE FROM item WHERE id = 100")
        pauses = Pauses(monkeypatch, 1)
        running = threading.Thread(target=slow.execute, args=[INSERT, [1, "slow"]])
        running.start()
        assert pauses.reached[1].wait(WAIT_S)
        works = [
            lambda: other.execute("DELETE FROM item WHERE id = 101"),
            lambda: connection.execute("BEGIN; INSERT INTO part VALUES (1, 102); DELETE FROM bag; COMMIT"),
        ]
        waiting = [threading.Thread(target=work) for work in works]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join(0.1)
            assert thread.is_alive()
        pauses.may_go[1].set()
        for thread in (running, *waiting):
            thread.join(WAIT_S)
    wlc.flush(connection._shared.path)
    ticks = {str(r.table.name): t.tick for t in read(farm) for r in t.records if r.removed or r.table.name == "part"}
    slowest = max(t.tick for t in read(farm) for r in t.records if r.table.name == "item" and r.added)
    assert set(ticks) == {"item", "part"}
    assert min(ticks["item"], ticks["part"]) > slowest
    assert published(farm) == contents(connection._raw, "shop")


def test_one_of_two_who_insert_a_key_fails_as_in_duckdb(
    master: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, farm = master
    with connection.cursor() as one, connection.cursor() as other:
        learn(one, 100)
        learn(other, 200)
        pauses = Pauses(monkeypatch, 1)
        failures: list[BaseException] = []
        running = threading.Thread(target=lambda: failures.extend(at_once(lambda: one.execute(INSERT, [1, "late"]))))
        running.start()
        assert pauses.reached[1].wait(WAIT_S)
        monkeypatch.undo()
        other.execute(INSERT, [1, "first"])
        pauses.may_go[1].set()
        running.join(WAIT_S)
        assert [type(failure) for failure in failures] == [duckdb.ConstraintException]
        assert "wlc" not in str(failures[0])
        # The connection goes on.
        one.execute(INSERT, [3, "next"])
    assert connection.execute("SELECT * FROM item WHERE id < 100 ORDER BY id").fetchall() == [(1, "first"), (3, "next")]
    wlc.flush(connection._shared.path)
    assert published(farm) == contents(connection._raw, "shop")


def test_a_row_that_returning_loses_is_captured_all_the_same(
    master: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, farm = master
    statement = independent_insert.statement
    monkeypatch.setattr(independent_insert, "statement", lambda *args: f"{statement(*args)} WHERE c0 > 1000")
    for number in range(6):
        connection.execute(INSERT, [number, "x"])
    connection.execute(INSERT, [2000, "x"])
    prepared = connection._raw.execute("SELECT statement FROM duckdb_prepared_statements()").fetchall()
    assert "c0 > 1000" in str(prepared)
    found = wlc.flush(connection._shared.path)
    assert found.transactions == 7
    assert published(farm) == contents(connection._raw, "shop")


@pytest.mark.slow
def test_threads_that_insert_update_and_delete_while_others_publish(master: tuple[Any, str]) -> None:
    connection, farm = master
    is_done = threading.Event()
    path = connection._shared.path

    with ExitStack() as stack:
        cursors = [stack.enter_context(connection.cursor()) for _ in range(THREADS + 2)]

        def insert(place: int) -> None:
            for number in range(ROUNDS * 3):
                cursors[place].execute(INSERT, [place * 1000 + number, "new"])
                cursors[place].execute("INSERT INTO bag VALUES (?)", [number])

        def change(place: int) -> None:
            cursor = cursors[place]
            for number in range(ROUNDS):
                key = place * 1000 + number
                cursor.execute(INSERT, [key, "new"])
                cursor.execute("UPDATE item SET v = ? WHERE id = ?", [str(number), key])
                cursor.execute("INSERT INTO part VALUES (?, ?)", [key, key])
                if number % 3 == 0:
                    cursor.execute("DELETE FROM part WHERE id = ?", [key])
                    cursor.execute("DELETE FROM item WHERE id = ?", [key])
                cursor.execute(f"BEGIN; INSERT INTO bag VALUES ({number}); DELETE FROM bag WHERE v = -1; COMMIT")

        def publish() -> None:
            while not is_done.wait(0.05):
                wlc.flush(path)

        publisher = threading.Thread(target=publish)
        publisher.start()
        works = [lambda place=place: insert(place) for place in range(THREADS)]
        works += [lambda place=place: change(place) for place in range(THREADS, THREADS + 2)]
        failures = at_once(*works)
        is_done.set()
        publisher.join(WAIT_S)
    assert failures == []
    wlc.flush(path)
    found = read(farm)
    ticks, times = [t.tick for t in found], [t.committed for t in found if t.committed]
    assert ticks == sorted(set(ticks))
    assert times == sorted(times)
    removed = 2 * len(range(0, ROUNDS, 3))
    assert len(found) == THREADS * ROUNDS * 3 * 2 + 2 * (4 * ROUNDS) + 2 * removed
    assert published(farm) == contents(connection._raw, "shop")
