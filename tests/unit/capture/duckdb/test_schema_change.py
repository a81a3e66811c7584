"""What is recorded of a schema change, told from the catalog before and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

from tests.schema_changes import SchemaChanges
from wlc.capture.duckdb.schema_change import difference
from wlc.farm.errors import UnsupportedError
from wlc.farm.json_records import record_of
from wlc.farm.model import AlteredObject, CreatedObject, DbObject, Ddl, Name, RenamedObject

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        for text in (
            "SET GLOBAL TimeZone = 'UTC'; SET enable_view_dependencies = true; CREATE SCHEMA one; CREATE SCHEMA two",
            "CREATE TABLE t (i INTEGER); CREATE VIEW v AS FROM t; CREATE VIEW a AS FROM v; CREATE SEQUENCE s",
            "CREATE TABLE two.r (x INTEGER); CREATE TYPE e AS ENUM ('a'); CREATE MACRO m() AS 1",
            "CREATE SEQUENCE q; CREATE TABLE uses (i INTEGER DEFAULT nextval('q')); ATTACH ':memory:' AS beside",
        ):
            opened.execute(text)
        yield opened


def test_a_replaced_table_is_created_and_dropped_and_a_renamed_one_is_altered() -> None:
    t, u = Name("main", "t"), Name("main", "u")
    table = DbObject("TABLE", t)
    altered = difference((AlteredObject(table, columns=((None, "b"),)),))
    assert (altered.created_tables, altered.altered_tables, altered.dropped_tables) == ((), {t: t}, ())
    replaced = difference((CreatedObject(table, replaces=True),))
    assert (replaced.created_tables, replaced.altered_tables, replaced.dropped_tables) == ((t,), {}, (t,))
    assert replaced.replaced_tables == {t}
    renamed = difference((RenamedObject(table, u),))
    assert (renamed.altered_tables, renamed.dropped_tables) == ({u: t}, (t,))
    assert difference((AlteredObject(table),)).altered_tables == {}


def recorded(connection: duckdb.DuckDBPyConnection, text: str) -> list[Ddl]:
    return SchemaChanges(connection).run(text)


@pytest.mark.parametrize(
    "text, kind, name, statement",
    [
        ("/* DROP TABLE */ CREATE VIEW w AS SELECT 1 AS i", "CREATE VIEW", "w", "CREATE VIEW w AS SELECT 1 AS i"),
        ("-- x\nCREATE --TABLE\n/*\n*/ SEQUENCE n", "CREATE SEQUENCE", "n", "CREATE SEQUENCE n"),
        ("ALTER /* VIEW */ TABLE t ADD COLUMN k INTEGER;", "ALTER TABLE", "t", "ALTER TABLE t ADD COLUMN k INTEGER"),
        ("CREATE OR REPLACE FUNCTION table_of() AS 1", "CREATE MACRO", "table_of", None),
        ("COMMENT/**/ON/**/TABLE t IS '/* is kept */'", "COMMENT TABLE", "t", "COMMENT ON TABLE t IS '/* is kept */'"),
        ('DROP /* TYPE */ VIEW IF EXISTS "a"', "DROP VIEW", "a", 'DROP VIEW IF EXISTS "a"'),
    ],
)
def test_kinds_are_told_from_the_statement_without_comments(
    connection: duckdb.DuckDBPyConnection, text: str, kind: str, name: str, statement: str | None
) -> None:
    (ddl,) = recorded(connection, text)
    assert (ddl.kind, ddl.object.name) == (kind, name)
    assert " ".join(ddl.statement.split()) == (statement or text)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("DROP VIEW v CASCADE", ["DROP VIEW v CASCADE", 'DROP VIEW IF EXISTS "main"."a"']),
        (
            "DROP TABLE t CASCADE",
            [
                "DROP TABLE t CASCADE",
                'DROP SEQUENCE IF EXISTS "main"."s"',
                'DROP VIEW IF EXISTS "main"."a"',
                'DROP VIEW IF EXISTS "main"."v"',
            ],
        ),
        ("DROP SEQUENCE q CASCADE", ['DROP TABLE IF EXISTS "main"."uses"', "DROP SEQUENCE q CASCADE"]),
        ("DROP SCHEMA two CASCADE", ["DROP SCHEMA two CASCADE"]),
        ("ALTER VIEW a RENAME TO b", ["ALTER VIEW a RENAME TO b"]),
    ],
)
def test_what_is_dropped_together(connection: duckdb.DuckDBPyConnection, text: str, expected: list[str]) -> None:
    connection.execute("ALTER SEQUENCE s OWNED BY t")
    found = recorded(connection, text)
    assert [ddl.statement for ddl in found] == expected
    assert all(ddl.statement.startswith(ddl.kind) for ddl in found)


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "CREATE OR REPLACE TABLE two.R (x INTEGER)",
            ['DROP TABLE IF EXISTS "two"."r"', "CREATE TABLE two.R(x INTEGER)"],
        ),
        ("CREATE OR REPLACE VIEW A AS SELECT 1", ["CREATE OR REPLACE VIEW A AS SELECT 1"]),
        ("CREATE OR REPLACE MACRO M() AS 2", ["CREATE OR REPLACE MACRO M() AS 2"]),
        ("CREATE OR REPLACE SEQUENCE S", ["CREATE OR REPLACE SEQUENCE S"]),
        ("CREATE OR REPLACE TYPE E AS ENUM ('b')", ["CREATE OR REPLACE TYPE E AS ENUM ('b')"]),
    ],
)
def test_what_replaces_a_name_in_other_letters_is_not_dropped(
    connection: duckdb.DuckDBPyConnection, text: str, expected: list[str]
) -> None:
    assert [ddl.statement for ddl in recorded(connection, text)] == expected


def said(found: list[Ddl]) -> list[list[dict[str, object]]]:
    return [record_of(Ddl).write(ddl)["does"] for ddl in found]


CREATED = "CREATE TABLE c (i INTEGER PRIMARY KEY, P INTEGER UNIQUE, n INTEGER REFERENCES c (I), CHECK (p > I))"


def test_every_statement_says_what_it_did(connection: duckdb.DuckDBPyConnection) -> None:
    table = ["TABLE", "main", "c"]
    foreign = {"foreign": ["n"], "to": ["main", "c"], "keys": ["i"]}
    checked = {"check": ["P", "i"], "sql": "(p > I)"}
    changes = SchemaChanges(connection)
    assert said(changes.run(CREATED)) == [[{"created": table, "constraints": [checked, foreign, {"unique": ["P"]}]}]]
    unique = {"created": ["INDEX", "main", "u"], "of": ["main", "t"], "unique": ["i", None]}
    assert said(changes.run("CREATE UNIQUE INDEX u ON t (I, (i + 1))")) == [[unique]]
    assert said(changes.run("DROP INDEX u")) == [[{"dropped": ["INDEX", "main", "u"], "of": ["main", "t"]}]]
    gone = [{"dropped": ["TABLE", "two", "r"]}, {"dropped": ["SCHEMA", "two", "two"]}]
    assert said(changes.run("DROP SCHEMA two CASCADE")) == [gone]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text, does",
    [
        ("ALTER TABLE t RENAME TO T", [[{"renamed": ["TABLE", "main", "t"], "to": ["main", "T"]}]]),
        ("ALTER TABLE t RENAME i TO I", [[{"altered": ["TABLE", "main", "t"], "columns": [["i", "I"]]}]]),
        ("ALTER TABLE t ADD COLUMN k INTEGER", [[{"altered": ["TABLE", "main", "t"], "columns": [[None, "k"]]}]]),
        ("ALTER TABLE t ALTER i TYPE BIGINT", [[{"altered": ["TABLE", "main", "t"], "columns": [["i", "i"]]}]]),
        (
            "ALTER TABLE t ADD PRIMARY KEY (i)",
            [[{"altered": ["TABLE", "main", "t"], "columns": [["i", "i"]], "key": ["i"]}]],
        ),
        ("ALTER TABLE t ADD UNIQUE (i)", [[{"altered": ["TABLE", "main", "t"], "constraints": [{"unique": ["i"]}]}]]),
        ("COMMENT ON TABLE t IS 'x'", [[{"altered": ["TABLE", "main", "t"]}]]),
        ("COMMENT ON COLUMN v.i IS 'x'", [[{"altered": ["VIEW", "main", "v"]}]]),
        ("CREATE OR REPLACE MACRO m() AS 2", [[{"created": ["MACRO", "main", "m"], "replaces": True}]]),
        (
            "CREATE OR REPLACE TABLE two.R (x INTEGER)",
            [[{"dropped": ["TABLE", "two", "r"]}], [{"created": ["TABLE", "two", "R"]}]],
        ),
        ("CREATE OR REPLACE VIEW a AS SELECT 1", [[{"created": ["VIEW", "main", "a"], "replaces": True}]]),
        ("ALTER VIEW a RENAME TO b", [[{"renamed": ["VIEW", "main", "a"], "to": ["main", "b"]}]]),
        ("DROP VIEW v CASCADE", [[{"dropped": ["VIEW", "main", "v"]}], [{"dropped": ["VIEW", "main", "a"]}]]),
        (
            "DROP SEQUENCE q CASCADE",
            [[{"dropped": ["TABLE", "main", "uses"]}], [{"dropped": ["SEQUENCE", "main", "q"]}]],
        ),
    ],
)
def test_kinds_of_statements(
    connection: duckdb.DuckDBPyConnection, text: str, does: list[list[dict[str, object]]]
) -> None:
    connection.execute("DROP VIEW a; DROP VIEW v" if text.startswith("ALTER TABLE") else "SELECT 1")
    assert said(recorded(connection, text)) == does


def test_what_the_session_has_set_goes_along(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("SET integer_division = true")
    connection.execute("SET search_path = 'one,two'")
    (ddl,) = recorded(connection, "CREATE VIEW w AS SELECT x / 2 FROM r")
    assert (ddl.search_path, ddl.settings) == (("one", "two"), (("integer_division", "true"),))
    connection.execute("USE main")
    connection.execute("RESET integer_division")
    (ddl,) = recorded(connection, "CREATE VIEW x AS SELECT i / 2 FROM t")
    assert (ddl.search_path, ddl.settings) == (("main",), ())


def test_names_of_another_database_are_refused(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("CREATE TABLE beside.t (i INTEGER)")
    connection.execute("SET search_path = 'beside.main,memory.main'")
    with pytest.raises(UnsupportedError, match="database beside") as caught:
        recorded(connection, "CREATE VIEW memory.main.w AS SELECT * FROM t")
    (ddl,) = recorded(connection, "ALTER TABLE memory.main.t ADD COLUMN k INTEGER")
    assert ddl.search_path == ("main",)
    connection.execute(str(caught.value.hint).partition(",")[0])
    assert recorded(connection, "CREATE VIEW x AS SELECT * FROM t")[0].search_path == ("main",)
