"""The clauses FOR UPDATE and FOR SHARE are cut off, and what a SELECT reads is told from its text."""

from __future__ import annotations

import re

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scratch import scratch
from wlc.capture.duckdb import for_update
from wlc.capture.duckdb.for_update import FOR_SHARE, FOR_UPDATE


def statements(text: str) -> tuple[tuple[str, str], ...] | None:
    with scratch() as connection:
        return for_update.statements(text, connection.extract_statements, lambda statement: str(statement.type.name))


@pytest.mark.parametrize(
    ("text", "bare", "kind"),
    [
        ("SELECT * FROM t FOR UPDATE", "SELECT * FROM t", FOR_UPDATE),
        ("select * from t where k = 1 for\n/* all */ share -- now", "select * from t where k = 1", FOR_SHARE),
        ("SELECT 'ö', ';' FROM t LIMIT 1 FOR UPDATE;", "SELECT 'ö', ';' FROM t LIMIT 1", FOR_UPDATE),
        ("FROM t FOR UPDATE", "FROM t", FOR_UPDATE),
        ("WITH x AS (FROM t) FROM x FOR SHARE", "WITH x AS (FROM t) FROM x", FOR_SHARE),
    ],
)
def test_the_clause_is_cut_off(text: str, bare: str, kind: str) -> None:
    found = statements(text)
    assert found is not None
    assert [(statement.strip(), of) for statement, of in found] == [(bare, kind)]
    assert for_update.locks(text)


def test_a_script_keeps_its_other_statements() -> None:
    found = statements("BEGIN; SELECT [x FOR x IN [1]] FROM t FOR UPDATE; UPDATE t SET v = 'FOR UPDATE'; COMMIT")
    assert found is not None
    assert [kind for _, kind in found] == ["TRANSACTION", FOR_UPDATE, "UPDATE", "TRANSACTION"]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT [x FOR x IN [1]]",
        "SELECT 'x FOR UPDATE'",
        "INSERT INTO t SELECT * FROM u FOR UPDATE",
        "SELECT 1 -- FOR UPDATE",
    ],
)
def test_other_statements_have_no_clause(text: str) -> None:
    assert not for_update.locks(text)


# Statements that a program may well send, each of which DuckDB parses.
USUAL = (
    "SELECT * FROM t WHERE k = 1",
    "select a.v, count(*) from t as a join u using (k) group by all having count(*) > 1 order by 1 limit 3;",
    "WITH x AS (SELECT 1 AS update), y AS MATERIALIZED (FROM x) SELECT share.update FROM y AS share",
    "SELECT [x * 2 FOR x IN range(3) IF x > 1] FROM t",
    "SELECT substring('update' FROM 2 FOR 3), 'it''s FOR UPDATE', $$ FOR SHARE $$, e'\\' FOR UPDATE' FROM t",
    'SELECT "FOR UPDATE", "for" FROM (VALUES (1, 2)) AS t ("FOR UPDATE", "for") -- FOR UPDATE',
    "SELECT 1 /* FOR UPDATE */; /* FOR /* SHARE */ */ SELECT 2 -- FOR SHARE",
    "FROM t SELECT k + 1 AS share",
    "VALUES (1, 'FOR UPDATE')",
    "TABLE t",
    "PIVOT t ON k USING sum(v)",
    "INSERT INTO t SELECT 1, 'für' ON CONFLICT DO UPDATE SET v = 'FOR UPDATE' RETURNING *",
    "UPDATE t SET v = 'x' FROM u WHERE t.k = u.k",
    "DELETE FROM t USING u WHERE t.k = u.k RETURNING t.*",
    "CREATE TABLE update (share INTEGER); ALTER TABLE update ADD COLUMN forced BOOLEAN; DROP TABLE update",
    "COPY (SELECT * FROM t) TO 'x.csv' (FORMAT csv, FORCE_QUOTE *)",
    "CREATE MACRO forty(x) AS x + 40; SET threads = 2; PRAGMA table_info('t'); EXPLAIN SELECT 1; BEGIN; COMMIT",
    "PREPARE p AS SELECT $1; EXECUTE p(1); DEALLOCATE p",
)


