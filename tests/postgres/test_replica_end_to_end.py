"""A DuckDB master writes at random, a PostgreSQL replica follows; what people type, and what a kill leaves behind.

Docs: docs/postgresql.md and docs/howto/postgresql.md.
"""

from __future__ import annotations

import json
import random
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import call_command, program, rounds, seed, started
from tests.postgres.cluster import execute
from tests.postgres.held import held_by_duckdb, held_by_postgres
from tests.scenario.test_end_to_end import ACCOUNTS, TOTAL, new_master, transfer
from tests.sound import assert_same
from wlc.farm.errors import InvalidError, ReplayError, UnsupportedError
from wlr.replay.fold import net_changes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres.cluster import Cluster


@pytest.mark.slow
def test_money_neither_appears_nor_disappears_at_any_stop(tmp_path: Path, cluster: Cluster) -> None:
    chance = random.Random(seed())
    source = new_master(
        tmp_path / "bank",
        "CREATE TABLE account (id INTEGER PRIMARY KEY, money INTEGER);"
        " CREATE TABLE history (a INTEGER, b INTEGER, c INTEGER);"
        f" INSERT INTO account SELECT i, {TOTAL // ACCOUNTS} FROM range({ACCOUNTS}) r(i)",
    )
    follows, held = cluster.create_database(), {}
    connection = wlc.connect(source)
    for number in range(80):
        transfer(connection, chance)
        held[connection._shared.last_tick] = sorted(connection.execute("SELECT * FROM account").fetchall())
        if chance.random() < 0.1:
            wlc.flush(source)
        if number == 40:
            wlc.snapshot(source)
    connection.close()
    wlc.flush(source)
    for stop in sorted(chance.sample(sorted(held), 5)):
        alone = cluster.create_database()
        wlr.replicate(source, into=follows, tick=stop)
        wlr.replicate(source, into=alone, tick=stop)
        for url in (follows, alone):
            assert execute(url, "SELECT * FROM account ORDER BY id") == held[stop], f"at tick {stop}"
        assert held_by_postgres(follows) == held_by_postgres(alone)
    wlr.replicate(into=follows)
    assert held_by_postgres(follows) == held_by_duckdb(source)


@pytest.mark.slow
def test_rows_of_large_steps_are_added_up_while_they_are_written(tmp_path: Path, database_url: str) -> None:
    source = new_master(tmp_path, "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR); CREATE TABLE bag (id INTEGER)")
    wlr.replicate(source, into=database_url)
    for statement in (
        "INSERT INTO t SELECT range, 'v' || range FROM range(110000); INSERT INTO bag SELECT id % 7 FROM t",
        "DELETE FROM t WHERE id > 5",
    ):
        with wlc.connect(source) as connection:
            connection.execute(statement)
        wlc.flush(source)
        wlr.replicate(into=database_url)
        assert_same(database_url)
    assert held_by_postgres(database_url) == held_by_duckdb(source)


def test_folded_changes_are_added_up_while_the_server_updates_or_fails(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER); INSERT INTO t SELECT range, 0 FROM range(9)"
    source = new_master(tmp_path, table)
    wlr.replicate(source, into=database_url)
    aside: list[bool] = []
    total = net_changes._total

    def noticed(*arguments: Any) -> int:
        aside.append(threading.current_thread() is not threading.main_thread())
        return total(*arguments)

    monkeypatch.setattr(net_changes, "_ASIDE", 2)
    monkeypatch.setattr(net_changes, "_total", noticed)
    with wlc.connect(source) as connection:
        connection.execute("BEGIN; UPDATE t SET v = id WHERE id < 5; DELETE FROM t WHERE id > 7; COMMIT")
    wlc.flush(source)
    wlr.unlock(database_url)
    execute(database_url, "UPDATE t SET v = 7 WHERE id = 3")
    with pytest.raises(ReplayError, match="1 of 4 rows to change are not in the replica"):
        wlr.replicate(into=database_url)
    execute(database_url, "UPDATE t SET v = 0 WHERE id = 3")
    wlr.lock(database_url)
    wlr.replicate(into=database_url)
    assert aside
    assert all(aside)
    assert_same(database_url)
    assert held_by_postgres(database_url) == held_by_duckdb(source)


