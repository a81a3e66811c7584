"""A DuckDB master writes at random, a PostgreSQL replica follows; what people type, also from a fresh cluster on.

Docs: docs/postgresql.md and docs/howto/postgresql.md.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import call_command, seed
from tests.ports import free_port
from tests.postgres.cluster import execute, new_folder, user_that_may_run_it
from tests.postgres.held import held_by_duckdb, held_by_postgres
from tests.postgres.programs import program
from tests.scenario.test_end_to_end import ACCOUNTS, TOTAL, new_master, transfer
from tests.sound import assert_same
from wlc.farm.errors import InvalidError, ReplayError, UnsupportedError
from wlr.replay.fold import net_changes

if TYPE_CHECKING:
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
        for command in (("tick", into), ("status", into), ("beat", into, "7"), ("replica", "unlock", into))
    ]
    told.append(call_command("wlr", "status", into, "--json"))
    told.append(call_command("wlr", "accept", into))
    told.append(call_command("wlr", "lake", "prune", into))
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


ROWS, TRANSACTIONS = 50_000, 19


# The recipe of docs/howto/postgresql.md --------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parents[2]
RECIPE = re.compile(r"```sh\n(.*?)```", re.DOTALL)
AS_SERVER = ("initdb", "pg_ctl")


@pytest.mark.slow
def test_the_recipe_works_as_it_is_written(tmp_path: Path) -> None:
    found = RECIPE.search((ROOT / "docs" / "howto" / "postgresql.md").read_text(encoding="utf-8"))
    assert found
    folder, port = new_folder(), str(free_port())
    user = user_that_may_run_it()
    if user:
        os.chown(folder, user.pw_uid, user.pw_gid)
    path = os.pathsep.join([str(Path(sys.executable).parent), str(Path(program("initdb")).parent), os.environ["PATH"]])
    lines = [line for line in found.group(1).replace("5433", port).splitlines() if not line.startswith("pip ")]
    # A server does not run as root, which these tests may do.
    prefix = f"setpriv --reuid={user.pw_uid} --regid={user.pw_gid} --clear-groups " if user else ""
    script = [prefix + line if line.startswith(AS_SERVER) else line for line in lines]
    script = [line.replace("-D cluster -l cluster.log", f"-D {folder}/cluster -l {folder}/log") for line in script]
    script = [line.replace("-D cluster", f"-D {folder}/cluster") for line in script]
    # Whoever types it reads what `wlc run` prints; a busy machine takes longer than the recipe says.
    seen = 'until [ "$(wlc tick shop)" = 1 ]; do sleep 1; done'
    script = [seen if line == "sleep 5" else line for line in script]
    environment = {**os.environ, "PATH": path, "WLC_FARM": str(tmp_path / "farm")}
    try:
        done = subprocess.run(
            ["bash", "-emc", "\n".join(script)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        stop = f"{prefix}pg_ctl -D {folder}/cluster -m immediate stop; rm -rf {folder}"
        subprocess.run(["bash", "-c", stop], env=environment, check=False, capture_output=True)
    assert "run: batches 1, transactions 1, rows 2, tick 1" in done.stderr
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        assert connection.execute("FROM public.orders ORDER BY id").fetchall() == [(1, "pen"), (2, "ink")]
