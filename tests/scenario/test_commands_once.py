"""Commands that only slow tests tell stories about, each once through its usual path."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import duckdb
import pytest

import cli.wlc
import cli.wlr
import wlc
import wlr
from cli.command import run_app
from cli.programs import WLC, WLR
from tests.scratch import attached
from tests.sites import Sites
from wlc.farm.errors import InvalidError
from wlr.care.findings import check_drill

if TYPE_CHECKING:
    from pathlib import Path

APPS = {"wlc": cli.wlc.app, "wlr": cli.wlr.app}
Run = Callable[[str], str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Types a line that must work, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WLC_FARM", str(tmp_path / "farm"))

    def run(line: str) -> str:
        program, *arguments = shlex.split(line)
        code = run_app(APPS[program], program, arguments)
        printed = capsys.readouterr()
        assert code == 0, f"{line}\n{printed.err}"
        return printed.out

    return run


@pytest.fixture
def master(tmp_path: Path, run: Run) -> Path:
    """A master with a table of two rows, added at ticks 1 and 2."""
    wlc.master(tmp_path / "sales.duckdb", create=True)
    with wlc.connect(tmp_path / "sales.duckdb") as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY); INSERT INTO t VALUES (1)")
        connection.execute("INSERT INTO t VALUES (2)")
    return tmp_path / "sales.duckdb"


def rows(path: Path | str) -> list[int]:
    with attached(path) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM t ORDER BY id").fetchall()]


@pytest.mark.slow
def test_lines_to_start_with_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WLC_FARM")
    for program in (WLC, WLR):
        assert len(program.start) == 5
        said = [run(line) for line in program.start]
        assert ("sales" if program is WLC else "same") in said[-1]
    with attached("copy.duckdb") as connection:
        assert connection.execute("FROM t").fetchall() == []


def test_a_transaction_is_undone_and_a_moment_has_a_name(master: Path, run: Run) -> None:
    newest = int(run("wlc tick sales"))
    run(f"wlc farm tag sales before --tick {newest - 1}")
    assert "before" in run("wlc farm tag sales")
    run(f"wlc undo sales.duckdb --tick {newest}")
    assert rows(master) == [1]
    assert json.loads(run("wlr replica drill sales --json"))["is_sound"]
    check_drill(wlr.drill("sales"), "sales")


def test_a_replica_is_registered_repaired_switched_and_dropped(master: Path, run: Run) -> None:
    with duckdb.connect("copy.duckdb") as connection:
        connection.execute("CREATE TABLE own (a INTEGER)")
    run("wlr replicate sales --into copy.duckdb --adopt")
    (reader,) = json.loads(run("wlc farm replicas sales --json"))
    assert reader["target"].endswith("copy.duckdb")
    run("wlr repair copy.duckdb --table main.t")
    run("wlr replica switch copy.duckdb sales")
    run("wlr replica drop copy.duckdb")
    assert json.loads(run("wlc farm replicas sales --json")) == []


def test_a_lake_lists_its_files_and_forgets_old_ticks(master: Path, run: Run) -> None:
    run("wlr replicate sales --into lake --keep 1d --tick 1")
    run("wlr replicate --into lake")
    assert ".parquet" in run("wlr lake files lake main.t")
    assert wlr.files("lake", "main.t")
    run("wlr lake prune lake --keep 0s")
    run("wlr feed sales --table main.t --to changes.jsonl")
    assert len((master.parent / "changes.jsonl").read_text().splitlines()) == 3, "a schema and two rows"


def test_a_place_is_taken_out_of_the_tree_and_forgotten(master: Path, run: Run) -> None:
    run("wlc tier ship sales --to relay")
    run("wlc tier fanout sales 4")
    run("wlc tier upstream sales origin --inactive")
    run("wlc tier upstream sales origin --active")
    (relay,) = json.loads(run("wlc farm replicas sales --json"))
    run(f"wlc farm forget sales {relay['id']}")
    assert json.loads(run("wlc farm replicas sales --json")) == []


def test_a_site_gets_a_role_and_tells_its_conflicts(tmp_path: Path, run: Run) -> None:
    sites = Sites(tmp_path)
    sites.found("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    sites.join("rome")
    assert wlc.conflicts(sites.file("rome")) is not None
    run("wlc site conflicts rome.duckdb")
    run("wlc site role sales rome none")


def test_a_server_is_prepared_by_statements_and_a_file_is_published_by_its_program(master: Path) -> None:
    assert "CREATE" in str(wlc.preparation("postgresql://127.0.0.1:9/shop"))
    with pytest.raises(InvalidError, match="the process that writes it publishes it"):
        wlc.run(master, is_stopped=threading.Event())
    assert run_app(cli.wlc.app, "wlc", ["run", str(master)]) == 2
