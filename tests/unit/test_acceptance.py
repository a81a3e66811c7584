"""A master accepts the schema changes that replicas can follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

from wlc.capture.duckdb.acceptance import refuse_broken_macros, refuse_untaken
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Ddl, Name

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        opened.execute("CREATE TABLE t (i INTEGER); CREATE TABLE u (i INTEGER); CREATE MACRO twice(x) AS x * 2")
        opened.execute("CREATE MACRO rows_of_t() AS TABLE SELECT * FROM t; BEGIN")
        yield opened


def ddl(statement: str) -> Ddl:
    words = statement.replace("OR REPLACE ", "").split()
    return Ddl(" ".join(words[:2]), Name("main", "x"), statement)


@pytest.mark.parametrize(
    "statement, named",
    [
        ("CREATE VIEW x AS FROM query_table('t')", "query_table"),
        ("CREATE MACRO x(a) AS TABLE FROM query_table(a)", "query_table"),
        ("CREATE MACRO x() AS TABLE FROM query('SELECT 1')", "query"),
        ("CREATE VIEW x AS SELECT current_setting('TimeZone') AS z", "current_setting"),
        ("CREATE TABLE x (z VARCHAR DEFAULT current_setting('TimeZone'))", "current_setting"),
        ("CREATE TABLE x (i INTEGER, CHECK (current_setting('threads')::INTEGER > i))", "current_setting"),
        ("CREATE VIEW x AS FROM duckdb_settings()", "duckdb_settings"),
    ],
)
def test_what_no_replica_runs_is_refused(connection: duckdb.DuckDBPyConnection, statement: str, named: str) -> None:
    connection.execute(statement)
    with pytest.raises(UnsupportedError, match=f"cannot be captured: function {named} "):
        refuse_untaken(connection, "memory", ddl(statement))


@pytest.mark.parametrize("relation", ["beside.main.t", "beside.t", "mine", "temp.mine", "seen"])
def test_relations_outside_the_database_are_refused(connection: duckdb.DuckDBPyConnection, relation: str) -> None:
    connection.execute("ATTACH ':memory:' AS beside; CREATE TEMP TABLE mine (i INTEGER)")
    connection.execute("CREATE TEMP VIEW seen AS FROM t; COMMIT; CREATE TABLE beside.t (i INTEGER); BEGIN")
    for statement in (f"CREATE VIEW x AS SELECT 1 FROM t, {relation}", f"CREATE MACRO x() AS TABLE FROM {relation}"):
        connection.execute(statement)
        with pytest.raises(UnsupportedError, match=f"{relation} lies outside the database"):
            refuse_untaken(connection, "memory", ddl(statement))
    for statement in ("CREATE VIEW y AS SELECT 1 FROM main.t, memory.main.u, memory.t", "CREATE VIEW z AS FROM y"):
        connection.execute(statement)
        refuse_untaken(connection, "memory", ddl(statement))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW x AS SELECT twice(i) AS i, now() AS n FROM t JOIN range(3) r(j) ON i = j",
        "CREATE OR REPLACE MACRO x(a, b := 2) AS twice(a) + b",
        "CREATE TABLE x (i INTEGER DEFAULT random() * 2, CHECK (abs(i) < 5))",
        "ALTER TABLE t ADD COLUMN x DATE DEFAULT current_date",
        "DROP TABLE u",
        "COMMENT ON TABLE t IS 'query_table(''t'')'",
        "CREATE TRIGGER x AFTER INSERT ON t FOR EACH STATEMENT DELETE FROM u",
    ],
)
def test_what_replicas_run_is_accepted(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    connection.execute(statement)
    refuse_untaken(connection, "memory", ddl(statement))


@pytest.mark.parametrize(
    "script, changed, is_refused",
    [
        ("DROP TABLE t", "t", True),
        ("ALTER TABLE t RENAME TO other", "t", True),
        ("DROP TABLE t; CREATE VIEW t AS SELECT 1 AS i", "t", False),
        ("DROP TABLE t; DROP MACRO TABLE rows_of_t", "t", False),
        ("DROP TABLE u", "u", False),
        ("DROP MACRO twice", "twice", False),
    ],
)
def test_macros_over_what_is_gone_are_refused(
    connection: duckdb.DuckDBPyConnection, script: str, changed: str, is_refused: bool
) -> None:
    connection.execute(script)
    changes = frozenset({Name("main", changed)})
    if is_refused:
        with pytest.raises(UnsupportedError, match=r"CREATE MACRO main\.rows_of_t") as caught:
            refuse_broken_macros(connection, "memory", changes)
        assert "same transaction" in str(caught.value.hint)
    else:
        refuse_broken_macros(connection, "memory", changes)
