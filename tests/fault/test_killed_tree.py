"""Three tiers of relays and replicas, in processes that are killed at random: nobody is lost, and all ends are equal."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import wlc
import wlr
from tests.bench.bucket import bucket_at
from wlc.farm.database import open_database
from wlc.farm.paths import CONFIG
from wlc.tiers.upstreams import claims

pytestmark = pytest.mark.slow

# Relays and replicas: three tiers, and many members.
FEW, MANY = (("r1", "r2", "r3"), ("x1", "x2")), (("r1", "r2", "r3", "r4"), ("x1", "x2", "x3", "x4"))
FANOUT = 2
SETTINGS = (
    *("keepalive_s=0.5", "recent_s=4", "penalty_s=0.3", "penalty_most_s=1", "rechoose_s=3"),
    *(f"fanout={FANOUT}", "stuck_s=30"),
)
ENDS_WITHIN_S = 90.0


Members = tuple[tuple[str, ...], tuple[str, ...]]


class Tree:
    """A master, whose farm holds the registry, and members that choose where to read."""

    def __init__(self, folder: Path, root: str, seed: int, members: Members) -> None:
        self.folder, (self.relays, self.replicas) = folder, members
        self.root = root
        self.farm = f"{root}/hq"
        self.chance = random.Random(seed)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = self.value = self.changes = 0
        self.source = folder / "shop.duckdb"
        wlc.master(self.source, farm=self.farm, beat_s=0.5, create=True)
        with wlc.connect(self.source) as connection:
            connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY, v VARCHAR)")
        wlc.snapshot(self.source)
        wlc.set_tiers("shop", SETTINGS, farm=self.farm)

    def place(self, name: str) -> str:
        return f"{self.root}/{name}"

    def start(self, name: str) -> None:
        into = str(self.folder / f"{name}.duckdb")
        program, told = (
            ("cli.wlc", ["tier", "ship", "shop", "--to", self.place(name)]) if name in self.relays else ("cli.wlr", [])
        )
        told = told or ["replicate", "shop", "--into", into]
        command = [sys.executable, "-m", program, *told, "--farm", self.farm, "--upstream", "auto", "--follow"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.kills += 1

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    def write(self) -> None:
        self.value += 1
        with wlc.connect(self.source) as connection:
            connection.execute(f"INSERT INTO t (i, v) VALUES ({self.value}, 'a')")
            connection.execute(f"UPDATE t SET v = 'b' WHERE i = {self.chance.randint(1, self.value)}")
        wlc.flush(self.source)

    def change(self) -> None:
        """Do what a log has besides changes of rows, one after the other: layouts, bulk loads, changes of the master."""
        number = self.changes = self.changes + 1
        if number % 3 == 0:
            # Another file becomes the master.
            self.source = Path(shutil.copy(self.source, self.source.with_stem(f"shop{number}")))
            wlc.master(self.source, moved=True)
            return
        with wlc.connect(self.source) as connection:
            if number % 3 == 1:
                connection.execute(f"ALTER TABLE t ADD COLUMN c{number} INTEGER DEFAULT {number}")
                connection.execute(f"CREATE TABLE u{number} AS SELECT range AS i, 'bulk' AS v FROM range(5000)")
            else:
                connection.execute(f"TRUNCATE u{number - 1}")
                connection.execute(f"INSERT INTO u{number - 1} SELECT range, 'more' FROM range(20)")

    def prune(self) -> None:
        """Take a snapshot, so that there is something to prune, and prune one place."""
        wlc.snapshot(self.source)
        place = self.chance.choice(("hq", *self.relays))
        if open_database("shop", self.place(place)).store.exists(CONFIG):
            wlc.prune("shop", farm=self.place(place), keep_for="8s")

    def refuse_too_many(self) -> None:
        held = Counter(claim.upstream for claim in claims(open_database("shop", self.farm)))
        assert not {name: count for name, count in held.items() if count > FANOUT}, held

    def trouble(self, seconds: float, kills: int) -> None:
        """Write and kill for so long, and until there were so many kills."""
        end, away = time.monotonic() + seconds, dict[str, float]()
        for name in (*self.relays, *self.replicas):
            self.start(name)
        while time.monotonic() < end or self.kills < kills:
            time.sleep(0.3)
            if self.changes < 3 or self.chance.random() < 0.1:
                self.change()
            self.write()
            self.refuse_too_many()
            for name in [name for name, back in away.items() if back <= time.monotonic()]:
                del away[name]
                self.start(name)
            if len(away) < 3 and self.chance.random() < 0.6:
                victim = self.chance.choice(sorted(self.running))
                self.kill(victim)
                away[victim] = time.monotonic() + self.chance.uniform(0.1, 2)
            if self.chance.random() < 0.1:
                self.prune()
        for name in away:
            self.start(name)

    def settle(self) -> None:
        """Wait until everybody is active and has everything."""
        end = time.monotonic() + ENDS_WITHIN_S
        while True:
            tree = wlc.tier_tree("shop", self.farm)
            tick, members = tree.members[0].tick, tree.members[1:]
            ready = [m for m in members if (m.state, m.tick) == ("active", tick) and m.tier is not None and not m.marks]
            self.refuse_too_many()
            if len(ready) == len(self.relays) + len(self.replicas) == len(members):
                assert not tree.stuck
                return
            states = [(m.url.rpartition("/")[2], m.state, m.marks, m.tier, m.tick) for m in members]
            assert time.monotonic() < end, (tick, states)
            time.sleep(0.3)

    def refuse_differences(self) -> None:
        tick = wlc.tick("shop", farm=self.farm)
        for name in self.replicas:
            found = wlr.verify(self.folder / f"{name}.duckdb")
            assert (found.tick, found.differing, found.unverifiable) == (tick, (), ())
            log = (self.folder / f"{name}.log").read_text()
            # Whoever lives finds what it needs, however often pruning runs.
            assert "pruned" not in log, log
        held = open_database("shop", self.farm).logs
        for name in self.relays:
            relay = open_database("shop", self.place(name)).logs
            both = {o.path for o in relay.list("shop_")} & {o.path for o in held.list("shop_")}
            assert both
            assert [path for path in both if relay.read(path) != held.read(path)] == []


def run(folder: Path, root: str, seconds: float, kills: int, seed: int, members: Members = MANY) -> None:
    tree = Tree(folder, root, seed, members)
    try:
        tree.trouble(seconds, kills)
        tree.settle()
    finally:
        tree.stop()
    tree.refuse_differences()


SEED = int(os.environ.get("DBFARM_SEED", "15"))


def test_a_tree_survives_random_kills(tmp_path: Path) -> None:
    run(tmp_path, str(tmp_path), 4, 3, SEED, FEW)


@pytest.mark.deep
def test_a_tree_of_eight_survives_ten_minutes_of_random_kills(tmp_path: Path) -> None:
    run(tmp_path, str(tmp_path), 600, 100, random.randrange(10**6))


@pytest.mark.deep
def test_a_tree_of_eight_in_a_bucket_survives_random_kills(tmp_path: Path) -> None:
    with bucket_at("tree") as url:
        run(tmp_path, url, 60, 10, random.randrange(10**6))
