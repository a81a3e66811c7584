"""Kills masters, publishers and replicas with kill -9 under load, and looks after every round what is there.

    python -m tests.fault.kill [--rounds N] [--seed S] [--minutes M]

In a round a program writes and publishes on its beat, while one loop replicates into a DuckDB file and another one into a
Parquet folder. Each of the three is killed at a moment of its own; then a `wlc flush` is. After that the database must hold
every transaction that was said to be committed, the farm an unbroken log of it, and both replicas a prefix, from which
they go on. Prints a report; ends with 1 if anything was wrong. The same seed makes the same choices, not the same moments.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

import wlc
import wlr
from tests.fault import writer
from tests.fault.processes import Program
from tests.fault.trial import check_log
from tests.lake import folder_of, lake_contents, surplus
from tests.oracle import file_contents, published
from tests.scratch import attached
from wlc.farm.database import open_database
from wlr.engine.parquet.folder import POINTER

if TYPE_CHECKING:
    from collections.abc import Callable

FLUSH = """
import sys, wlc.capture.duckdb.source
print("ready", flush=True)
wlc.flush(sys.argv[1])
"""
REPLICATE = """
import sys, time, wlr, wlr.engine.duckdb.build, wlr.engine.parquet.build
print("ready", flush=True)
while True:
    wlr.replicate(sys.argv[1], into=sys.argv[2], engine="local")
    print(wlr.tick(sys.argv[2]), flush=True)
"""
# Now and then the log is made short again, so that the simplest model can follow it.
SNAPSHOT_EVERY = 10


@dataclass
class Report:
    """What was done, and what was wrong."""

    seed: int
    rounds: int = 0
    transactions: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    mismatches: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        killed = ", ".join(f"{count} {what}" for what, count in sorted(self.kills.items()))
        lines = [
            f"seed {self.seed}: {self.rounds} rounds, {self.transactions} transactions committed,"
            f" {self.kills.total()} kills ({killed}), {len(self.mismatches)} mismatches"
        ]
        return "\n".join(lines + self.mismatches)


@dataclass
class Bank:
    """A master, its farm and two replicas, in one folder."""

    folder: Path

    def __post_init__(self) -> None:
        self.source, self.farm = self.folder / "bank.duckdb", self.folder / "farm"
        self.replicas = (self.folder / "replica.duckdb", self.folder / "lake")
        self.url = str(self.farm / "bank")
        with duckdb.connect(str(self.source)) as connection:
            connection.execute(writer.TABLES)
        wlc.master(self.source, farm=str(self.farm))

    def kill_all(self, rng: random.Random, report: Report) -> dict[int, int]:
        """Let everybody run and kill them; returns for each client of the writer its last commit that it told of."""
        wlc.beat(self.source, rng.choice((0, 0.02, 0.2, 300)))
        running = {"masters": Program("tests.fault.writer", self.source, rng.randrange(2**32))}
        for replica in self.replicas:
            running[f"replicas into {replica.name}"] = Program(self.url, replica, text=REPLICATE)
        for started in running.values():
            started.next_line()
        killers = [threading.Timer(rng.random() * 0.8, started.kill) for started in running.values()]
        for killer in killers:
            killer.start()
        for killer in killers:
            killer.join()
        report.kills.update(running.keys())
        failed = {name: started.errors for name, started in running.items() if started.process.returncode != -9}
        report.mismatches += [f"{name} ended by themselves: {errors}" for name, errors in failed.items()]
        flush = Program(self.source, text=FLUSH)
        flush.wait_for("ready")
        time.sleep(rng.random() * 0.2)
        report.kills["publishers"] += flush.process.poll() is None
        flush.kill()
        said = dict.fromkeys(range(writer.CLIENTS), 0)
        for line in running["masters"].lines:
            client, number = map(int, line.split())
            said[client] = number
        return said

    def check(self, said: dict[int, int]) -> int:
        """Check all rules; returns the number of transactions that the database holds."""
        count = check_said(self.source, said)
        for replica in self.replicas:
            if replica.is_file() or (replica / POINTER).exists():
                held = file_contents(replica) if replica.is_file() else lake_contents(replica)
                assert held == published(self.url, wlr.tick(replica)), f"{replica.name} holds what never was"
        # A run that has something to do removes what a dead one has left; one that has nothing to do need not look.
        with wlc.connect(self.source) as connection:
            connection.execute("INSERT INTO note VALUES ('checked')")
        wlc.flush(self.source)
        last = check_log(open_database(self.url))
        present = file_contents(self.source)
        assert published(self.url) == present, "the farm holds something else than the master"
        assert sum(int(amount or 0) * times for (_, amount), times in present["main.account"].items()) == 0
        for replica in self.replicas:
            result = wlr.replicate(self.url, into=replica, engine="local")
            assert result.tick == wlr.status(replica).tick == wlc.status(self.source).tick >= last
            held = file_contents(replica) if replica.is_file() else lake_contents(replica)
            assert held == present, f"{replica.name} differs from the master"
        # What was half written, `wlr lake prune` removes after a day.
        folder_of(self.replicas[1]).store.sweep(0)
        left = surplus(self.replicas[1]) + [path.name for path in self.folder.iterdir() if path.name.startswith(".")]
        assert left == [], f"left over: {left}"
        return count

    def shorten(self) -> None:
        wlc.snapshot(self.source)
        for replica in self.replicas:
            wlr.replicate(self.url, into=replica, engine="local")
        wlr.prune(self.replicas[1], keep="1")
        wlc.prune(self.url, keep_for="0s")


def check_said(source: Path, said: dict[int, int]) -> int:
    """The database has every transaction that was said to be committed, once, and at most one more of each client."""
    with attached(source) as connection:
        rows = connection.execute("SELECT client, number FROM ledger ORDER BY ALL").fetchall()
    for client, last in said.items():
        numbers = [number for owner, number in rows if owner == client]
        assert numbers == list(range(1, len(numbers) + 1)), "a transaction was lost, or is there twice"
        assert not last or last <= len(numbers) <= last + 1, "a transaction that was committed is gone"
    return len(rows)


def run(
    folder: Path, rounds: int, seed: int, minutes: float = float("inf"), tell: Callable[[str], object] = print
) -> Report:
    """Run rounds until there were enough, the time is over, or something is wrong."""
    rng, report, bank = random.Random(seed), Report(seed), Bank(folder)
    deadline = time.monotonic() + minutes * 60
    while report.rounds < rounds and time.monotonic() < deadline and not report.mismatches:
        report.rounds += 1
        said = bank.kill_all(rng, report)
        try:
            report.transactions = bank.check(said)
            if report.rounds % SNAPSHOT_EVERY == 0:
                bank.shorten()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            report.mismatches.append(f"round {report.rounds}: {type(error).__name__}: {error} at {where.line}")
        tell(str(report))
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill masters, publishers and replicas, and check what is left.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        report = run(Path(folder), asked.rounds, asked.seed, asked.minutes)
    return 1 if report.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
