"""Statements name relations and variables of the program, as they can with plain DuckDB."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.new_master import make_master

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# With relations, frames and tables under the name `text`, which functions of the capture use themselves.
STATEMENTS = (
    "SELECT * FROM text ORDER BY ALL",
    "INSERT INTO t FROM text",
    "DELETE FROM t WHERE a IN (SELECT a FROM text)",
    "UPDATE t SET b = text.b FROM text WHERE t.a = text.a",
    "MERGE INTO t USING text ON t.a = text.a WHEN MATCHED THEN UPDATE SET b = 'm' WHEN NOT MATCHED THEN INSERT",
    "INSERT INTO t FROM text RETURNING a",
    "CREATE TABLE made AS FROM text",
    "BEGIN; DELETE FROM t USING text WHERE t.a = text.a; COMMIT",
)
ROWS = "SELECT range AS a, 'new' AS b FROM range(3, 8)"
CALLS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda c, text: c.register("r", text).execute("INSERT INTO t FROM r").fetchall(),
    lambda c, text: c.cursor().execute("INSERT INTO t FROM text").fetchall(),
    lambda c, text: text.materialize().filter("a > 5").insert_into("t"),
    lambda c, text: text.query("v", "SELECT a FROM v ORDER BY a").fetchall(),
    lambda c, text: c.sql("FROM text").join(c.table("t").set_alias("o"), "a").order("a").fetchall(),
    lambda c, text: text.join(duckdb.connect().sql("SELECT 1 AS a"), "a"),
)
MAKERS = {
    "relation": lambda c: c.sql(ROWS),
    "pandas": lambda c: duckdb.sql(ROWS).df(),
    "arrow": lambda c: duckdb.sql(ROWS).to_arrow_table(),
}


@pytest.fixture
def master(tmp_path: Path) -> str:
    return str(make_master(tmp_path / "s.duckdb", "CREATE TABLE t AS SELECT range AS a, 'old' AS b FROM range(5)"))


@pytest.fixture
def pair(master: str) -> Iterator[tuple[Any, Any]]:
    with duckdb.connect() as plain, wlc.connect(master) as captured:
        plain.execute("CREATE TABLE t AS SELECT range AS a, 'old' AS b FROM range(5)")
        yield plain, captured


def outcome(connection: Any, call: Callable[[], Any]) -> tuple[object, dict[str, list[Any]]]:
    found: object
    try:
        found = call()
    except Exception as error:
        found = type(error)
    tables = [name for (name,) in connection.execute("SHOW TABLES").fetchall()]
    return found, {name: sorted(connection.execute(f"FROM {name}").fetchall()) for name in tables}


def run(connection: Any, statement: str, make: Callable[[Any], Any]) -> list[Any]:
    text = make(connection)
    assert text is not None
    return connection.execute(statement).fetchall()


@pytest.mark.parametrize("kind", MAKERS)
def test_statements_name_what_the_program_has(pair: tuple[Any, Any], tmp_path: Path, kind: str) -> None:
    for statement in STATEMENTS:
        plain, captured = (
            outcome(side, lambda side=side, statement=statement: run(side, statement, MAKERS[kind])) for side in pair
        )
        assert captured == plain, statement
    expected = outcome(pair[1], lambda: None)[1]
    wlc.flush(tmp_path / "s.duckdb")
    wlr.replicate("s", farm=tmp_path / "farm", into=tmp_path / "copy.duckdb")
    with duckdb.connect(str(tmp_path / "copy.duckdb"), read_only=True) as copy:
        assert outcome(copy, lambda: None)[1] == expected


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_calls_with_a_relation(pair: tuple[Any, Any], number: int) -> None:
    plain, captured = (outcome(side, lambda side=side: CALLS[number](side, side.sql(ROWS))) for side in pair)
    assert captured == plain


def test_a_relation_keeps_its_connection(master: str) -> None:
    held = wlc.connect(master).sql("SELECT 1 AS a").materialize()
    gc.collect()
    held.create("made")
    with wlc.connect(master) as again:
        assert again.execute("FROM made").fetchall() == [(1,)]


class Spy:
    """A table for DuckDB that notes from where it is read."""

    def __init__(self) -> None:
        self.rows = duckdb.sql(ROWS).to_arrow_table()
        self.modules: set[str] = set()

    def __arrow_c_stream__(self, requested: object = None) -> object:
        frame: Any = sys._getframe(1)
        while frame.f_globals["__name__"] != __name__:
            self.modules.add(frame.f_globals["__name__"])
            frame = frame.f_back
        return self.rows.__arrow_c_stream__(requested)


def test_duckdb_skips_every_frame_of_the_capture(pair: tuple[Any, Any]) -> None:
    captured = pair[1]
    seen = set()
    for statement in STATEMENTS:
        text = Spy()
        captured.execute(statement)
        seen |= text.modules
    assert seen
    assert not [name for name in seen if not name.startswith("duckdb.")]
