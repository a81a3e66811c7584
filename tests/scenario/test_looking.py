"""What is in a farm, and who reads it: `wlc list`, `wlc farm replicas`, `wlc farm forget`."""

from __future__ import annotations

import json
import re
import shlex
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from cli.wlr import app as wlr_app
from tests.fault.processes import program
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.registry import this_host
from wlr.service.http_server import health
from wlr.service.job_states import Board, WorkStanding
from wlr.service.jobs import observe_database
from wlr.service.metrics import Exposition

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_a_farm_and_its_readers_are_listed_whatever_is_wrong_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WLC_FARM", raising=False)
    with pytest.raises(InvalidError, match="no farm is given"):
        wlc.databases()
    for name in ("sales", "shop", "site"):
        site = "oslo" if name == "site" else None
        wlc.master(f"{name}.duckdb", create=True, farm="dbfarm", beat_s=300, site=site)
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("CREATE TABLE t (i INTEGER)")
    wlr.replicate("sales", farm="dbfarm", into="slow.duckdb")
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    assert (
        run_app(app, "wlc", ["site", "join", "rome.duckdb", "--name", "site", "--farm", "dbfarm", "--site", "rome"])
        == 0
    )
    capsys.readouterr()
    wlc.stop("shop.duckdb")
    (tmp_path / "dbfarm" / "notes").mkdir()
    (tmp_path / "dbfarm" / "broken").mkdir()
    (tmp_path / "dbfarm" / "broken" / "wlc.config").write_text("tick=1\n")

    found = {entry.database: entry for entry in wlc.databases()}
    assert list(found) == ["broken", "sales", "shop", "site", "site/sites/rome"]
    assert (found["broken"].state, "wlc.config" in found["broken"].why) == ("damaged", True)
    sales = found["sales"]
    assert (sales.kind, sales.state, sales.tick) == ("database", "quiet", 2)
    assert " closed " in sales.why
    assert sales.bytes == wlc.status("sales", "dbfarm").log_bytes > 0
    assert sales.can_go_back_to == wlc.status("sales", "dbfarm").can_go_back_to
    assert sales.age_s is not None
    assert 0 <= sales.age_s < 3600
    assert (found["shop"].state, found["shop"].age_s, found["site/sites/rome"].kind) == ("stopped", None, "site")
    assert run_app(app, "wlc", ["list", "dbfarm", "--json"]) == 0
    assert [each["database"] for each in json.loads(capsys.readouterr().out)] == list(found)
    with pytest.raises(InvalidError, match="is a database, not a farm") as caught:
        wlc.databases("dbfarm/sales")
    assert caught.value.hint == f"wlc list {tmp_path / 'dbfarm'}"
    with pytest.raises(InvalidError, match="there is no folder"):
        wlc.databases("nowhere")
    (tmp_path / "empty").mkdir()
    assert run_app(app, "wlc", ["list", "empty"]) == 0
    assert capsys.readouterr().err == "warning: empty holds no database; check its URL\n"

    (reader,) = wlc.readers("sales", "dbfarm")
    assert (reader.kind, reader.tick, reader.lag_transactions, reader.is_overdue) == ("replica", 1, 1, False)
    assert reader.lag_s is not None
    assert reader.lag_s > 0
    assert reader.held_bytes == 0
    wlc.snapshot("sales.duckdb")
    assert wlc.readers("sales", "dbfarm")[0].held_bytes == held(tmp_path)
    assert run_app(app, "wlc", ["farm", "replicas", "sales", "--farm", "dbfarm"]) == 0
    assert reader.id in capsys.readouterr().out
    assert run_app(app, "wlc", ["farm", "forget", "sales", reader.id, "--farm", "dbfarm"]) == 0
    assert wlc.readers("sales", "dbfarm") == []
    (tmp_path / "dbfarm" / "sales" / "replicas" / "x.json").write_text("{}")
    with pytest.raises(CorruptError, match=r"replicas/x\.json"):
        wlc.readers("sales", "dbfarm")


def held(tmp_path: Path) -> int:
    """Size of the first batch, the only one that nobody but the replica needs."""
    first = (tmp_path / "dbfarm" / "sales" / "wlc_logs").glob("sales_000000000001*")
    return sum(file.stat().st_size for each in first for file in (each.rglob("*") if each.is_dir() else [each]))


