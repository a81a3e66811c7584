"""A master accepts the schema changes that replicas can follow."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
from wlc.capture.duckdb import open_transaction
from wlc.capture.duckdb.acceptance import (
    macro_definitions,
    read_rules,
    refuse_broken_macros,
    refuse_present_checks,
    refuse_unlike,
    refuse_unstable,
    refuse_untaken,
)
from wlc.dialect.duckdb.settings import row_settings_changed
from wlc.farm.database import open_database
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Ddl, Name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.farm.model import Settings


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
            refuse_broken_macros(connection, "memory", changes, macro_definitions(connection, "memory"))
        assert "same transaction" in str(caught.value.hint)
    else:
        refuse_broken_macros(connection, "memory", changes, macro_definitions(connection, "memory"))


@pytest.mark.parametrize(
    "maker",
    [
        "CREATE MACRO rows_of_t() AS TABLE SELECT * FROM t",
        "BEGIN; CREATE MACRO rows_of_t() AS TABLE SELECT * FROM t; CREATE TABLE other (i INTEGER); COMMIT",
        "CREATE FUNCTION rows_of_t() AS TABLE SELECT * FROM t",
        "CREATE SCHEMA s; CREATE MACRO s.rows_of_t() AS TABLE SELECT * FROM main.t",
    ],
)
def test_macros_of_any_connection_and_time_are_considered(tmp_path: Path, maker: str) -> None:
    path = tmp_path / "sales.duckdb"
    wlc.master(path, farm=str(tmp_path / "farm"), create=True)
    with wlc.connect(path) as first, first.cursor() as second:
        first.execute("CREATE TABLE t (i INTEGER); CREATE TABLE u (i INTEGER); DROP TABLE u")
        second.execute(maker)
        for connection in (first, second):
            with pytest.raises(UnsupportedError, match="depends on it"):
                connection.execute("DROP TABLE t")
    with wlc.connect(path) as again, pytest.raises(UnsupportedError, match="depends on it"):
        again.execute("ALTER TABLE t RENAME TO v")


def test_a_macro_is_replaced_or_dropped_with_what_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "sales.duckdb"
    wlc.master(path, farm=str(tmp_path / "farm"), create=True)
    with wlc.connect(path) as connection:
        connection.execute("CREATE TABLE t (i INTEGER); CREATE SCHEMA s; CREATE MACRO s.m() AS TABLE FROM main.t")
        connection.execute("BEGIN; DROP TABLE t; CREATE OR REPLACE MACRO s.m() AS TABLE SELECT 1 AS i; COMMIT")
        connection.execute("CREATE TABLE t (i INTEGER); CREATE OR REPLACE MACRO s.m() AS TABLE FROM main.t")
        connection.execute("BEGIN; DROP SCHEMA s CASCADE; DROP TABLE t; COMMIT")
    kinds = [(record.kind, record.object.name) for record in _ddl(tmp_path / "farm" / "sales")]
    assert kinds.count(("CREATE MACRO", "m")) == 3
    assert ("DROP SCHEMA", "s") in kinds


def _ddl(url: Path) -> list[Ddl]:
    batch, _ = open_database(str(url)).read_batch(1)
    records = itertools.chain.from_iterable(transaction.records for transaction in batch.transactions)
    return [record for record in records if isinstance(record, Ddl)]


COLUMNS = (
    "a TIMESTAMPTZ, b TIMESTAMPTZ, d DATE, s VARCHAR, v TIMESTAMPTZ[], x TIMESTAMP, n INTEGER, m ENUM ('a', 'b'),"
    " l INTEGER[], p DECIMAL(10, 2), st STRUCT(a INTEGER), tz TIMETZ"
)


def judge(check: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE MACRO twice(x) AS x * 2; BEGIN; CREATE TABLE t ({COLUMNS}, CHECK ({check}))")
        refuse_unstable(connection, "memory", read_rules(connection, "memory"))


@pytest.mark.parametrize(
    "check",
    [
        "a > b",
        "a IS NOT NULL AND v IS NULL OR tz IS NULL",
        "a BETWEEN b AND a",
        "a IN (b, a)",
        "a > '2020-01-01 00:00:00+02'",
        "a > TIMESTAMPTZ '2020-01-01 00:00:00.5 UTC'",
        "s IN ('a', 'b') AND s ~ '^[a-z]+$' AND length(s) > 1",
        "d BETWEEN '2020-01-01' AND DATE '2030-01-01' AND x > '2020-01-01'",
        "CASE WHEN n > 0 THEN s <> '' ELSE true END",
        "twice(n) % 3 = 0 AND n::DECIMAL(10, 2) = p AND st.a > 1 AND l[1] > 0 AND m = 'a'",
    ],
)
def test_the_same_everywhere(check: str) -> None:
    judge(check)


@pytest.mark.parametrize(
    "check, cause",
    [
        ("a::DATE > d", "TimeZone"),
        ("a > '2020-01-01'", "TimeZone"),
        ("a < x", "TimeZone"),
        ("s::TIMESTAMPTZ IS NOT NULL", "TimeZone"),
        ("extract('hour' FROM a) > 3", "TimeZone"),
        ("date_trunc('day', a) < b", "TimeZone"),
        ("tz > '10:00:00'", "TimeZone"),
        ("len(v) > 0", "TimeZone"),
        ("d > today()", "today"),
        ("random() > 0.5", "random"),
        ("s = current_setting('TimeZone')", "current_setting"),
        ("list_sort(l)[1] > 0", "default_null_order"),
    ],
)
def test_another_answer_elsewhere(check: str, cause: str) -> None:
    with pytest.raises(UnsupportedError, match=cause):
        judge(check)


@pytest.mark.parametrize(
    "keys, cause",
    [
        ("(len(v))", "TimeZone"),
        ("s, (age(x)::VARCHAR)", "age"),
        ("(lower(s))", None),
        ("s, (n + 1)", None),
    ],
)
def test_keys_of_unique_indexes_are_judged_like_checks(keys: str, cause: str | None) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t ({COLUMNS}); CREATE UNIQUE INDEX i ON t ({keys})")
        with pytest.raises(UnsupportedError, match=cause) if cause else nullcontext():
            refuse_unstable(connection, "memory", read_rules(connection, "memory"))
        # It keeps no row out.
        connection.execute(f"DROP INDEX i; CREATE INDEX i ON t ({keys})")
        refuse_unstable(connection, "memory", read_rules(connection, "memory"))


@pytest.mark.parametrize(
    "settings, rule, row",
    [
        ("default_collation = 'nocase'", "CHECK (s = 'a')", "'A', 1"),
        ("ieee_floating_point_ops = false, error_on_division_by_zero = false", "CHECK (1 / n IS NULL)", "'', 0"),
        ("error_on_division_by_zero = false", "CHECK (1 % n IS NULL)", "'', 0"),
        ("error_on_division_by_zero = false", "", "'', 0"),
    ],
)
@pytest.mark.parametrize("scope", ["GLOBAL", "SESSION"])
def test_rows_that_only_settings_of_the_session_let_pass_are_refused(
    settings: str, rule: str, row: str, scope: str
) -> None:
    names = [setting.split()[0] for setting in settings.split(", ")]
    held = "SELECT name, value, scope FROM duckdb_settings(include_all := true) WHERE list_contains(?, name)"
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t (s VARCHAR, n INTEGER{rule and ', ' + rule})")
        if not rule:
            connection.execute("CREATE INDEX i ON t ((5 % n))")
        for setting in settings.split(", "):
            connection.execute(f"SET {scope} {setting}")
        before = connection.execute(held, [names]).fetchall()
        rules = read_rules(connection, "memory")
        assert len(rules) == 1
        connection.execute("BEGIN")
        written, changed = {Name("main", "t"): ("true",)}, row_settings_changed(connection)
        refuse_unlike(connection, "memory", rules, written, changed)
        connection.execute(f"INSERT INTO t VALUES ({row})")
        # Rows that were there before were accepted then.
        refuse_unlike(connection, "memory", rules, {Name("main", "t"): ("s = 'b'", "false")}, changed)
        with pytest.raises(UnsupportedError, match=rf"accepts a row only with .*{names[0]}"):
            refuse_unlike(connection, "memory", rules, written, changed)
        assert connection.execute(held, [names]).fetchall() == before
        for name in names:
            connection.execute(f"RESET GLOBAL {name}; RESET SESSION {name}")
        # The session is not asked when the database becomes a master.
        refuse_unlike(connection, "memory", rules, written, row_settings_changed(connection))
        with pytest.raises(UnsupportedError, match="has 1 rows"):
            refuse_present_checks(connection, "memory", rules)


def test_settings_may_be_locked() -> None:
    zoned = "TIMESTAMPTZ '2020-01-01 02:00:00+00'"
    for check, is_refused in (
        ("n + 1 > 2 AND year(d) = 2020 AND len(s) > 1", False),
        ("a > b AND a IS NOT NULL", False),
        (f"n > 1 + year({zoned})", True),
        ("n > one()", True),
        ("n > 1 + epoch(to_timestamp(1.0))", True),
    ):
        with duckdb.connect() as connection:
            connection.execute(f"CREATE MACRO one() AS 1 + year({zoned}); CREATE TABLE t ({COLUMNS}, CHECK ({check}))")
            connection.execute("SET lock_configuration = true")
            with pytest.raises(UnsupportedError, match="time zone") if is_refused else nullcontext():
                refuse_unstable(connection, "memory", read_rules(connection, "memory"))


@pytest.fixture
def guarded(tmp_path: Path) -> Path:
    """A master with a table whose rows a setting decides about."""
    path = tmp_path / "s.duckdb"
    wlc.master(path, farm="memory://checks", name=tmp_path.name, beat_s=3600, create=True)
    with wlc.connect(path) as connection:
        connection.execute("CREATE TABLE t (s VARCHAR, CHECK (s = 'a')); INSERT INTO t VALUES ('a'), ('a')")
    return path


def test_settings_are_read_once_until_a_statement_may_change_them(
    guarded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def noted(connection: duckdb.DuckDBPyConnection) -> Settings:
        read.append(connection)
        return row_settings_changed(connection)

    monkeypatch.setattr(open_transaction, "row_settings_changed", noted)
    with wlc.connect(guarded) as connection, connection.cursor() as other:
        for _ in range(3):
            connection.execute("INSERT INTO t VALUES ('a')")
        assert len(read) == 1
        other.execute("SET GLOBAL default_collation = 'nocase'")
        with pytest.raises(UnsupportedError, match="accepts a row only with default_collation = 'nocase'"):
            connection.execute("INSERT INTO t VALUES ('A')")
        connection.execute("INSERT INTO t VALUES ('a')")
        assert connection.sql("SELECT count(*) FROM t").fetchall() == [(6,)]


def test_a_setting_that_is_reset_before_the_commit_counts(guarded: Path) -> None:
    writes = ("INSERT INTO t VALUES ('A')", "UPDATE t SET s = 'A' WHERE rowid = 1", "UPDATE t SET s = upper(s)")
    resets = ("RESET default_collation", "SET default_collation = ''")
    with wlc.connect(guarded) as connection:
        for write, later in itertools.product(writes, resets):
            connection.execute("BEGIN")
            connection.execute("SET default_collation = 'nocase'")
            connection.execute(write)
            connection.execute(later)
            with pytest.raises(UnsupportedError, match="accepts a row only with default_collation = 'nocase'"):
                connection.execute("COMMIT")
            assert connection.sql("SELECT DISTINCT s FROM t").fetchall() == [("a",)], (write, later)
            connection.execute("INSERT INTO t VALUES ('a')")
