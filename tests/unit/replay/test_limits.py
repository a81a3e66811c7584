"""A statement from the farm takes no more memory than the replica's engine may, whatever DuckDB counts."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

import duckdb
import pytest

from tests.hostile import bounded as within
from wlc.farm.model import Ddl, Name
from wlr.replay.ddl import limits, running
from wlr.replay.ddl.limits import bounded
from wlr.replay.plan.failure import StepError

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells a process's size")


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_REST_BYTES", 1 << 28)


@pytest.mark.parametrize(
    "statement",
    [
        # 2,000 texts of 2 MB each for one vector, and a text that no vector holds.
        "CREATE INDEX x ON t ((len(repeat(i::VARCHAR || 'xxxxxxxxxx', 200000))))",
        "ALTER TABLE t ADD COLUMN c VARCHAR DEFAULT (repeat('x', 3000000000))",
        "ALTER TABLE t ADD COLUMN c BIGINT DEFAULT (len(list_transform(range(300000000), lambda x: x)))",
    ],
)
def test_texts_of_one_vector_are_bounded(statement: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with duckdb.connect() as connection:
        connection.execute("SET memory_limit = '200MB'; CREATE TABLE t AS SELECT i FROM range(2000) r(i)")
        ddl = Ddl(" ".join(statement.split()[:2]), Name("main", "t"), statement)
        with within(seconds=60), pytest.raises(StepError, match="needs more memory than 190") as caught:
            running.run(connection, "memory", ddl)
        # Another machine may have enough: it is a failure to be accepted, not one of this machine.
        assert not caught.value.is_shortage
        assert connection.sql("SELECT count(*) FROM t").fetchall() == [(2000,)]
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_threads_leave_the_limit_as_it_was() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    entered, leave = threading.Barrier(3, timeout=10), [threading.Event(), threading.Event()]

    def run(number: int) -> None:
        with duckdb.connect() as connection, bounded(connection):
            entered.wait()
            leave[number].wait(10)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    entered.wait()
    assert resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    for number in (0, 1):
        leave[number].set()
        threads[number].join(10)
        assert (resource.getrlimit(resource.RLIMIT_AS) == before) == (number == 1)


def test_a_smaller_limit_of_the_process_stays() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    small = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize() + (1 << 27)
    resource.setrlimit(resource.RLIMIT_AS, (small, before[1]))
    try:
        with duckdb.connect() as connection, bounded(connection):
            assert resource.getrlimit(resource.RLIMIT_AS)[0] == small
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("limit", ["-1", "3TB"])
def test_no_limit_is_none(limit: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"SET memory_limit = '{limit}'")
        with bounded(connection):
            assert connection.sql("SELECT 1").fetchall() == [(1,)]
