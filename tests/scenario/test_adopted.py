"""A replica inside a DuckDB file that holds things of its owner's, who loses none of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlr
from tests.handmade import HandmadeFarm, Rows, time_of
from tests.oracle import replayed
from wlc.dialect.duckdb.snapshot import take
from wlc.farm.errors import InvalidError, ReplayError
from wlc.farm.model import Position
from wlc.farm.registry import replicas

if TYPE_CHECKING:
    from pathlib import Path

OWN = """
    CREATE TABLE mine (id INTEGER PRIMARY KEY, note VARCHAR); INSERT INTO mine VALUES (1, 'x'), (2, NULL);
    CREATE SCHEMA ours; CREATE TABLE ours.q AS SELECT range AS i FROM range(500); CREATE INDEX mine_i ON mine (note);
    CREATE VIEW notes AS SELECT * FROM mine; CREATE SEQUENCE mine_s; CREATE TYPE mine_t AS ENUM ('a');
    CREATE MACRO mine_f(x) AS x + 1;
"""
HELD = (
    "SELECT (SELECT list(m ORDER BY id) FROM notes AS m), (SELECT sum(i) FROM ours.q), mine_f(1), 'a'::mine_t,"
    " (SELECT count(*) FROM duckdb_indexes() WHERE index_name = 'mine_i'), nextval('mine_s') > 0"
)
OBJECTS = """
    SELECT 'table', schema_name, table_name FROM duckdb_tables() UNION ALL
    SELECT 'view', schema_name, view_name FROM duckdb_views() WHERE NOT internal UNION ALL
    SELECT 'sequence', schema_name, sequence_name FROM duckdb_sequences() UNION ALL
    SELECT 'type', schema_name, type_name FROM duckdb_types() WHERE NOT internal UNION ALL
    SELECT 'macro', schema_name, function_name FROM duckdb_functions() WHERE NOT internal UNION ALL
    SELECT 'schema', schema_name, NULL FROM duckdb_schemas() WHERE NOT internal ORDER BY ALL
"""
# Every kind of object that replication makes; the snapshot is taken behind them.
MADE = (
    "CREATE SCHEMA s",
    "CREATE TYPE mood AS ENUM ('good', 'bad')",
    "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR, m mood)",
    "CREATE TABLE s.child (t INTEGER)",
    "CREATE VIEW shown AS SELECT id FROM t",
    "CREATE MACRO twice(x) AS x * 2",
    "CREATE INDEX by_v ON t (v)",
)


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    """A farm with a snapshot at tick 2; then rows, schema changes, rows."""
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(MADE, [Rows("t", ("1, 'a', 'good'", "2, 'b', NULL"))])
    with replayed(farm.url, 2) as (connection, catalog):
        connection.execute(f"USE {catalog}; BEGIN TRANSACTION READ ONLY")
        take(connection, catalog, farm.db, Position("h1", 2, 1, farm.chain), time_of(2), {farm.history: 2})
    farm.publish(
        [Rows("t", ("3, 'c', 'bad'",))],
        ["DROP MACRO twice", "CREATE TABLE u (a INTEGER)", "CREATE SEQUENCE ids", Rows("u", ("1", "1"))],
        [Rows("t", ("1, 'z', 'bad'",), ("1, 'a', 'good'",))],
    )
    return farm


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A file with things of its owner's."""
    path = tmp_path / "app.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(OWN)
    return path


def run(app: Path, statement: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(app)) as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.slow
def test_replication_in_all_its_forms_leaves_what_the_owner_has(farm: HandmadeFarm, app: Path) -> None:
    before, objects = run(app, HELD), run(app, OBJECTS)
    assert wlr.replicate(farm.url, into=app, adopt=True, tick=3).tick == 3
    assert [table.table for table in wlr.verify(app).tables] == ["main.t", "s.child"]
    assert wlr.replicate(farm.url, into=app, adopt=True).tick == 5
    assert run(app, "SELECT * FROM t, u WHERE v = 'z'") == [(1, "z", "bad", 1)] * 2
    # A schema change cannot be undone: the replica is made anew inside the file.
    assert "changes the schema" in wlr.replicate(into=app, tick=3).rebuilt_because
    assert run(app, "SELECT twice(id) FROM shown ORDER BY ALL") == [(2,), (4,), (6,)]
    wlr.unlock(app)
    run(app, "UPDATE t SET v = 'mine' WHERE id = 1")
    wlr.lock(app)
    with pytest.raises(ReplayError):
        wlr.replicate(into=app)
    assert wlr.accept(app).tick == 5
    assert wlr.replicate(into=app).tick == 5
    assert [(fix.added, fix.removed) for fix in wlr.repair(app, ["t"])] == [(1, 1)]
    assert {table.outcome for table in wlr.verify(app).tables} <= {"same", "unverifiable"}
    assert run(app, HELD) == before
    assert wlr.drop(app) is True
    assert run(app, HELD) == before
    assert run(app, OBJECTS) == objects
    assert replicas(farm.db) == []
    with pytest.raises(InvalidError, match="not a replica"):
        wlr.status(app)


