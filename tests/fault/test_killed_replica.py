"""`wlr.replicate` is killed with kill -9, again and again: what is there is a prefix, and the next run goes on."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import program, rounds, seed, started, wants_all
from tests.scratch import attached

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

REPLICATE = """
import sys, wlr.replay.request, wlr.engine.duckdb.build, wlr.engine.duckdb.target
print("ready", flush=True)
sys.stdin.readline()
wlr.replay.request.replicate(sys.argv[1], into=sys.argv[2])
print("done", flush=True)
"""
ROWS = 50_000
TRANSACTIONS = 30 if wants_all() else 16


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[int, Any]]:
    """A farm with a snapshot that takes a while to load and many steps; with what it contained at every tick."""
    folder = tmp_path_factory.mktemp("farm")
    source = folder / "big.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, text VARCHAR)")
        connection.execute(f"INSERT INTO item SELECT i, 'x' || (i % 7) FROM range({ROWS}) r(i)")
    wlc.master(source, farm=str(folder / "farm"))
    states = {}
    with wlc.connect(source) as connection:
        states[0] = digest(connection)
        for number in range(1, TRANSACTIONS + 1):
            connection.execute(f"BEGIN; UPDATE item SET text = 'y{number}' WHERE id % 100 = {number}")
            if number % 2:
                connection.execute(f"ALTER TABLE item ADD COLUMN c{number} INTEGER")
            connection.execute("COMMIT")
            states[number] = digest(connection)
    assert wlc.tick("big", farm=str(folder / "farm")) == TRANSACTIONS
    return str(folder / "farm" / "big"), states


def digest(connection: Any) -> list[tuple[Any, ...]]:
    """The contents in short."""
    return connection.execute("SELECT count(*), sum(hash(item)::HUGEINT) FROM item").fetchall()


def held(target: Path) -> list[tuple[Any, ...]]:
    with attached(target) as connection:
        return digest(connection)


def test_killed_replica_holds_a_prefix_and_goes_on(farm, tmp_path: Path):
    url, states = farm
    rng = random.Random(seed())
    began = time.monotonic()
    with program(url, tmp_path / "sound.duckdb", text=REPLICATE) as running:
        running.wait_for("ready")
        began = time.monotonic()
        running.say("go")
        running.wait_for("done")
        whole_s = time.monotonic() - began
        assert running.end() == 0
    assert held(tmp_path / "sound.duckdb") == states[TRANSACTIONS]
    seen = set()
    for number in range(rounds(2)):
        target = tmp_path / f"replica {number}.duckdb"
        for _ in range(3):
            running = started(url, target, REPLICATE)
            time.sleep(rng.random() * whole_s)
            running.kill()
            # No half target: either there is none yet, or it is at a tick and holds exactly that.
            if target.exists():
                tick = wlr.tick(target)
                assert held(target) == states[tick], f"at tick {tick}"
                seen.add(tick)
        assert wlr.replicate(url, into=target).tick == TRANSACTIONS
        assert held(target) == states[TRANSACTIONS]
        leftovers = [path.name for path in tmp_path.iterdir() if f"replica {number}" in path.name and path != target]
        assert leftovers == []
    print(f"killed at ticks {sorted(seen)} within {whole_s:.1f} s")


def test_replica_killed_while_it_is_first_made_is_not_there(farm, tmp_path: Path):
    """Killed while the half-made file is there, deterministically: nobody takes it for a replica, the next run is new."""
    url, states = farm
    target = tmp_path / "replica.duckdb"
    half = tmp_path / ".replica.duckdb.building"
    running = started(url, target, REPLICATE)
    deadline = time.monotonic() + 60
    while not half.exists():
        assert running.process.poll() is None, "it was made before the test could look"
        assert time.monotonic() < deadline
    running.kill()
    assert half.exists()
    assert not target.exists()
    assert wlr.replicate(url, into=target).tick == TRANSACTIONS
    assert held(target) == states[TRANSACTIONS]
    assert [path.name for path in tmp_path.iterdir()] == ["replica.duckdb"]
