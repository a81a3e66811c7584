"""What is in use by another process: who has it, what to do, one line, exit code 75, and nothing changed."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from tests.fault.processes import COMMANDS, DEADLINE_S, program, rounds, run_command
from tests.new_master import make_master
from tests.oracle import file_contents
from tests.screen import told
from wlc.farm.errors import UnavailableError
from wlr.engine.duckdb import build

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def farm(tmp_path: Path) -> str:
    """A farm with a master `bank` beside it."""
    source = make_master(tmp_path / "bank.duckdb", "CREATE TABLE t AS SELECT i FROM range(10) r(i)")
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (10)")
    return str(tmp_path / "farm")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Run a command in this process; returns its exit code and what it wrote to standard error."""
    from cli import wlc as wlc_cli
    from cli import wlr as wlr_cli

    name, *rest = map(str, arguments)
    capsys.readouterr()
    code = run_app({"wlc": wlc_cli.app, "wlr": wlr_cli.app}[name], name, rest)
    return code, capsys.readouterr().err


@pytest.mark.slow
def test_locked_master_names_who_has_it(farm: str, tmp_path: Path, capsys):
    source = tmp_path / "bank.duckdb"
    before = source.read_bytes()
    with program(source, text=HOLD) as holder:
        holder.wait_for("ready")
        for command, *arguments in (
            ("flush",),
            ("snapshot",),
            ("stop",),
            ("master",),
            ("sql", "SELECT 1"),
        ):
            code, errors = run(capsys, "wlc", command, source, *arguments)
            assert code == 75, errors
            assert str(holder.process.pid) in errors
            assert str(source) in errors
            assert "hint: " in errors
            assert "Traceback" not in errors
            # What can be asked meanwhile is in the hint.
            assert f"wlc status {source}" in errors
        code, errors = run(capsys, "wlc", "status", source)
        assert (code, f"is open in process {holder.process.pid}" in errors) == (0, True), errors
    assert source.read_bytes() == before


@pytest.mark.slow
def test_farm_that_is_named_is_asked_while_the_master_is_in_use(tmp_path: Path):
    """An earlier history at the default place must not answer for the present one."""
    source, elsewhere = tmp_path / "bank.duckdb", str(tmp_path / "elsewhere")
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE t (i INTEGER)")
    wlc.master(source)
    wlc.stop(source)
    wlc.master(source, farm=elsewhere)
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    with program(source, text=HOLD) as holder:
        holder.wait_for("ready")
        assert wlc.tick(source, farm=elsewhere) == 1
        assert wlc.clock(source, farm=elsewhere) is not None
        assert wlr.replicate(source, farm=elsewhere, into=tmp_path / "replica.duckdb").tick == 1
        assert wlc.tick(source) == 1, "the file says where it publishes"
        os.removexattr(source, "user.dbfarm.place")
        assert wlc.tick(source) == 0, "the default place is the best guess where that is not known"
    assert wlc.tick(source) == 1


@pytest.mark.slow
def test_asking_a_master_changes_nothing(farm: str, tmp_path: Path):
    """Not even with changes of a killed program in the write-ahead log, and without permission to write."""
    source = tmp_path / "bank.duckdb"
    write = 'connection.execute("INSERT INTO t VALUES (11)"); print'
    with program(source, text=HOLD.replace("print", write)) as holder:
        holder.wait_for("ready")
        holder.kill()
    files = {path: path.read_bytes() for path in tmp_path.glob("bank.duckdb*")}
    assert len(files) == 2
    for ask in (wlc.tick, wlc.clock, wlc.beat, lambda db: wlr.replicate(db, into=tmp_path / "replica.duckdb")):
        ask(source)
        assert {path: path.read_bytes() for path in tmp_path.glob("bank.duckdb*")} == files


