"""Parquet replicas whose writers are killed, stopped, taken over and misled: what is there is always a prefix."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import program, run_command, wait_until
from tests.handmade import HandmadeFarm, Rows
from tests.lake import folder_of, lake_contents, surplus, version_of
from tests.oracle import contents
from tests.sampling import sampled
from tests.screen import told
from wlc.farm.clock import format_time, utc_now
from wlc.farm.errors import CorruptError, InvalidError, ReplayError, UnavailableError, UnsupportedError
from wlc.farm.store import memory, open_store
from wlc.farm.store.memory import MemoryStore
from wlr.engine.adapters import target_at
from wlr.engine.parquet.folder import LEASE, LakeFolder, TakenOverError

REPLICATE = """
import sys, wlr.replay.request, wlr.engine.parquet.build, wlr.engine.parquet.replica
from dataclasses import replace
wlr.engine.parquet.replica.OpenLake.limits = replace(wlr.engine.parquet.replica.LIMITS, transactions=2)
print("ready", flush=True)
sys.stdin.readline()
wlr.replay.request.replicate(sys.argv[1], into=sys.argv[2], engine="local")
print("done", flush=True)
"""
ROWS = 20_000
TRANSACTIONS = 12


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[int, Any]]:
    """A farm with a snapshot and many steps, and what it contained at every tick."""
    folder = tmp_path_factory.mktemp("farm")
    source = folder / "big.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, text VARCHAR); CREATE TABLE bag (x INTEGER)")
        connection.execute(f"INSERT INTO item SELECT i, 'x' || (i % 7) FROM range({ROWS}) r(i)")
    wlc.master(source, farm=str(folder / "farm"))
    states = {}
    with wlc.connect(source) as connection:
        states[0] = contents(connection, "big")
        for number in range(1, TRANSACTIONS + 1):
            connection.execute(f"BEGIN; UPDATE item SET text = 'y{number}' WHERE id % 50 = {number}")
            connection.execute(f"INSERT INTO bag SELECT {number} % 3 FROM range(5)")
            if number % 3 == 0:
                connection.execute(f"ALTER TABLE item ADD COLUMN c{number} INTEGER DEFAULT {number}")
            connection.execute("COMMIT")
            states[number] = contents(connection, "big")
    return str(folder / "farm" / "big"), states


DYING = """
import os, signal, sys
import wlr
from wlr.engine.parquet import build, executor, folder, replica
from wlr.replay.fold import file_rewrite
owner, calls = {owner}, [0]
original = owner.{name}
def dying(*arguments, **options):
    calls[0] += 1
    if calls[0] == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **options)
