"""What a PostgreSQL master does for every table of many costs no connection, and no look at all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import wlc
from wlc.capture.postgres import snapshot
from wlc.capture.postgres.master_connection import ArrowReader
from wlc.farm.database import open_database

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

TABLES = 60


@pytest.fixture
def many(database_url: str) -> str:
    """The URL of a database with many tables: two with rows, the second with a value that DuckDB has no type for."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        for number in range(TABLES):
            connection.execute(f"CREATE TABLE t{number} (a int PRIMARY KEY, b int[])")
        connection.execute("INSERT INTO t1 VALUES (1, '{1}'); INSERT INTO t2 VALUES (2, '{{1},{2}}')")
    return database_url


def calls_in(connection: psycopg.Connection) -> dict[str, int]:
    """How often functions of the capture were called in a transaction."""
    query = "SELECT funcname, calls FROM pg_stat_xact_user_functions WHERE schemaname = 'wlc'"
    return {name: calls for name, calls in connection.execute(query).fetchall()}


def test_tables_share_connections_to_the_master(many: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    class Reader(ArrowReader):
        def __init__(self, url: str) -> None:
            opened.append(url)
            super().__init__(url)

    monkeypatch.setattr(snapshot, "ArrowReader", Reader)
    wlc.master(many, farm=str(tmp_path / "farm"), name="x")
    assert 0 < len(opened) <= 2
    database = open_database("x", str(tmp_path / "farm"))
    copied = {found.table.name: found for found in database.read_manifest(0).tables}
    assert len(copied) == TABLES
    assert {name: [f.rows for f in table.files] for name, table in copied.items() if table.files} == {
        "t1": [1],
        "t2": [1],
    }
    assert [c.type for c in (*copied["t2"].layout.columns, *copied["t1"].layout.columns)] == [
        "INTEGER",
        "VARCHAR",
        "INTEGER",
        "INTEGER[]",
    ]

    # The names of tables are compared with an index: no table is compared with every other one.
    with psycopg.connect(many) as connection:
        connection.execute("SELECT wlc.note_all()")
        query = "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE schemaname = 'wlc' AND relname = 'tables'"
        ((read,),) = connection.execute(query).fetchall()
        assert connection.execute("SELECT count(*) FROM wlc.tables").fetchone() == (TABLES,)
        assert read < TABLES * 5
        connection.rollback()

    # The catalog is read once by each function that begins the capture, and what the server knows by itself is not asked.
    with psycopg.connect(many, autocommit=True) as connection:
        connection.execute(
            "SET track_functions = 'all'; SELECT wlc.finish(); BEGIN; SELECT wlc.note_all(), wlc.start()"
        )
        calls = calls_in(connection)
        assert calls["describe"] == 2 * TABLES
        assert not calls.keys() & {"base_type", "shape"}
        assert calls["describe_object"] < 2 * TABLES
        assert calls["is_captured"] < 15 * TABLES
        connection.rollback()

    # A session that avoids the usual plans does not make its schema changes look at every table.
    looks: list[int] = []
    with psycopg.connect(many) as connection:
        for value in ("on", "off"):
            for method in ("nestloop", "hashjoin", "sort", "indexscan", "bitmapscan"):
                connection.execute(f"SET LOCAL enable_{method} = {value}")
            connection.execute("SET LOCAL track_functions = 'all'")
            connection.execute("CREATE INDEX ON t3 (b)")
            looks.append(calls_in(connection)["is_captured"])
            # This leaves the counts as they are.
            connection.rollback()
    assert looks[1] == 2 * looks[0] > 0