def test_master_that_this_process_has_open_can_be_asked(farm: str, tmp_path: Path):
    source = tmp_path / "bank.duckdb"
    with duckdb.connect(str(source)):
        assert wlc.tick(source) == 1
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (12)")
        wlc.flush(source)
        assert wlc.tick(source) == 2


@pytest.mark.slow
def test_second_replication_leaves_with_75_and_one_line(farm: str, tmp_path: Path, capsys):
    target = tmp_path / "replica.duckdb"
    wlr.replicate("bank", farm=farm, into=target, tick=wlc.tick("bank", farm=farm) - 1)
    before = file_contents(target)
    with program(target, text=HOLD) as holder:
        holder.wait_for("ready")
        code, errors = run(capsys, "wlr", "replicate", "--into", target)
        assert code == 75, errors
        assert len(told(errors)) == 1
        assert str(holder.process.pid) in errors
        assert "again" in errors
    assert file_contents(target) == before
    assert run(capsys, "wlr", "replicate", "--into", target)[0] == 0


def test_second_first_replication_leaves_with_75_and_one_line(farm: str, tmp_path: Path, capsys):
    """Somebody else is building the target, which is not there yet."""
    target, half = tmp_path / "replica.duckdb", tmp_path / ".replica.duckdb.building"
    with program(half, text=HOLD) as holder:
        holder.wait_for("ready")
        code, errors = run(capsys, "wlr", "replicate", "bank", "--farm", farm, "--into", target)
        assert code == 75, errors
        assert len(told(errors)) == 1
        assert str(holder.process.pid) in errors
    assert not target.exists()
    assert half.exists(), "the other one's work was taken away"


@pytest.mark.slow
def test_target_that_was_made_meanwhile_is_in_use_and_not_in_the_way(farm: str, tmp_path: Path, capsys, monkeypatch):
    """Looked for before the other run put it in place, found while that goes on writing to it."""
    target = tmp_path / "replica.duckdb"
    wlr.replicate("bank", farm=farm, into=target)
    monkeypatch.setattr("wlr.engine.duckdb.target.DuckDBTarget.find_state", lambda self: None)
    with program(
        target, text=HOLD.replace("print", 'connection.execute("CREATE TABLE mine (i INTEGER)"); print')
    ) as holder:
        holder.wait_for("ready")
        assert target.with_name("replica.duckdb.wal").exists()
        code, errors = run(capsys, "wlr", "replicate", "bank", "--farm", farm, "--into", target)
    assert code == 75, errors
    assert len(told(errors)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_empty_before", [True, False], ids=["into an empty database", "into nothing"])
def test_replica_that_another_run_made_meanwhile_is_not_replaced(
    farm: str, tmp_path: Path, capsys, monkeypatch, is_empty_before: bool
):
    target, other = tmp_path / "replica.duckdb", tmp_path / "other.duckdb"
    wlr.replicate("bank", farm=farm, into=other, tick=0)
    if is_empty_before:
        duckdb.connect(str(target)).close()
    finish = build._finish

    def finish_late(*arguments) -> None:
        finish(*arguments)
        other.replace(target)

    monkeypatch.setattr(build, "_finish", finish_late)
    code, errors = run(capsys, "wlr", "replicate", "bank", "--farm", farm, "--into", target)
    assert (code, len(told(errors))) == (75, 1), errors
    assert wlr.tick(target) == 0, "the other run's replica was replaced by ours"
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


@pytest.mark.slow
def test_replica_that_somebody_opened_while_it_was_made_anew_is_not_replaced(farm: str, tmp_path: Path, monkeypatch):
    """What is written through that connection would lie in a write-ahead log beside the new file."""
    source, into = tmp_path / "bank.duckdb", tmp_path / "copy.duckdb"
    wlc.flush(source)
    with wlc.connect(source) as connection:
        connection.execute("ALTER TABLE t ADD COLUMN j INTEGER")
    wlc.flush(source)
    wlr.replicate("bank", farm=farm, into=into)
    with monkeypatch.context() as patched, ExitStack() as others:
        finish = build._finish

        def finish_late(*arguments) -> None:
            finish(*arguments)
            others.enter_context(duckdb.connect(str(into)))

        patched.setattr(build, "_finish", finish_late)
        with pytest.raises(UnavailableError, match="is open in this process"):
            wlr.replicate(into=into, tick=1)
    assert wlr.tick(into) == 2
    assert wlr.replicate(into=into, tick=1).rebuilt_because


@pytest.mark.slow
def test_replications_of_one_target_at_once(farm: str, tmp_path: Path):
    for number in range(rounds(2)):
        target = tmp_path / f"replica {number}.duckdb"
        command: list[str | Path] = [COMMANDS / "wlr", "replicate", "bank", "--farm", farm, "--into", target]
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
        ]
        said = [process.communicate(timeout=DEADLINE_S) for process in running]
        codes = [process.returncode for process in running]
        assert set(codes) <= {0, 75}, said
        assert 0 in codes, said
        for code, (_, errors) in zip(codes, said, strict=True):
            assert len(told(errors)) == (1 if code else 0), errors
        assert file_contents(target) == file_contents(tmp_path / "bank.duckdb")
        assert wlr.replicate(into=target).transactions == 0