def test_commands(tmp_path: Path, database_url: str) -> None:
    source = new_master(tmp_path, "CREATE TABLE t AS SELECT 1 AS id")
    into = database_url.replace("postgres@", "postgres:pa55word@")
    told = [call_command("wlr", "replicate", source, "--into", into)]
    told += [
        call_command("wlr", *command)
        for command in (("tick", into), ("status", into), ("beat", into, "7"), ("unlock", into))
    ]
    told.append(call_command("wlr", "status", into, "--json"))
    told.append(call_command("wlr", "accept", into))
    told.append(call_command("wlr", "prune", into))
    told.append(call_command("wlr", "status", into.replace("/db", "/nowhere"), "--verbose"))
    assert [done.returncode for done in told] == [0, 0, 0, 0, 0, 0, 2, 2, 2], [done.stderr for done in told]
    status = json.loads(told[5].stdout)
    assert (status["tick"], status["is_unlocked"], status["beat_s"]) == (0, True, 7.0)
    for done in told:
        assert "pa55word" not in done.stdout + done.stderr
    assert "createdb" in told[-1].stderr


def test_tables_in_the_way_are_named_and_left_alone(tmp_path: Path, database_url: str) -> None:
    source = new_master(tmp_path, "CREATE TABLE t AS SELECT 1 AS id; CREATE TABLE u AS SELECT 2 AS id")
    execute(database_url, "CREATE TABLE u (mine INTEGER)", "CREATE VIEW free AS SELECT 1")
    with pytest.raises(InvalidError, match=r"has public\.u already"):
        wlr.replicate(source, into=database_url)
    assert execute(database_url, "SELECT to_regclass('t')::text, to_regnamespace('wlr')::text") == [(None, None)]
    assert wlr.replicate(source, into=f"{database_url}?schema=copy").snapshot == 0
    assert execute(database_url, "SELECT * FROM copy.u") == [(2,)]
    assert execute(database_url, "SELECT * FROM u") == []


def test_snapshot_that_postgres_cannot_hold_leaves_nothing(tmp_path: Path, database_url: str) -> None:
    source = new_master(tmp_path, "CREATE TABLE good AS SELECT 1 AS id; CREATE TABLE t AS SELECT chr(0) AS bad")
    with pytest.raises(UnsupportedError, match=r"table main\.t of the snapshot.*; column bad"):
        wlr.replicate(source, into=database_url)
    assert execute(database_url, "SELECT to_regclass('good')::text, to_regnamespace('wlr')::text") == [(None, None)]
    assert wlr.replicate(source, into=database_url, tables=["good"]).snapshot == 0
    assert held_by_postgres(database_url) == {"main.good": {"[1]": 1}}


SCHEMA = """
    CREATE SEQUENCE ids START 10; CREATE TYPE mood AS ENUM ('sad', 'ok');
    CREATE TABLE Parent (ID INTEGER PRIMARY KEY DEFAULT nextval('ids'), Code VARCHAR NOT NULL UNIQUE, m mood DEFAULT 'sad',
        twice BIGINT GENERATED ALWAYS AS (id * 2), CHECK (code <> 'bad'), CHECK (list_sum([id]) > 0));
    CREATE TABLE child (id INTEGER, parent INTEGER REFERENCES Parent (id), day DATE DEFAULT '2020-01-01');
    INSERT INTO parent (code) VALUES ('a'), ('b'); INSERT INTO child (id, parent) VALUES (1, 10), (1, 10);
    CREATE INDEX by_parent ON CHILD (PARENT); CREATE UNIQUE INDEX lower_code ON parent (lower(code));
    CREATE VIEW "both" AS SELECT p.CODE, c.day FROM Parent p JOIN child c ON c.parent = p.id WHERE p.m = 'sad';
    CREATE VIEW odd AS SELECT list_filter([1, 2], lambda x: x > 1) AS l; CREATE MACRO plus(a) AS a + 1;
    COMMENT ON TABLE parent IS 'it''s'; COMMENT ON COLUMN parent.code IS 'the code';
"""
DEFINED = [
    ('CREATE UNIQUE INDEX lower_code ON public."Parent" USING btree (lower("Code"))',),
    ("CREATE INDEX by_parent ON public.child USING btree (parent)",),
]


