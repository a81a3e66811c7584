"""The main job from end to end: a master writes, a replica follows, stops where it is told, and fails as it should."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.oracle import contents, file_contents, published
from tests.sampling import sampled
from tests.scratch import attached
from wlc.dialect.sql import literal
from wlc.farm.errors import ExpiredError, InvalidError, ReplayError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ACCOUNTS, TOTAL = 20, 20_000
TICKS = [1, 2, 3, 4, 7, 8, 9, 10, 11]


def new_master(folder: Path, seed: str = "", **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "sales.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute(seed)
    wlc.master(source, **options)
    return source


def write(source: Path, *statements: str) -> None:
    with wlc.connect(source) as connection:
        for statement in statements:
            connection.execute(statement)


def value(path: Path, query: str) -> object:
    with attached(path) as connection:
        return connection.execute(query).fetchall()[0][0]


# Names ----------------------------------------------------------------------------------------------------------------

IN_ANOTHER_CASE = """
    CREATE TABLE Parent (id INTEGER, note VARCHAR, PRIMARY KEY (ID));
    CREATE TABLE child (id INTEGER PRIMARY KEY, p INTEGER REFERENCES PARENT(Id), Up INTEGER,
        FOREIGN KEY (UP) REFERENCES CHILD(ID));
    CREATE TABLE "Ä" (n INTEGER PRIMARY KEY); CREATE TABLE "ä" (m INTEGER PRIMARY KEY);
    CREATE TABLE "both" (x INTEGER REFERENCES "ä"(M), y INTEGER REFERENCES "Ä"(N));
    INSERT INTO Parent VALUES (1, 'one'); INSERT INTO child VALUES (1, 1, NULL); INSERT INTO "ä" VALUES (7)
