"""Whatever is done to a master and its farm in whatever order, every replica holds what the master held at its tick.

The model is the list of what the master held after each commit. DBFARM_EXAMPLES=500 looks further than CI does, and at
other examples each time.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

import wlc
import wlr
from tests.fault.breaker import abandon_masters
from tests.lake import lake_contents, rebuilt, surplus
from tests.oracle import contents
from tests.sampling import machine_settings
from tests.sound import assert_same
from wlc.capture.duckdb import packed
from wlc.dialect.duckdb import catalog
from wlc.farm.errors import ExpiredError, InvalidError, ReplayError

if TYPE_CHECKING:
    from datetime import datetime

_MARK = re.compile(rb'"run": "[0-9a-f]*"|"sha256":"[0-9a-f]*"')
SEED = """
    CREATE TABLE keyed (id INTEGER PRIMARY KEY, a INTEGER, b VARCHAR);
    CREATE TABLE bag (a INTEGER, b VARCHAR, l INTEGER[]);
    CREATE TABLE parent (id INTEGER PRIMARY KEY, v INTEGER);
    CREATE TABLE child (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parent (id), v INTEGER);
    CREATE SEQUENCE numbers;
    CREATE TABLE numbered (id INTEGER PRIMARY KEY DEFAULT nextval('numbers'), x DOUBLE UNIQUE);
    CREATE SCHEMA "o d";
    CREATE TABLE "o d"."t "" x" ("group" INTEGER, "_tick" VARCHAR, PRIMARY KEY ("group", "_tick"));
    INSERT INTO keyed SELECT i, i % 3, 'v' FROM range(8) r(i);
    INSERT INTO bag SELECT i % 3, 'x', [i % 2] FROM range(9) r(i);
    INSERT INTO parent SELECT i, 0 FROM range(6) r(i);
    INSERT INTO child SELECT i, i % 3, 0 FROM range(6) r(i);
    CREATE TABLE account (id INTEGER PRIMARY KEY, amount INTEGER);
    INSERT INTO account SELECT i, 100 FROM range(10) r(i);