def test_the_doctor_names_what_is_wrong_and_the_commands_that_mend_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WLC_FARM", "farm")
    wlc.master("sales.duckdb", create=True, beat_s=300)
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("CREATE TABLE t (i INTEGER)")
    wlr.replicate("sales", into="copy.duckdb")
    files = sorted(str(path) for path in tmp_path.rglob("*"))

    def told(place: str | None, state: str) -> dict[str, str | None]:
        return {each.check: each.remedy for each in wlr.examine(place) if each.state == state}

    def typed(command: str | None) -> None:
        assert command is not None
        program, *words = shlex.split(command)
        assert run_app(app if program == "wlc" else wlr_app, program, words) == 0

    assert told(None, "wrong") == told("sales", "wrong") == told("sales.duckdb", "wrong") == {}
    assert {"versions", "store", "clock", "keys", "beat", "readers", "farm's disk"} <= told("sales", "good").keys()
    typed(told("sales", "note")["retention"])
    assert told("sales", "note") == told("copy.duckdb", "note") == told("copy.duckdb", "wrong") == {}
    assert [path for path in map(str, sorted(tmp_path.rglob("*"))) if "retention" not in path] == files

    wlr.pause("copy.duckdb")
    wlr.unlock("copy.duckdb")
    (reader,) = wlc.readers("sales")
    wlc.forget("sales", reader.id)
    notes = told("copy.duckdb", "note")
    assert notes.keys() == {"pause", "guard", "registration"}
    for check in ("pause", "guard", "registration"):
        typed(notes[check])
    assert told("copy.duckdb", "note") == {}

    log = next((tmp_path / "farm" / "sales" / "wlc_logs").glob("sales_000000000001"))
    log.chmod(0o600)
    log.write_bytes(log.read_bytes()[:-9])
    assert told("sales", "wrong") == {
        "database": f"wlc farm verify sales --farm {tmp_path / 'farm'}",
        "keys": "wlc farm verify sales",
        "retention": "wlc farm verify sales",
    }
    capsys.readouterr()
    assert run_app(app, "wlc", ["doctor", "sales"]) == 9
    assert "hint: wlc farm verify sales" in capsys.readouterr().err


def test_a_lag_above_a_stated_limit_ends_with_9(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, copy = tmp_path / "sales.duckdb", tmp_path / "copy.duckdb"
    wlc.master(source, create=True, beat_s=0)
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
    wlr.replicate(source, into=copy)
    assert run_app(wlr_app, "wlr", ["status", str(copy), "--max-lag", "10m"]) == 0
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    assert run_app(wlr_app, "wlr", ["status", str(copy), "--max-lag", "10m"]) == 0
    assert run_app(wlr_app, "wlr", ["status", str(copy), "--max-lag", "0s"]) == 9
    said = capsys.readouterr().err
    assert re.search(rf"{re.escape(str(copy))} is \d+s \(1 transactions\) behind, more than 0s", said)
    (tmp_path / "dbfarm").rename(tmp_path / "away")
    assert run_app(wlr_app, "wlr", ["status", str(copy), "--max-lag", "10m"]) == 9
    assert f"the lag of {copy} is unknown" in capsys.readouterr().err
    assert run_app(wlr_app, "wlr", ["status", str(copy), "--max-lag", "soon"]) == 2


WRITER = """
import sys, wlc
connection = wlc.connect(sys.argv[1])
connection.execute("CREATE TABLE t AS SELECT 1 AS i")
wlc.flush(sys.argv[1])
connection._shared.publisher._signs._give()
print("written", flush=True)
sys.stdin.readline()
connection.close()
print("closed", flush=True)
"""


@pytest.mark.slow
def test_all_who_ask_tell_a_dead_writer_from_one_that_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WLC_FARM", str(tmp_path / "farm"))
    file, url = tmp_path / "sales.duckdb", str(tmp_path / "farm" / "sales")
    wlc.master(file, create=True)
    wlc.beat("sales", sign_every="1s")

    def seen() -> str:
        """What each of those who ask says of the state."""
        board = Board()
        observed = observe_database(lambda: url, None, WorkStanding("databases.sales", "policy"))
        board.change(("databases.sales", "policy"), lambda standing: replace(standing, observed=observed))
        code = run_app(app, "wlc", ["list", "--check", "--json"])
        ((listed,), (of_farm,)) = json.loads(capsys.readouterr().out), wlr.examine()[2:]
        of_database = next(each for each in wlr.examine("sales") if each.check == "database")
        report = wlr.report("sales")
        # Each asks a moment later.
        said = {
            re.sub(r"\d+", "N", text)
            for text in (of_database.found, of_farm.found, f"{listed['state']}: {listed['why']}")
        }
        assert len(said) == 1
        assert {each.state == "wrong" for each in (of_farm, of_database)} == {code == 9} == {health(board)[0] == 503}
        assert report.entry.state == listed["state"]
        assert f'dbfarm_state{{dbfarm_state="{listed["state"]}"' in Exposition(board).answer("")[0].decode()
        return str(listed["state"])

    assert seen() == "quiet"
    with program(file, text=WRITER) as writer:
        writer.wait_for("written")
        assert wlc.databases()[0].state in ("ok", "silent")
        writer.say("close")
        writer.wait_for("closed")
    assert seen() == "quiet"
    with program(file, text=WRITER.replace("CREATE", "CREATE OR REPLACE")) as writer:
        writer.wait_for("written")
        writer.kill()
    until = time.monotonic() + 60
    while wlc.databases()[0].state != "silent":
        assert time.monotonic() < until
        time.sleep(0.1)
    assert seen() == "silent"
    (found,) = wlc.databases()
    assert f"the publisher of {file} on {this_host()} has given no sign for" in found.why
    assert found.remedy is not None
    assert f"wlc flush {file}" in found.remedy
    wlc.flush(file)
    assert seen() == "quiet"
    wlc.beat("sales", expect_every="1s")
    until = time.monotonic() + 60
    while wlc.databases()[0].state != "late":
        assert time.monotonic() < until
        time.sleep(0.1)
    assert seen() == "late"
    (tmp_path / "farm" / "sales" / "health.json").write_text("{}")
    assert seen() == "damaged"