LOOK = """
import sys, wlr
from wlr.engine.duckdb import wlr_schema

read = wlr_schema.read

def slowly(*arguments):
    print("ready", flush=True)
    sys.stdin.readline()
    return read(*arguments)

wlr_schema.read = slowly
print(wlr.tick(sys.argv[1]), flush=True)
"""


@pytest.mark.slow
def test_whoever_looks_at_a_replica_ends_no_round(farm: str, tmp_path: Path):
    target = tmp_path / "replica.duckdb"
    wlr.replicate("bank", farm=farm, into=target, tick=0)
    with program(target, text=LOOK) as looker, ThreadPoolExecutor() as pool:
        looker.wait_for("ready")
        done = pool.submit(run_command, "wlr", "replicate", "--into", target)
        with suppress(TimeoutError):
            done.result(2)
        looker.say("")
        assert done.result().returncode == 0, done.result().stderr
        assert looker.end() == 0
    assert wlr.tick(target) == 1


@pytest.mark.slow
def test_whoever_asks_a_replica_waits_for_a_round_that_is_soon_over(farm: str, tmp_path: Path, capsys, monkeypatch):
    target = tmp_path / "replica.duckdb"
    wlr.replicate("bank", farm=farm, into=target)
    # As another process, which has not closed the file itself.
    monkeypatch.setattr("wlr.engine.duckdb.wlr_schema._closed", {})
    with program(target, text=HOLD) as holder, ThreadPoolExecutor() as pool:
        holder.wait_for("ready")
        asked = [pool.submit(ask, target) for ask in (wlr.tick, wlr.clock, wlr.status)]
        with suppress(TimeoutError):
            asked[0].result(0.3)
        assert not any(each.done() for each in asked)
        holder.say("")
        assert (asked[0].result(), asked[2].result().tick) == (1, 1)
        assert holder.end() == 0
    monkeypatch.setattr("wlr.care.replica_status._PATIENCE_S", 0.0)
    with program(target, text=HOLD) as holder:
        holder.wait_for("ready")
        code, errors = run(capsys, "wlr", "status", target)
    assert (code, str(holder.process.pid) in errors) == (75, True)
    assert errors.rstrip().endswith("hint: wlc farm replicas DB shows its registration in the farm")


def test_replica_that_this_process_reads_is_in_use(farm: str, tmp_path: Path, capsys):
    target = tmp_path / "replica.duckdb"
    wlr.replicate("bank", farm=farm, into=target, tick=wlc.tick("bank", farm=farm) - 1)
    with duckdb.connect(str(target), read_only=True):
        code, errors = run(capsys, "wlr", "replicate", "--into", target)
    assert code == 75
    assert str(os.getpid()) in errors or "this process" in errors
