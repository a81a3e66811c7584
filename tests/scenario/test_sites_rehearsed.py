"""`wlc site take --dry-run` says exactly what the next round does, and changes nothing: the file, the farm and its folder.

The example of docs/howto/offices.md is typed here, too.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

import wlc
from cli.command import run_app
from cli.wlc import app
from tests.sites import Sites, write_offline
from wlc.farm.errors import InvalidError, ReplayError, UnavailableError
from wlc.multi_master import missing_steps
from wlc.multi_master.duckdb import duckdb_site
from wlr.service.settings import SiteItem
from wlr.service.settings_file import read_settings

Capture = pytest.CaptureFixture[str]
SCHEMA = """
    CREATE TABLE e (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE u (k INTEGER PRIMARY KEY, name VARCHAR UNIQUE);
    INSERT INTO e VALUES (1, 'x'), (2, 'x');
"""
RULES = {"e": "epoch", "t": "epoch_trans", "u": "epoch"}


@pytest.fixture(scope="module")
def rehearsing(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    sites = Sites(tmp_path_factory.mktemp("rehearsed"))
    sites.found(SCHEMA)
    sites.join("rome")
    for table, rule in RULES.items():
        wlc.set_rule("sales", table, rule, farm=sites.farm)
    return sites


@pytest.fixture
def two(rehearsing: Sites) -> Sites:
    """Two sites that have exchanged what earlier tests left."""
    rehearsing.exchange()
    return rehearsing


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rejected(sites: Sites, site: str) -> Counter[tuple[str, str]]:
    rows = (row for row in wlc.exceptions(sites.file(site)) if row.site == site)
    return Counter((str(row.table), row.cause) for row in rows)


def whole(sites: Sites, site: str) -> int:
    return sum(each.value for each in wlc.conflicts(sites.file(site)) if each.name in ("rejects", "refused"))


def refuse_another_outcome(sites: Sites, site: str) -> list[wlc.TakenFrom]:
    """Compare what a dry run says with what the round does; returns what it said."""
    farm, files = content(sites.folder / "farm"), sorted(path.name for path in sites.folder.iterdir())
    before, count = rejected(sites, site), whole(sites, site)
    told = wlc.take(sites.file(site), dry_run=True)
    assert content(sites.folder / "farm") == farm
    assert sorted(path.name for path in sites.folder.iterdir()) == files
    assert (rejected(sites, site), whole(sites, site)) == (before, count)
    done = wlc.take(sites.file(site))
    assert [replace(each, is_dry_run=True) for each in done] == told
    assert sum(each.rejected for each in told) == whole(sites, site) - count
    counted: Counter[tuple[str, str]] = Counter()
    for each in (count for log in told for count in log.in_conflict):
        counted[str(each.table), each.cause] += each.rows
    assert counted == rejected(sites, site) - before
    return told


@pytest.mark.slow
def test_the_primary_says_what_it_would_reject(two: Sites, capsys: Capture) -> None:
    with two.kept_open():
        before = wlc.take(two.file("oslo"))[0].tick
        two.write("oslo", "UPDATE e SET v = 'oslo' WHERE k = 1", "INSERT INTO t VALUES (1, 'oslo')")
        two.write("oslo", "INSERT INTO u VALUES (1, 'same')")
        two.write(
            "rome",
            # In conflict; accepted, and changed again in a later step; a transaction with its dependent; a constraint.
            "UPDATE e SET v = 'rome' WHERE k = 1",
            "INSERT INTO e VALUES (10, 'ten')",
            "INSERT INTO t VALUES (1, 'rome'), (2, 'rome')",
            "UPDATE t SET v = 'again' WHERE k = 2",
            "UPDATE e SET v = 'eleven' WHERE k = 10",
            "INSERT INTO u VALUES (2, 'same')",
        )
        wlc.flush(two.file("rome"))
        # Each transaction is a step of its own, as in a round of many log files.
        with patch.multiple(missing_steps, STEP_TRANSACTIONS=1, JOINED_TRANSACTIONS=1):
            capsys.readouterr()
            assert run_app(app, "wlc", ["site", "take", str(two.file("oslo")), "--dry-run", "--json"]) == 0
            (shown,) = json.loads(capsys.readouterr().out)
            assert not wlc.exceptions(two.file("oslo"))
            (done,) = wlc.take(two.file("oslo"))
        assert shown == {
            "site": "rome",
            "transactions": done.transactions,
            "rows": done.rows,
            "tick": done.tick,
            "after": {wlc.sites("sales", farm=two.farm)[1].history: before},
            "rejected": 3,
            "own_rejected": 0,
            "in_conflict": [
                {"table": "main.e", "cause": "DATA_IN_CONFLICT", "transactions": 1, "rows": 1, "rule": "epoch"},
                {"table": "main.t", "cause": "TRANS_IN_CONFLICT", "transactions": 2, "rows": 3, "rule": "epoch_trans"},
                {"table": "main.u", "cause": "constraint", "transactions": 1, "rows": 1, "rule": "epoch"},
            ],
        }
        assert (done.transactions, done.after, whole(two, "oslo")) == (6, shown["after"], 3)
        assert rejected(two, "oslo") == {(each["table"], each["cause"]): each["rows"] for each in shown["in_conflict"]}


def screen_of(capsys: Capture, sites: Sites, command: str) -> str:
    """What a command of the docs shows, with their history and time."""
    capsys.readouterr()
    assert (
        run_app(
            app, "wlc", [re.sub(r"^(\w+)\.duckdb$", rf"{sites.folder}/\1.duckdb", each) for each in command.split()]
        )
        == 0
    )
    shown = re.sub("[0-9a-f]{16}", "8c7fd6e4a0b15293", capsys.readouterr().out)
    return re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]{15}Z", "2026-11-23T02:52:47.736597Z", shown)


@pytest.mark.slow
def test_the_example_of_the_docs(tmp_path: Path, capsys: Capture) -> None:
    sites = Sites(tmp_path)
    sites.found("CREATE TABLE accounts (id INTEGER PRIMARY KEY, amount INTEGER); INSERT INTO accounts VALUES (1, 100)")
    sites.join("rome")
    guide = (Path(__file__).parents[2] / "docs/howto/offices.md").read_text(encoding="utf-8")
    ((written, block),) = re.findall(
        r"^```console\n((?:\w+> UPDATE accounts [^\n]*\n)+)(\$ wlc site take oslo.duckdb\n.*?\n)```",
        guide,
        re.DOTALL | re.MULTILINE,
    )
    (config,) = re.findall(r"^```toml\n(.*?)```", guide, re.DOTALL | re.MULTILINE)
    (sites.folder / "dbfarm.toml").write_text(config)
    assert read_settings(sites.folder / "dbfarm.toml").items["sites.rome"] == SiteItem(str(sites.file("rome")))
    with sites.kept_open():
        wlc.set_rule(sites.file("oslo"), "accounts", "epoch_trans")
        for site, statement in re.findall(r"^(\w+)> (.*)$", written, re.MULTILINE):
            sites.write(site, statement)
        wlc.flush(sites.file("rome"))
        for command, shown in re.findall(r"^\$ wlc (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
            assert screen_of(capsys, sites, command) == shown, command
    assert sites.rows("rome", "accounts") == sites.rows("oslo", "accounts") == [(1, 50)]


@pytest.mark.slow
def test_a_secondary_says_what_would_give_way(two: Sites) -> None:
    with two.kept_open():
        two.write("oslo", "INSERT INTO u VALUES (5, 'five')", "CREATE TABLE later (k INTEGER)")
        wlc.flush(two.file("oslo"))
        two.write("rome", "INSERT INTO u VALUES (6, 'five')")
        (told,) = refuse_another_outcome(two, "rome")
        assert [(str(each.table), each.rows) for each in told.in_conflict] == [("main.u", 1)]


@pytest.mark.slow
def test_an_error_that_the_round_ends_with_is_told(two: Sites) -> None:
    with two.kept_open():
        wlc.set_rule("sales", "u", "none", farm=two.farm)
        # With this row, rome takes note of all that was rejected before.
        two.write("oslo", "INSERT INTO e VALUES (30, 'known')")
        two.exchange()
        two.write("oslo", "INSERT INTO u VALUES (7, 'seven')")
        two.write("rome", "INSERT INTO e VALUES (31, 'before')", "INSERT INTO u VALUES (8, 'seven')")
        wlc.flush(two.file("rome"))
        with pytest.raises(ReplayError, match="does not fit") as dry:
            wlc.take(two.file("oslo"), dry_run=True)
        with pytest.raises(ReplayError) as real:
            wlc.take(two.file("oslo"))
        assert (str(real.value), real.value.hint) == (str(dry.value), dry.value.hint)
        assert str(real.value.hint).endswith(" main.u epoch")
        assert run_app(app, "wlc", shlex.split(str(real.value.hint).rpartition(": wlc ")[2])) == 0
        two.take("oslo")
        assert wlc.exceptions(two.file("oslo"))[-1].cause == "constraint"
        two.write("oslo", "DELETE FROM u WHERE k = 7")


@pytest.mark.slow
def test_a_program_that_has_the_file_open_keeps_it(two: Sites) -> None:
    """The copy holds what is only in the write-ahead log, and reading the file gives up none of DuckDB's locks."""
    two.write("rome", "UPDATE e SET v = 'rome' WHERE k = 2")
    with wlc.connect(two.file("oslo"), config={"checkpoint_threshold": "1GB"}) as connection:
        connection.execute("UPDATE e SET v = 'open' WHERE k = 2")
        (told,) = wlc.take(two.file("oslo"), dry_run=True)
        assert [each.rows for each in told.in_conflict] == [1]
        opening = f"import duckdb; duckdb.connect({str(two.file('oslo'))!r})"
        other = subprocess.run([sys.executable, "-c", opening], capture_output=True, text=True, check=False)
        assert "Could not set lock" in other.stderr
        assert connection.execute("SELECT v FROM e WHERE k = 2").fetchall() == [("open",)]
        wlc.take(two.file("oslo"))
        with patch.object(duckdb_site.DuckDBSite, "rehearsal", side_effect=AssertionError("nothing is new")):
            (told,) = wlc.take(two.file("oslo"), dry_run=True)
        assert (told.site, told.transactions, told.rejected, told.after) == ("rome", 0, 0, {})


def test_there_must_be_room_for_the_copy_and_nothing_is_left_of_it(two: Sites) -> None:
    two.write("rome", "INSERT INTO e VALUES (40, 'x')")
    usage = type("Usage", (), {"free": 1})
    with patch("shutil.disk_usage", lambda _: usage), pytest.raises(UnavailableError) as failed:
        wlc.take(two.file("oslo"), dry_run=True)
    assert failed.value.hint
    assert f"wlc site list {two.file('oslo')}" in failed.value.hint
    # Each look at the file finds another checkpoint.
    headers = (bytes([number]) for number in range(100))
    with (
        patch.object(duckdb_site, "_headers", lambda _: next(headers)),
        pytest.raises(UnavailableError, match="oslo.duckdb was checkpointed 5 times while it was copied"),
    ):
        wlc.take(two.file("oslo"), dry_run=True)
    # A dry run that was killed leaves its copy; who opens the file next removes it.
    left = two.folder / ".oslo.duckdb.wlc-killed"
    left.mkdir()
    (left / "oslo.duckdb").write_bytes(b"copy")
    assert two.take("oslo") == 1
    assert not left.exists()


@pytest.mark.slow
def test_a_restored_site_takes_its_past_back_in_the_copy_and_begins_no_history_there(two: Sites) -> None:
    file = two.file("rome")
    backup = file.read_bytes()
    two.write("rome", "INSERT INTO e VALUES (50, 'published')")
    two.write("oslo", "INSERT INTO e VALUES (51, 'oslo')")
    file.write_bytes(backup)
    (told,) = wlc.take(file, dry_run=True)
    assert told.transactions == 1
    assert two.rows("rome", "e WHERE k >= 50") == []
    # It commits something else while it cannot reach its log.
    write_offline(two, "rome", "INSERT INTO e VALUES (52, 'since')")
    with pytest.raises(InvalidError, match="begins a new history") as failed:
        wlc.take(file, dry_run=True)
    assert failed.value.hint == f"wlc flush {file} begins it; then wlc site take {file} --dry-run"
    with pytest.warns(UserWarning, match="a new history begins"):
        wlc.flush(file)
    assert [each.transactions for each in wlc.take(file, dry_run=True)] == [1]


@pytest.mark.slow
def test_a_successor_takes_over_first_and_a_former_primary_begins_a_history_first(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(SCHEMA)
    sites.join("rome")
    sites.write("oslo", "UPDATE e SET v = 'oslo' WHERE k = 1")
    wlc.set_role("sales", "rome", "primary", lost="oslo", farm=sites.farm)
    farm = content(sites.folder / "farm")
    # Rome reads what is left of Oslo's log, with the batch that ends it.
    (told,) = wlc.take(sites.file("rome"), dry_run=True)
    assert (told.site, told.transactions, told.rejected) == ("oslo", 2, 0)
    with pytest.raises(InvalidError, match="another site has become the primary"):
        wlc.take(sites.file("oslo"), dry_run=True)
    assert content(sites.folder / "farm") == farm


@pytest.mark.slow
def test_every_site_of_a_mesh_says_what_is_older(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(SCHEMA, mesh=True)
    wlc.set_rule(sites.file("oslo"), "e", "newest")
    sites.join("rome")
    sites.join("paris")
    with sites.kept_open():
        for site in ("rome", "paris", "oslo"):
            sites.write(
                site, f"UPDATE e SET v = '{site}' WHERE k = 1", f"INSERT INTO e VALUES ({len(site)}0, '{site}')"
            )
            wlc.flush(sites.file(site))
        # The other sites' changes of the row are older than Oslo's.
        told = refuse_another_outcome(sites, "oslo")
        assert [each.transactions for each in told] == [2, 2]
        assert all({count.rule for count in each.in_conflict} == {"newest"} for each in told)
        # Rome has taken what Paris reads in two logs: it counts once.
        sites.take("rome")
        told = refuse_another_outcome(sites, "paris")
        assert sum(each.transactions for each in told) == 4
