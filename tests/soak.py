"""A long run: a master that several connections write to, replicas of every kind, faults all the time, and comparisons.

    python -m tests.soak --minutes 30 --seed 7 --postgres

Every cycle writes, breaks something, publishes, replicates, and compares every replica with the master row by row. It
prints a line per cycle and sums in the end, and exits with 1 if anything was lost, came twice, or differs anywhere.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

import wlc
import wlr
from tests.fault import workload
from tests.fault.processes import Program, program, started
from tests.fault.test_killed_replica import program_of
from tests.lake import rebuilt
from tests.oracle import contents, file_contents
from tests.scratch import attached
from wlc.farm.errors import FarmError
from wlr.engine.adapters import locate, target_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.oracle import Contents

TRANSACTIONS = 12
CYCLES_PER_PRUNE = 7
CYCLES_PER_SNAPSHOT = 5
# A machine that does much else may take its time; what takes longer hangs.
PATIENCE_S = 1200.0
# The replica that stays behind catches up so often.
CYCLES_PER_VISIT = 4
TOTAL = workload.ACCOUNTS * workload.AMOUNT


@dataclass
class Copy:
    """A replica.

    Attributes:
        tables: Patterns of what it replicates.
        is_late: It follows to a random tick between, and to the end now and then only.
    """

    name: str
    into: str
    tables: tuple[str, ...] = ()
    is_late: bool = False


@dataclass
class Soak:
    """One run.

    Attributes:
        counts: What was done: cycles, transactions, rows, and every fault survived by its name.
        problems: What did not fit; empty in a good run.
        said: The last transaction that each client was told is committed.
    """

    folder: Path
    seed: int
    copies: list[Copy]
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    said: Counter[int] = field(default_factory=Counter)
    ticks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.source, self.farm = self.folder / "bank.duckdb", self.folder / "farm"
        self.url = str(self.farm / "bank")
        with duckdb.connect(str(self.source)) as connection:
            connection.execute(workload.TABLES)
        wlc.master(self.source, farm=str(self.farm), beat_s=0.5)

    def cycle(self) -> None:
        self.counts["cycles"] += 1
        number = self.counts["cycles"]
        wlc.beat(self.source, self.rng.choice((0, 0.2, 0.5, 300)))
        self.write()
        self.expect_commits()
        if self.rng.random() < 0.3:
            self.flush_without_farm()
        wlc.flush(self.source)
        if number % CYCLES_PER_SNAPSHOT == 0:
            wlc.snapshot(self.source)
        if self.rng.random() < 0.4:
            self.replicate_from_damage()
        held = file_contents(self.source)
        self.ticks.append(wlc.tick(self.url))
        self.counts["rows"] += sum(rows.total() for rows in held.values())
        self.expect_money(held, "the master")
        for copy in self.copies:
            self.follow(copy, held, is_visit=number % CYCLES_PER_VISIT == 0)
        if number % CYCLES_PER_PRUNE == 0:
            wlc.prune(self.url, deadline=timedelta(days=1), keep_for="0s")
            for copy in self.copies:
                if locate(copy.into).engine == "parquet":
                    wlr.prune(copy.into, keep="1")
        self.verify()

    # Writing

    def write(self) -> None:
        """Let the program write; it may be killed, its clock may be wrong, and the farm may be away meanwhile."""
        kill, away, shift_s = self.rng.random() < 0.4, self.rng.random() < 0.3, self.rng.choice((0, 0, 0, 90, -90))
        arguments = (self.source, self.rng.randrange(2**32), TRANSACTIONS, shift_s)
        with program("tests.fault.workload", *arguments) as running:
            for _ in range(self.rng.randrange(1, TRANSACTIONS)):
                running.next_line()
            if away:
                self.be_away(lambda: time.sleep(self.rng.random()))
                self.faults["farm away while it is written"] += 1
            if kill:
                time.sleep(self.rng.random() * 0.5)
                running.kill()
                self.faults["master killed"] += 1
            elif code := self.end(running):
                self.problems.append(f"the writer ended with {code}: {running.errors}")
        self.faults["clock jumped"] += bool(shift_s)
        for line in running.lines:
            client, _, last = line.partition(" ")
            if client.isdecimal():
                self.said[int(client)] = int(last)
                self.counts["transactions"] += 1
            elif client == "refused":
                self.counts["commits refused"] += 1
                print(line, flush=True)

    def end(self, running: Program) -> int:
        running.process.wait(PATIENCE_S)
        return running.end()

    def be_away(self, do: Callable[[], object]) -> None:
        away = self.folder / "away"
        self.farm.rename(away)
        try:
            do()
        finally:
            away.rename(self.farm)

    def expect_commits(self) -> None:
        """Whatever was said to be committed is there, once, and at most one more of each client."""
        with attached(self.source) as connection:
            for client in range(workload.CLIENTS):
                query = "SELECT number FROM ledger WHERE client = ? ORDER BY ALL"
                numbers = [number for (number,) in connection.execute(query, [client]).fetchall()]
                last = self.said[client]
                if numbers != list(range(1, len(numbers) + 1)) or len(numbers) not in (last, last + 1):
                    self.problems.append(f"client {client} was told of {last} commits, {len(numbers)} are there")
                self.said[client] = len(numbers)

    def flush_without_farm(self) -> None:
        def flush() -> None:
            try:
                done = wlc.flush(self.source)
            except FarmError:
                self.faults["flush without farm"] += 1
            else:
                self.problems.append(f"a flush without a farm says {done}")

        self.be_away(flush)

    # Replicating

    def replicate_from_damage(self) -> None:
        """Damage a file, let a new replica be made, and mend the file: it is refused, or right."""
        files = [path for path in self.farm.rglob("*") if path.is_file() and not path.name.startswith(".")]
        file, into = self.rng.choice(sorted(files)), self.folder / f"of damage {self.counts['cycles']}.duckdb"
        whole = file.read_bytes()
        at = self.rng.randrange(len(whole))
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << self.rng.randrange(8)]) + whole[at + 1 :])
        try:
            wlr.replicate(self.url, into=into, register=False)
        except FarmError as error:
            if f"{file.parent.name}/{file.name}" not in f"{error} {error.path}":
                self.problems.append(f"byte {at} of {file} was damaged, and the refusal is: {error}")
        else:
            if file_contents(into) != file_contents(self.source):
                self.problems.append(f"byte {at} of {file} was damaged, and a wrong replica was made")
        finally:
            file.write_bytes(whole)
            into.unlink(missing_ok=True)
        self.faults["file damaged"] += 1

    def follow(self, copy: Copy, held: Contents, *, is_visit: bool) -> None:
        """Roll a replica forward, perhaps with a kill on the way, and compare it."""
        end = self.ticks[-1]
        at = self.tick(copy)
        if copy.is_late and not is_visit:
            # To any tick between, where the money has to be right, too.
            self.replicate(copy, tick=self.rng.randint(max(at, 0), end))
            self.expect_money(self.held(copy), f"{copy.name} at tick {self.tick(copy)}")
            return
        if self.rng.random() < 0.3:
            self.kill_replication(copy)
        self.replicate(copy)
        if self.tick(copy) != end:
            self.problems.append(f"{copy.name} is at tick {self.tick(copy)}, the master at {end}")
        wanted = {name: rows for name, rows in held.items() if not copy.tables or name.startswith("main.sale_")}
        found = self.held(copy)
        if found != (self.as_postgres(wanted) if locate(copy.into).engine == "postgres" else wanted):
            names = [name for name in {*found, *wanted} if found.get(name) != wanted.get(name)]
            self.problems.append(f"{copy.name} differs at tick {end} in {', '.join(names)}")
        self.counts["comparisons"] += 1

    def replicate(self, copy: Copy, **target: Any) -> None:
        master = None if self.tick(copy) >= 0 else self.url
        tables = copy.tables if master and copy.tables else None
        done = wlr.replicate(master, into=copy.into, tables=tables, **target)
        self.counts["row images replayed"] += done.rows

    def kill_replication(self, copy: Copy) -> None:
        if copy.tables and self.tick(copy) < 0:
            return
        running = started(self.url, copy.into, program_of("duckdb"))
        time.sleep(self.rng.random() * 0.6)
        running.kill()
        self.faults["replication killed"] += 1
        if (at := self.tick(copy)) > 0:
            self.expect_money(self.held(copy), f"{copy.name}, killed at tick {at}")

    def tick(self, copy: Copy) -> int:
        """Where it stands, -1 where there is none."""
        state = target_at(copy.into).find_state()
        return -1 if state is None else state.position.tick

    # Comparing

    def held(self, copy: Copy) -> Any:
        place = locate(copy.into)
        if place.engine == "postgres":
            from tests.postgres.held import held_by_postgres

            return held_by_postgres(copy.into)
        if place.engine == "parquet":
            with rebuilt(copy.into) as (connection, catalog):
                return contents(connection, catalog)
        return file_contents(place.path)

    def as_postgres(self, wanted: Contents) -> Any:
        from tests.postgres.held import held_by_duckdb

        return {name: rows for name, rows in held_by_duckdb(self.source).items() if name in wanted}

    def expect_money(self, held: Any, where: str) -> None:
        accounts = held.get("main.account")
        if accounts is None:
            return
        rows = (eval(row) if isinstance(row, str) else row for row in accounts.elements())
        if (total := sum(int(_amount(row)) for row in rows)) != TOTAL:
            self.problems.append(f"{where} holds {total} of money, not {TOTAL}")

    def verify(self) -> None:
        """Farm, master and replicas are asked to prove themselves."""
        self.problems += [f"{p.path}: {p.problem}" for p in wlr.verify_farm(self.url).problems]
        for check in wlc.verify_source(self.source):
            if check.outcome != "same":
                self.problems.append(f"verify says that {check.table} of the master is {check.outcome}: {check}")
        for copy in self.copies:
            if target_at(copy.into).find_state() is not None:
                for table in wlr.verify(copy.into).tables:
                    if table.outcome != "same":
                        self.problems.append(f"verify says that {table.table} of {copy.name} is {table.outcome}")


def _amount(row: Any) -> Any:
    """The amount of an account; `held` lists columns by name, `contents` as declared: (amount, id) and (id, amount)."""
    return row[0] if isinstance(row, list) else row[1]


def copies(folder: Path, postgres: str | None) -> Iterator[Copy]:
    yield Copy("DuckDB", str(folder / "copy.duckdb"))
    yield Copy("Parquet", str(folder / "lake"))
    yield Copy("late DuckDB", str(folder / "late.duckdb"), is_late=True)
    yield Copy("late Parquet", str(folder / "late_lake"), is_late=True)
    yield Copy("some tables", str(folder / "some.duckdb"), ("main.sale_*",))
    if postgres:
        yield Copy("PostgreSQL", postgres)


def run(folder: Path, minutes: float, seed: int, postgres: str | None = None) -> Soak:
    """Run for a time, or until something does not fit."""
    os.environ["DBFARM_CACHE"] = str(folder / "cache")
    soak = Soak(folder, seed, list(copies(folder, postgres)))
    began = time.monotonic()
    while not soak.problems and (soak.counts["cycles"] < 2 or time.monotonic() - began < minutes * 60):
        soak.cycle()
        told = ", ".join(f"{count} {name}" for name, count in soak.counts.items())
        print(f"{time.monotonic() - began:6.0f} s: {told}; faults {soak.faults.total()}", flush=True)
    print(f"seed {seed}, {(time.monotonic() - began) / 60:.1f} minutes, tick {soak.ticks[-1]}")
    for name, count in soak.counts.items():
        print(f"{count:9} {name}")
    for name, count in sorted(soak.faults.items()):
        print(f"{count:9} survived: {name}")
    print(f"{len(soak.problems):9} mismatches")
    for problem in soak.problems:
        print(problem)
    return soak


def main() -> int:
    parser = argparse.ArgumentParser(description="Write, break, replicate and compare for a long time.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--postgres", action="store_true", help="with a PostgreSQL replica, in a server of its own")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="dbfarm-soak-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        url = None
        if options.postgres:
            from contextlib import contextmanager

            from tests.postgres.cluster import new_folder, running

            url = stack.enter_context(contextmanager(running)(new_folder())).create_database()
        return 1 if run(folder, options.minutes, options.seed, url).problems else 0


if __name__ == "__main__":
    sys.exit(main())
