"""What a statement may do, told from its text."""

from __future__ import annotations

import duckdb
import pytest

from tests.scratch import scratch
from wlc.capture.duckdb.analysis import (
    AppendEffect,
    BeginEffect,
    CommitEffect,
    Effect,
    MergeEffect,
    ReadEffect,
    RollbackEffect,
    SchemaEffect,
    SessionEffect,
    TouchEffect,
    UnknownEffect,
    UpsertEffect,
    analyse,
    detached,
)
from wlc.dialect.duckdb.lexer import words


def effect(text: str) -> Effect:
    with scratch() as connection:
        (statement,) = connection.extract_statements(text)
    return analyse(statement.query, statement.type.name)


@pytest.mark.parametrize(
    "text, target",
    [
        ("INSERT INTO t VALUES (1)", ("t",)),
        ('insert into a."b ""c"."D" (x) select * from y', ("a", 'b "c', "D")),
        ("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", ("t",)),
        ("INSERT OR IGNORE INTO t VALUES (1)", ("t",)),
        ("INSERT INTO t BY NAME SELECT 1 AS x RETURNING x", ("t",)),
        ("/* UPDATE */ INSERT INTO t VALUES ('ON CONFLICT DO UPDATE')", ("t",)),
        ("WITH q AS (SELECT 1) INSERT INTO t SELECT * FROM q", ("t",)),
        ("COPY s.t FROM 'x.csv'", ("s", "t")),
        ("COPY t (a, b) FROM 'x.csv'", ("t",)),
    ],
)
def test_only_adds_rows(text: str, target: tuple[str, ...]) -> None:
    found = effect(text)
    assert isinstance(found, AppendEffect)
    assert found.target == target


@pytest.mark.parametrize(
    "text, rows",
    [
        ("INSERT INTO t VALUES (?, -1, 'f(x)')", 1),
        ("INSERT INTO s.t (a, b) VALUES (1, (2 + 3) * 4), (DATE '2020-01-01', CAST('x' AS INT));", 2),
        ("INSERT INTO t VALUES ([1], {'a': 1}, NULL) -- f(1)", 1),
        ("INSERT INTO t VALUES (f(1))", 0),
        ("INSERT INTO t VALUES (1, 'x'.upper())", 0),
        ("""INSERT INTO t VALUES ("f"(1))""", 0),
        ("INSERT INTO t VALUES ((SELECT 1))", 0),
        ("INSERT INTO t VALUES (1), (2) RETURNING a", 0),
        ("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", 0),
        ("INSERT OR IGNORE INTO t VALUES (1)", 0),
        ("INSERT INTO t VALUES (1) LIMIT 0", 0),
        ("INSERT INTO t VALUES (1) EXCEPT VALUES (1)", 0),
        ("WITH q AS (VALUES (1)) INSERT INTO t VALUES (1)", 0),
        ("INSERT INTO t DEFAULT VALUES", 0),
        ("INSERT INTO t SELECT 1", 0),
    ],
)
def test_rows_of_simple_values(text: str, rows: int) -> None:
    found = effect(text)
    assert isinstance(found, AppendEffect)
    assert found.values == rows


@pytest.mark.parametrize(
    "text, condition, source, deletes, is_simple",
    [
        ("UPDATE t SET a = 1", None, None, False, True),
        ("UPDATE t SET a = 1 WHERE id = 5 RETURNING id", "id = 5", None, False, False),
        ("UPDATE t AS x SET a = b IS DISTINCT FROM c FROM y WHERE x.i = y.i", "x.i = y.i", "y", False, False),
        ("UPDATE t SET a = (SELECT 1 FROM u WHERE true) WHERE id = 5", "id = 5", None, False, False),
        ("UPDATE t AS x SET a = x.a + ? WHERE id = $1", "id = $1", None, False, True),
        ("UPDATE t SET a = f(a) WHERE id = 5", "id = 5", None, False, False),
        ("DELETE FROM t", None, None, True, True),
        ("DELETE FROM s.t WHERE id = 5", "id = 5", None, True, True),
        ("TRUNCATE t", None, None, True, True),
        ("DELETE FROM t USING u, v WHERE t.a = u.a", "t.a = u.a", "u, v", True, False),
        ("DELETE FROM t WHERE b = 'WHERE FROM'", "b = 'WHERE FROM'", None, True, True),
        ("DELETE FROM t WHERE id IN (SELECT 1)", "id IN (SELECT 1)", None, True, False),
        ("WITH q AS (SELECT 1) DELETE FROM t WHERE id = 5", "id = 5", None, True, False),
    ],
)
def test_touches_rows(text: str, condition: str | None, source: str | None, deletes: bool, is_simple: bool) -> None:
    found = effect(text)
    assert isinstance(found, TouchEffect)
    assert (found.condition, found.source, found.deletes, found.is_simple) == (condition, source, deletes, is_simple)