"""


@pytest.mark.slow
def test_keys_may_spell_their_tables_and_columns_in_another_case(tmp_path: Path) -> None:
    source = new_master(tmp_path / "master", IN_ANOTHER_CASE)
    replica = tmp_path / "replica.duckdb"
    wlr.replicate(source, into=replica)
    write(
        source,
        "INSERT INTO parent VALUES (2, 'two')",
        "INSERT INTO child VALUES (2, 2, 1)",
        "INSERT INTO child VALUES (3, 2, 2)",
        "UPDATE parent SET note = 'changed'",
        'INSERT INTO "both" VALUES (7, NULL)',
        "CREATE TABLE later (ID INTEGER PRIMARY KEY, c INTEGER REFERENCES Child(iD))",
        "INSERT INTO later VALUES (1, 3)",
        "DELETE FROM later",
        "DELETE FROM child WHERE id = 3",
    )
    wlc.flush(source)
    assert wlr.replicate(into=replica).tick == wlc.tick(source)
    assert file_contents(replica) == file_contents(source)
    with attached(replica) as connection:
        assert connection.execute("FROM parent ORDER BY id").fetchall() == [(1, "changed"), (2, "changed")]
        assert connection.execute("FROM child ORDER BY id").fetchall() == [(1, 1, None), (2, 2, 1)]


# Stops ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    """A master whose row n came with tick n, in two batches; ticks 5 and 6 went to one that was rolled back."""
    source = new_master(tmp_path / "master", "CREATE TABLE t (tick INTEGER PRIMARY KEY); CREATE TABLE log (n INTEGER)")
    write(source, *(f"INSERT INTO t VALUES ({tick})" for tick in range(1, 5)))
    wlc.flush(source)
    write(source, "BEGIN; INSERT INTO log VALUES (0); ROLLBACK", *(f"INSERT INTO t VALUES ({n})" for n in TICKS[4:]))
    wlc.flush(source)
    assert wlc.tick(source) == TICKS[-1]
    assert wlc.status(source).batches == 2
    return source


def ticks_of(path: Path) -> list[int]:
    with attached(path) as connection:
        return [row[0] for row in connection.execute("SELECT tick FROM t ORDER BY tick").fetchall()]


@pytest.mark.slow
@pytest.mark.parametrize("tick", sampled([0, 3, 4, 5, 6, 7, 9, 11], 4))
def test_a_tick_is_exact_and_continuing_loses_and_repeats_nothing(ten: Path, tmp_path: Path, tick: int) -> None:
    replica = tmp_path / "replica.duckdb"
    stopped = wlr.replicate(ten, into=replica, tick=tick)
    assert ticks_of(replica) == [n for n in TICKS if n <= tick]
    assert stopped.tick == wlr.tick(replica) == max(n for n in [0, *TICKS, 6] if n <= tick)
    again = wlr.replicate(into=replica, tick=tick)
    assert (again.tick, again.transactions) == (stopped.tick, 0)
    rest = wlr.replicate(into=replica)
    assert ticks_of(replica) == TICKS
    assert stopped.transactions + rest.transactions == 9, "each transaction was applied once"


@pytest.mark.slow
def test_a_time_is_exact(ten: Path, tmp_path: Path) -> None:
    clocks: dict[int, Any] = {}
    for number in (1, 2):
        batch, _ = wlc.resolve(ten).read_batch(number)
        clocks |= {
            transaction.tick: transaction.committed for transaction in batch.transactions if transaction.committed
        }
    follows = tmp_path / "follows.duckdb"
    for tick, clock in [(tick, clocks[tick]) for tick in (1, 4, 7, 11)]:
        replica = tmp_path / f"replica{tick}.duckdb"
        at = wlr.replicate(ten, into=replica, until=clock)
        assert (ticks_of(replica)[-1], at.clock, wlr.clock(replica)) == (tick, clock, clock)
        before = wlr.replicate(ten, into=follows, until=clock - timedelta(microseconds=1))
        assert tick not in ticks_of(follows)
        assert before.tick < tick
    assert ticks_of(replica) == list(clocks) == TICKS


def refusals(source: Path) -> list[tuple[dict[str, Any], str, str]]:
    clock = wlc.clock(source)
    assert clock is not None
    return [
        ({"tick": 12}, r"tick 12 is not published: the farm's last one is 11", r"--tick 11\b"),
        ({"tick": 10**9}, r"tick 1000000000 is not published", r"--tick 11\b"),
        ({"until": clock + timedelta(days=1)}, r"future", "--until"),
        ({"tick": -1}, r"tick: -1 is not a tick", "tick=0"),
        ({"tick": 8, "until": clock}, r"exclude each other", "one of them"),
        ({"until": "yesterdayish"}, r"yesterdayish", ""),
        ({"tables": ["log"]}, r"all tables", "another replica"),
        ({"master": "nowhere", "farm": "/nonexistent/farm"}, r"nowhere|nonexistent", ""),
    ]


@pytest.mark.slow
def test_what_cannot_be_reached_is_refused_before_anything_is_touched(ten: Path, tmp_path: Path) -> None:
    replica, new = tmp_path / "replica.duckdb", tmp_path / "new.duckdb"
    wlr.replicate(ten, into=replica, tick=7)
    before = replica.read_bytes()
    for options, message, hint in refusals(ten):
        with pytest.raises(InvalidError) as caught:
            wlr.replicate(into=replica, **options)
        assert re.search(message, caught.value.message), (options, caught.value.message)
        assert re.search(hint, caught.value.hint or ""), (options, caught.value.hint)
        assert replica.read_bytes() == before, options
        assert sorted(path.name for path in tmp_path.iterdir()) == ["master", "replica.duckdb"], options
    wrong: Any = ({"tick": 12}, {"tick": -3}, {"until": "1999-01-01"})
    for options in wrong:
        with pytest.raises((InvalidError, ExpiredError)):
            wlr.replicate(ten, into=new, **options)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["master", "replica.duckdb"], options
    assert wlr.replicate(into=replica).tick == 11


@pytest.mark.slow
def test_what_was_pruned_is_refused_and_the_nearest_reachable_tick_is_named(ten: Path, tmp_path: Path) -> None:
    late, new = tmp_path / "late.duckdb", tmp_path / "new.duckdb"
    wlr.replicate(ten, into=late, tick=2, register=False)
    wlc.snapshot(ten)
    assert wlc.prune(ten, keep_for="0s").delete_batches == (1,)
    before = late.read_bytes()
    with pytest.raises(ExpiredError, match="pruned") as caught:
        wlr.replicate(into=late)
    assert "tick 11" in (caught.value.hint or "")
    assert late.read_bytes() == before
    with pytest.raises(ExpiredError, match="oldest snapshot") as caught:
        wlr.replicate(ten, into=new, tick=3)
    assert "--tick 11" in (caught.value.hint or "")
    assert not new.exists()
    assert wlr.replicate(ten, into=new).tick == 11
    assert ticks_of(new) == TICKS


@pytest.mark.slow
def test_a_registered_replica_holds_its_log_files_back(ten: Path, tmp_path: Path) -> None:
    replica = tmp_path / "replica.duckdb"
    wlr.replicate(ten, into=replica, tick=2, register=True)
    wlc.snapshot(ten)
    assert wlc.prune(ten, keep_for="0s").delete_batches == ()
    # The log that is kept begins with the first snapshot, which is not to be taken for an empty database.
    for tick in (0, 3):
        earlier = tmp_path / f"earlier{tick}.duckdb"
        wlr.replicate(ten, into=earlier, tick=tick)
        assert ticks_of(earlier) == list(range(1, tick + 1))
    wlr.replicate(into=replica)
    assert file_contents(replica) == file_contents(ten)


def test_a_database_with_rows_does_not_begin_empty(tmp_path: Path) -> None:
    source = new_master(tmp_path / "master", "CREATE TABLE t AS SELECT 1 AS a")
    write(source, "INSERT INTO t VALUES (2)")
    wlc.flush(source)
    began = wlc.resolve(source).read_manifest(0).clock
    with pytest.raises(ExpiredError):
        wlr.replicate(source, into=tmp_path / "before.duckdb", until=began - timedelta(seconds=1))
    wlr.replicate(source, into=tmp_path / "at.duckdb", until=began)
    assert value(tmp_path / "at.duckdb", "SELECT count(*) FROM t") == 1


@pytest.mark.slow
def test_an_empty_database_is_replicated_from_the_first_transaction(tmp_path: Path) -> None:
    source, replica = new_master(tmp_path / "master"), tmp_path / "replica.duckdb"
    assert wlr.replicate(source, into=replica).tick == 0
    write(source, "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1)")
    wlc.flush(source)
    assert wlr.replicate(source, into=tmp_path / "zero.duckdb", tick=0).tick == 0
    assert file_contents(tmp_path / "zero.duckdb") == {}
    assert wlr.replicate(into=replica).transactions == 2
    assert value(replica, "SELECT sum(a) FROM t") == 1


# Histories ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def twice(tmp_path: Path) -> tuple[Path, int]:
    """A master that was stopped, written to without capture, and started again; and the last tick of the first history.

    The second history ends the first one with a batch, which has a tick.
    """
    source = new_master(tmp_path / "master", "CREATE TABLE t (a INTEGER)")
    write(source, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    last = wlc.stop(source).tick
    with duckdb.connect(str(source)) as connection:
        connection.execute("INSERT INTO t VALUES (99)")
    wlc.master(source)
    return source, last + 1


@pytest.mark.slow
def test_a_beat_that_was_set_stays_unless_another_is_given(tmp_path: Path) -> None:
    source = new_master(tmp_path / "master", "CREATE TABLE t (a INTEGER)")
    for changed in (lambda: wlc.beat(source, 10), lambda: wlc.beat(f"{tmp_path}/master/dbfarm/{source.stem}", 20)):
        beat_s = changed()
        wlc.stop(source)
        assert wlc.master(source).beat_s == wlc.beat(source) == beat_s
    wlc.stop(source)
    assert wlc.master(source, name="other").beat_s == beat_s, "a new name follows what the master remembers"
    wlc.stop(source)
    assert wlc.master(source, name="other", beat_s=60).beat_s == wlc.beat(source) == 60
    fresh = new_master(tmp_path / "fresh", "CREATE TABLE t (a INTEGER)")
    assert wlc.beat(fresh) == 300


def test_an_open_connection_publishes_where_its_master_went(tmp_path: Path) -> None:
    source = new_master(tmp_path / "master", "CREATE TABLE t (a INTEGER)")
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        wlc.stop(source)
        elsewhere = str(tmp_path / "elsewhere")
        assert wlc.master(source, farm=elsewhere, beat_s=0).farm == f"{elsewhere}/sales"
        connection.execute("INSERT INTO t VALUES (2)")
        assert wlc.tick("sales", farm=elsewhere) > 0
    assert file_contents(source) == published(f"{elsewhere}/sales")


@pytest.mark.slow
def test_a_replica_of_an_ended_history_is_told_so(twice: tuple[Path, int], tmp_path: Path) -> None:
    source, last = twice
    old, new = tmp_path / "old.duckdb", tmp_path / "new.duckdb"
    wlr.replicate(source, into=old, tick=1)
    for is_written in (False, True):
        if is_written:
            write(source, "INSERT INTO t VALUES (3)")
            wlc.flush(source)
        before = old.read_bytes()
        both: tuple[dict[str, Any], ...] = ({}, {"tick": last + 1})
        for options in both:
            with pytest.raises(InvalidError, match=f"ended at tick {last}") as caught:
                wlr.replicate(into=old, **options)
            assert f"--tick {last}" in (caught.value.hint or "")
            assert old.read_bytes() == before
    assert wlr.replicate(into=old, tick=last).tick == last
    assert file_contents(old) == {"main.t": {("1",): 1, ("2",): 1}}
    assert wlr.replicate(source, into=new).tick == last + 2
    assert file_contents(new) == file_contents(source)


@pytest.mark.slow
def test_a_replica_of_a_history_before_the_last_one(tmp_path: Path) -> None:
    source = new_master(tmp_path / "master", "CREATE TABLE t AS SELECT 1 AS a")
    replica = tmp_path / "replica.duckdb"
    wlr.replicate(source, into=replica)
    for _ in range(2):
        wlc.stop(source)
        wlc.master(source)
    before = replica.read_bytes()
    with pytest.raises(InvalidError, match="ended at tick 1") as caught:
        wlr.replicate(into=replica)
    assert "--tick 1" in (caught.value.hint or "")
    assert replica.read_bytes() == before
    assert wlr.replicate(into=replica, tick=0).tick == 0


@pytest.mark.slow
def test_a_time_before_the_new_history_is_that_of_the_old(twice: tuple[Path, int], tmp_path: Path) -> None:
    source, last = twice
    batch, _ = wlc.resolve(source).read_batch(1)
    began = wlc.resolve(source).read_manifest(last + 1).clock
    write(source, "INSERT INTO t VALUES (3)")
    wlc.flush(source)
    stops = [(batch.transactions[-1].committed, ["1", "2"]), (began - timedelta(microseconds=1), ["1", "2"])]
    for number, (until, rows) in enumerate([*stops, (began, ["1", "2", "99"])]):
        replica = tmp_path / f"replica{number}.duckdb"
        wlr.replicate(source, into=replica, until=until)
        assert file_contents(replica) == {"main.t": {(row,): 1 for row in rows}}


@pytest.mark.slow
def test_an_empty_database_begins_again(tmp_path: Path) -> None:
    source, replica = new_master(tmp_path / "master"), tmp_path / "replica.duckdb"
    write(source, "CREATE TABLE t (a INTEGER)", "DROP TABLE t")
    wlc.stop(source)
    wlc.master(source)
    write(source, "CREATE TABLE u (a INTEGER)")
    wlc.flush(source)
    wlr.replicate(source, into=replica)
    assert file_contents(replica) == {"main.u": {}}


# A workload with an invariant -----------------------------------------------------------------------------------------


def transfer(connection: Any, chance: random.Random) -> None:
    """Move money between accounts in one of several ways; a new table or column now and then."""
    giver, taker = chance.sample(range(ACCOUNTS), 2)
    amount = chance.randint(1, 100)
    match chance.randrange(6):
        case 0:
            connection.execute(
                f"UPDATE account SET money = money + CASE id WHEN {giver} THEN -{amount} ELSE {amount} END"
                f" WHERE id IN ({giver}, {taker})"
            )
        case 1:
            connection.execute("BEGIN")
            connection.execute("UPDATE account SET money = money - ? WHERE id = ?", [amount, giver])
            connection.execute("UPDATE account SET money = money + ? WHERE id = ?", [amount, taker])
            connection.execute("COMMIT")
        case 2:
            rows = f"SELECT id, money + CASE id WHEN {giver} THEN -{amount} ELSE {amount} END FROM account"
            connection.execute(f"INSERT OR REPLACE INTO account (id, money) {rows} WHERE id IN ({giver}, {taker})")
        case 3:
            connection.execute("BEGIN")
            connection.execute(f"DELETE FROM account WHERE id = {giver}")
            connection.execute(f"UPDATE account SET money = money + 10000 WHERE id = {taker}")
            connection.execute("ROLLBACK")
        case 4:
            connection.execute("BEGIN")
            connection.execute(f"CREATE TEMP TABLE moving AS FROM account WHERE id = {giver}")
            connection.execute(f"DELETE FROM account WHERE id = {giver}")
            connection.execute("INSERT INTO account FROM moving")
            connection.execute("DROP TABLE moving")
            connection.execute("INSERT INTO history (a, b, c) VALUES (?, ?, ?)", [giver, taker, amount])
            connection.execute("COMMIT")
        case _:
            connection.execute(f"ALTER TABLE history ADD COLUMN IF NOT EXISTS note{amount % 5} VARCHAR DEFAULT 'x'")


@pytest.mark.slow
def test_money_neither_appears_nor_disappears_at_any_stop(tmp_path: Path) -> None:
    chance = random.Random(7)
    source = new_master(
        tmp_path / "bank",
        "CREATE TABLE account (id INTEGER PRIMARY KEY, money INTEGER);"
        " CREATE TABLE history (a INTEGER, b INTEGER, c INTEGER);"
        f" INSERT INTO account SELECT i, {TOTAL // ACCOUNTS} FROM range({ACCOUNTS}) r(i)",
    )
    follows, held = tmp_path / "follows.duckdb", {}
    connection = wlc.connect(source)
    for number in range(80):
        transfer(connection, chance)
        held[connection._shared.last_tick] = contents(connection, "sales")["main.account"]
        if chance.random() < 0.1:
            wlc.flush(source)
        if number == 40:
            wlc.snapshot(source)
    wlc.flush(source)
    connection.close()
    stops = sorted(chance.sample(sorted(held), 5))
    for stop in stops:
        wlr.replicate(source, into=follows, tick=stop)
        wlr.replicate(source, into=tmp_path / f"at{stop}.duckdb", tick=stop)
        for replica in (follows, tmp_path / f"at{stop}.duckdb"):
            assert value(replica, "SELECT sum(money) FROM account") == TOTAL
            assert file_contents(replica)["main.account"] == held[stop]
    wlr.replicate(into=follows)
    assert file_contents(follows) == file_contents(source)


# Failures -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def five(tmp_path: Path) -> tuple[Path, Path]:
    """A master, and a replica that lacks the row that tick 3 changes."""
    source = new_master(
        tmp_path / "master",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER); CREATE TABLE bag (v INTEGER);"
        " INSERT INTO t SELECT i, 0 FROM range(10) r(i)",
    )
    replica = tmp_path / "replica.duckdb"
    wlr.replicate(source, into=replica)
    wlr.unlock(replica)
    with duckdb.connect(str(replica)) as connection:
        connection.execute("DELETE FROM t WHERE id = 7")
    wlr.lock(replica)
    write(
        source,
        "INSERT INTO t VALUES (100, 1)",
        "INSERT INTO bag VALUES (2)",
        "BEGIN; UPDATE t SET v = 3 WHERE id IN (6, 7); INSERT INTO bag VALUES (3); COMMIT",
        "INSERT INTO bag VALUES (4)",
        "DELETE FROM t WHERE id = 5",
    )
    wlc.flush(source)
    return source, replica


@pytest.mark.slow
def test_a_failure_is_exactly_at_its_transaction(five: tuple[Path, Path]) -> None:
    _, replica = five
    for _ in range(2):
        with pytest.raises(ReplayError, match=r"transaction 3, table main\.t") as caught:
            wlr.replicate(into=replica)
        assert "wlr accept" in (caught.value.hint or "")
        status = wlr.status(replica)
        assert (status.tick, status.lag_transactions) == (2, 3)
        assert status.failure is not None
        assert (status.failure.tick, status.failure.table) == (3, "main.t")
        assert "id = 7" in (status.failure.key or "")
        found = file_contents(replica)
        assert found["main.bag"] == {("2",): 1}, "what came before it is there, nothing of it and after it"
        assert found["main.t"][("100", "1")] == 1
        assert found["main.t"][("6", "0")] == 1


@pytest.mark.slow
def test_accept_skips_exactly_the_one_that_failed(five: tuple[Path, Path]) -> None:
    source, replica = five
    with pytest.raises(ReplayError):
        wlr.replicate(into=replica)
    assert wlr.accept(replica).tick == 3
    assert wlr.status(replica).failure is None
    with pytest.raises(InvalidError):
        wlr.accept(replica)
    assert wlr.replicate(into=replica).tick == 5
    assert wlr.status(replica).accepted == (3,)
    found, expected = file_contents(replica), file_contents(source)
    assert expected["main.bag"] - found["main.bag"] == {("3",): 1}
    assert (expected["main.t"] - found["main.t"]) == {("6", "3"): 1, ("7", "3"): 1}
    assert (found["main.t"] - expected["main.t"]) == {("6", "0"): 1}
    write(source, "INSERT INTO bag VALUES (6)")
    wlc.flush(source)
    assert wlr.replicate(into=replica).transactions == 1


@pytest.mark.slow
def test_a_repaired_replica_goes_on(five: tuple[Path, Path]) -> None:
    source, replica = five
    with pytest.raises(ReplayError):
        wlr.replicate(into=replica)
    wlr.unlock(replica)
    with duckdb.connect(str(replica)) as connection:
        connection.execute("INSERT INTO t VALUES (7, 0)")
    wlr.lock(replica)
    assert wlr.replicate(into=replica).tick == 5
    assert wlr.status(replica).failure is None
    assert file_contents(replica) == file_contents(source)


@pytest.mark.slow
def test_replicated_tables_are_guarded_and_the_owner_s_are_not(five: tuple[Path, Path]) -> None:
    _, replica = five
    before = file_contents(replica)
    with duckdb.connect(str(replica)) as connection:
        for statement in ("INSERT INTO t VALUES (200, 0)", "UPDATE t SET v = 9", "DELETE FROM bag", "DELETE FROM t"):
            with pytest.raises(duckdb.Error, match="belongs to a replica and is read-only"):
                connection.execute(statement)
        connection.execute("CREATE TABLE mine AS SELECT count(*) AS n FROM t")
    assert file_contents(replica) == before | {"main.mine": {("9",): 1}}
    wlr.replicate(into=replica, tick=2)
    assert value(replica, "SELECT n FROM mine") == 9


# Tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_tables_that_fit_a_pattern(tmp_path: Path) -> None:
    source = new_master(
        tmp_path / "master",
        """
        CREATE SCHEMA archive; CREATE TABLE sales_2025 (a INTEGER); CREATE TABLE archive.sales_2020 (a INTEGER);
        CREATE TABLE customer (id INTEGER PRIMARY KEY); CREATE VIEW pairs AS SELECT a FROM sales_2025, customer;
        CREATE INDEX i ON customer (id); CREATE VIEW mine AS SELECT * FROM sales_2025;
        INSERT INTO sales_2025 VALUES (1); INSERT INTO archive.sales_2020 VALUES (2); INSERT INTO customer VALUES (3);
    """,
    )
    some, archive = tmp_path / "some.duckdb", tmp_path / "archive.duckdb"
    wlr.replicate(source, into=some, tables=["main.sales_*"])
    wlr.replicate(source, into=archive, tables=["archive.*"])
    write(
        source,
        "BEGIN; INSERT INTO sales_2025 VALUES (4); INSERT INTO customer VALUES (5); COMMIT",
        "CREATE TABLE sales_2026 (a INTEGER); INSERT INTO sales_2026 VALUES (6)",
        "CREATE TABLE other (a INTEGER); INSERT INTO other VALUES (7); ALTER TABLE customer ADD COLUMN v VARCHAR",
        "COMMENT ON TABLE customer IS 'c'; ALTER TABLE sales_2025 ADD COLUMN b INTEGER DEFAULT 8; DROP TABLE other",
        "UPDATE sales_2025 SET b = 9 WHERE a = 4; DELETE FROM archive.sales_2020",
    )
    wlc.flush(source)
    for replica in (some, archive):
        assert wlr.replicate(into=replica).tick == wlc.tick(source)
    assert file_contents(some) == {
        "main.sales_2025": {("1", "8"): 1, ("4", "9"): 1},
        "main.sales_2026": {("6",): 1},
    }
    assert file_contents(archive) == {"archive.sales_2020": {}}
    assert value(some, "SELECT count(*) FROM mine") == 2
    assert wlr.status(some).tables == ("main.sales_*",)


# Places ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_farm_in_memory(tmp_path: Path) -> None:
    source = new_master(tmp_path / "master", "CREATE TABLE t AS SELECT 1 AS a", farm=f"memory://{tmp_path.name}/farm")
    replica = tmp_path / "replica.duckdb"
    wlr.replicate(source, into=replica)
    write(source, "INSERT INTO t VALUES (2)", "UPDATE t SET a = a + 1")
    wlc.flush(source)
    assert wlr.replicate(into=replica).transactions == 2
    wlc.snapshot(source)
    assert wlc.prune(source, keep_for="0s").keep_batches == (1,)
    wlr.replicate(f"memory://{tmp_path.name}/farm/sales", into=tmp_path / "second.duckdb")
    assert file_contents(replica) == file_contents(tmp_path / "second.duckdb") == file_contents(source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["master", "replica.duckdb", "second.duckdb"]
    assert [path.name for path in (tmp_path / "master").iterdir()] == ["sales.duckdb"]


@pytest.mark.slow
@pytest.mark.parametrize("place", [lambda path: str(path / "logs"), lambda path: f"file://{path}/logs"])
def test_logs_elsewhere(tmp_path: Path, place: Callable[[Path], str]) -> None:
    source = new_master(
        tmp_path / "master", "CREATE TABLE t AS SELECT 1 AS a", logs=place(tmp_path), farm=str(tmp_path / "farm")
    )
    replica = tmp_path / "replica.duckdb"
    write(source, "INSERT INTO t VALUES (2)")
    wlc.flush(source)
    assert any((tmp_path / "logs").rglob("sales_000000000001"))
    assert not any((tmp_path / "farm").rglob("sales_000000000001"))
    wlr.replicate("sales", into=replica, farm=str(tmp_path / "farm"))
    write(source, "DELETE FROM t WHERE a = 1")
    wlc.flush(source)
    wlr.replicate(into=replica)
    assert file_contents(replica) == file_contents(source) == {"main.t": {("2",): 1}}
    wlc.snapshot(source)
    assert wlc.prune("sales", str(tmp_path / "farm"), keep_for="0s").delete_batches == (1,)


@pytest.mark.slow
def test_a_farm_that_was_moved(ten: Path, tmp_path: Path) -> None:
    old, new = ten.parent / "dbfarm", tmp_path / "moved farm é"
    replica = tmp_path / "replica.duckdb"
    wlr.replicate(ten, into=replica, tick=3)
    old.rename(new)
    with pytest.raises(InvalidError):
        wlr.replicate(into=replica)
    assert wlr.status(replica).lag_s is None
    assert wlr.replicate("sales", farm=str(new), into=replica).tick == 11
    assert wlr.status(replica).master.startswith(str(new)), "the new place is remembered"
    assert wlr.replicate(into=replica).tick == 11
    shutil.move(ten, tmp_path / "sales.duckdb")
    assert wlr.replicate(str(new / "sales"), into=tmp_path / "second.duckdb").tick == 11
    assert (
        file_contents(replica) == file_contents(tmp_path / "second.duckdb") == file_contents(tmp_path / "sales.duckdb")
    )


def test_importing_loads_neither_s3_nor_spark() -> None:
    program = (
        "import sys, wlc, wlr; wlr.replicate;"
        " print([m for m in sys.modules if m.split('.')[0] in ('s3fs', 'pyspark', 'botocore')])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_connection_that_nobody_closed_publishes_when_the_program_ends(tmp_path: Path) -> None:
    source = new_master(tmp_path / "master", "CREATE TABLE t (a INTEGER); CREATE TABLE u (a INTEGER)")
    program = (
        f"import wlc; c = wlc.connect({str(source)!r}); c.execute('INSERT INTO t VALUES (1); INSERT INTO u VALUES (2)')"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stderr == ""
    wlr.replicate(source, into=tmp_path / "replica.duckdb")
    assert file_contents(tmp_path / "replica.duckdb") == {"main.t": {("1",): 1}, "main.u": {("2",): 1}}


# Size -----------------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_large_transactions_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 M rows, with their images and indexes, go through 500 MB in the master and in the replay."""
    monkeypatch.setenv("WLR_MEMORY_LIMIT", "500MB")
    source, replica = new_master(tmp_path / "master"), tmp_path / "replica.duckdb"
    rows = "SELECT i AS id, i % 1000 AS a, md5(i::VARCHAR) AS b FROM range({}, {}) r(i)"
    with wlc.connect(source, config={"memory_limit": "500MB"}) as connection:
        connection.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, a INTEGER, b VARCHAR)")
        connection.execute("BEGIN")
        for first in range(0, 2_000_000, 500_000):
            connection.execute(f"INSERT INTO t {rows.format(first, first + 500_000)}")
        connection.execute("COMMIT")
        wlc.flush(source)
        connection.execute("BEGIN; UPDATE t SET a = -a WHERE id % 2 = 0; DELETE FROM t WHERE id % 5 = 0; COMMIT")
        wlc.flush(source)
    done = wlr.replicate(source, into=replica)
    assert (done.transactions, done.rows) == (3, 2_000_000 + 2 * 800_000 + 400_000)
    with duckdb.connect() as connection:
        connection.execute(
            f"ATTACH {literal(str(source))} AS one (READ_ONLY); ATTACH {literal(str(replica))} AS two (READ_ONLY)"
        )
        digest = "SELECT count(*), sum(hash(id, a, b)) FROM {}.main.t"
        one, two = (connection.execute(digest.format(side)).fetchall() for side in ("one", "two"))
    assert one == two
    assert one[0][0] == 1_600_000
