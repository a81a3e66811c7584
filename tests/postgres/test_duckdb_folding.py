"""Rows go from DuckDB to the server while they are written; whoever fails, the other one does not wait for ever."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import duckdb
import psycopg
import pytest

from tests.postgres.cluster import execute
from wlr.engine.postgres.duckdb_folding import Workshop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


@pytest.mark.slow
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
