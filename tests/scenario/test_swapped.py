"""A DuckDB replica whose rounds go to a second file that takes its place: readers are never blocked."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlr
from tests.handmade import HandmadeFarm, Rows
from tests.scratch import attached
from wlc.farm.errors import InvalidError, UnavailableError
from wlc.farm.paths import log_path
from wlc.farm.registry import replicas
from wlr.engine.duckdb import swapping

if TYPE_CHECKING:
    from pathlib import Path

    from wlr.engine.replica_state import ReplicaState

ROWS = 2000


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(
        ["CREATE TABLE now (n INTEGER)", "CREATE TABLE t (i INTEGER PRIMARY KEY, n INTEGER)"],
        [Rows("now", ("2",)), Rows("t", (f"FROM (SELECT range::INTEGER, 2 FROM range({ROWS}))",))],
    )
    return farm


def go_on(farm: HandmadeFarm) -> None:
    """Publish a transaction that writes its tick into every row."""
    was, now = farm.tick, farm.tick + 1
    new, old = (f"FROM (SELECT range::INTEGER, {tick} FROM range({ROWS}))" for tick in (now, was))
    farm.publish([Rows("now", (str(now),), (str(was),)), Rows("t", (new,), (old,))])


@pytest.fixture
def into(farm: HandmadeFarm, tmp_path: Path) -> Path:
    into = tmp_path / "copy.duckdb"
    wlr.replicate(farm.url, into=into, swap=True)
    return into


HELD = "SELECT n, (SELECT count(*) FROM t WHERE t.n = now.n), (SELECT count(*) FROM t) FROM now"


def held(into: Path) -> tuple[Any, ...]:
    with attached(into) as connection:
        return connection.execute(HELD).fetchall()[0]


def beside(into: Path) -> set[str]:
    return {path.name.removeprefix(f".{into.name}.") for path in into.parent.glob(f".{into.name}.*")}


READER = f"""
import sys, duckdb
def ask(connection):
    return connection.execute({HELD!r}).fetchall()[0]
print("ready", flush=True)
if sys.argv[2] == "stays":
    connection = duckdb.connect(sys.argv[1], read_only=True)
    print(*ask(connection), flush=True)
    for line in sys.stdin:
        print(*ask(connection), flush=True)
else:
    import select
    from wlc.dialect.duckdb.opening import alone
    last = times = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        # DuckDB opens the file three times, and is not to find two files; commands of dbfarm open it like this.
        with alone(sys.argv[1]):
            connection = duckdb.connect(sys.argv[1], read_only=True)
        with connection:
            tick, now, count = ask(connection)
        assert tick >= last and now == count == {ROWS}, (tick, last, now, count)
        last, times = tick, times + 1
    print("saw", last, times, flush=True)
"""


def reader(stack: ExitStack, into: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", READER, str(into), how]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.enter_context(started)
    stack.callback(started.kill)
    assert line_of(started) == "ready"
    return started


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    print("go", file=process.stdin, flush=True)


@pytest.mark.slow
def test_a_reader_that_never_closes_keeps_what_it_opened_over_ten_rounds(farm: HandmadeFarm, into: Path) -> None:
    with ExitStack() as stack:
        staying = reader(stack, into, "stays")
        assert line_of(staying) == f"2 {ROWS} {ROWS}"
        inodes = []
        for _ in range(10):
            go_on(farm)
            assert wlr.replicate(into=into).tick == farm.tick
            assert held(into) == (farm.tick, ROWS, ROWS)
            say(staying)
            assert line_of(staying) == f"2 {ROWS} {ROWS}", "what it has opened does not change"
            inodes.append(into.stat().st_ino)
        # The file that it holds is given up; from then on, two take turns.
        assert len(set(inodes)) == 2
    assert beside(into) == {"spare", "lock"}


@pytest.mark.slow
def test_readers_that_query_without_pause_see_no_error_and_never_an_older_tick(farm: HandmadeFarm, into: Path) -> None:
    with ExitStack() as stack:
        asking = [reader(stack, into, "opens") for _ in range(4)]
        for _ in range(3):
            go_on(farm)
            assert wlr.replicate(into=into).tick == farm.tick
        for process in asking:
            say(process)
        for process in asking:
            said, last, times = line_of(process).split()
            assert (said, process.wait(), int(last) <= farm.tick) == ("saw", 0, True)
            assert int(times) > 0


@pytest.mark.slow
def test_the_second_file_goes_on_from_the_log(farm: HandmadeFarm, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the log between the two was pruned, it is copied once more."""
    go_on(farm)
    wlr.replicate(into=into)
    copies: list[Path] = []
    copy = swapping._copy

    def counted(place: Path, state: ReplicaState) -> None:
        copies.append(place)
        copy(place, state)

    monkeypatch.setattr(swapping, "_copy", counted)
    for _ in range(3):
        go_on(farm)
        wlr.replicate(into=into)
    assert copies == []
    go_on(farm)
    # The spare is at tick 5, the replica at 6, and needs nothing before 7.
    for entry in farm.db.logs.list(log_path(farm.name, farm.batch - 1)):
        farm.db.logs.delete(entry.path)
    assert wlr.replicate(into=into).tick == farm.tick
    assert (copies, held(into)) == ([into], (farm.tick, ROWS, ROWS))