@pytest.mark.parametrize(
    "condition, functions, is_stable",
    [
        ("random() < 0.5 AND abs (x) > 1", {"random", "abs"}, True),
        ("id IN (SELECT id FROM u LIMIT 3)", set(), False),
        ("id IN (SELECT id FROM u USING SAMPLE 3)", set(), False),
        ("id IN (FROM read_csv('x.csv'))", {"read_csv"}, False),
        ("id IN (SELECT DISTINCT ON (a) id FROM k)", set(), False),
        ("id IN (SELECT ARRAY(SELECT id FROM k)[1])", set(), False),
    ],
)
def test_a_second_run_may_choose_other_rows(condition: str, functions: set[str], is_stable: bool) -> None:
    found = effect(f"DELETE FROM t WHERE {condition}")
    assert isinstance(found, TouchEffect)
    assert (set(found.functions), found.is_stable) == (functions, is_stable)


def test_parameters_keep_their_place() -> None:
    found = effect("UPDATE t SET a = ?, b = ? WHERE c = ? AND d IN (SELECT e FROM u WHERE f = ?)")
    assert isinstance(found, TouchEffect)
    assert found.parameters == {"3", "4"}
    assert found.relations == {"u"}


def test_upsert() -> None:
    found = effect("INSERT OR REPLACE INTO t (a, b) VALUES (?, 'x')")
    assert isinstance(found, UpsertEffect)
    assert (found.columns, found.query, found.parameters) == (("a", "b"), "VALUES ($1, 'x')", frozenset({"1"}))


def test_merge() -> None:
    found = effect("MERGE INTO t AS k USING (SELECT 1 AS i) s ON k.i = s.i WHEN MATCHED THEN DELETE")
    assert isinstance(found, MergeEffect)
    assert (found.source, found.condition) == ("(SELECT 1 AS i) s", "k.i = s.i")


@pytest.mark.parametrize(
    "text, kind",
    [
        ("SELECT 1", ReadEffect),
        ("EXPLAIN DELETE FROM t", ReadEffect),
        ("EXPLAIN DROP TABLE x", ReadEffect),
        ("COPY t TO 'x.csv'", ReadEffect),
        ("PREPARE p AS DELETE FROM t", ReadEffect),
        ("SET threads = 2", SessionEffect),
        ("ATTACH ':memory:' AS x", SessionEffect),
        ("USE x", SessionEffect),
        ("BEGIN", BeginEffect),
        ("START TRANSACTION", BeginEffect),
        ("COMMIT", CommitEffect),
        ("END", CommitEffect),
        ("ROLLBACK", RollbackEffect),
        ("ABORT", RollbackEffect),
        ("DROP TABLE t", SchemaEffect),
        ("INSERT INTO k SELECT conflict FROM src ON CONFLICT (id) DO UPDATE SET b = 1", UpsertEffect),
        ("UPDATE t SET a = 1 WHERE id IN (SELECT id FROM 'file.csv')", TouchEffect),
        ("WITH x AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM x", UnknownEffect),
        ("EXPLAIN ANALYZE DELETE FROM t", UnknownEffect),
        ("MERGE INTO t USING u ON t.a = u.a WHEN NOT MATCHED BY SOURCE THEN DELETE", UnknownEffect),
        ("INSERT OR REPLACE INTO t VALUES (DEFAULT, 1)", UnknownEffect),
        ("EXECUTE p(1)", UnknownEffect),
    ],
)
def test_kinds(text: str, kind: type) -> None:
    assert isinstance(effect(text), kind)


