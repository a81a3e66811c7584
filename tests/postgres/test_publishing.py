"""A PostgreSQL master is published by processes that die, wait, and get in each other's way: all of it once, in order."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import duckdb
import psycopg
import pytest

import wlc
import wlr
from tests.fault.breaker import DIES_AFTER, DIES_BEFORE, LOSES_ANSWER, TEARS, Breaker, Died, Fault, breakable_store
from tests.fault.processes import DEADLINE_S, Program, call_command, rounds, seed, wait_until
from tests.fault.trial import check_log
from tests.lake import any_file
from tests.postgres.cluster import Cluster, execute
from tests.postgres.held import held_by_duckdb, held_by_postgres
from tests.postgres.programs import program
from tests.sampling import sampled
from tests.scratch import attached
from wlc.capture.postgres import setup, source
from wlc.capture.postgres.source import PostgresSource
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import FarmError, UnavailableError
from wlc.masters.adapters import opened
from wlc.masters.publish import publish

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.masters.contract import Source
    from wlc.masters.publish import Flushed

TABLES = """
    CREATE TABLE account (id bigserial PRIMARY KEY, amount int NOT NULL, note text);
    CREATE TABLE entry (account bigint, amount int);
    INSERT INTO account (amount) SELECT 0 FROM generate_series(1, 20)
"""
# What pgbench keeps equal, transaction by transaction.
SUMS = """
    SELECT (SELECT sum(abalance) FROM public.pgbench_accounts), (SELECT sum(tbalance) FROM public.pgbench_tellers),
        (SELECT sum(bbalance) FROM public.pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM public.pgbench_history),
        (SELECT count(*) FROM public.pgbench_history)
