"""A macro hides DuckDB's function of its name: none may hide what dbfarm's own SQL calls."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.oracle import file_contents
from tests.suites.processes import ROOT
from wlc.dialect.duckdb.permitted_ddl import CALLED, StatementError, internal, refuse_hiding
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE MACRO sum(a) AS 42",
        "CREATE TEMP MACRO hash(a) AS 42",
        'CREATE OR REPLACE TEMPORARY FUNCTION q."Count_Star"() AS 42',
        "create macro if not exists beside.main.read_parquet(f) as table select 1",
        'CREATE MACRO "="(a, b) AS true',
        "/* */ CREATE -- x\n TYPE main.JSON AS INTEGER",
        "EXPLAIN ANALYZE CREATE MACRO list_value(a) AS 42",
    ],
)
def test_what_would_hide_is_refused(statement: str) -> None:
    with pytest.raises(StatementError, match="would hide DuckDB's own"):
        refuse_hiding(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE MACRO add(a, b) AS a + b",
        "CREATE FUNCTION one() AS (SELECT count(*) FROM t)",
        "CREATE TYPE mood AS ENUM ('json')",
        "CREATE TABLE sum (macro INTEGER, type JSON, function VARCHAR)",
        "DROP MACRO sum",
        "COMMENT ON MACRO sum IS 'CREATE MACRO sum(a)'",
        "CREATE TABLE t (type INTEGER, sum INTEGER, CREATE INTEGER)",
    ],
)
def test_other_names_pass(statement: str) -> None:
    refuse_hiding(statement)


def test_the_capture_goes_on_computing_with_duckdb_s_own(tmp_path: Path) -> None:
    source, copy = tmp_path / "sales.duckdb", tmp_path / "copy.duckdb"
    wlc.master(source, create=True)
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE t (i INTEGER); BEGIN; INSERT INTO t VALUES (1)")
        for statement in ("CREATE TEMP MACRO hash(a) AS 42", "CREATE MACRO sum(a) AS 42"):
            with pytest.raises(UnsupportedError, match="would hide DuckDB's own") as caught:
                connection.execute(statement)
            assert caught.value.hint
        # It did not run, so that the transaction goes on.
        connection.execute("INSERT INTO t VALUES (2); COMMIT; CREATE MACRO total(a) AS sum(a)")
        assert connection.sql("SELECT total(i), sum(i) FROM t").fetchall() == [(3, 3)]
    wlr.replicate(source, into=copy)
    assert file_contents(copy) == file_contents(source)
    assert not wlr.verify(copy).differing


def test_a_database_that_has_one_becomes_no_master(tmp_path: Path) -> None:
    source = tmp_path / "sales.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE MACRO sum(a) AS 42")
    with pytest.raises(UnsupportedError, match="macro sum would hide"):
        wlc.master(source)


@pytest.mark.slow
def test_every_function_that_our_sql_calls_is_protected() -> None:
    engines = internal(in_from=True) | internal(in_from=False)
    called = {name.lower() for text in _texts() for name in re.findall(r"(\w+)\s*\(", text)}
    assert {"json_serialize_sql", "hash", "duckdb_tables", "md5_number"} <= called & engines
    assert (called & engines) - CALLED == set()


def _texts() -> Iterator[str]:
    """All texts in the sources that may be SQL for DuckDB; docstrings are not."""
    for file in (file for package in ("wlc", "wlr") for file in (ROOT / package).rglob("*.py")):
        if "postgres" in str(file.relative_to(ROOT)):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        bodies = [node.body for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
        docs = {body[0].value for body in bodies if body and isinstance(body[0], ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docs:
                yield node.value
