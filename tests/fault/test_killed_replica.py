"""`wlr.replicate` is killed with kill -9, again and again: what is there is a prefix, and the next run goes on."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import rounds, seed, started, wants_all
from tests.lake import any_file, folder_of, surplus
from tests.postgres.cluster import execute
from tests.scratch import attached
from wlc.farm.errors import UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres.cluster import Cluster

pytestmark = pytest.mark.slow

REPLICATE = """
import sys, wlr.replay.request, wlr.engine.{engine}.build, wlr.engine.{engine}.{opened}
{few}
print("ready", flush=True)
sys.stdin.readline()
wlr.replay.request.replicate(sys.argv[1], into=sys.argv[2], engine="local")
"""
# For each engine: the module that opens a replica, and what makes its steps small.
ENGINES = {
    "duckdb": ("target", ""),
    "parquet": (
        "replica",
        "from dataclasses import replace; from wlr.engine.parquet import replica;"
        " replica.OpenLake.limits = replace(replica.LIMITS, transactions=2)",
    ),
    "postgres": ("replica", ""),
}
ROWS = 50_000
TRANSACTIONS = 30 if wants_all() else 16
DIGEST = "SELECT count(*), sum(id), min(text), max(text), sum(length(text)) FROM item"


def program_of(engine: str) -> str:
    opened, few = ENGINES[engine]
    return REPLICATE.format(engine=engine, opened=opened, few=few)


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
        states[0] = connection.execute(DIGEST).fetchall()
        for number in range(1, TRANSACTIONS + 1):
            connection.execute(f"BEGIN; UPDATE item SET text = 'y{number}' || text WHERE id % 20 = {number}")
            if number % 2:
                connection.execute(f"ALTER TABLE item ADD COLUMN c{number} INTEGER")
            connection.execute("COMMIT")
            states[number] = connection.execute(DIGEST).fetchall()
    assert wlc.tick("big", farm=str(folder / "farm")) == TRANSACTIONS
    return str(folder / "farm" / "big"), states


def held(target: Path | str) -> list[tuple[Any, ...]]:
    if isinstance(target, str):
        return execute(target, DIGEST)
    with attached(any_file(target)) as connection:
        return connection.execute(DIGEST).fetchall()


def is_there(target: Path | str) -> bool:
    if isinstance(target, str):
        return execute(target, "SELECT to_regclass('wlr.state')::text") != [(None,)]
    return target.is_file() or (target / "wlr.pointer").exists()


def replicate(url: str, target: Path | str) -> int:
    """Go on; a server needs a moment to notice that a client is gone."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return wlr.replicate(url, into=target, engine="local").tick
        except UnavailableError as error:
            assert "in use" in str(error)
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_replica_holds_a_prefix_and_goes_on(
    farm: tuple[str, dict[int, Any]], cluster: Cluster, tmp_path: Path, engine: str
) -> None:
    url, states = farm

    def place(name: str) -> Path | str:
        if engine == "postgres":
            return cluster.create_database()
        return tmp_path / (f"{name}.duckdb" if engine == "duckdb" else name)

    rng, seen = random.Random(seed()), set()
    began = time.monotonic()
    replicate(url, sound := place("sound"))
    whole_s = time.monotonic() - began
    assert held(sound) == states[TRANSACTIONS]
    for number in range(rounds(1)):
        target = place(f"replica {number}")
        for _ in range(3):
            running = started(url, target, program_of(engine))
            time.sleep(rng.random() * whole_s)
            running.kill()
            # No half target: either there is none yet, or it is at a tick and holds exactly that.
            if is_there(target):
                tick = wlr.tick(target)
                assert held(target) == states[tick], f"at tick {tick}"
                seen.add(tick)
        assert replicate(url, target) == TRANSACTIONS
        assert held(target) == states[TRANSACTIONS]
        if engine == "parquet":
            assert surplus(target) == []
            for tick, _ in folder_of(target).manifests(TRANSACTIONS):
                count = len(wlr.read(target, "item", tick=tick, columns=["id"]).fetchall())
                assert count == states[tick][0][0]
        if engine == "duckdb":
            assert [path.name for path in tmp_path.iterdir() if f"replica {number}" in path.name] == [target.name]
    print(f"killed at ticks {sorted(seen)} within {whole_s:.1f} s")


def test_replica_killed_while_it_is_first_made_is_not_there(farm: tuple[str, dict[int, Any]], tmp_path: Path) -> None:
    """Killed while the half-made file is there, deterministically: nobody takes it for a replica, the next run is new."""
    url, states = farm
    target = tmp_path / "replica.duckdb"
    half = tmp_path / ".replica.duckdb.building"
    running = started(url, target, program_of("duckdb"))
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