"""
CLIENTS = 4


@pytest.fixture
def bank(database_url: str, farm: str) -> str:
    execute(database_url, TABLES)
    wlc.master(database_url, farm=farm, name="bank", beat_s=0.05)
    return database_url


@contextmanager
def run_process(url: str) -> Iterator[Program]:
    """A running `wlc run`."""
    running_ = Program("run", url, text="from cli.wlc import main; main()")
    try:
        yield running_
    finally:
        if running_.process.poll() is None:
            running_.kill()


def pgbench(url: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [program("pgbench"), "-n", *map(str, arguments), url],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said


def make_pgbench(url: str) -> None:
    finished(pgbench(url, "-i", "-q"))


def transfer(url: str, number: int = 1) -> None:
    """Commit a transaction, and nothing else."""
    execute(
        url,
        f"WITH a AS (UPDATE account SET amount = amount + {number} WHERE id = {number % 20 + 1} RETURNING id)"
        f" INSERT INTO entry SELECT id, {number} FROM a",
    )


def check_equal(url: str, farm: str, into: Path) -> int:
    """Roll a replica forward and compare it with the master row by row; returns its tick."""
    last = check_log(open_database("bank", farm))
    assert wlr.replicate("bank", farm=farm, into=into, register=False).tick == last
    assert held_by_duckdb(any_file(into)) == held_by_postgres(url, main="")
    return last


def sums_of(into: Path) -> tuple[int, ...]:
    with attached(any_file(into)) as connection:
        return connection.execute(SUMS).fetchall()[0]


def confirmed(url: str) -> str:
    """Up to where the slot is advanced."""
    return str(
        execute(url, "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()")[0][0]
    )


def flushed_lsn(url: str) -> str:
    return str(execute(url, "SELECT pg_current_wal_flush_lsn()")[0][0])


# Killed ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_publishers_that_are_killed_under_load_lose_nothing_and_repeat_nothing(
    database_url: str, farm: str, tmp_path: Path
):
    rng = random.Random(seed())
    transactions = 50
    make_pgbench(database_url)
    wlc.master(database_url, farm=farm, name="bank", beat_s=0.2)
    database = open_database("bank", farm)
    loads: list[subprocess.Popen[str]] = []

    def has_published(process: Program, wanted: int) -> bool:
        """Say whether there are so many batches; the load goes on however long that takes."""
        assert process.process.poll() is None, process.errors
        if not loads or loads[-1].poll() is not None:
            loads.append(pgbench(database_url, "-c", CLIENTS, "-t", transactions, "-R", 200))
        return len(database.batch_numbers()) >= wanted

    for _ in range(rounds(3)):
        with run_process(database_url) as process:
            wait_until(partial(has_published, process, len(database.batch_numbers()) + 1), "a batch", DEADLINE_S)
            time.sleep(rng.random() / 2)
            process.kill()
    for load in loads:
        finished(load)
    wlc.flush(database_url)
    last = check_log(database)
    assert last == CLIENTS * transactions * len(loads)
    assert len(database.batch_numbers()) >= rounds(3)
    into = tmp_path / "replica.duckdb"
    for tick in [*sorted(rng.sample(range(1, last), 2)), last]:
        wlr.replicate("bank", farm=farm, into=into, tick=tick, register=False)
        accounts, tellers, branches, history, count = sums_of(into)
        assert accounts == tellers == branches == history
        assert count == tick
    assert held_by_duckdb(into) == held_by_postgres(database_url, main="")


class Steps:
    """Dies just before or just after one of the writes to the database that a round makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fault: Fault | None = None
        self.calls: list[str] = []
        for owner, name in (
            (PostgresSource, "_note"),
            (PostgresSource, "_advance"),
            (PostgresSource, "_pass_by"),
            (setup, "write_published"),
            (setup, "write_state"),
        ):
            monkeypatch.setattr(owner, name, self._breakable(name, getattr(owner, name)))

    def _breakable(self, name: str, effect: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            number = len(self.calls)
            self.calls.append(name)
            if self.fault == Fault(DIES_BEFORE, number):
                raise Died(name)
            result = effect(*arguments, **options)
            if self.fault == Fault(DIES_AFTER, number):
                raise Died(name)
            return result

        return call


def _stores_writes(url: str, folder: Path) -> list[tuple[int, str]]:
    """Calls of the store that write, of one sound round."""
    breaker = Breaker(folder, folder / "image")
    with breakable_store(breaker, breaks=True):
        wlc.flush(url)
    return [(at, call) for at, call in enumerate(breaker.calls) if call.split()[0] in ("create", "replace")]


def _check_round(url: str, farm: str, into: Path, before: int) -> None:
    """After a death: one more transaction, then a sound round; what was published is neither lost nor repeated."""
    database = open_database("bank", farm)
    published = {number: database.read_batch(number)[1] for number in database.batch_numbers()}
    transfer(url, 3)
    execute(url, "SELECT nextval('account_id_seq')")
    wlc.flush(url)
    assert check_equal(url, farm, into) == before + 4
    after = {number: database.read_batch(number)[1] for number in database.batch_numbers()}
    assert after.items() >= published.items()
    assert database.config().batches == max(after) + 1
    # What was there already is not published again: the transaction after it has a batch of its own.
    assert len(after) == len(published) + 1


def _work(url: str, number: int) -> None:
    """Three transactions, one of them with a schema change."""
    transfer(url, number)
    execute(url, f"ALTER TABLE entry ADD COLUMN extra{number} int DEFAULT {number}")
    execute(url, f"INSERT INTO account (amount) VALUES ({number})")


@pytest.mark.slow
def test_dying_around_every_write_to_the_farm(bank: str, farm: str, tmp_path: Path):
    into = tmp_path / "replica.duckdb"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    _work(bank, 1000)
    writes = _stores_writes(bank, scratch)
    last = check_equal(bank, farm, into)
    kinds = [call.rpartition("/")[2] for _, call in writes]
    assert any("parquet" in kind for kind in kinds), writes
    assert any(kind.startswith("bank_0") for kind in kinds), writes
    assert "wlc.config" in kinds, writes
    faults = [(how, write) for how in (DIES_BEFORE, DIES_AFTER, LOSES_ANSWER, TEARS) for write in writes]
    for number, (how, (at, call)) in enumerate(sampled(faults, 5)):
        _work(bank, number)
        breaker = Breaker(scratch, tmp_path / f"image {number}", Fault(how, at))
        with breakable_store(breaker, breaks=True):
            try:
                wlc.flush(bank)
                assert how == LOSES_ANSWER, f"nothing was broken: {how} {call}"
            except Died:
                pass
            except FarmError as error:
                assert how == LOSES_ANSWER, error
        try:
            if how == LOSES_ANSWER:
                transfer(bank, 3)
                wlc.flush(bank)
                last = check_equal(bank, farm, into)
            else:
                _check_round(bank, farm, into, last)
                last += 4
        except BaseException as error:
            error.add_note(breaker.broken)
            raise


@pytest.mark.slow
def test_dying_around_every_write_to_the_database(
    bank: str, farm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    into = tmp_path / "replica.duckdb"
    steps = Steps(monkeypatch)
    _work(bank, 1000)
    wlc.flush(bank)
    calls = list(steps.calls)
    assert {"_note", "_advance", "write_state"} <= set(calls)
    last = check_equal(bank, farm, into)
    faults = [(how, at) for how in (DIES_BEFORE, DIES_AFTER) for at in range(len(calls))]
    for number, (how, at) in enumerate(sampled(faults, 5)):
        _work(bank, number)
        steps.calls, steps.fault = [], Fault(how, at)
        with pytest.raises(Died):
            wlc.flush(bank)
        steps.fault = None
        try:
            _check_round(bank, farm, into, last)
        except BaseException as error:
            error.add_note(f"{how} {calls[at]}, {at}")
            raise
        last += 4


def test_positions_of_sequences_that_move_after_a_death_are_published(
    bank: str, farm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    steps = Steps(monkeypatch)
    execute(bank, "INSERT INTO account (amount) VALUES (1)")
    steps.fault = Fault(DIES_BEFORE, steps.calls.index("_note") if "_note" in steps.calls else _first_note(bank, steps))
    with pytest.raises(Died):
        wlc.flush(bank)
    steps.fault = None
    execute(bank, "SELECT nextval('account_id_seq') FROM generate_series(1, 100)")
    wlc.flush(bank)
    transfer(bank)
    wlc.flush(bank)
    wlr.replicate("bank", farm=farm, into=tmp_path / "replica.duckdb")
    with duckdb.connect(str(tmp_path / "replica.duckdb")) as connection:
        ((value,),) = connection.execute("SELECT nextval('public.account_id_seq')").fetchall()
    assert value > execute(bank, "SELECT last_value FROM account_id_seq")[0][0]


def _first_note(url: str, steps: Steps) -> int:
    """Number of the call that notes a batch."""
    steps.calls = []
    wlc.flush(url)
    number = steps.calls.index("_note")
    steps.calls = []
    execute(url, "INSERT INTO account (amount) VALUES (1)")
    return number


# Stopped, together, away --------------------------------------------------------------------------------------------


def test_a_slot_that_another_publisher_moved_has_no_gap(bank: str):
    with opened(bank) as waiting:

        def publish_elsewhere() -> None:
            for number in range(2):
                transfer(bank, number)
                wlc.flush(bank)

        publish_elsewhere()
        assert waiting.details().warning is None
        publish_elsewhere()
        waiting.refuse_gap()


@pytest.mark.slow
def test_publishers_and_snapshots_side_by_side(database_url: str, farm: str, tmp_path: Path):
    make_pgbench(database_url)
    wlc.master(database_url, farm=farm, name="bank", beat_s=0.2)
    database, loads = open_database("bank", farm), 0
    with run_process(database_url) as one, run_process(database_url) as two:
        # On a busy machine a load may be over before the first of them is published.
        while not any(tick > 0 for tick in database.snapshot_ticks()) and loads < 20:
            loads += 1
            with pgbench(database_url, "-c", CLIENTS, "-t", 40, "-R", 60) as load:
                wait_until(lambda: wlc.tick("bank", farm=farm) > 0, "it is published")
                while load.poll() is None:
                    wlc.snapshot(database_url)
                    wlc.flush(database_url)
                finished(load)
        assert [one.process.poll(), two.process.poll()] == [None, None], one.errors + two.errors
        for process in (one, two):
            process.process.send_signal(signal.SIGTERM)
            assert process.end() == 0, process.errors
    wlc.flush(database_url)
    last = check_log(database)
    assert last == loads * CLIENTS * 40
    held = held_by_postgres(database_url, main="")
    # Every snapshot is of its tick exactly, and leads with the log to what the first one leads to.
    snapshots = [tick for tick in database.snapshot_ticks() if tick > 0]
    assert snapshots, "one was taken while others wrote"
    for tick in snapshots[:2]:
        into = tmp_path / f"{tick}.duckdb"
        wlr.replicate("bank", farm=farm, into=into, tick=tick, register=False)
        accounts, tellers, branches, history, count = sums_of(into)
        assert accounts == tellers == branches == history
        assert count == tick
        wlr.replicate("bank", farm=farm, into=into, register=False)
        assert held_by_duckdb(into) == held


@pytest.mark.slow
def test_first_snapshot_while_others_write(database_url: str, farm: str, tmp_path: Path):
    make_pgbench(database_url)
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            finished(pgbench(database_url, "-c", CLIENTS, "-t", 25, "-R", 100))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            wait_until(lambda: bool(execute(database_url, "SELECT 1 FROM pgbench_history LIMIT 1")), "the first row")
            wlc.master(database_url, farm=farm, name="bank")
        finally:
            is_over.set()
        writing.result()
    finished(pgbench(database_url, "-c", CLIENTS, "-t", 5))
    wlc.flush(database_url)
    into = tmp_path / "replica.duckdb"
    last = check_log(open_database("bank", farm))
    before = 0
    for tick in (1, last // 2, last):
        wlr.replicate("bank", farm=farm, into=into, tick=tick, register=False)
        accounts, tellers, branches, history, count = sums_of(into)
        assert accounts == tellers == branches == history
        assert before in (0, count - tick), "a tick is a transaction"
        before = count - tick
    assert before > 0, "all was written after the snapshot"
    assert held_by_duckdb(into) == held_by_postgres(database_url, main="")


@pytest.mark.slow
def test_publishing_goes_on_after_the_server_and_the_farm_were_away(own_cluster: Cluster, farm: str, tmp_path: Path):
    url = own_cluster.create_database()
    execute(url, TABLES)
    wlc.master(url, farm=farm, name="bank", beat_s=0.05)
    with run_process(url) as process:
        transfer(url)
        wait_until(lambda: wlc.tick("bank", farm=farm) == 1, "the first transaction is published")
        # It stops as in a crash.
        own_cluster.stop()
        data = str(own_cluster.folder / "data")
        own_cluster._run("pg_ctl", "-D", data, "-l", str(own_cluster.folder / "log"), "-w", "start")
        transfer(url, 2)
        wait_until(lambda: wlc.tick("bank", farm=farm) == 2, "publishing resumes after a restart")
        away = tmp_path / "away"
        (tmp_path / "farm").rename(away)
        transfer(url, 3)
        time.sleep(1)
        assert not (tmp_path / "farm").exists(), "a second farm was made in its place"
        assert process.process.poll() is None, process.errors
        away.rename(tmp_path / "farm")
        wait_until(lambda: wlc.tick("bank", farm=farm) == 3, "publishing resumes when the farm is back")
        for number in range(20):
            transfer(url, number)
        process.process.send_signal(signal.SIGTERM)
        assert process.end() == 0, process.errors
    assert "trying again" in process.errors
    assert "Traceback" not in process.errors
    # It ended with a whole batch.
    state = execute(url, "SELECT value FROM wlc.state WHERE key = 'lsn'")[0][0]
    ((is_behind,),) = execute(url, f"SELECT '{confirmed(url)}'::pg_lsn <= '{state}'::pg_lsn")
    assert is_behind
    done = call_command("wlc", "flush", url, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["transactions"] <= 20
    assert check_equal(url, farm, tmp_path / "replica.duckdb") == 23


def test_two_publishers_of_one_process_wait_for_each_other(bank: str, monkeypatch: pytest.MonkeyPatch):
    together, most = [], []

    def slowly(source: Source, database: FarmDatabase) -> Flushed:
        together.append(1)
        most.append(len(together))
        time.sleep(0.2)
        try:
            return publish(source, database)
        finally:
            together.pop()

    monkeypatch.setattr("wlc.masters.running.publish", slowly)
    threads = [threading.Thread(target=wlc.flush, args=[bank]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


def test_a_publisher_that_cannot_get_its_turn_says_so(bank: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("wlc.capture.postgres.source._LOCK_TIMEOUT", "200ms")
    with psycopg.connect(bank, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s, 0)", [0x6462_6661])
        with pytest.raises(UnavailableError, match="being published by another process"):
            wlc.flush(bank)
    assert wlc.flush(bank).batches == 0


# Rounds ------------------------------------------------------------------------------------------------------------


def test_beat_0_looks_few_times_behind_messages_of_others(
    bank: str, farm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    wlc.beat(bank, 0)
    said = "FOR i IN 1..100 LOOP PERFORM pg_logical_emit_message({}, 'other', 'nothing'); COMMIT; END LOOP;"
    for number in range(2):
        execute(bank, f"DO $$ BEGIN {said.format(True)} {said.format(False)} END $$")
        transfer(bank, number)
        transfer(bank, number)
    looks: list[int | None] = []
    look = source.PostgresSource._gathered

    def counted(self: source.PostgresSource, upto: str, most: int | None) -> object:
        looks.append(most)
        return look(self, upto, most)

    monkeypatch.setattr(source.PostgresSource, "_gathered", counted)
    flushed = wlc.flush(bank)
    assert (flushed.batches, flushed.transactions) == (4, 4)
    assert len(looks) < 40
    # Transactions that changed nothing of what is published have numbers, too.
    assert check_equal(bank, farm, tmp_path / "replica.duckdb") == flushed.tick


def test_what_one_look_gave_is_not_looked_for_again_once_it_is_published(
    bank: str, farm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    wlc.beat(bank, 60)
    looks: list[str] = []
    look, made = source.PostgresSource._gathered, FarmDatabase.publish

    def counted(self: source.PostgresSource, upto: str, most: int | None) -> object:
        looks.append(upto)
        return look(self, upto, most)

    def failing(*_: object) -> str:
        raise UnavailableError("out of order")

    monkeypatch.setattr(source.PostgresSource, "_gathered", counted)
    transfer(bank, 1)
    database = open_database("bank", farm)
    with source.opened(bank) as found, found.publishing():
        end = found.last_place()
        monkeypatch.setattr(FarmDatabase, "publish", failing)
        with pytest.raises(UnavailableError, match="out of order"):
            publish(found, database, end)
        monkeypatch.setattr(FarmDatabase, "publish", made)
        assert publish(found, database, end).transactions == 1
        assert looks == [end, end]
        transfer(bank, 2)
        assert publish(found, database, end).transactions == 0
        assert publish(found, database, found.last_place()).transactions == 1
    assert len(looks) == 3
    assert check_equal(bank, farm, tmp_path / "replica.duckdb") == 2


@pytest.mark.parametrize(("beat_s", "most"), [(0, 3), (60, 3), (0, source._MOST_MESSAGES)])
def test_messages_hide_nothing_and_beat_0_publishes_every_transaction_alone(
    bank: str, farm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beat_s: float, most: int
):
    monkeypatch.setattr(source, "_MOST_MESSAGES", most)
    wlc.beat(bank, beat_s)
    for number in range(3):
        for _ in range(4 if number < 2 else 1):
            execute(bank, "SELECT pg_logical_emit_message(false, 'other', 'nothing')")
        transfer(bank, number)
        # Transactions with nothing to publish end no round.
        execute(bank, "SELECT pg_logical_emit_message(true, 'other', 'nothing')")
    execute(bank, "SELECT pg_logical_emit_message(false, 'other', 'nothing')")
    flushed = wlc.flush(bank)
    assert flushed.transactions == 3
    assert beat_s or flushed.batches == 3
    assert check_equal(bank, farm, tmp_path / "replica.duckdb") == 3
    assert wlc.flush(bank).transactions == 0


@pytest.mark.parametrize("operation", ["stop", "snapshot"])
def test_what_waits_behind_empty_transactions_is_published_before(bank: str, farm: str, tmp_path: Path, operation: str):
    wlc.beat(bank, 0)
    execute(bank, "SELECT pg_logical_emit_message(true, 'other', 'nothing')")
    transfer(bank)
    if operation == "stop":
        wlc.stop(bank)
    else:
        assert wlc.snapshot(bank).position.tick == 1
    assert check_equal(bank, farm, tmp_path / "replica.duckdb") == 1


def test_the_slot_follows_where_nothing_is_to_be_published(bank: str, cluster: Cluster):
    before = confirmed(bank)
    other = cluster.create_database()
    execute(other, "CREATE TABLE busy AS SELECT * FROM generate_series(1, 1000)")
    execute(bank, "CREATE UNLOGGED TABLE fast AS SELECT * FROM generate_series(1, 1000)")
    execute(bank, "CREATE TEMP TABLE gone AS SELECT * FROM generate_series(1, 1000)")
    upto = flushed_lsn(bank)
    assert wlc.flush(bank).batches == 0
    ((is_there,),) = execute(bank, f"SELECT '{confirmed(bank)}'::pg_lsn >= '{upto}'::pg_lsn")
    assert is_there
    assert confirmed(bank) != before
    assert not (wlc.flush(bank).batches)


@pytest.mark.slow
def test_what_the_server_has_not_flushed_is_not_passed_by(bank: str, farm: str, tmp_path: Path):
    # The server's log may be written and not flushed; a slot shows what is flushed.
    with psycopg.connect(bank, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for number in range(60):
            connection.execute(f"INSERT INTO entry VALUES (1, {number})")
            if number % 3 == 0:
                wlc.flush(bank)
    execute(bank, "INSERT INTO entry VALUES (1, -1)")
    wlc.flush(bank)
    assert check_equal(bank, farm, tmp_path / "replica.duckdb") == 61


FLUSH = """
import resource, sys, wlc
flushed = wlc.flush(sys.argv[1])
print(flushed.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.deep
def test_a_large_transaction_takes_no_more_memory_than_it_may(
    bank: str, farm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WLC_MEMORY_LIMIT", "160MB")
    script = tmp_path / "flush.py"
    script.write_text(FLUSH)

    def flush() -> tuple[int, int]:
        done = subprocess.run([sys.executable, str(script), bank], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        rows, peak_mb = map(int, done.stdout.split())
        return rows, peak_mb

    execute(bank, "CREATE TABLE large (id int PRIMARY KEY, text text)", "INSERT INTO large VALUES (0, 'x')")
    _, usual_mb = flush()
    count = 300_000
    execute(bank, f"INSERT INTO large SELECT i, repeat(md5(i::text), 30) FROM generate_series(1, {count}) i")
    rows, peak_mb = flush()
    assert rows == count
    print(f"{usual_mb} MB without rows, {peak_mb} MB with {count}")
    # The values alone have 290 MB, which would come on top of what DuckDB may take.
    assert peak_mb - usual_mb < 400
    wlr.replicate("bank", farm=farm, into=tmp_path / "replica.duckdb", register=False)
    digest = "SELECT count(*), sum(id), min(text), max(text) FROM public.large"
    with attached(tmp_path / "replica.duckdb") as connection:
        assert connection.execute(digest).fetchall() == execute(bank, digest)


@pytest.mark.slow
def test_too_little_memory_is_said_and_nothing_is_lost(
    bank: str, farm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    execute(bank, "CREATE TABLE large AS SELECT i AS id, repeat(md5(i::text), 30) FROM generate_series(1, 50000) i")
    monkeypatch.setenv("WLC_MEMORY_LIMIT", "8MB")
    with pytest.raises(UnavailableError, match="could not be gathered") as caught:
        wlc.flush(bank)
    assert "WLC_MEMORY_LIMIT" in str(caught.value.hint)
    monkeypatch.delenv("WLC_MEMORY_LIMIT")
    assert wlc.flush(bank).rows == 50000
    wlr.replicate("bank", farm=farm, into=tmp_path / "replica.duckdb", register=False)
    with attached(tmp_path / "replica.duckdb") as connection:
        assert connection.execute("SELECT count(DISTINCT id) FROM public.large").fetchall() == [(50000,)]
