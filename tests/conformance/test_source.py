"""What a database of every engine must do as a master. A new engine is one more entry of `ENGINES`.

A DuckDB replica that follows the log shows what was captured; it must hold what the source holds.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest

import wlc
import wlr
from tests.conformance.sources import DuckDBEngine, PostgresEngine
from tests.postgres.held import held_by_duckdb
from tests.postgres.server import OTHER_MAJORS
from tests.selection import engine_params
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import FencedError, InvalidError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conformance.sources import Engine

ENGINES = {
    "duckdb": lambda request: DuckDBEngine(request.getfixturevalue("tmp_path")),
    "postgres": lambda request: PostgresEngine(request.getfixturevalue("cluster")),
    **{
        f"postgres{major}": lambda request, major=major: PostgresEngine(request.getfixturevalue("cluster_of")(major))
        for major in OTHER_MAJORS
    },
}
KEYED = "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)"
BAG = "CREATE TABLE bag (x INTEGER, s VARCHAR)"


@pytest.fixture(params=engine_params(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param](request)


@pytest.fixture
def farm(tmp_path: Path) -> str:
    return str(tmp_path / "farm")


@pytest.fixture
def source(engine: Engine, farm: str) -> str:
    """A master with two tables and three rows, none of them published yet."""
    url = engine.new()
    wlc.master(url, farm=farm, name="bank")
    engine.execute(url, KEYED, BAG, "INSERT INTO t VALUES (1, '1'), (2, '2')", "INSERT INTO bag VALUES (1, 'x')")
    return url


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy.duckdb"


def check_equal(engine: Engine, source: str, farm: str, copy: Path) -> int:
    """Roll a replica forward, compare it with the source row by row, and return its tick."""
    tick = wlr.replicate("bank", farm=farm, into=copy, register=False).tick
    assert held_by_duckdb(copy) == engine.held(source)
    return tick


# Begin ---------------------------------------------------------------------------------------------------------------


def test_begins_with_a_snapshot_unless_it_is_empty(engine: Engine, farm: str, copy: Path) -> None:
    source = engine.new()
    for call in (wlc.flush, wlc.snapshot, wlc.stop, wlc.status, wlc.tick, wlc.verify_source):
        with pytest.raises(InvalidError, match="is not a master"):
            call(source)
    status = wlc.master(source, farm=farm, name="empty")
    assert (status.name, status.state, status.tick) == ("empty", "active", 0)
    assert (status.snapshot != "") == engine.always_has_a_snapshot
    with pytest.raises(InvalidError, match="is a master already"):
        wlc.master(source, farm=farm, name="empty")
    source = engine.new()
    engine.execute_plainly(source, KEYED, "INSERT INTO t VALUES (1, 'a')")
    assert wlc.master(source, farm=farm, name="bank").snapshot != ""
    assert check_equal(engine, source, farm, copy) == 0


SITE_COMMANDS: dict[str, Callable[[str], object]] = {
    "master --site": lambda source: wlc.master(source, site="oslo"),
    "take": wlc.take,
    "take --dry-run": lambda source: wlc.take(source, dry_run=True),
    "take --from": lambda source: wlc.take(source, site="rome"),
    "resubmit": lambda source: wlc.resubmit(source, "rome:1"),
    "join": lambda source: wlc.join(source, name="bank", site="rome"),
}


def test_an_engine_without_sites_says_so_in_one_sentence(engine: Engine, source: str) -> None:
    """What lists things of sites lists none; everything else is refused, and changes nothing."""
    assert (wlc.exceptions(source), wlc.conflicts(source)) == ([], [])
    if engine.has_sites:
        wlc.master(source, site="oslo")
        assert wlc.take(source) == []
        return
    # A server writes its log by itself.
    before, hints = replace(wlc.status(source), retained_bytes=None), set()
    for name, call in SITE_COMMANDS.items():
        with pytest.raises(UnsupportedError) as caught:
            call(source)
        assert "cannot be one of several sites: only DuckDB files can" in str(caught.value), name
        hints.add(caught.value.hint)
    assert len(hints) == 1
    assert replace(wlc.status(source), retained_bytes=None) == before


# Capture -------------------------------------------------------------------------------------------------------------

VERBS = {
    "insert": "INSERT INTO t VALUES (3, 'three'), (4, NULL)",
    "insert of a query": "INSERT INTO bag SELECT id, v FROM t",
    "update": "UPDATE t SET v = v || '!' WHERE id < 3",
    "update of keys": "UPDATE t SET id = id + 100 WHERE id = 4",
    "update of nothing": "UPDATE t SET v = v",
    "delete": "DELETE FROM t WHERE id = 3",
    "equal rows": "INSERT INTO bag VALUES (7, NULL), (7, NULL), (7, NULL)",
    "upsert": "INSERT INTO t VALUES (1, 'up'), (5, 'new') ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v",
    "upsert that leaves what is there": "INSERT INTO t VALUES (1, 'no'), (6, 'yes') ON CONFLICT DO NOTHING",
    "merge": "MERGE INTO t USING (SELECT 5 AS i UNION ALL SELECT 8) s ON t.id = s.i"
    " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (s.i, 'merged')",
    "several": "BEGIN; INSERT INTO t VALUES (9, 'x'); UPDATE t SET v = 'y' WHERE id = 9; DELETE FROM bag WHERE x = 7;"
    " INSERT INTO bag VALUES (9, 'z'); COMMIT",
    "rollback": "BEGIN; DELETE FROM t; INSERT INTO bag VALUES (0, 'gone'); ROLLBACK",
    "truncate": "TRUNCATE bag",
    "truncate and insert": "BEGIN; INSERT INTO bag VALUES (1, 'before'); TRUNCATE bag; INSERT INTO bag VALUES (2, 'after');"
    " COMMIT",
}


@pytest.mark.slow
def test_every_verb_is_captured(engine: Engine, source: str, farm: str, copy: Path) -> None:
    for name, statement in VERBS.items():
        if name == "merge" and not engine.has_merge:
            continue
        engine.execute(source, statement)
        flushed = wlc.flush(source)
        assert flushed.rows == 0 or name != "rollback"
        # Rolled forward over several batches at a time, but before rows go again that were captured.
        if name in ("update", "delete", "merge", "rollback", "truncate and insert"):
            assert check_equal(engine, source, farm, copy) == flushed.tick, name
        assert wlc.tick(source) == wlc.tick("bank", farm=farm) == flushed.tick
    assert {check.outcome for check in wlc.verify_source(source)} == {"same"}


@pytest.mark.slow
def test_schema_changes_are_captured(engine: Engine, source: str, farm: str, copy: Path) -> None:
    for statement in (
        "ALTER TABLE t ADD COLUMN more INTEGER",
        "UPDATE t SET more = id",
        "ALTER TABLE t RENAME COLUMN more TO extra",
        engine.other_type,
        "INSERT INTO t VALUES (3, 3, 3)",
        "ALTER TABLE t DROP COLUMN extra",
        "ALTER TABLE bag RENAME TO sack",
        "INSERT INTO sack VALUES (2, 'y')",
        "CREATE TABLE fresh AS SELECT * FROM t",
        "CREATE SCHEMA other",
        "CREATE TABLE other.u (a INTEGER)",
        "BEGIN; DELETE FROM t WHERE id = 1; ALTER TABLE t ADD COLUMN z INTEGER; INSERT INTO t VALUES (4, 4, 4); COMMIT",
        "DROP TABLE sack",
    ):
        engine.execute(source, statement)
        wlc.flush(source)
        if statement.startswith(("INSERT", "CREATE TABLE", "DROP")):
            check_equal(engine, source, farm, copy)
    assert {check.outcome for check in wlc.verify_source(source)} <= {"same", "unknown"}


# Publish and die -----------------------------------------------------------------------------------------------------

DYING = """
import os, signal, sys
import wlc
from wlc.farm.database import FarmDatabase
original = FarmDatabase.publish
def dying(*arguments):
    original(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
FarmDatabase.publish = dying
wlc.flush(sys.argv[1])
"""


@pytest.mark.slow
def test_publisher_that_dies_loses_and_repeats_nothing(engine: Engine, source: str, farm: str, copy: Path) -> None:
    """Between the batch and the note of it; `tests/fault/test_killed_master.py` kills at any moment."""
    dead = subprocess.run([sys.executable, "-c", DYING, source], capture_output=True, text=True)
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    check_goes_on(engine, source, farm, copy)


@pytest.mark.slow
def test_lost_answer_is_settled(
    engine: Engine, source: str, farm: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = FarmDatabase.publish

    def publish(*arguments: object) -> NoReturn:
        original(*arguments)  # type: ignore[arg-type]
        raise UnavailableError("no answer from the store")

    monkeypatch.setattr(FarmDatabase, "publish", publish)
    with pytest.raises(UnavailableError, match="no answer"):
        wlc.flush(source)
    monkeypatch.undo()
    check_goes_on(engine, source, farm, copy)


def check_goes_on(engine: Engine, source: str, farm: str, copy: Path) -> None:
    """What is in the farm stays as it is, and what comes later has a batch of its own."""
    database = open_database("bank", farm)
    published = {number: database.read_batch(number)[1] for number in database.batch_numbers()}
    assert len(published) == 1
    engine.execute(source, "INSERT INTO t VALUES (3, 'later')")
    flushed = wlc.flush(source)
    assert check_equal(engine, source, farm, copy) == flushed.tick == 5
    after = {number: database.read_batch(number)[1] for number in database.batch_numbers()}
    assert after.items() >= published.items()
    assert database.config().batches == max(after) + 1
    assert len(after) == 2


# Snapshot, beat, stop ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_replicas_start_from_a_later_snapshot(engine: Engine, source: str, farm: str, copy: Path) -> None:
    manifest = wlc.snapshot(source)
    assert manifest.position.tick == wlc.tick(source) == 4
    engine.execute(source, "DELETE FROM t WHERE id = 1")
    wlc.flush(source)
    made = wlr.replicate("bank", farm=farm, into=copy, register=False)
    assert (made.snapshot, made.tick, made.transactions) == (4, 5, 1)
    assert held_by_duckdb(copy) == engine.held(source)


@pytest.mark.slow
def test_status_and_beat_are_asked_of_the_source_and_of_the_farm(engine: Engine, source: str, farm: str) -> None:
    wlc.flush(source)
    of_source, of_farm = wlc.status(source), wlc.status("bank", farm=farm)
    for status in (of_source, of_farm):
        assert (status.name, status.state, status.tick, status.batches) == ("bank", "active", 4, 1)
        assert status.log_bytes > 0
    assert of_source.bypassed == {}
    assert wlc.clock(source) == wlc.clock("bank", farm=farm) == of_source.clock == of_farm.clock
    assert wlc.beat(source) == 300
    assert wlc.beat(source, 10) == wlc.beat(source) == wlc.status(source).beat_s == 10
    wlc.stop(source)
    assert wlc.master(source).beat_s == wlc.beat(source) == 10
    wlc.stop(source)
    assert wlc.master(source, beat_s=60).beat_s == 60


@pytest.mark.slow
def test_stopped_master_begins_anew(engine: Engine, source: str, farm: str, copy: Path) -> None:
    """The rest is published; what is written until it is a master again is in the new history's snapshot only."""
    stopped = wlc.stop(source)
    assert (stopped.state, stopped.tick) == ("stopped", 4)
    assert check_equal(engine, source, farm, copy) == 4
    with pytest.raises(InvalidError, match="was stopped"):
        wlc.flush(source)
    engine.execute_plainly(source, "INSERT INTO t VALUES (3, 'unseen')")
    begun = wlc.master(source)
    assert (begun.state, begun.history != stopped.history) == ("active", True)
    engine.execute(source, "INSERT INTO t VALUES (4, 'seen')")
    wlc.flush(source)
    with pytest.raises(InvalidError, match="ended at tick 5"):
        wlr.replicate(into=copy)
    assert check_equal(engine, source, farm, copy.with_name("new.duckdb")) == wlc.tick(source)


# Fencing -------------------------------------------------------------------------------------------------------------


def test_another_master_fences_off_the_first(engine: Engine, source: str, farm: str) -> None:
    wlc.flush(source)
    other = engine.new()
    with pytest.raises(InvalidError, match="exists already"):
        wlc.master(other, farm=farm, name="bank")
    # The farm is given to another database behind the first one's back.
    database = open_database("bank", farm)
    database.change_config(lambda config: replace(config, history="f" * 16))
    engine.execute(source, "INSERT INTO t VALUES (3, 'x')")
    for operation in (wlc.flush, wlc.snapshot):
        with pytest.raises(FencedError):
            operation(source)
    with pytest.warns(UserWarning, match="the farm is left as it is"):
        wlc.stop(source)
    assert open_database("bank", farm).config().history == "f" * 16