owner.{name} = dying
wlr.replicate(sys.argv[1], into=sys.argv[2], engine="local")
"""
PLACES = [
    ("file_rewrite", "split", 1, None),
    ("folder.LakeFolder", "write_version", 1, None),
    ("folder.LakeFolder", "replace_pointer", 1, None),
    ("file_rewrite", "merge", 2, 0),
    ("folder.LakeFolder", "commit_pointer", 1, 0),
    # Temporary files of the store are left in each of the replica's folders.
    ("os", "link", 5, None),
    ("os", "link", 6, None),
    ("os", "link", 7, None),
    ("os", "replace", 1, 0),
]


@pytest.mark.slow
@pytest.mark.parametrize("owner, name, call, tick", sampled(PLACES, 3))
def test_killed_at_a_place(
    farm: tuple[str, dict[int, Any]], tmp_path: Path, owner: str, name: str, call: int, tick: int | None
) -> None:
    url, states = farm
    with program(url, tmp_path / "lake", text=DYING.format(owner=owner, name=name, call=call)) as running:
        assert running.end() == -9, running.errors
    found = folder_of(tmp_path / "lake")
    if tick is None:
        assert not (tmp_path / "lake" / "wlr.pointer").exists()
    else:
        assert wlr.tick(tmp_path / "lake") == tick
        assert lake_contents(tmp_path / "lake") == states[tick]
    assert found.store.exists(LEASE), "its lease is still there, and does not hold the next run up"
    assert wlr.replicate(url, into=tmp_path / "lake", engine="local").tick == TRANSACTIONS
    assert lake_contents(tmp_path / "lake") == states[TRANSACTIONS]
    assert surplus(tmp_path / "lake") == []


def test_temporary_files_of_the_dead_go_and_those_of_the_living_stay(lake: Path) -> None:
    """A run that is slow, whose lease another one took over, may still be writing a file."""
    dead = [
        lake / folder / f".{'0' * 31}{number}.tmp" for number, folder in enumerate(("", "manifests", "data/main.t"))
    ]
    for file in dead:
        file.write_bytes(b"half of it")
    living = lake / "data" / "main.t" / ".ff.tmp"
    living.write_bytes(b"half of it")
    later = time.time() + 60
    os.utime(living, (later, later))
    assert wlr.replicate(into=lake, engine="local").tick == 3
    assert not any(file.exists() for file in dead)
    assert living.exists()
    assert surplus(lake) == [str(living)]


# Who writes ----------------------------------------------------------------------------------------------------------

KEYED = "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)"


@pytest.fixture
def hand(tmp_path: Path) -> HandmadeFarm:
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish([KEYED], [Rows("t", ("1, 'a'", "2, 'a'"))])
    return farm


@pytest.fixture
def lake(hand: HandmadeFarm, tmp_path: Path) -> Path:
    wlr.replicate(hand.url, into=tmp_path / "lake", engine="local")
    hand.publish([Rows("t", ("1, 'b'",), ("1, 'a'",))])
    return tmp_path / "lake"


AT_TWO = {"main.t": Counter({("1", "a"): 1, ("2", "a"): 1})}
AT_THREE = {"main.t": Counter({("1", "b"): 1, ("2", "a"): 1})}

HOLDER = """
import sys
from wlr.engine.adapters import locate
from wlr.engine.adapters import target_at
with target_at(sys.argv[1]).open():
    print("open", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_second_run_is_turned_away_in_one_line(lake: Path) -> None:
    with program(lake, text=HOLDER) as holder:
        holder.wait_for("open")
        done = run_command("wlr", "replicate", "--into", lake)
        assert done.returncode == 75
        (line,) = told(done.stderr)
        assert f"in use by process {holder.process.pid} on {socket.gethostname()}" in line
        assert lake_contents(lake) == AT_TWO, "readers are not held up"
        assert wlr.prune(lake, keep="0", dry_run=True).ticks == (0, 1)
        holder.kill()
    assert wlr.replicate(into=lake, engine="local").tick == 3
    assert surplus(lake) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "host, age_s, is_taken_over",
    [
        ("elsewhere", 60, False),
        ("elsewhere", 150, True),
        ("here", 60, False),
        ("here", 150, True),
        ("here", -60, False),
        ("elsewhere", -86400, True),
    ],
)
def test_lease_of_others(lake: Path, host: str, age_s: int, is_taken_over: bool) -> None:
    """A process of this host that has not renewed its lease is another one that got its number, or hangs.

    The lease of another machine is as old as its file.
    """
    host = socket.gethostname() if host == "here" else host
    seen = format_time(utc_now() - timedelta(seconds=age_s))
    said = {"run": "00ff", "host": host, "process": os.getppid(), "seen": seen}
    (lake / LEASE).write_text(json.dumps(said))
    written = time.time() - abs(age_s)
    os.utime(lake / LEASE, (written, written))
    if is_taken_over:
        assert wlr.replicate(into=lake, engine="local").tick == 3
        assert not (lake / LEASE).exists()
    else:
        with pytest.raises(UnavailableError, match=f"in use by process {os.getppid()} on {host}"):
            wlr.replicate(into=lake, engine="local")
        assert json.loads((lake / LEASE).read_text()) == said
        assert lake_contents(lake) == AT_TWO


def test_lease_that_this_process_could_not_give_up_holds_it_off_no_more(lake: Path) -> None:
    """A request to take or to give up a lease failed, or its answer was lost: nobody of this process has it."""
    said = {"run": "00ff", "host": socket.gethostname(), "process": os.getpid(), "seen": format_time(utc_now())}
    (lake / LEASE).write_text(json.dumps(said))
    with target_at(lake).open(), pytest.raises(UnavailableError, match=f"in use by process {os.getpid()} on"):
        wlr.replicate(into=lake, engine="local")
    assert wlr.replicate(into=lake, engine="local").tick == 3


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b'{"run": 1, "host": "x", "process": "y", "seen": 1}'])
def test_lease_that_nobody_can_read(lake: Path, data: bytes) -> None:
    (lake / LEASE).write_bytes(data)
    assert wlr.replicate(into=lake, engine="local").tick == 3