@pytest.mark.parametrize(
    "text, target, rewrites, casts",
    [
        ("t ADD COLUMN c INTEGER", ("t",), False, False),
        ("t ADD COLUMN c INTEGER DEFAULT -5", ("t",), False, True),
        ("t ADD COLUMN c zoned DEFAULT '2020-06-01'", ("t",), False, True),
        ("t ADD COLUMN c zoned DEFAULT /* x */ true -- y", ("t",), False, True),
        ("t ADD COLUMN c zoned DEFAULT NULL", ("t",), False, False),
        ("t ADD COLUMN c zoned DEFAULT 'a' || 'b'", ("t",), True, False),
        ("t ADD COLUMN c zoned DEFAULT 5 NOT NULL", ("t",), True, False),
        ("t ADD COLUMN c DOUBLE DEFAULT random()", ("t",), True, False),
        ("t ADD COLUMN c DATE DEFAULT current_date", ("t",), True, False),
        ("IF EXISTS o.t ALTER c TYPE VARCHAR", ("o", "t"), True, False),
        ('"T" ALTER c SET DATA TYPE DATE USING d + 1', ("T",), True, False),
        ("t RENAME TO u", ("t",), False, False),
    ],
)
def test_alterations_that_compute_rows(text: str, target: tuple[str, ...], rewrites: bool, casts: bool) -> None:
    found = analyse(f"ALTER TABLE {text}", "ALTER")
    assert isinstance(found, SchemaEffect)
    assert (found.target, found.rewrites, found.casts) == (target, rewrites, casts)


def test_explain_analyze_changes_the_schema() -> None:
    for text in ("CREATE TABLE x AS SELECT 1", "DROP TABLE x", "ALTER TABLE x ADD COLUMN y INTEGER"):
        found = effect(f"EXPLAIN ANALYZE {text}")
        assert isinstance(found, SchemaEffect)
        assert (found.inner, found.rewrites) == (text, False)


def test_a_string_in_the_place_of_a_name() -> None:
    found = effect("INSERT INTO main.'it''s' VALUES (1)")
    assert isinstance(found, AppendEffect)
    assert found.target == ("main", "it's")
    assert "it's" in words("WITH x AS (DELETE FROM 'It''s' RETURNING *) SELECT 1")


def test_a_statement_that_creates_a_table_and_writes() -> None:
    found = effect("CREATE TABLE x AS WITH d AS (DELETE FROM k RETURNING *) SELECT * FROM d")
    assert isinstance(found, SchemaEffect)
    assert found.loads
    assert "k" in found.names


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ('DETACH DATABASE IF EXISTS "My db"; ', "DETACH", "my db"),
        ("ATTACH 'a.duckdb' AS sales", "ATTACH", None),
        ("ATTACH OR REPLACE ':memory:' AS Sales (READ_ONLY)", "ATTACH", "sales"),
        ("attach or replace '/replace/Sales.duckdb'", "ATTACH", "sales"),
        ("USE detached", "SET", None),
    ],
)
def test_detached(text: str, kind: str, name: str | None) -> None:
    assert detached(text, kind) == name


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that were given to DuckDB's tokenizer."""
    found: list[str] = []
    tokenize = duckdb.tokenize

    def counting(text: str) -> object:
        found.append(text)
        return tokenize(text)

    monkeypatch.setattr(duckdb, "tokenize", counting)
    analyse.cache_clear()
    return found


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("SELECT * FROM t WHERE a = 1", ReadEffect),
        ("SELECT 'merge', nextvalue FROM t", ReadEffect),
        ("EXPLAIN ANALYZE SELECT 1", ReadEffect),
        ("SELECT NextVal('s')", UnknownEffect),
        ("WITH d AS (DELETE FROM t RETURNING *) FROM d", UnknownEffect),
        ("EXPLAIN ANALYZE SELECT \"nextval\"('s')", UnknownEffect),
    ],
)
def test_a_query_is_analysed_once(split: list[str], text: str, kind: type) -> None:
    first = effect(text)
    calls = len(split)
    assert isinstance(first, kind)
    assert effect(text) is first
    assert len(split) == calls <= 3


def test_a_query_that_only_reads_is_not_taken_apart(split: list[str]) -> None:
    assert effect("SELECT a, b FROM t WHERE c = 'x' ORDER BY 1") == ReadEffect()
    assert split == []