TAKEN = (
    ("CREATE VIEW T AS SELECT 1", "view main.T"),
    ("CREATE TABLE shown (x INTEGER)", "table main.shown"),
    ("CREATE SCHEMA s", "schema s"),
    ("CREATE TYPE mood AS INTEGER", "type main.mood"),
    ("CREATE MACRO twice(x) AS TABLE SELECT 1", "macro table main.twice"),
    ("CREATE INDEX by_v ON mine (id)", "index main.by_v"),
    # The log gives these names after the snapshot.
    ("CREATE TABLE u (mine INTEGER)", "table main.u"),
    ("CREATE SCHEMA wlr", "schema wlr"),
)


@pytest.mark.slow
def test_a_name_that_is_taken_is_refused_before_anything_is_written(farm: HandmadeFarm, app: Path) -> None:
    owned = app.read_bytes()
    for statement, named in TAKEN:
        app.write_bytes(owned)
        run(app, statement)
        content = app.read_bytes()
        with pytest.raises(InvalidError, match=rf"names that the replica needs: {named}(\n|$)"):
            wlr.replicate(farm.url, into=app, adopt=True)
        assert app.read_bytes() == content
    assert replicas(farm.db) == []


@pytest.mark.slow
def test_only_what_a_replica_of_some_tables_needs_is_taken(farm: HandmadeFarm, app: Path) -> None:
    run(app, "CREATE TABLE u (mine INTEGER); INSERT INTO u VALUES (42)")
    assert wlr.replicate(farm.url, into=app, adopt=True, ignore=["u"]).tick == 5
    assert run(app, "FROM u") == [(42,)]


@pytest.mark.slow
def test_what_the_owner_makes_later_is_in_the_way_and_stays(farm: HandmadeFarm, app: Path) -> None:
    wlr.replicate(farm.url, into=app, adopt=True)
    run(app, "CREATE VIEW late AS SELECT 'mine' AS x; CREATE TABLE of_t (t INTEGER REFERENCES t (id))")
    farm.publish(["CREATE OR REPLACE VIEW late AS SELECT 'farm' AS x"])
    with pytest.raises(ReplayError, match=r"view main\.late belongs to the replica's owner"):
        wlr.replicate(into=app)
    with pytest.raises(InvalidError, match="is sound and cannot be skipped"):
        wlr.accept(app)
    for change in (lambda: wlr.drop(app), lambda: wlr.replicate(into=app, tick=3)):
        with pytest.raises(InvalidError, match="objects of its owner that depend on the replica"):
            change()
    assert (wlr.tick(app), run(app, "FROM late")) == (5, [("mine",)])
    run(app, "DROP TABLE of_t; ALTER VIEW late RENAME TO later")
    assert wlr.replicate(into=app).tick == 6
    wlr.drop(app)
    assert run(app, "FROM later") == [("mine",)]


KILLED = """
import os, signal, sys, wlr
from wlr.engine.duckdb import objects
objects.note = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
wlr.replicate(sys.argv[1], into=sys.argv[2], adopt=True, tick=int(sys.argv[3]))
"""


@pytest.mark.slow
def test_a_killed_run_leaves_the_file_as_it_was(farm: HandmadeFarm, app: Path) -> None:
    """While the replica is made, and while it is made anew: after everything, just before the commit."""
    for tick in (5, 2):
        before = run(app, HELD), run(app, OBJECTS)
        script = [sys.executable, "-c", KILLED, farm.url, str(app), str(tick)]
        assert subprocess.run(script).returncode == -signal.SIGKILL
        assert (run(app, HELD), run(app, OBJECTS)) == before
        wlr.replicate(farm.url, into=app, adopt=True, tick=tick)
        assert wlr.tick(app) == tick
        assert {table.outcome for table in wlr.verify(app).tables} <= {"same", "unknown", "unverifiable"}
    assert [path.name for path in app.parent.iterdir() if path.name.startswith(".app")] == []


def test_a_replica_with_the_file_for_itself_is_not_dropped(farm: HandmadeFarm, tmp_path: Path) -> None:
    into = tmp_path / "copy.duckdb"
    wlr.replicate(farm.url, into=into, adopt=True)
    with pytest.raises(InvalidError, match="was not made with --adopt"):
        wlr.drop(into)
    with pytest.raises(InvalidError, match="--adopt is for DuckDB files"):
        wlr.replicate(farm.url, into=tmp_path / "lake", adopt=True)
    assert wlr.tick(into) == 5