def test_zombie_can_neither_commit_nor_remove_anything(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease ran out while it was about to commit; another run went further meanwhile."""
    from wlr.engine.parquet.folder import LakeFolder

    original, runs = LakeFolder.write_version, list[str]()

    def overtaken(self: LakeFolder, version: Any, run: str) -> tuple[str, str]:
        if not runs:
            runs.append(run)
            (lake / LEASE).unlink()
            assert wlr.replicate(into=lake, engine="local").tick == 3
        return original(self, version, run)

    monkeypatch.setattr(LakeFolder, "write_version", overtaken)
    with pytest.raises(UnavailableError, match="another run took .* over") as caught:
        wlr.replicate(into=lake, engine="local")
    assert caught.value.exit_code == 75
    assert lake_contents(lake) == AT_THREE
    assert runs[0] not in str(list((lake / "manifests").iterdir())), "no tick of its own is left to be read"
    assert wlr.replicate(into=lake, engine="local").tick == 3
    wlr.prune(lake)
    assert surplus(lake) == []
    assert lake_contents(lake) == AT_THREE


def test_store_that_ignores_preconditions_is_refused(hand: HandmadeFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was halted, and goes on after its lease, would take the pointer back there."""

    def overwriting(self: MemoryStore, path: str, data: bytes, version: str | None) -> str:
        self._objects[self._key(path)] = data
        return memory._version(data)

    into = "memory://overwriting/lake"
    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "replace", overwriting)
        with pytest.raises(UnsupportedError, match=f"{into} cannot hold a farm or a replica: it overwrites"):
            wlr.replicate(hand.url, into=into, engine="local")
        assert open_store(into).list() == []
    assert wlr.replicate(hand.url, into=into, tick=2, engine="local").tick == 2
    monkeypatch.setattr(MemoryStore, "replace", overwriting)
    with pytest.raises(UnsupportedError):
        wlr.replicate(into=into, engine="local")
    assert wlr.tick(into) == 2


def test_fence_is_checked_on_the_pointer_that_is_replaced(lake: Path) -> None:
    folder = LakeFolder(str(lake))
    pointer, version = folder.require()
    first, second = replace(pointer, run="first"), replace(pointer, run="second")
    taken = folder.replace_pointer(first, version)
    assert folder.commit_pointer(replace(first, sha256="0" * 64)) != taken
    ahead = replace(second, sha256="1" * 64)
    folder.replace_pointer(second, folder.require()[1])
    folder.commit_pointer(ahead)
    with pytest.raises(TakenOverError):
        folder.commit_pointer(first)
    assert folder.require()[0].sha256 == ahead.sha256