@pytest.mark.parametrize("text", USUAL)
def test_a_statement_without_the_clause_passes_as_it_is(text: str) -> None:
    assert not for_update.locks(text)
    assert statements(text) is None


_PARTS = (
    *"SELECT from T UPDATE SHARE update UNION WITH x AS FORMAT before fortune 1".split(),
    *"( ) [ ] ; , . ? $1 :: = - / * ö \\ 'a' ' \"b\" \" $$ $a$ -- /* */ e'".split(),
    *("\n", "\t", " ", "\0"),
)


@given(st.lists(st.sampled_from(_PARTS)).map("".join) | st.lists(st.sampled_from(_PARTS)).map(" ".join) | st.text())
def test_what_does_not_contain_the_word_is_not_touched(text: str) -> None:
    """Whatever it is, DuckDB gets it as it was typed, and says itself what is wrong with it."""
    if re.search("for", text.replace("FORMAT", "").replace("before", "").replace("fortune", ""), re.IGNORECASE):
        return
    pieces: list[str] = []

    def parse(piece: str) -> list[duckdb.Statement]:
        pieces.append(piece)
        return []

    assert for_update.statements(text, parse, lambda _: "") is None
    assert ";".join(pieces) == text
    assert not for_update.locks(text)


def test_what_duckdb_cannot_parse_without_the_clause_is_its_error() -> None:
    with pytest.raises(duckdb.ParserException):
        statements("SELECT ) FROM t FOR UPDATE")
    assert not for_update.locks("SELECT * FROM t FOR UPDATE NOWAIT")


@pytest.mark.parametrize(
    ("text", "target", "alias", "condition", "parameters"),
    [
        ("SELECT * FROM t", ("t",), "", None, set()),
        ("SELECT ?, sum(v) FROM main.t WHERE k = ? GROUP BY v ORDER BY 1 LIMIT 3", ("main", "t"), "", "k = $2", {"2"}),
        ("SELECT a.v FROM t AS a WHERE a.k = $k OR v IS DISTINCT FROM 'x'", ("t",), "a", None, {"k"}),
        ('SELECT v FROM "T" x WHERE (k, v) IN ((1, 2))', ("T",), "x", "(k, v) IN ((1, 2))", set()),
        ("SELECT count(*) FILTER (WHERE k > 1) FROM t WHERE v = 'a' -- b\n", ("t",), "", "v = 'a'", set()),
        ("SELECT extract(year FROM d) FROM t HAVING count(*) > 1", ("t",), "", None, set()),
    ],
)
def test_one_table_and_one_condition_say_what_is_read(
    text: str, target: tuple[str, ...], alias: str, condition: str | None, parameters: set[str]
) -> None:
    rows = for_update.rows_read(text)
    assert rows is not None
    assert (rows.target, rows.alias, set(rows.parameters)) == (target, alias, parameters)
    assert condition is None or (rows.condition or "").strip().startswith(condition)
    assert (rows.condition is None) == ("WHERE" not in text.partition(" FROM ")[2])


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "FROM t",
        "SELECT * FROM t, u",
        "SELECT * FROM t JOIN u ON true",
        "SELECT * FROM t WHERE k IN (SELECT k FROM u)",
        "SELECT * FROM t WHERE k IN (FROM u)",
        "SELECT (SELECT 1) FROM t",
        "SELECT * FROM (SELECT * FROM t)",
        "SELECT * FROM range(3)",
        "SELECT * FROM t UNION SELECT * FROM t",
        "SELECT * FROM t EXCEPT FROM u",
        "SELECT * FROM t USING SAMPLE 3",
        "SELECT * FROM t AT (VERSION => 3)",
        "WITH x AS (SELECT 1) SELECT * FROM x",
    ],
)
def test_others_do_not_say_what_they_read(text: str) -> None:
    assert for_update.rows_read(text) is None
