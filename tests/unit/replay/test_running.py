from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

from wlc.farm.model import AlteredObject, DbObject, Ddl, Name
from wlr.replay.ddl import running

if TYPE_CHECKING:
    from wlc.farm.model import ColumnStep

TABLE = """
    CREATE TABLE s.t (
        "a, (b" INTEGER CHECK ("a, (b" > 0), kind ENUM('x', 'y)'), id INTEGER PRIMARY KEY, v VARCHAR DEFAULT 'q,(',
        UNIQUE (v), CHECK (id > 0), twice INTEGER GENERATED ALWAYS AS (id * 2)
    )
"""


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(f"ATTACH ':memory:' AS m; USE m; CREATE SCHEMA s; {TABLE}")
    connection.execute(
        "CREATE INDEX i ON s.t (id, v); COMMENT ON TABLE s.t IS 'the ''table'; COMMENT ON INDEX s.i IS 'i'"
    )
    connection.execute("COMMENT ON COLUMN s.t.kind IS 'gone'; COMMENT ON COLUMN s.t.v IS 'text'")
    connection.execute("INSERT INTO s.t VALUES (1, 'x', 1, 'a'), (2, NULL, 2, NULL)")
    return connection


def run(connection: duckdb.DuckDBPyConnection, statement: str, *steps: ColumnStep) -> Name | None:
    does = (AlteredObject(DbObject("TABLE", Name("s", "t")), columns=steps),)
    return running.run(connection, "m", Ddl("ALTER TABLE", Name("s", "t"), statement, ("s",), does=does))


def facts(connection: duckdb.DuckDBPyConnection) -> list[object]:
    queries = (
        "SELECT comment FROM duckdb_tables() WHERE table_name = 't'",
        "SELECT column_name, comment FROM duckdb_columns() WHERE table_name = 't' AND comment IS NOT NULL",
        "SELECT index_name, comment FROM duckdb_indexes()",
        "SELECT constraint_type FROM duckdb_constraints() WHERE table_name = 't' ORDER BY ALL",
    )
    return [connection.execute(query).fetchall() for query in queries]


def test_a_column_before_a_key_is_dropped_and_the_rest_stays(connection: duckdb.DuckDBPyConnection) -> None:
    before = facts(connection)
    with pytest.raises(duckdb.Error, match="depends on a column after it"):
        connection.execute("ALTER TABLE s.t DROP COLUMN kind")
    assert run(connection, "ALTER TABLE t DROP COLUMN kind", ("kind", None)) == Name("s", "t")
    after = facts(connection)
    assert after == [before[0], [("v", "text")], *before[2:]]
    connection.execute('INSERT INTO s.t ("a, (b", id) VALUES (3, 3)')
    rows = connection.execute("FROM s.t ORDER BY id").fetchall()
    assert rows == [(1, 1, "a", 2), (2, 2, None, 4), (3, 3, "q,(", 6)]
    for statement in ("INSERT INTO s.t VALUES (1, 1, 'n')", "INSERT INTO s.t VALUES (1, 9, 'a')"):
        with pytest.raises(duckdb.ConstraintException):
            connection.execute(statement)


def test_generated_columns_go_with_a_column_before_a_key(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("CREATE TABLE s.u (a INTEGER, g INTEGER AS (a + 1), id INTEGER PRIMARY KEY, v INTEGER)")
    connection.execute("INSERT INTO s.u VALUES (1, 2, 3)")
    name = Name("s", "u")
    does = (AlteredObject(DbObject("TABLE", name), columns=(("a", None), ("g", None))),)
    dropped = Ddl("ALTER TABLE", name, "ALTER TABLE u DROP COLUMN a CASCADE", ("s",), does=does)
    assert running.run(connection, "m", dropped) == name
    assert connection.execute("FROM s.u").fetchall() == [(2, 3)]


@pytest.mark.parametrize(
    "statement, step",
    [
        ("ALTER TABLE t ALTER v DROP DEFAULT", ("v", "v")),
        ("ALTER TABLE t ADD COLUMN w STRUCT(x INTEGER, y INTEGER)", (None, "w")),
        ("CREATE TABLE other (a INTEGER)", None),
        ("DROP INDEX i", None),
    ],
)
def test_other_statements_run_as_they_are(
    connection: duckdb.DuckDBPyConnection, statement: str, step: ColumnStep | None
) -> None:
    assert run(connection, statement, *([step] if step else [])) is None


def test_a_key_column_stays_refused(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(duckdb.Error):
        run(connection, "ALTER TABLE t DROP COLUMN id", ("id", None))