def test_what_surrounds_the_rows_works(tmp_path: Path, database_url: str) -> None:
    source = new_master(tmp_path, SCHEMA)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wlr.replicate(source, into=database_url)
    told = sorted(str(warning.message).partition(" is left out")[0] for warning in caught)
    assert told == ["a CHECK constraint of table main.Parent", "macro main.plus", "view main.odd"]
    # It is told as long as it is missing.
    assert sorted(wlr.status(database_url).left_out) == told
    assert execute(database_url, 'SELECT * FROM "both"') == [("a", duckdb_date()), ("a", duckdb_date())]
    defined = "SELECT pg_get_indexdef(indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = indexrelid"
    assert (
        execute(database_url, f"{defined} WHERE relname IN ('by_parent', 'lower_code') ORDER BY relname DESC")
        == DEFINED
    )
    described = "SELECT obj_description('\"Parent\"'::regclass), col_description('\"Parent\"'::regclass, 2)"
    assert execute(database_url, described) == [("it's", "the code")]
    wlr.unlock(database_url)
    added = 'INSERT INTO "Parent" ("Code") VALUES (\'c\') RETURNING "ID", m, twice'
    assert execute(database_url, added) == [(12, "sad", 24)]
    for refused in (
        'INSERT INTO "Parent" ("Code") VALUES (\'c\')',
        'INSERT INTO "Parent" ("Code") VALUES (\'bad\')',
        'INSERT INTO "Parent" ("Code") VALUES (NULL)',
        "INSERT INTO child (parent) VALUES (99)",
    ):
        with pytest.raises(Exception, match="constraint"):
            execute(database_url, refused)


def duckdb_date() -> object:
    return duckdb.execute("SELECT DATE '2020-01-01'").fetchall()[0][0]


REPLICATE = """
import sys, wlr.replay.request, wlr.engine.postgres.build, wlr.engine.postgres.replica
print("ready", flush=True)
sys.stdin.readline()
wlr.replay.request.replicate(sys.argv[1], into=sys.argv[2])
print("done", flush=True)
"""
ROWS, TRANSACTIONS = 50_000, 19


def digest(url: str) -> list[tuple[object, ...]]:
    return execute(url, "SELECT count(*), sum(id), min(text), max(text), sum(length(text)) FROM item")


@pytest.mark.slow
def test_killed_replica_holds_a_prefix_and_goes_on(tmp_path: Path, cluster: Cluster) -> None:
    folder = tmp_path / "big"
    source = new_master(
        folder,
        "CREATE TABLE item (id INTEGER PRIMARY KEY, text VARCHAR);"
        f" INSERT INTO item SELECT i, 'x' || (i % 7) FROM range({ROWS}) r(i)",
    )
    query = "SELECT count(*), sum(id), min(text), max(text), sum(length(text)) FROM item"
    with wlc.connect(source) as connection:
        states = {0: connection.execute(query).fetchall()}
        for number in range(1, TRANSACTIONS + 1):
            connection.execute(f"BEGIN; UPDATE item SET text = 'y{number}' || text WHERE id % 20 = {number}")
            if number % 2:
                connection.execute(f"ALTER TABLE item ADD COLUMN c{number} INTEGER")
            connection.execute("COMMIT")
            states[number] = connection.execute(query).fetchall()
    wlc.flush(source)
    farm = str(folder / "dbfarm" / "sales")
    chance = random.Random(seed())
    url = cluster.create_database()
    with program(farm, url, text=REPLICATE) as running:
        running.wait_for("ready")
        began = time.monotonic()
        running.say("go")
        running.wait_for("done")
        whole_s = time.monotonic() - began
        assert running.end() == 0
    assert digest(url) == states[TRANSACTIONS]
    for _ in range(rounds(2)):
        url = cluster.create_database()
        for _ in range(3):
            running = started(farm, url, REPLICATE)
            time.sleep(chance.random() * whole_s)
            running.kill()
            # No half replica: either there is none yet, or it is at a tick and holds exactly that.
            if execute(url, "SELECT to_regclass('wlr.state')::text") != [(None,)]:
                tick = wlr.tick(url)
                assert digest(url) == states[tick], f"at tick {tick}"
        assert wait_and_replicate(farm, url) == TRANSACTIONS
        assert digest(url) == states[TRANSACTIONS]


def wait_and_replicate(farm: str, url: str) -> int:
    """The server needs a moment to notice that a client is gone."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return wlr.replicate(farm, into=url).tick
        except wlc.farm.errors.UnavailableError as error:
            assert "in use" in str(error)
            assert time.monotonic() < deadline
            time.sleep(0.2)
