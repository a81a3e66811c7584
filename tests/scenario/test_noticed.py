"""A plain DuckDB connection wrote to a master's file: each way in notices, names, and on request repairs the mistake."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
import pytest

import cli.wlc
import wlc
import wlr
from cli.command import run_app
from tests.scratch import attached
from wlc.capture.duckdb import schema_change
from wlc.farm.errors import FencedError, InvalidError, UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path

WAYS = ("wlc sql", "wlc.connect", "wlc flush")
_ONE_QUICKLY = (WAYS[0], *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS[1:]))
# Statements of the plain connection, and the evidence.
MISTAKES = {
    "insert": ("INSERT INTO t VALUES (9, 'plain')", "main.t has 4 rows instead of 3"),
    "update": ("UPDATE t SET v = 'plain' WHERE k = 1", "main.t has other rows"),
    "delete": ("DELETE FROM t WHERE k = 2", "main.t has 2 rows instead of 3"),
    "equal counts": ("DELETE FROM bag WHERE v = 1; INSERT INTO bag VALUES (8), (8)", "main.bag has other rows"),
    "create": ("CREATE TABLE new (v INTEGER UNIQUE); INSERT INTO new VALUES (1)", "main.new was created"),
    "drop": ("DROP TABLE bag", "main.bag was dropped"),
    "alter": ("ALTER TABLE bag ADD COLUMN w INTEGER DEFAULT 7", "main.bag was altered"),
    "rename": ("ALTER TABLE bag RENAME TO sack", "main.bag was dropped; main.sack was created"),
    "add index": ("CREATE INDEX plain ON t (v)", "index main.plain was created"),
    "drop index": ("DROP INDEX of_other", "index main.of_other was dropped"),
    "add view": ("CREATE VIEW plain AS FROM t", "view main.plain was created"),
    "change view": ("CREATE OR REPLACE VIEW w AS SELECT 2 AS a", "view main.w was changed"),
    "drop view": ("DROP VIEW w", "view main.w was dropped"),
    "add sequence": ("CREATE SEQUENCE plain START 5; SELECT nextval('plain')", "sequence main.plain was created"),
    "add schema": (
        "CREATE SCHEMA s; CREATE TYPE s.mood AS ENUM ('a'); CREATE TABLE s.t (v INTEGER)",
        "s.t was created; type s.mood was created; schema s.s was created",
    ),
}
_PLAIN = "import duckdb; connection = duckdb.connect({0!r}); connection.execute({1!r})"
_CAPTURED = "import wlc; connection = wlc.connect({0!r}); [connection.execute(each) for each in {1!r}]"
_KILLED = "; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
_OF_SESSION = ("UPDATE t SET v = 'c' WHERE k = 2", "INSERT INTO other VALUES (3)", "CREATE VIEW captured AS FROM t")


@dataclass(frozen=True)
class Farm:
    """A master and a replica of it."""

    master: Path
    replica: Path
    capsys: pytest.CaptureFixture[str]

    def plain(self, *statements: str) -> None:
        with duckdb.connect(self.master) as connection:
            for statement in statements:
                connection.execute(statement)

    def said(self, way: str, *, repair: bool = False) -> list[str]:
        """Open the master, and return the warnings."""
        options = ["--repair"] * repair
        if way == "wlc.connect":
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                wlc.connect(self.master, repair=repair).close()
            return [str(each.message) for each in caught]
        rest = ["SELECT 1"] if way == "wlc sql" else []
        self.capsys.readouterr()
        assert run_app(cli.wlc.app, "wlc", [way.split()[1], *options, str(self.master), *rest]) == 0
        lines = self.capsys.readouterr().err.splitlines()
        return [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]

    def capture_what_is_accepted(self) -> None:
        """Change and build on what the plain connection may have written."""
        statements = (
            *("UPDATE t SET v = v || '.'", "UPDATE bag SET v = v + 1", "DELETE FROM t WHERE k IN (1, 9)"),
            *("INSERT INTO bag (v) VALUES (5)", "INSERT INTO other VALUES (1)", "CREATE TABLE later (v INTEGER)"),
            *("CREATE VIEW of_view AS FROM plain", "INSERT INTO other SELECT nextval('plain')", "DROP VIEW w"),
        )
        with warnings.catch_warnings(action="ignore"), wlc.connect(self.master) as connection:
            for statement in statements:
                with suppress(UnsupportedError, InvalidError, duckdb.Error):
                    connection.execute(statement)

    def assert_equal(self) -> None:
        wlr.replicate(self.master, into=self.replica)
        assert {check.outcome for check in wlc.verify_source(self.master)} == {"same"}
        contents = []
        for file in (self.master, self.replica):
            with attached(file) as connection:
                ((catalog,),) = connection.execute("SELECT current_database()").fetchall()
                objects = schema_change.objects(connection, catalog)
                names = [f'"{schema}"."{name}"' for kind, schema, name in objects if kind == "TABLE"]
                rows = {name: connection.execute(f"FROM {name} ORDER BY ALL").fetchall() for name in names}
                kept = {key: entry.sql for key, entry in objects.items() if key[0] != "TRIGGER"}
                contents.append((kept, rows))
        assert contents[0] == contents[1]


@pytest.fixture
def farm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Farm:
    made = Farm(tmp_path / "m.duckdb", tmp_path / "r.duckdb", capsys)
    made.plain(
        "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "CREATE TABLE bag (v INTEGER); INSERT INTO bag VALUES (1), (1), (3)",
        "CREATE TABLE other (v INTEGER); CREATE INDEX of_other ON other (v); CREATE VIEW w AS SELECT 1 AS a",
    )
    wlc.master(made.master, farm=f"{tmp_path}/farm", name="m")
    wlr.replicate(made.master, into=made.replica)
    with wlc.connect(made.master) as connection:
        connection.execute("INSERT INTO t VALUES (3, 'captured')")
    return made


def killed(code: str, file: Path, what: object) -> None:
    script = code.format(str(file), what) + _KILLED
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert file.with_name(f"{file.name}.wal").stat().st_size > 0


@pytest.mark.parametrize("way", _ONE_QUICKLY)
def test_all_mistakes_at_once(farm: Farm, way: str) -> None:
    farm.plain("UPDATE t SET v = 'plain'", "INSERT INTO bag VALUES (7)", "CREATE VIEW plain AS FROM bag")
    first = f"{farm.master} was written to without wlc.connect(): "
    found = "main.bag has 4 rows instead of 3; main.t has other rows; view main.plain was created"
    assert farm.said(way) == [f"{first}{found}; wlc farm repair {farm.master}"]
    assert farm.said(way, repair=True) == [f"{first}{found}; this is repaired, and published as tick 2"]
    assert farm.said(way) == []
    with wlc.connect(farm.master) as connection:
        connection.execute("UPDATE t SET v = v || '.'")
    farm.assert_equal()


# DuckDB's reading, idle opening and rolled-back writes are no mistake.
@pytest.mark.parametrize("way", _ONE_QUICKLY)
def test_no_mistake(farm: Farm, way: str) -> None:
    farm.plain("FROM t", "SELECT count(*) FROM bag")
    farm.plain()
    farm.plain("CHECKPOINT", "BEGIN", "DELETE FROM t", "ROLLBACK", "CREATE TEMP TABLE x (v INTEGER)")
    assert farm.said(way) == []
    with duckdb.connect(farm.master, read_only=True) as connection:
        connection.execute("FROM t")
    assert farm.said(way, repair=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_killed_captured_session_is_no_mistake(farm: Farm, way: str) -> None:
    for _ in range(2):
        killed(_CAPTURED, farm.master, ("INSERT INTO bag VALUES (4)", "CREATE OR REPLACE VIEW captured AS FROM t"))
        assert farm.said(way) == []
    farm.assert_equal()


# The captured session before, and the plain one, are closed or killed.
_ENDS = {way: [(False, False)] for way in WAYS} | {
    "wlc.connect": [(False, False), (False, True), (True, False), (True, True)]
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake, way, is_killed_before, is_killed",
    [(mistake, way, *ends) for mistake in MISTAKES for way in WAYS for ends in _ENDS[way]],
)
def test_each_mistake(farm: Farm, mistake: str, way: str, *, is_killed_before: bool, is_killed: bool) -> None:
    statements, evidence = MISTAKES[mistake]
    if is_killed_before:
        killed(_CAPTURED, farm.master, _OF_SESSION)
    if is_killed:
        killed(_PLAIN, farm.master, statements)
    else:
        farm.plain(statements)
    (line,) = farm.said(way)
    assert line == f"{farm.master} was written to without wlc.connect(): {evidence}; wlc farm repair {farm.master}"
    # Without repair, replicas take everything that is captured on top.
    farm.capture_what_is_accepted()
    with warnings.catch_warnings(action="ignore"):
        wlc.flush(farm.master)
    wlr.replicate(farm.master, into=farm.replica)
    (line,) = farm.said(way, repair=True)
    assert "this is repaired, and published as tick" in line
    assert farm.said(way) == []
    farm.assert_equal()


def test_other_connections_of_the_same_process(farm: Farm) -> None:
    statements, evidence = (
        ["DELETE FROM t WHERE k = 1", "ALTER TABLE bag ADD COLUMN w INTEGER", "CREATE TABLE new (v INTEGER)"],
        "main.bag was altered; main.new was created; main.t has 2 rows instead of 3",
    )
    with wlc.connect(farm.master) as connection, duckdb.connect(farm.master) as other:
        other.execute(statements[0])
        connection.execute("INSERT INTO other VALUES (1)")
        with pytest.warns(UserWarning, match=r"main\.t has 2 rows instead of 3; wlc farm repair"):
            wlc.flush(farm.master)
        # The same finding is named once.
        wlc.flush(farm.master)
        other.execute("; ".join(statements[1:]))
    assert [evidence in line for line in farm.said("wlc.connect")] == [True]
    assert len(farm.said("wlc.connect", repair=True)) == 1
    farm.assert_equal()


def test_an_update_by_the_same_process_is_found_by_reading_every_row(farm: Farm) -> None:
    with wlc.connect(farm.master) as connection, duckdb.connect(farm.master) as other:
        other.execute("UPDATE t SET v = 'plain'")
        connection.execute("INSERT INTO bag VALUES (1)")
    assert farm.said("wlc flush") == []
    assert {check.table: check.outcome for check in wlc.verify_source(farm.master)}["main.t"] == "differs"


def test_copies_have_their_own_message(farm: Farm) -> None:
    copy = farm.master.with_name("copy.duckdb")
    shutil.copy(farm.master, copy)
    with duckdb.connect(copy) as connection:
        connection.execute("DELETE FROM t")
    for repair in (False, True):
        with pytest.raises(FencedError, match="a copy publishes nothing"):
            wlc.flush(copy, repair=repair)
        with wlc.connect(copy, repair=repair) as connection, pytest.raises(FencedError, match="a copy publishes"):
            connection.execute("INSERT INTO t VALUES (1, 'a')")
    with pytest.raises(InvalidError, match="only reads cannot repair"):
        wlc.connect(farm.master, read_only=True, repair=True)
