"""Statements of DuckDB's suite that `wlc.connect` once refused, or answered otherwise than plain DuckDB."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.oracle import file_contents
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.capture.duckdb.connection import Connection


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "memory.duckdb"
    wlc.master(path, farm="memory://beside", name=tmp_path.name, beat_s=3600, create=True)
    return path


@pytest.fixture
def master(source: Path) -> Iterator[Connection]:
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE t (i INTEGER); INSERT INTO t VALUES (1)")
        yield connection


@pytest.mark.slow
def test_secure_views_and_those_of_an_older_storage_version_arrive(
    source: Path, master: Connection, tmp_path: Path
) -> None:
    master.execute("CREATE SECURE VIEW v AS SELECT * FROM t")
    master.execute("CREATE OR REPLACE SECURE VIEW v (a) AS SELECT i FROM t")
    master.execute("SET storage_compatibility_version = 'v0.10.2'")
    master.execute("CREATE VIEW old AS SELECT * FROM main.t")
    for outside in ("CREATE SECURE VIEW x AS FROM read_csv('x.csv')", "CREATE VIEW x AS FROM memory.wlc.state"):
        with pytest.raises((UnsupportedError, duckdb.Error)):
            master.execute(outside)
    wlc.flush(source)
    by_log, by_snapshot = tmp_path / "log.duckdb", tmp_path / "snapshot.duckdb"
    wlr.replicate(source, into=by_log)
    wlc.snapshot(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wlr.replicate(source, into=by_snapshot)
    for copy in (by_log, by_snapshot):
        with duckdb.connect(str(copy), read_only=True) as connection:
            assert connection.sql("SELECT a FROM v UNION ALL FROM old").fetchall() == [(1,), (1,)]
            found = connection.sql("SELECT sql FROM duckdb_views() WHERE view_name = 'v' AND NOT internal").fetchall()
            assert found[0][0].startswith("CREATE SECURE VIEW v")
    master.close()
    assert file_contents(by_log) == file_contents(source)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO nowhere.t VALUES (1)",
        "DELETE FROM main.nothing WHERE i = 1",
        "INSERT INTO main.nothing FROM t",
        "CREATE MACRO m (a) AS a,\n    (a, b) AS a + y",
        "UPDATE t SET i = f FROM (SELECT * FROM t AS o WHERE o.f = z) AS s",
        # DuckDB's Python package does not know the type of this statement.
        "CREATE EXTERNAL RESOURCE 'aws:ec2:x' AS y (REGION 'eu-west-1')",
    ],
)
def test_errors_are_those_of_plain_duckdb(master: Connection, statement: str) -> None:
    with duckdb.connect() as plain:
        plain.execute("CREATE TABLE t (i INTEGER)")
        with pytest.raises(duckdb.Error) as expected:
            plain.execute(statement)
    with pytest.raises(type(expected.value)) as found:
        master.execute(statement)
    assert str(found.value) == str(expected.value)
    assert master.sql("FROM t").fetchall() == [(1,)]


# Some run for the first time and once more, outside of a transaction and in one.
AFTER_UNFETCHED_ROWS = (
    "INSERT INTO t VALUES (5); INSERT INTO t SELECT 7",
    "INSERT INTO t SELECT 7",
    "UPDATE t SET i = i + 1 WHERE i = 5",
    "DELETE FROM t WHERE i > 8",
    "MERGE INTO t USING (SELECT 3 AS i) AS s ON t.i = s.i WHEN NOT MATCHED THEN INSERT",
    "INSERT INTO t VALUES (6) RETURNING i",
    "CREATE TABLE u (i INTEGER)",
    "ALTER TABLE u ADD COLUMN j INTEGER",
    "DROP TABLE u",
    "CREATE VIEW v AS SELECT 1 AS a",
    "DROP VIEW v",
    "SELECT 1; INSERT INTO t SELECT 10",
    "SELECT 1; SELECT 2",
    "SELECT currval('s')",
)


def test_a_statement_follows_one_whose_rows_were_not_all_fetched(source: Path) -> None:
    with duckdb.connect() as plain, wlc.connect(source) as captured:
        for connection in (plain, captured):
            connection.execute("CREATE TABLE t (i INTEGER); CREATE SEQUENCE s")
        for statement in (*AFTER_UNFETCHED_ROWS, "BEGIN", *AFTER_UNFETCHED_ROWS, "COMMIT"):
            found = []
            for connection in (plain, captured):
                connection.execute("SELECT nextval('s') FROM range(10000)").fetchone()
                found.append(connection.execute(statement).fetchall())
            assert found[0] == found[1], statement
        rows = [connection.execute("SELECT i FROM t ORDER BY i").fetchall() for connection in (plain, captured)]
        assert rows[0] == rows[1]