"""
TOTAL = 1000
# n and m are small numbers, so that statements meet the same rows again and again.
DATA = [
    "INSERT INTO keyed VALUES ({n}, {m}, 'new')",
    "INSERT INTO keyed SELECT i, {m}, 'many' FROM range({n}, {n} + {m}) r(i) ON CONFLICT DO NOTHING",
    "INSERT OR REPLACE INTO keyed VALUES ({n}, {m}, 'replaced'), ({m}, {n}, 'also') ",
    "INSERT INTO keyed VALUES ({n}, {m}, 'up') ON CONFLICT (id) DO UPDATE SET a = excluded.a + 1, b = NULL",
    "UPDATE keyed SET a = {m} WHERE id = {n}",
    "UPDATE keyed SET a = a + 1, b = b || '!' WHERE a = {m} % 3",
    "UPDATE keyed SET id = id + 20 WHERE id % 5 = {m} % 5",
    "DELETE FROM keyed WHERE id = {n}",
    "DELETE FROM keyed WHERE id > {n} + {m}",
    "MERGE INTO keyed USING (SELECT {n} AS id, {m} AS a) s ON keyed.id = s.id WHEN MATCHED THEN UPDATE SET a = s.a"
    " WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.id, s.a)",
    "INSERT INTO bag SELECT {m} % 3, 'x', [{n} % 2] FROM range({m})",
    "INSERT INTO bag FROM bag WHERE a = {m} % 3 LIMIT 4",
    "UPDATE bag SET b = 'y', l = [{n}] WHERE a = {m} % 3",
    "UPDATE bag SET a = a",
    "DELETE FROM bag WHERE a = {m} % 3",
    "DELETE FROM bag",
    "TRUNCATE keyed",
    "INSERT INTO parent VALUES ({n}, {m})",
    "UPDATE parent SET v = v + 1 WHERE id <= {m}",
    "DELETE FROM parent WHERE id = {n}",
    "INSERT INTO child VALUES ({n} + 10, {m}, {n})",
    "UPDATE child SET v = {n} WHERE parent = {m}",
    "UPDATE child SET parent = NULL WHERE id = {n}",
    "DELETE FROM child WHERE parent = {n} OR parent = {m}",
    "INSERT INTO numbered (x) SELECT random() FROM range({m})",
    "UPDATE numbered SET x = random() WHERE id % 4 = {m} % 4",
    "DELETE FROM numbered WHERE random() < 0.3",
    """INSERT INTO "o d"."t "" x" VALUES ({n}, '{m}')""",
    """UPDATE "o d"."t "" x" SET "_tick" = "_tick" || '{m}' WHERE "group" = {n}""",
    """DELETE FROM "o d"."t "" x" WHERE "group" < {m}""",
    "INSERT INTO made SELECT {n}",
    "UPDATE made SET a = a + 1",
    "DELETE FROM made WHERE a = {n}",
]
SCHEMA = [
    "CREATE TABLE made (a INTEGER)",
    "CREATE OR REPLACE TABLE made AS SELECT id AS a, b FROM keyed WHERE id < {n}",
    "CREATE TABLE made (a INTEGER PRIMARY KEY, b VARCHAR DEFAULT 'd{m}')",
    "DROP TABLE made",
    "ALTER TABLE made ADD COLUMN c{m} INTEGER DEFAULT {n}",
    "ALTER TABLE keyed ADD COLUMN c{m} INTEGER DEFAULT {n}",
    "ALTER TABLE bag ADD COLUMN c{m} DOUBLE DEFAULT random()",
    "ALTER TABLE bag DROP COLUMN c{m}",
    "ALTER TABLE keyed DROP COLUMN c{m}",
    "ALTER TABLE made ALTER a TYPE BIGINT",
    "ALTER TABLE made RENAME COLUMN a TO z",
    "ALTER TABLE made RENAME COLUMN z TO a",
    "ALTER TABLE made RENAME TO moved",
    "ALTER TABLE moved RENAME TO made",
    "CREATE INDEX by_a ON bag (a)",
    "DROP INDEX by_a",
    "CREATE OR REPLACE VIEW seen AS SELECT {n} AS n FROM keyed",
    "DROP VIEW seen",
    "ALTER TABLE bag ALTER a TYPE BIGINT",
    "ALTER TABLE keyed ALTER a SET DEFAULT {n}",
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "ALTER TABLE made ADD COLUMN m mood DEFAULT 'ok'",
    "CREATE OR REPLACE MACRO plus(x) AS x + {n}",
    "COMMENT ON TABLE keyed IS 'number {n}'",
    "CREATE SEQUENCE more START {m}",
    "DROP SEQUENCE more",
    "DROP TABLE child",
    "CREATE TABLE child (id INTEGER, parent INTEGER REFERENCES parent (id), v INTEGER)",
]


@dataclass(frozen=True)
class Commit:
    """What the master held from a tick on."""

    tick: int
    clock: datetime | None
    held: Any


@dataclass
class Copy:
    """A replica."""

    path: Path
    tick: int
    clock: datetime | None

    @property
    def bytes(self) -> dict[str, bytes]:
        """All that is on disk of it, but for what is there while it is written to, and the mark of its last run."""
        files = [self.path] if self.path.is_file() else sorted(self.path.rglob("*"))
        found = {str(file): file.read_bytes() for file in files if file.is_file() and not file.name.startswith(".")}
        # A run fences off those before it by its mark in the pointer, before it knows what it has to do.
        return {
            path: _MARK.sub(b"", content) if path.endswith("wlr.pointer") else content
            for path, content in found.items()
        }

    def lose(self) -> None:
        shutil.rmtree(self.path) if self.path.is_dir() else self.path.unlink()


@dataclass
class Model:
    """The committed states, and what of them the farm has."""

    commits: list[Commit] = field(default_factory=list)
    published: int = 0
    # (tick, clock) of each snapshot there has been, and the last tick of each history that has ended.
    snapshots: list[tuple[int, datetime | None]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def end(self, tick: int) -> int:
        """How far the history of a tick goes."""
        return next((end for end in self.ends if tick <= end), self.published)

    def at(self, tick: int) -> Any:
        """What the master held at a tick."""
        return next(commit.held for commit in reversed(self.commits) if commit.tick <= tick)

    def tick_at(self, clock: datetime) -> int:
        """The last published tick that was committed by then."""
        ticks = [c.tick for c in self.commits if c.clock is not None and c.clock <= clock and c.tick <= self.published]
        return max(ticks, default=0)


class Farm(RuleBasedStateMachine):
    """A master that writes, and replicas that follow."""

    replicas = Bundle("replicas")

    @initialize(is_seeded=st.booleans(), packed_rows=st.sampled_from((1, 3, packed.ROWS)))
    def begin_farm(self, is_seeded: bool, packed_rows: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(packed, "ROWS", packed_rows)
        self.folder = Path(tempfile.mkdtemp(prefix="dbfarm-"))
        self.source = self.folder / "sales.duckdb"
        with duckdb.connect(str(self.source)) as connection:
            if is_seeded:
                connection.execute(SEED)
        wlc.master(self.source)
        self.db = str(self.folder / "dbfarm" / "sales")
        self.model = Model()
        self.count = 0
        self.is_open = False
        # A Parquet replica follows along, and is made anew where it cannot.
        self.lake, self.lake_tick = self.folder / "lake", -1
        self.connect()
        self.model.commits.append(Commit(0, None, self.held()))
        if is_seeded:
            self.model.snapshots.append((0, None))
        else:
            self.connection.execute(f"BEGIN; {SEED}; COMMIT")
            self.note()

    def connect(self) -> None:
        self.connection = wlc.connect(self.source)
        self.other = self.connection.cursor()

    def disconnect(self) -> None:
        self.connection.close()
        self.other.close()
        self.is_open = False

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.disconnect()
            self.patch.undo()
            shutil.rmtree(self.folder)

    def held(self) -> Any:
        """What the master holds, as a connection sees it that has no transaction open."""
        with self.connection.cursor() as connection:
            return all_of(connection, "sales")

    def note(self) -> None:
        """A commit went well, or nothing happened."""
        tick, held = self.connection._shared.last_tick, self.held()
        if tick == self.model.commits[-1].tick:
            assert held == self.model.commits[-1].held, "a change without a tick"
            return
        assert tick > self.model.commits[-1].tick
        if "main.account" in held[0]:
            assert sum(int(amount) for _, amount in held[0]["main.account"]) == TOTAL
        self.model.commits.append(Commit(tick, self.connection._shared.last_commit, held))

    # The master -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.is_open)
    @rule()
    def begin(self) -> None:
        self.connection.begin()
        self.is_open = True

    @rule(text=st.sampled_from(DATA), n=st.integers(0, 9), m=st.integers(1, 5))
    def write(self, text: str, n: int, m: int) -> None:
        self.run(self.connection, text.format(n=n, m=m))

    @rule(text=st.sampled_from(DATA), n=st.integers(0, 9), m=st.integers(1, 5))
    def write_elsewhere(self, text: str, n: int, m: int) -> None:
        self.run(self.other, text.format(n=n, m=m))

    @rule(text=st.sampled_from(SCHEMA), n=st.integers(0, 9), m=st.integers(1, 2))
    def define(self, text: str, n: int, m: int) -> None:
        self.run(self.connection, text.format(n=n, m=m))

    @rule(is_elsewhere=st.booleans(), accounts=st.permutations(range(10)), amount=st.integers(1, 30))
    def transfer(self, is_elsewhere: bool, accounts: list[int], amount: int) -> None:
        """Money goes from one account to another: in a transaction of its own, or in the one that is open."""
        connection, is_alone = (self.other, True) if is_elsewhere else (self.connection, not self.is_open)
        moves = "; ".join(
            f"UPDATE account SET amount = amount + {change} WHERE id = {account}"
            for account, change in zip(accounts[:2], (amount, -amount), strict=True)
        )
        if not is_alone:
            self.run(connection, moves)
            return
        connection.begin()
        try:
            connection.execute(moves)
            connection.commit()
        except duckdb.Error:
            with suppress(duckdb.Error):
                connection.rollback()
        self.note()

    def run(self, connection: Any, text: str) -> None:
        try:
            connection.execute(text)
        except duckdb.Error:
            if self.is_open and connection is self.connection:
                self.roll_back()
        self.note()

    @precondition(lambda self: self.is_open)
    @rule()
    def commit(self) -> None:
        self.is_open = False
        try:
            self.connection.commit()
        except duckdb.Error:
            assert self.connection._session.transaction is None
        self.note()

    @precondition(lambda self: self.is_open)
    @rule()
    def roll_back(self) -> None:
        self.is_open = False
        self.connection.rollback()
        self.note()

    @rule()
    def crash(self) -> None:
        """The process is gone with its open transaction; the file and the farm are as they were at that moment."""
        image = {file.name: file.read_bytes() for file in self.folder.glob("sales.duckdb*") if file.is_file()}
        abandon_masters()
        self.is_open = False
        for file in self.folder.glob("sales.duckdb*"):
            if file.name not in image:
                file.unlink()
        # The database stays the file that it is: another one in its place would be a copy of the master.
        for name, data in image.items():
            (self.folder / name).write_bytes(data)
        self.connect()
        self.model.published = wlc.tick(self.db)
        self.note()

    @rule()
    def reopen(self) -> None:
        self.disconnect()
        self.connect()
        self.model.published = wlc.tick(self.db)
        self.note()

    # The farm -------------------------------------------------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        self.publish(wlc.flush(self.source).tick)

    @rule()
    def snapshot(self) -> None:
        position = wlc.snapshot(self.source).position
        self.publish(position.tick)
        self.model.snapshots.append((position.tick, self.clock_of(position.tick)))

    def publish(self, tick: int) -> None:
        assert tick == self.model.commits[-1].tick, "a flush publishes everything that was committed"
        assert wlc.tick(self.db) == tick
        self.model.published = tick

    def clock_of(self, tick: int) -> datetime | None:
        return next((c.clock for c in reversed(self.model.commits) if c.tick <= tick and c.clock), None)

    @rule()
    def prune(self) -> None:
        wlc.prune(self.db, deadline=timedelta(days=1), keep_for="0s")
        kept = {tick for tick in wlc.resolve(self.db).snapshot_ticks()}
        self.model.snapshots = [snapshot for snapshot in self.model.snapshots if snapshot[0] in kept]

    @rule(is_written=st.booleans())
    def begin_again(self, is_written: bool) -> None:
        """Stop, write without capture, and become a master again: a new history that old replicas cannot follow."""
        self.disconnect()
        wlc.stop(self.source)
        self.model.published = wlc.tick(self.db)
        if is_written:
            with duckdb.connect(str(self.source)) as connection:
                connection.execute("INSERT INTO bag (a) VALUES (1000)")
        wlc.master(self.source)
        self.connect()
        self.model.ends.append(self.model.published)
        self.model.published, clock = wlc.tick(self.db), wlc.clock(self.db)
        self.model.commits.append(Commit(self.model.published, clock, self.held()))
        self.model.snapshots.append((self.model.published, clock))

    # Replicas -------------------------------------------------------------------------------------------------------

    @rule(
        target=replicas,
        kind=st.sampled_from([".duckdb", ".duckdb", ""]),
        goal=st.sampled_from(["end", "tick", "time"]),
        data=st.data(),
    )
    def replicate_anew(self, kind: str, goal: str, data: Any) -> Any:
        self.count += 1
        copy = Copy(self.folder / f"replica{self.count}{kind}", 0, None)
        wanted, options = self.goal(goal, data)
        try:
            self.replicate(copy, wanted, options, master=self.db)
        except (InvalidError, ExpiredError):
            assert not copy.path.exists() or not copy.bytes
            assert not self.can_make(wanted, options)
            return multiple()
        self.replicate_files()
        return copy

    @rule(copy=replicas, goal=st.sampled_from(["end", "end", "tick", "time"]), data=st.data())
    def replicate_on(self, copy: Copy, goal: str, data: Any) -> None:
        wanted, options = self.goal(goal, data)
        before = copy.bytes
        try:
            self.replicate(copy, wanted, options)
        except InvalidError:
            is_behind = wanted < copy.tick or ("until" in options and copy.clock and options["until"] < copy.clock)
            is_ahead = wanted > self.model.end(copy.tick)
            assert is_behind or is_ahead, (wanted, copy, options)
            if "until" not in options:
                assert copy.bytes == before, "a refusal changes nothing"
            copy.tick, copy.clock = wlr.tick(copy.path), wlr.clock(copy.path)
        self.check(copy)

    def replicate_files(self) -> None:
        """Let the Parquet replica follow to the end, and prune it now and then."""
        before = self.lake_tick
        try:
            tick = wlr.replicate(self.db, into=self.lake, engine="local").tick
        except (InvalidError, ExpiredError):
            if before < 0:
                assert not self.can_make(self.model.published, {})
                return
            # It stood in a history that has ended, or what comes next was pruned.
            shutil.rmtree(self.lake)
            before, tick = -1, wlr.replicate(self.db, into=self.lake, engine="local").tick
        assert self.model.at(tick) == self.model.at(self.model.published)
        with rebuilt(self.lake) as (connection, name):
            assert all_of(connection, name) == self.model.at(tick), f"files differ at tick {tick}"
        if tick % 3 == 0:
            wlr.prune(self.lake, keep="1")
            assert surplus(self.lake) == []
        elif before >= 0:
            assert lake_contents(self.lake, before) == self.model.at(before)[0], "old ticks stay as they were"
        self.lake_tick = tick

    @rule(copy=consumes(replicas), account=st.integers(0, 9))
    def accept(self, copy: Copy, account: int) -> None:
        """A row of a replica is spoilt: the first transaction that changes it fails, and is then skipped by itself."""
        states = [self.model.at(copy.tick), *(c.held for c in self.model.commits if c.tick > copy.tick)]
        ticks = [copy.tick, *(c.tick for c in self.model.commits if c.tick > copy.tick)]
        held = [dict(state[0].get("main.account", {})) for state in states]
        row = [next((row for row in rows if row[0] == str(account)), None) for rows in held]
        last = min(self.model.end(copy.tick), self.model.published)
        if copy.path.is_file() and row[0] is not None:
            fails = next((n for n in range(1, len(ticks)) if row[n] != row[n - 1]), None)
            if fails is not None and ticks[fails] <= last:
                self.spoil_and_accept(copy, account, ticks[fails - 1], ticks[fails])
        copy.lose()

    def spoil_and_accept(self, copy: Copy, account: int, before: int, fails: int) -> None:
        wlr.unlock(copy.path)
        with duckdb.connect(str(copy.path)) as connection:
            connection.execute("UPDATE account SET amount = -7 WHERE id = ?", [account])
        wlr.lock(copy.path)
        with pytest.raises(ReplayError) as caught:
            wlr.replicate(into=copy.path, tick=fails)
        assert f"transaction {fails}, table main.account" in str(caught.value)
        assert self.spoilt(copy, account) == self.model.at(before), "all before it are applied"
        assert wlr.accept(copy.path).tick == fails
        assert wlr.replicate(into=copy.path, tick=fails).tick == fails
        assert self.spoilt(copy, account) == self.model.at(before), "it is skipped, and nothing else"
        assert wlr.status(copy.path).accepted == (fails,)

    def spoilt(self, copy: Copy, account: int) -> Any:
        """What a replica holds, its spoilt row as it was."""
        found = self.contents(copy)
        rows, sound = (
            found[0]["main.account"],
            TOTAL - sum(int(a) for i, a in found[0]["main.account"] if i != str(account)),
        )
        assert rows.pop((str(account), "-7")) == 1
        rows[str(account), str(sound)] = 1
        return found

    @rule(copy=consumes(replicas))
    def lose(self, copy: Copy) -> None:
        copy.lose()

    def goal(self, goal: str, data: Any) -> tuple[int, dict[str, Any]]:
        """A tick that is to be reached, and how it is asked for."""
        if goal == "tick":
            tick = data.draw(st.integers(0, self.model.published + 1))
            return tick, {"tick": tick}
        clocks = [commit.clock for commit in self.model.commits if commit.clock]
        if goal == "time" and clocks:
            clock = data.draw(st.sampled_from(clocks)) - data.draw(
                st.sampled_from([timedelta(0), timedelta(microseconds=1)])
            )
            return self.model.tick_at(clock), {"until": clock}
        return self.model.published, {}

    def replicate(self, copy: Copy, wanted: int, options: dict[str, Any], master: str | None = None) -> None:
        result = wlr.replicate(master, into=copy.path, **options)
        assert result.tick <= wanted or "until" in options
        assert self.model.at(result.tick) == self.model.at(wanted), "all transactions up to the goal, no other"
        assert (wlr.tick(copy.path), wlr.clock(copy.path)) == (result.tick, result.clock)
        copy.tick, copy.clock = result.tick, result.clock
        self.check(copy)

    def can_make(self, wanted: int, options: dict[str, Any]) -> bool:
        """Whether a new replica can be made at a tick: from a snapshot before it or the log from the beginning."""
        if wanted > self.model.published:
            return False
        until = options.get("until")
        starts = [
            tick for tick, clock in self.model.snapshots if (clock and clock <= until if until else tick <= wanted)
        ]
        begins_with_nothing = not self.model.snapshots or self.model.snapshots[0][0] > 0
        numbers = wlc.resolve(self.db).batch_numbers()
        if not starts and begins_with_nothing and (numbers[:1] == [1] or not (numbers or self.model.snapshots)):
            starts = [0]
        # What was written between two histories is in no log: from one, the next cannot be reached.
        return bool(starts) and wanted <= self.model.end(max(starts))

    def check(self, copy: Copy) -> None:
        assert self.contents(copy) == self.model.at(copy.tick), f"{copy} differs"
        assert_same(copy.path)

    def contents(self, copy: Copy) -> Any:
        if copy.path.is_dir():
            with rebuilt(copy.path) as (connection, name):
                return all_of(connection, name)
        with duckdb.connect() as connection:
            connection.execute(f"ATTACH '{copy.path}' AS sales (READ_ONLY)")
            return all_of(connection, "sales")


def all_of(connection: Any, name: str) -> Any:
    """Rows, layouts and views of a database."""
    views = connection.execute(
        "SELECT schema_name, view_name, sql FROM duckdb_views() WHERE database_name = ? AND NOT internal"
        " AND schema_name <> 'wlr'",
        [name],
    ).fetchall()
    return contents(connection, name), catalog.tables(connection, name), sorted(views)


@pytest.mark.parametrize("examples, steps", [(1, 8), pytest.param(2, 35, marks=pytest.mark.slow)])
def test_replicas_hold_what_the_master_held(examples: int, steps: int) -> None:
    run_state_machine_as_test(Farm, settings=machine_settings(examples, steps=steps))