def test_zombie_whose_step_fails_removes_nothing_of_others(
    hand: HandmadeFarm, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wlr.engine import table_files
    from wlr.engine.parquet import executor

    original, calls = table_files.publish, []

    def overtaken(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            (lake / LEASE).unlink()
            assert wlr.replicate(into=lake, engine="local").tick == 3
            raise OSError("the disk is full")
        return original(*arguments)

    monkeypatch.setattr(executor, "publish", overtaken)
    with pytest.raises(OSError, match="full"):
        wlr.replicate(into=lake, engine="local")
    assert lake_contents(lake) == AT_THREE


def test_two_runs_make_the_same_replica(hand: HandmadeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow one, whose lease ran out, neither replaces nor damages what the other one made."""
    from wlr.engine.parquet.folder import LakeFolder

    original, lake, runs = LakeFolder.replace_pointer, tmp_path / "lake", list[str]()

    def overtaken(self: LakeFolder, pointer: Any, version: str | None) -> str:
        if not runs:
            runs.append(pointer.run)
            (lake / LEASE).unlink()
            assert wlr.replicate(hand.url, into=lake, engine="local").tick == 2
        return original(self, pointer, version)

    monkeypatch.setattr(LakeFolder, "replace_pointer", overtaken)
    with pytest.raises(UnavailableError, match="another run took .* over"):
        wlr.replicate(hand.url, into=lake, engine="local")
    assert lake_contents(lake) == AT_TWO
    assert surplus(lake) == []


# Readers -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_readers_of_an_old_tick_are_undisturbed(farm: tuple[str, dict[int, Any]], tmp_path: Path) -> None:
    url, states = farm
    lake = tmp_path / "lake"
    wlr.replicate(url, into=lake, tick=3, engine="local")
    files = wlr.files(lake, "item")
    query = f"SELECT count(*), sum(hash(COLUMNS(*))::HUGEINT) FROM read_parquet({files})"
    with duckdb.connect() as reader, program(url, lake, text=REPLICATE) as running:
        expected = reader.execute(query).fetchall()
        running.wait_for("ready")
        running.say("go")
        looks = 0

        def is_over() -> bool:
            nonlocal looks
            looks += 1
            assert reader.execute(query).fetchall() == expected
            tick = wlr.tick(lake)
            assert lake_contents(lake, tick)["main.bag"] == states[tick]["main.bag"]
            return running.process.poll() is not None

        wait_until(is_over, "the roll-forward", 60)
        assert running.end() == 0
        assert looks > 1
        assert reader.execute(query).fetchall() == expected
    assert lake_contents(lake, 3) == states[3]
    assert lake_contents(lake) == states[TRANSACTIONS]


# Damage --------------------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
def test_folder_without_a_pointer(hand: HandmadeFarm, lake: Path) -> None:
    """It looks as if a run had died while it made the replica, which is made anew, unless something else is there."""
    (lake / "wlr.pointer").unlink()
    mine = lake / "data" / "main.t" / "mine.parquet"
    mine.write_text("x")
    before = sorted(lake.rglob("*"))
    for ask in (wlr.status, lambda into: wlr.replicate(hand.url, into=into, engine="local")):
        with pytest.raises(InvalidError, match="holds other files, such as data/main.t/mine.parquet"):
            ask(lake)
    assert sorted(lake.rglob("*")) == before
    mine.unlink()
    assert wlr.replicate(hand.url, into=lake, engine="local").tick == 3
    assert lake_contents(lake) == AT_THREE
    assert surplus(lake) == []


def test_farm_is_no_place_for_a_replica(hand: HandmadeFarm) -> None:
    before = sorted(hand.folder.rglob("*"))
    for into in (hand.folder, Path(hand.folder) / "sales"):
        with pytest.raises(InvalidError):
            wlr.replicate(hand.url, into=into, engine="local")
    assert sorted(hand.folder.rglob("*")) == before


@pytest.mark.slow
def test_failed_step_leaves_no_files(hand: HandmadeFarm, lake: Path) -> None:
    hand.publish(["CREATE TABLE u (a INTEGER)", Rows("u", ("1",)), Rows("t", ("3, 'c'",), ("9, 'z'",))])
    for _ in range(2):
        with pytest.raises(ReplayError, match=r"transaction 4, table main\.t"):
            wlr.replicate(into=lake, engine="local")
        assert wlr.tick(lake) == 3
        assert lake_contents(lake) == AT_THREE
        assert surplus(lake) == []
    assert wlr.accept(lake).tick == 4
    assert wlr.replicate(into=lake, engine="local").tick == 4
    assert lake_contents(lake) == AT_THREE
    assert surplus(lake) == []


@pytest.mark.slow
def test_failed_making_leaves_no_files(farm: tuple[str, dict[int, Any]], tmp_path: Path) -> None:
    url, states = farm
    lake = tmp_path / "lake"
    (file,) = Path(url, "snapshots").rglob("*.parquet")
    whole = file.read_bytes()
    file.chmod(0o644)
    try:
        flip(file)
        with pytest.raises(CorruptError, match=file.name):
            wlr.replicate(url, into=lake, engine="local")
    finally:
        file.write_bytes(whole)
    assert [path for path in lake.rglob("*") if path.is_file() and path.name != ".wlc.lock"] == []
    assert wlr.replicate(url, into=lake, engine="local").tick == TRANSACTIONS
    assert lake_contents(lake) == states[TRANSACTIONS]


def test_open_replica_is_given_up_when_it_cannot_be_read(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wlr.engine.parquet.catalog import LakeCatalog

    def broken(*_: object) -> None:
        raise UnavailableError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(LakeCatalog, "load", broken)
        with pytest.raises(UnavailableError, match="no memory"):
            wlr.replicate(into=lake, engine="local")
    assert surplus(lake) == []
    assert version_of(lake).position.tick == 2
    assert wlr.replicate(into=lake, engine="local").tick == 3
