"""Rows go from DuckDB to the server while they are written, as bytes or text; whoever fails, the other one does not wait."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import duckdb
import psycopg
import pytest

import wlc
import wlr
from tests.postgres.cluster import execute
from tests.postgres.held import held_by_duckdb, held_by_postgres
from tests.scenario.test_end_to_end import new_master
from tests.sound import assert_same
from wlc.farm.errors import ReplayError
from wlc.farm.model import Column
from wlr.engine.postgres import duckdb_folding, expressions, write
from wlr.engine.postgres.duckdb_folding import Workshop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INSTANTS = ("-4712-11-24 00:00:00", "2000-01-01", "1999-12-31 23:59:59.999999", "294246-12-31 23:59:59.999999")
# DuckDB's type: values, as DuckDB reads them.
VALUES: dict[str, tuple[str, ...]] = {
    "BOOLEAN": ("true", "false"),
    "SMALLINT": ("-32768", "-1", "0", "32767"),
    "INTEGER": ("-2147483648", "-1", "0", "2147483647"),
    "BIGINT": ("-9223372036854775808", "-1", "0", "9223372036854775807"),
    "FLOAT": ("-0.0", "0.1", "1e-45", "3.4028235e38", "nan", "-nan", "inf", "-inf"),
    "DOUBLE": ("-0.0", "0.1", "5e-324", "1.7976931348623157e308", "nan", "-nan", "inf", "-inf"),
    "DATE": ("0044-03-15 (BC)", "1999-12-31", "2000-01-01", "5874897-12-31", "infinity", "-infinity"),
    "TIMESTAMP": ("0044-03-15 (BC) 01:02:03.000004", *INSTANTS[1:], "infinity", "-infinity"),
    "TIMESTAMP WITH TIME ZONE": ("0044-03-15 (BC) 01:02:03.000004+00", *INSTANTS[1:], "infinity", "-infinity"),
    "VARCHAR": ("", " ", "NULL", "\\N", '"', "\n", "ä€😀", "x" * 5000),
    "DECIMAL(12,2)": ("0", "0.01", "-0.01", "10000", "1000000.5", "9999999999.99", "-9999999999.99"),
    "DECIMAL(18,0)": ("0", "1", "10000", "999999999999999999", "-999999999999999999"),
    "DECIMAL(18,9)": ("0.000000001", "-0.1", "10000.0001", "999999999.999999999", "-999999999.999999999"),
    "DECIMAL(3,3)": ("0", "0.001", "-0.999", "0.1"),
    "DECIMAL(4,1)": ("0.1", "-999.9", "100"),
}


@pytest.mark.parametrize("declared", VALUES)
def test_bytes_are_what_the_server_makes_of_the_text(database_url: str, declared: str) -> None:
    workshop = Workshop("test-binary-rows", [])
    try:
        workshop.duckdb.execute(f"CREATE TEMP TABLE v (n BIGINT, x {declared})")
        for number, value in enumerate((None, *VALUES[declared])):
            workshop.duckdb.execute("INSERT INTO v VALUES (?, ?)", [number, value])
        with psycopg.connect(database_url) as server:
            for name in ("bytes", "text"):
                server.execute(f"CREATE TEMP TABLE by_{name} (n bigint, x {expressions.postgres_type(declared)})")
            query = (
                "SELECT atttypid::bigint, atttypmod FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'x'"
            )
            ((oid, modifier),) = server.execute(query, ["by_bytes"]).fetchall()
            assert duckdb_folding.has_bytes(declared, oid, modifier)
            rows = duckdb_folding.rows_sql([("n", "BIGINT"), ("x", declared)], "FROM v")
            count = len(VALUES[declared]) + 1
            assert workshop.bring_bytes(server, rows, "COPY by_bytes FROM STDIN (FORMAT binary)") == count
            column = Column("x", declared)
            texts = f"SELECT n, {expressions.to_text_sql(column, 'x')} AS x FROM v"
            quoted = ["x"] if expressions.is_text(column) else []
            workshop.bring(server, texts, quoted, "COPY by_text FROM STDIN (FORMAT csv)")
            same = "SELECT count(*) FROM by_bytes AS b JOIN by_text AS t USING (n) WHERE b *= t"
            assert server.execute(same).fetchall() == [(count,)]
    finally:
        workshop.close()


@pytest.mark.parametrize(
    ("declared", "server"),
    [
        ("VARCHAR", "xml"),
        ("VARCHAR", "numeric"),
        ("INTEGER", "oid"),
        ("DECIMAL(12,2)", "numeric(12,1)"),
        ("DECIMAL(12,2)", "numeric"),
        ("DECIMAL(38,2)", "numeric(38,2)"),
        ("DECIMAL(18,10)", "numeric(18,10)"),
        ("INTEGER", "own"),
        ("INTEGER[]", "int[]"),
        ("BLOB", "bytea"),
    ],
)
def test_other_columns_pass_as_text(database_url: str, declared: str, server: str) -> None:
    execute(database_url, "CREATE DOMAIN own AS int", f"CREATE TABLE t (x {server})")
    query = "SELECT atttypid::bigint, atttypmod FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'x'"
    ((oid, modifier),) = execute(database_url, query)
    assert not duckdb_folding.has_bytes(declared, oid, modifier)


def test_every_kind_of_change_passes_as_bytes(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    bring = Workshop.bring_bytes

    def noticed(self: Workshop, connection: psycopg.Connection, query: str, into: str) -> int:
        made.append(into.split()[1])
        return bring(self, connection, query, into)

    monkeypatch.setattr(write, "_BINARY_ROWS", 0)
    monkeypatch.setattr(Workshop, "bring_bytes", noticed)
    source = new_master(
        tmp_path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, amount DECIMAL(12,2), moment TIMESTAMPTZ, note VARCHAR);"
        " CREATE TABLE bag (x BIGINT); INSERT INTO t SELECT i, i / 7, now(), NULL FROM range(9) r(i)",
    )
    wlr.replicate(source, into=database_url)
    assert made == ['"public"."t"']
    with wlc.connect(source) as connection:
        connection.execute("BEGIN; INSERT INTO t VALUES (10, NULL, NULL, ''); INSERT INTO bag SELECT 1 FROM range(3)")
        connection.execute("UPDATE t SET amount = -amount, note = 'x' WHERE id < 5; DELETE FROM t WHERE id = 7; COMMIT")
    wlc.flush(source)
    wlr.replicate(into=database_url)
    assert sorted(made[1:]) == ['"public"."bag"', '"public"."t"', "pg_temp.wlr_staging", "pg_temp.wlr_staging"]
    made.clear()
    with wlc.connect(source) as connection:
        connection.execute("DELETE FROM bag WHERE rowid = 1")
    wlc.flush(source)
    wlr.replicate(into=database_url)
    assert not made, "rows without a key are told apart by their text"
    assert_same(database_url)
    assert held_by_postgres(database_url) == held_by_duckdb(source)


def test_what_the_server_refuses_is_named(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_BINARY_ROWS", 0)
    source = new_master(tmp_path, "CREATE TABLE t (id INTEGER PRIMARY KEY, d DATE, note VARCHAR)")
    wlr.replicate(source, into=database_url)
    for values, said in (("1, NULL, chr(0)", "column note"), ("1, DATE '5877642-06-25 (BC)', NULL", "column d")):
        with wlc.connect(source) as connection:
            connection.execute(f"INSERT INTO t VALUES ({values})")
        wlc.flush(source)
        with pytest.raises(ReplayError, match=said):
            wlr.replicate(into=database_url)
        wlr.accept(database_url)
        with wlc.connect(source) as connection:
            connection.execute("DELETE FROM t")
        wlc.flush(source)
        with pytest.raises(ReplayError):
            wlr.replicate(into=database_url)
        wlr.accept(database_url)
    assert execute(database_url, "SELECT * FROM t") == []


# Failures --------------------------------------------------------------------------------------------------------------


ROWS = 400_000
GOOD = f"SELECT range AS n, CASE WHEN range % 2 = 0 THEN 'row ' || range ELSE '' END AS text FROM range({ROWS})"
INTO = "COPY t (n, text) FROM STDIN (FORMAT csv)"


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = Workshop("test", [])
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    execute(database_url, "CREATE TABLE t (n bigint CHECK (n < 1000000), text text)")
    with psycopg.connect(database_url, autocommit=True) as opened:
        yield opened


def bring(workshop: Workshop, connection: psycopg.Connection, query: str, into: str = INTO) -> int:
    with connection.transaction():
        return workshop.bring(connection, query, ["text"], into)


def assert_all_is_there(connection: psycopg.Connection) -> None:
    query = "SELECT count(*), sum(n), count(*) FILTER (WHERE text = CASE WHEN n % 2 = 0 THEN 'row ' || n ELSE '' END) FROM t"
    assert connection.execute(query).fetchall() == [(ROWS, ROWS * (ROWS - 1) // 2, ROWS)]


def test_rows_arrive_as_they_are(workshop: Workshop, connection: psycopg.Connection) -> None:
    assert bring(workshop, connection, GOOD) == ROWS
    assert_all_is_there(connection)


@pytest.mark.parametrize(
    "query, into, error",
    [
        # The server fails before anything is written, at the first row, and in the middle.
        (GOOD, INTO.replace("COPY t", "COPY nowhere"), psycopg.errors.UndefinedTable),
        (GOOD.replace("range AS n", "'x' AS n"), INTO, psycopg.errors.InvalidTextRepresentation),
        (GOOD.replace("range AS n", f"range + 1000000 - {ROWS // 2} AS n"), INTO, psycopg.errors.CheckViolation),
        # DuckDB fails before it opens the pipe, and when half is written.
        ("SELECT nothing AS n, '' AS text", INTO, duckdb.BinderException),
        (GOOD.replace("range AS n", f"if(range = {ROWS // 2}, error('half'), range) AS n"), INTO, duckdb.Error),
    ],
)
def test_who_fails_leaves_nobody_waiting(
    workshop: Workshop, connection: psycopg.Connection, query: str, into: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        bring(workshop, connection, query, into)
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
    assert [thread for thread in threading.enumerate() if "ThreadPool" in thread.name] == []
    assert bring(workshop, connection, GOOD) == ROWS
    assert_all_is_there(connection)
