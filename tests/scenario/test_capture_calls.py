"""Calls of the connection: what each costs, and which of DuckDB's methods it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.new_master import make_master
from tests.scratch import attached
from wlc.capture.duckdb.connection import Connection

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def master(tmp_path: Path) -> str:
    return str(make_master(tmp_path / "s.duckdb", "CREATE TABLE t AS SELECT range AS a FROM range(5)"))


def replicated(master: str, tmp_path: Path) -> list[int]:
    """What a replica holds after everything is published."""
    wlr.replicate(str(tmp_path / "farm" / "s"), into=str(tmp_path / "copy.duckdb"))
    with attached(tmp_path / "copy.duckdb") as connection:
        return [a for (a,) in connection.execute("SELECT a FROM t ORDER BY a").fetchall()]


def test_every_method_of_duckdb_was_decided_on() -> None:
    # Python notes the slots of a class once an object of it was to be copied.
    undecided = set(dir(duckdb.DuckDBPyConnection)) - set(dir(object)) - set(vars(Connection)) - {"__slotnames__"}
    assert not undecided, (
        "capture these methods, or list them in wlc/capture/duckdb/connection.py if they write no rows"
    )
    assert "__getattr__" not in vars(Connection)


def test_a_method_that_duckdb_does_not_have_is_refused(master: str) -> None:
    with wlc.connect(master) as connection, pytest.raises(AttributeError, match="write_rows"):
        connection.write_rows()  # type: ignore[attr-defined]


def test_no_method_returns_the_raw_connection(master: str, tmp_path: Path) -> None:
    with wlc.connect(master) as connection:
        values = connection.sql("SELECT 7 AS a").to_arrow_table()
        connection.register("more", values).execute("INSERT INTO t FROM more")
        assert connection.unregister("more") is connection
        assert connection.checkpoint() is connection
        assert connection.create_function("one", lambda: 1, [], "INTEGER") is connection
        connection.remove_function("one").execute("INSERT INTO t VALUES (8)")
        assert connection.execute("INSERT INTO t VALUES (9)") is connection
    assert replicated(master, tmp_path) == [0, 1, 2, 3, 4, 7, 8, 9]


def test_a_statement_prepared_by_a_relation_call_is_captured(master: str, tmp_path: Path) -> None:
    with wlc.connect(master) as connection:
        connection.sql("PREPARE gone AS DELETE FROM t WHERE a = 0")
        with pytest.raises(duckdb.Error):
            connection.execute("PREPARE gone AS SELECT nothing FROM nowhere")
        with connection.cursor() as other:
            other.execute("INSERT INTO t VALUES (9)")
        connection.execute("EXECUTE gone")
    assert replicated(master, tmp_path) == [1, 2, 3, 4, 9]


def test_an_appender_is_captured(master: str, tmp_path: Path) -> None:
    with wlc.connect(master) as connection:
        with connection.appender("t") as appender:
            appender.append_row(7)
            appender.append_rows([(8,), (9,)])
        with connection.appender("t") as appender:
            appender.append_row(1)
            appender.clear()
    assert replicated(master, tmp_path) == [0, 1, 2, 3, 4, 7, 8, 9]


def test_queries_are_not_tokenized_and_statements_once(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    tokenize = duckdb.tokenize

    def counting(text: str) -> object:
        calls.append(text)
        return tokenize(text)

    monkeypatch.setattr(duckdb, "tokenize", counting)
    with wlc.connect(master) as connection:
        for number in range(3):
            assert connection.execute(f"SELECT a FROM t WHERE a = {number}").fetchall() == [(number,)]
            assert connection.execute("SELECT a FROM t WHERE a = ?", [number]).fetchall() == [(number,)]
            assert connection.sql(f"SELECT a FROM t WHERE a = {number}").fetchall() == [(number,)]
        assert calls == []
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (?)", [7])
        connection.execute("ROLLBACK")
        # As a transaction of its own, the statement is parsed once the table is known, and prepared when it comes again.
        for number in (4, 5, 6):
            connection.execute("INSERT INTO t VALUES (?)", [number])
        before = len(calls)
        connection.execute("INSERT INTO t VALUES (?)", [7])
        connection.execute("INSERT INTO t VALUES (?)", [8])
        assert len(calls) == before