@pytest.mark.slow
def test_what_is_in_no_log_is_in_both_files(farm: HandmadeFarm, into: Path) -> None:
    """What the owner sets, writes and repairs does not come back when the files change places."""
    wlr.beat(into, 7)
    wlr.unlock(into)
    with duckdb.connect(str(into)) as connection:
        connection.execute("UPDATE t SET n = 77 WHERE i = 1")
    wlr.lock(into)
    assert [(fix.added, fix.removed) for fix in wlr.repair(into, ["t"])] == [(1, 1)]
    wlr.pause(into)
    go_on(farm)
    assert wlr.replicate(into=into).is_paused
    wlr.resume(into)
    for _ in range(2):
        go_on(farm)
        wlr.replicate(into=into)
        assert (held(into), wlr.beat(into)) == ((farm.tick, ROWS, ROWS), 7)
    assert wlr.replicate(into=into, tick=3).is_back
    assert held(into) == (3, ROWS, ROWS)
    assert wlr.replicate(into=into).tick == farm.tick
    assert {table.outcome for table in wlr.verify(into).tables} <= {"same", "unknown"}
    assert [each.position.tick for each in replicas(farm.db) if each.position] == [farm.tick]


@pytest.mark.slow
def test_tables_of_the_owner_and_a_disk_without_room_are_refused(
    farm: HandmadeFarm, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on(farm)
    with duckdb.connect(str(into)) as connection:
        connection.execute("CREATE TABLE mine (a INTEGER)")
    with pytest.raises(InvalidError, match=r"tables of its owner: main\.mine, which would be lost") as caught:
        wlr.replicate(into=into)
    assert "--no-swap" in str(caught.value.hint)
    assert (wlr.tick(into), held(into)) == (2, (2, ROWS, ROWS))
    with duckdb.connect(str(into)) as connection:
        connection.execute("DROP TABLE mine")
    swapping.discard(into)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(UnavailableError, match="no room for a second file"):
        wlr.replicate(into=into)
    monkeypatch.undo()
    assert wlr.replicate(into=into).tick == farm.tick
    assert wlr.replicate(into=into, swap=False).tick == farm.tick
    assert beside(into) == set()


@pytest.mark.slow
def test_who_writes_to_the_replica_meanwhile_keeps_it(farm: HandmadeFarm, into: Path) -> None:
    """Nothing is put in the place of a file that somebody has open for writing."""
    go_on(farm)
    writer = "import sys, duckdb\nc = duckdb.connect(sys.argv[1])\nprint('open', flush=True)\nsys.stdin.readline()"
    with subprocess.Popen(
        [sys.executable, "-c", writer, str(into)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert line_of(other) == "open"
        with pytest.raises(UnavailableError, match="in use by process"):
            wlr.replicate(into=into)
        say(other)
        other.wait()
    assert wlr.replicate(into=into).tick == farm.tick


KILLED = """
import os, signal, sys, wlr
from wlr.engine.duckdb import swapping
name, is_late, calls = sys.argv[2], sys.argv[3] == "True", []
original = getattr(swapping, name)
def dying(*arguments, **options):
    calls.append(arguments)
    if len(calls) == int(sys.argv[4]):
        if is_late:
            original(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **options)
setattr(swapping, name, dying)
wlr.replicate(into=sys.argv[1])
"""
DEATHS: list[tuple[str, bool, int]] = [
    ("_copy", True, 1),
    ("exchange", False, 1),
    ("link", False, 1),
    ("link", True, 1),
    ("rename", False, 1),
    ("rename", True, 1),
    ("rename", False, 2),
    ("rename", True, 2),
]


@pytest.mark.slow
def test_a_run_killed_around_each_change_of_a_name_leaves_a_replica_that_goes_on(
    farm: HandmadeFarm, into: Path
) -> None:
    for name, is_late, call in DEATHS:
        go_on(farm)
        if name == "_copy":
            swapping.discard(into)
        done = subprocess.run([sys.executable, "-c", KILLED, str(into), name, str(is_late), str(call)])
        assert done.returncode == -signal.SIGKILL, (name, is_late, call)
        tick = wlr.tick(into)
        assert tick in (farm.tick - 1, farm.tick)
        assert held(into) == (tick, ROWS, ROWS)
        assert wlr.replicate(into=into).tick == farm.tick
        assert held(into) == (farm.tick, ROWS, ROWS)
        assert beside(into) <= {"spare", "lock"}, (name, is_late, call)


def test_only_duckdb_replicas_swap(farm: HandmadeFarm, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="--swap is for DuckDB files"):
        wlr.replicate(farm.url, into=tmp_path / "lake", swap=True)
    with pytest.raises(InvalidError, match="exclude each other"):
        wlr.replicate(farm.url, into=tmp_path / "copy.duckdb", swap=True, adopt=True)
