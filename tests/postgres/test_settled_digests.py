"""Digests of a PostgreSQL master's tables after schema changes that change what all rows are, and send none again."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.postgres.cluster import execute
from wlc.capture.postgres import snapshot
from wlc.farm.database import open_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.capture.postgres.snapshot import Look

BEFORE = (
    "CREATE TABLE t (id int PRIMARY KEY, a text, n numeric(10,2)); INSERT INTO t SELECT i, i, i FROM generate_series(1, 9) i",
    "CREATE TABLE bag (a int, b text); INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (2, NULL)",
)
ADDED = "ALTER TABLE t ADD z int DEFAULT 5, ADD day date DEFAULT '2024-02-29' NOT NULL"


def check(url: str, farm: str, into: Path) -> None:
    """The newest batch says what every table holds, a replica agrees, and so do the rows of both."""
    database = open_database("x", farm)
    batch, _ = database.read_batch(database.config().batches - 1)
    assert batch.undigested == frozenset()
    assert batch.digests
    wlr.replicate("x", farm=farm, into=into, register=False)
    assert {check.outcome for check in wlr.verify(into).tables} == {"same"}
    checks = wlc.verify_source(url)
    assert {check.outcome for check in checks} == {"same"}
    assert len(checks) == 2


@pytest.mark.slow
@pytest.mark.parametrize("beat_s", [60, pytest.param(0, marks=pytest.mark.deep)])
def test_what_tables_hold_is_known_after_every_schema_change(
    database_url: str, tmp_path: Path, beat_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm, into = str(tmp_path / "farm"), tmp_path / "copy.duckdb"
    execute(database_url, *BEFORE)
    wlc.master(database_url, farm=farm, name="x", beat_s=beat_s)
    wlr.replicate("x", farm=farm, into=into, register=False)
    steps = [
        [ADDED],
        ["ALTER TABLE bag DROP a; INSERT INTO bag VALUES ('y')"],
        [f"BEGIN; UPDATE t SET n = 0 WHERE id = 1; ALTER TABLE t DROP a; {ADDED.replace('ADD ', 'ADD x')}; COMMIT"],
    ]
    if beat_s:
        steps.append(
            ["DELETE FROM t WHERE id = 2", "ALTER TABLE t ADD w text DEFAULT 'w'", "UPDATE t SET w = 'v' WHERE id = 3"]
        )
    for statements in steps:
        execute(database_url, *statements)
        wlc.flush(database_url)
        check(database_url, farm, into)
    # Others write while the table is looked at: what they commit is in the batch, and not in what is seen.
    looking = snapshot.looking

    @contextmanager
    def looking_while_others_write(url: str) -> Iterator[Look]:
        with looking(url) as look:
            execute(
                url,
                "INSERT INTO bag VALUES ('unseen', 'c')",
                "INSERT INTO t VALUES (100)",
                "DELETE FROM bag WHERE b = 'y'",
            )
            ((lsn,),) = execute(url, "SELECT pg_current_wal_insert_lsn()::text")
            yield replace(look, moment=replace(look.moment, lsn=lsn))

    if beat_s:
        monkeypatch.setattr(snapshot, "looking", looking_while_others_write)
        execute(database_url, "ALTER TABLE bag ADD c text DEFAULT 'd'")
        assert wlc.flush(database_url).transactions == 4
        check(database_url, farm, into)


def test_a_table_that_others_have_locked_is_unknown_for_now(database_url: str, tmp_path: Path) -> None:
    import psycopg

    farm = str(tmp_path / "farm")
    execute(database_url, *BEFORE)
    wlc.master(database_url, farm=farm, name="x")
    execute(database_url, ADDED)
    with psycopg.connect(database_url, options="-c idle_in_transaction_session_timeout=20s") as other:
        other.execute("LOCK TABLE t")
        assert wlc.flush(database_url).transactions == 1
    outcomes = {check.table: check.outcome for check in wlc.verify_source(database_url)}
    assert outcomes == {"public.t": "unknown", "public.bag": "same"}


@pytest.mark.slow
def test_a_value_that_does_not_fit_leaves_unknown_what_its_table_holds_after_a_schema_change(
    database_url: str, tmp_path: Path
) -> None:
    farm, into = str(tmp_path / "farm"), tmp_path / "copy.duckdb"
    tables = "CREATE TABLE {0} (id int PRIMARY KEY, a int[]); INSERT INTO {0} VALUES (0, '{{1}}')"
    execute(database_url, *(tables.format(name) for name in ("t", "u", "emptied")))
    wlc.master(database_url, farm=farm, name="x")
    for name in ("t", "u", "emptied"):
        execute(
            database_url,
            f"INSERT INTO {name} VALUES (1, '{{1,2}}'), (2, '{{{{1,2}},{{3,4}}}}')",
            f"DELETE FROM {name} WHERE id = 2",
        )
    execute(database_url, "ALTER TABLE t RENAME TO renamed", "ALTER TABLE u ADD COLUMN x int", "TRUNCATE emptied")
    wlc.flush(database_url)
    outcomes = {check.table: check.outcome for check in wlc.verify_source(database_url)}
    assert outcomes == {"public.renamed": "unknown", "public.u": "unknown", "public.emptied": "same"}
    wlc.snapshot(database_url)
    wlr.replicate("x", farm=farm, into=into, register=False)
    assert {check.outcome for check in wlr.verify(into).tables} == {"same"}
    assert {check.outcome for check in wlc.verify_source(database_url)} == {"same"}
