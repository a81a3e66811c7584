"""Commands on sites as people type and mistype them, and as docs/sites*.md and examples/sites.py show them."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.fault.processes import program
from tests.sites import Sites
from wlc.farm.clock import format_time, utc_now
from wlc.farm.errors import InvalidError
from wlc.multi_master.circle import read_circle
from wlr.service.job_states import Board
from wlr.service.jobs import works_of
from wlr.service.metrics import Exposition
from wlr.service.settings_file import read_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from wlr.service.jobs import Turn


Capture = pytest.CaptureFixture[str]
SCHEMA = "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t VALUES (1, 'first')"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_take_follows_until_a_signal_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    sites = two_sites(tmp_path)
    wlc.beat(sites.file("rome"), 0.1)
    with program("cli.wlc", "site", "take", sites.file("rome"), "--follow", "--json") as follower:
        (first,) = json.loads(follower.next_line())
        assert (first["site"], first["transactions"]) == ("oslo", 0)
        for key in (2, 3):
            sites.write("oslo", f"INSERT INTO t VALUES ({key}, 'oslo')")
            wlc.flush(sites.file("oslo"))
            (news,) = json.loads(follower.next_line())
            # Rounds that find nothing say nothing.
            assert (news["site"], news["transactions"], news["rows"]) == ("oslo", 1, 1)
        follower.process.send_signal(number)
        assert follower.end() == 0
        assert (follower.errors, len(follower.lines)) == ("", 3)
    assert sites.rows("rome", "t") == [(1, "first"), (2, "oslo"), (3, "oslo")]


def test_a_site_leaves_when_others_have_what_it_published(tmp_path: Path, capsys: Capture) -> None:
    sites = two_sites(tmp_path)
    sites.write("rome", "INSERT INTO t VALUES (2, 'rome')")
    wlc.flush(sites.file("rome"))
    url = sites.log("oslo").url
    code, out, err = typed(capsys, "site", "leave", url, "rome")
    assert (code, out) == (2, "")
    assert "rome" in err
    assert [site.site for site in wlc.sites(url)] == ["oslo", "rome"]
    sites.take("oslo")
    code, out, err = typed(capsys, "site", "leave", "sales", "rome", "--farm", sites.farm, "--json")
    assert (code, err) == (0, "")
    oslo = wlc.status(sites.file("oslo")).history
    assert json.loads(out) == [{"site": "oslo", "role": "primary", "history": oslo}]
    assert [site.site for site in wlc.sites(url)] == ["oslo"]
    assert sites.rows("oslo", "t") == [(1, "first"), (2, "rome")]
    # It is none of them any more.
    assert typed(capsys, "site", "take", sites.file("rome"))[0] == 4
    assert typed(capsys, "site", "leave", url, "rome")[0] == 2


@pytest.mark.slow
def test_a_site_is_made_to_leave_although_others_lack_something(tmp_path: Path, capsys: Capture) -> None:
    sites = two_sites(tmp_path)
    sites.write("rome", "INSERT INTO t VALUES (2, 'lost')")
    wlc.flush(sites.file("rome"))
    # The file of any site names the database, too.
    assert typed(capsys, "site", "leave", sites.file("oslo"), "rome")[0] == 2
    code, out, err = typed(capsys, "site", "leave", sites.file("oslo"), "rome", "--force")
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()] == [["site", "role"], ["oslo", "primary"]]
    assert typed(capsys, "site", "take", sites.file("oslo"))[0] == 0
    assert sites.rows("oslo", "t") == [(1, "first")]


def keys_since(capsys: Capture, sites: Sites, *since: str) -> list[Any]:
    code, out, _ = typed(capsys, "site", "exceptions", sites.file("oslo"), *since, "--json")
    assert code == 0
    return [row["key"]["k"] for row in json.loads(out)]


@pytest.mark.slow
def test_what_was_rejected_since_a_time(tmp_path: Path, capsys: Capture) -> None:
    sites = two_sites(tmp_path)
    wlc.set_rule(sites.file("oslo"), "t", "epoch")
    for key in (2, 3):
        sites.write("oslo", f"INSERT INTO t VALUES ({key}, 'oslo')")
        sites.write("rome", f"INSERT INTO t VALUES ({key}, 'rome')")
        wlc.flush(sites.file("rome"))
        sites.take("oslo")
        sites.take("rome")
    first, second = wlc.exceptions(sites.file("oslo"))
    assert first.detected < second.detected
    assert keys_since(capsys, sites) == [2, 3]
    # The moment itself counts.
    assert keys_since(capsys, sites, "--since", format_time(first.detected)) == [2, 3]
    assert keys_since(capsys, sites, "--since", format_time(second.detected)) == [3]
    assert keys_since(capsys, sites, "--since", "-1h") == [2, 3]
    assert keys_since(capsys, sites, "--since", "-1h", "--table", "t") == [2, 3]
    assert keys_since(capsys, sites, "--since", "now") == []
    code, out, _ = typed(
        capsys, "site", "exceptions", sites.file("oslo"), "--since", format_time(second.detected), "--count"
    )
    assert (code, out.strip()) == (0, "1")
    code, _, err = typed(capsys, "site", "exceptions", sites.file("oslo"), "--since", "once")
    assert (code, "'once'" in err) == (2, True)


@pytest.mark.slow
def test_sites_show_since_when_a_site_is_silent(tmp_path: Path, capsys: Capture) -> None:
    sites = two_sites(tmp_path)

    def seen() -> dict[str, Any]:
        code, out, _ = typed(capsys, "site", "list", "sales", "--farm", sites.farm, "--json")
        assert code == 0
        return {each["site"]: each["seen"] for each in json.loads(out)}

    assert seen() == {"oslo": None, "rome": None}
    sites.write("oslo", "INSERT INTO t VALUES (9, 'oslo')")
    before = format_time(utc_now())
    sites.take("rome")
    took, after = seen(), format_time(utc_now())
    assert before <= took["rome"] <= after
    # What others do is no sign of life, nor that it publishes.
    sites.write("rome", "INSERT INTO t VALUES (2, 'rome')")
    sites.take("oslo")
    found = seen()
    assert found["rome"] == took["rome"]
    assert after <= found["oslo"] <= format_time(utc_now())
    # Looking is one, although nothing is there to take.
    assert sites.take("rome") == 0
    assert found["rome"] < seen()["rome"]
    code, out, _ = typed(capsys, "site", "list", sites.file("rome"))
    assert code == 0
    assert "seen" in out.splitlines()[0].split()


def two_sites(folder: Path, schema: str = SCHEMA) -> Sites:
    sites = Sites(folder)
    sites.found(schema)
    sites.join("rome")
    return sites


def typed(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    """What a command ends with, and what it shows."""
    capsys.readouterr()
    code = run_app(app, "wlc", [str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return code, shown.out, " ".join(shown.err.split())


# What is wrong -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return two_sites(
        tmp_path_factory.mktemp("mistakes"),
        "CREATE TABLE orders (k INTEGER PRIMARY KEY); CREATE TABLE prices (k INTEGER PRIMARY KEY); CREATE TABLE bag (k INTEGER)",
    )


# What is typed, a part of the message, and a part of the hint.
MISTAKES = {
    "site list sale": ("no database 'sale' in the farm", "holds sales"),
    "site rule sale orders epoch": ("no database 'sale'", "holds sales"),
    "site join new.duckdb --name sale --site york": ("no database 'sale'", "holds sales"),
    "site take sales": ("no database sales", "the master's file, such as sales.duckdb"),
    "site rule sales order epoch": ("has no table 'order'", "Did you mean main.orders?"),
    "site rule sales order": ("has no table 'order'", "Did you mean main.orders?"),
    "site exceptions oslo.duckdb --table order": ("has no table 'order'", "Did you mean main.orders?"),
    "site rule sales orders epoch --site rome": (
        "the rule owner, and no other one, names a site",
        "wlc site rule FARM/sales orders epoch; or wlc site rule FARM/sales orders owner --site rome",
    ),
    "site rule sales orders --site rome": ("none is given", "wlc site rule sales orders RULE"),
    "site rule sales orders epoch --reads shared": ("rule epoch tracks no reads", ""),
    "site rule sales orders epoch_trans --reads all": ("'all' are no reads", ""),
    "site rule sales bag epoch": ("has no primary key", ""),
    "site rule sales bag owner --site rome": ("may write it, and not rome", ""),
    "site rule sales orders latest": ("'latest' is no rule", ""),
    "site rule sales orders newest": ("rule newest has no meaning", ""),
    "site rule sales orders owner": ("names a site", ""),
    "site rule sales orders owner --site paris": ("no site 'paris'", ""),
    "site leave sales oslo": ("oslo is the primary", "wlc site role FILE rome primary"),
    "site leave sales oslo --force": ("oslo is the primary", ""),
    "site join oslo.duckdb --name sales --site oslo --again": (
        "it cannot begin anew",
        "/farm/sales rome primary --lost oslo",
    ),
    "site join rome.duckdb --name sales --site york": (
        "rome.duckdb is a master, rome, and no replica of sales",
        "name a file that is not there: wlc site join FILE",
    ),
    "site exceptions rome.duckdb --resubmit rome:1": (
        "nothing that could be written was rejected here as rome:1",
        "wlc site exceptions rome.duckdb lists rejected rows",
    ),
    "master york.duckdb --name sales --site york --mesh": (
        "there is no database york.duckdb",
        "wlc master york.duckdb --create --name sales --site york --mesh makes it",
    ),
}


@pytest.fixture
def inside(mistaken: Sites, monkeypatch: pytest.MonkeyPatch) -> Sites:
    monkeypatch.chdir(mistaken.folder)
    monkeypatch.setenv("WLC_FARM", mistaken.farm)
    return mistaken


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_changes_nothing_and_says_what_to_type(inside: Sites, line: str, capsys: Capture) -> None:
    message, hint = MISTAKES[line]
    before = read_circle(inside.log("oslo"))
    code, _, shown = typed(capsys, *shlex.split(line))
    error, _, told = shown.partition("hint: ")
    assert (code, message in error, hint.replace("FARM", inside.farm) in told) == (2, True, True), shown
    assert read_circle(inside.log("oslo")) == before


def test_rules_are_shown(inside: Sites, capsys: Capture) -> None:
    def shown(line: str, code: int = 0) -> str:
        found, out, err = typed(capsys, *shlex.split(line)[1:])
        assert found == code, err
        return out + err

    assert shown("wlc site rule sales --json").split() == ["[]"]
    for line in ("wlc site rule sales orders epoch", "wlc site rule sales prices owner --site oslo"):
        shown(line)
    assert '"table": "main.orders", "rule": "epoch"' in shown("wlc site rule sales --json")
    assert {"main.orders", "epoch", "main.prices", "owner"} <= set(shown("wlc site rule rome.duckdb").split())
    assert "main.prices owner oslo" in " ".join(shown("wlc site rule sales prices").split())
    assert "main.orders" not in shown("wlc site rule sales prices")
    # A user who may not write a table gets a command that lets him.
    shown("wlc site take rome.duckdb")
    refused = shown("wlc sql rome.duckdb 'INSERT INTO prices VALUES (1)'", 2)
    assert "or let this site own it from its next wlc site take: " in refused
    for line in (refused.rpartition("next wlc site take: ")[2], "wlc site take rome.duckdb"):
        shown(line)
    shown("wlc sql rome.duckdb 'INSERT INTO prices VALUES (1)'")


def oslo_is_halted(sites: Sites) -> None:
    """It has not published what only a primary may write when another site becomes the primary."""
    connection = wlc.connect(sites.file("oslo"))
    connection.execute("INSERT INTO bag VALUES (2, 'oslo')")
    wlc.set_role("sales", "rome", "primary", lost="oslo", farm=sites.farm)
    with suppress(wlc.FencedError):
        connection.close()
    sites.take("rome")


def rome_has_read_another_past(sites: Sites) -> None:
    """What rome has read of oslo's log is not what is there, as after a backup of oslo was restored elsewhere."""
    with duckdb.connect(sites.file("rome")) as plain:
        (text,) = plain.execute("SELECT value FROM wlc.state WHERE key = 'site'").fetchall()[0]
        site = json.loads(text)
        site["proofs"] = [{**proof, "chain": "0" * 64} for proof in site["proofs"]]
        plain.execute("UPDATE wlc.state SET value = ? WHERE key = 'site'", [json.dumps(site)])


def oslo_prunes(sites: Sites) -> None:
    """It keeps nothing that rome lacks: rome was silent for too long."""
    for number in range(2):
        sites.write("oslo", f"INSERT INTO t VALUES ({10 + number}, 'oslo')")
    wlc.snapshot(sites.file("oslo"))
    wlc.prune(sites.file("oslo"), keep_for="0s", deadline=timedelta(0))


def another_database(sites: Sites) -> None:
    with duckdb.connect(sites.file("other")) as plain:
        plain.execute("CREATE TABLE elsewhere (k INTEGER PRIMARY KEY)")


def a_replica_of_another_database(sites: Sites) -> None:
    sites.file("other").rename(sites.file("alone"))
    wlc.master(sites.file("alone"), farm=sites.farm, name="alone")
    wlr.replicate(f"{sites.farm}/alone", into=sites.file("other"), register=False)


@dataclass(frozen=True)
class Wrong:
    """Something that is wrong.

    Attributes:
        command: What is typed, code: its exit code, message: a part of what it says then.
        hinted: Commands in the hint, which are typed with these words replaced.
        after: Whether the command itself succeeds after them.
    """

    command: str
    code: int
    message: str
    hinted: tuple[str, ...]
    prepare: Callable[[Sites], None] = lambda sites: None
    replaced: dict[str, str] = field(default_factory=dict)
    after: bool = True

    def filled(self, command: str) -> str:
        for word, by in self.replaced.items():
            command = command.replace(word, by)
        return command


ANEW = {"--again": "--again --yes"}
AGAIN = "wlc site join {rome} --name {url} --site rome --again"
# In their order: what others meet since.
WRONG = {
    "FOR UPDATE on what is not tracked": Wrong(
        "sql {rome} 'SELECT * FROM t WHERE k = 1 FOR UPDATE'",
        2,
        "the rule of main.t does not track reads",
        ("wlc site rule {url} main.t epoch_trans --reads exclusive", "wlc site take FILE"),
        replaced={"FILE": "{rome}"},
    ),
    "rule epoch on a table without a key": Wrong(
        "site rule {url} more epoch",
        2,
        "main.more has no primary key",
        ("wlc sql FILE 'ALTER TABLE main.more ADD PRIMARY KEY (COLUMN)'", "wlc flush FILE"),
        replaced={"FILE": "{oslo}", "COLUMN": "k"},
    ),
    "a schema change at a site that may not": Wrong(
        "sql {rome} 'CREATE TABLE made (k INTEGER PRIMARY KEY)'",
        2,
        "site rome cannot change the schema: only site oslo",
        ("wlc site take FILE",),
        replaced={"FILE": "{rome}"},
        after=False,
    ),
    "joining with a file of another schema": Wrong(
        "site join {other} --name {url} --site york",
        2,
        "other.duckdb is a DuckDB database, but not a replica",
        ("wlc site join FILE --name {url} --site york",),
        another_database,
        {"FILE": "{york}"},
        after=False,
    ),
    "joining with a replica of another database": Wrong(
        "site join {other} --name {url} --site turin",
        2,
        "replica",
        ("wlc site join FILE --name {url} --site turin",),
        a_replica_of_another_database,
        {"FILE": "{turin}"},
        after=False,
    ),
    "a site silent beyond the deadline": Wrong(
        "site take {rome}", 7, "the missing part of site oslo was pruned", (AGAIN,), oslo_prunes, ANEW
    ),
    "a proof that the log does not know": Wrong(
        "site take {rome}",
        4,
        "the log of site oslo belongs to another past",
        (AGAIN,),
        rome_has_read_another_past,
        ANEW,
    ),
    "a handover stands where a primary would publish": Wrong(
        "flush {oslo}",
        4,
        "changes rows of main.bag, which has no primary key",
        ("wlc site join {oslo} --name {url} --site oslo --again",),
        oslo_is_halted,
        ANEW,
    ),
}


@pytest.mark.slow
def test_the_commands_of_a_hint_mend_what_is_wrong(tmp_path: Path, capsys: Capture) -> None:
    """One after the other, at the same sites; the class of each error is in its exit code."""
    schema = "CREATE TABLE bag (k INTEGER, v VARCHAR); CREATE TABLE more (k INTEGER, v VARCHAR);"
    sites = two_sites(tmp_path, schema + SCHEMA)
    sites.write("oslo", "INSERT INTO t VALUES (2, 'oslo')")
    sites.exchange()
    words = {"url": f"{sites.farm}/sales"}
    words |= {each: str(sites.file(each)) for each in ("oslo", "rome", "york", "turin", "other")}

    def ends_with(command: str) -> tuple[int, str]:
        code, _, err = typed(capsys, *shlex.split(command.format(**words))[1:])
        return code, err

    for name, wrong in WRONG.items():
        wrong.prepare(sites)
        code, shown = ends_with(f"wlc {wrong.command}")
        assert (code, wrong.message in shown) == (wrong.code, True), (name, shown)
        for command in wrong.hinted:
            assert command.format(**words) in shown.partition("hint: ")[2], name
            assert ends_with(wrong.filled(command))[0] == 0, (name, command)
        if wrong.after:
            assert ends_with(f"wlc {wrong.command}")[0] == 0, name


# What is shown while sites differ ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    sites = Sites(tmp_path_factory.mktemp("watching"))
    sites.found()
    sites.join("rome")
    wlc.set_rule(sites.file("oslo"), "a", "epoch")
    sites.exchange()
    return sites


def shown(capsys: Capture, *arguments: object) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run_app(app, "wlc", [*map(str, arguments), "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def counters(capsys: Capture, sites: Sites) -> dict[str, int]:
    found = shown(capsys, "site", "conflicts", sites.file("oslo"))
    return {each["name"]: each["value"] for each in found if each["site"] == "rome"}


@pytest.mark.slow
def test_e14_the_last_conflict_is_contained_once_its_refresh_has_come_back(two: Sites, capsys: Capture) -> None:
    two.write("oslo", "UPDATE a SET v = 'oslo' WHERE id = 1")
    wlc.flush(two.file("oslo"))
    oslo, rome = shown(capsys, "site", "list", "sales", "--farm", two.farm)
    assert (rome["window_rows"], rome["window_age_s"] > 0, rome["is_stable"]) == (1, True, True)
    assert (oslo["behind"], oslo["delay_s"]["rome"] > 0, oslo["contained_by"]["rome"] < oslo["tick"]) == (
        ["rome"], True, True,
    )  # fmt: skip
    two.write("rome", "UPDATE a SET v = 'rome' WHERE id = 1", "INSERT INTO a VALUES (7, 'seven', 0)")
    two.take("oslo")
    found = counters(capsys, two)
    assert found["last_conflict_tick"] > found["contained_tick"]
    assert "last_stable_tick" not in found
    oslo, rome = shown(capsys, "site", "list", two.file("oslo"))
    assert not oslo["is_stable"]
    assert not rome["is_stable"]
    two.take("rome")
    assert counters(capsys, two) == found
    two.take("oslo")
    found = counters(capsys, two)
    assert found["contained_tick"] == found["last_conflict_tick"] == found["last_stable_tick"]
    oslo, rome = shown(capsys, "site", "list", two.file("rome"))
    for site in (oslo, rome):
        assert (site["is_stable"], site["behind"], site["window_rows"], site["window_age_s"]) == (True, [], 0, 0)
        assert list(site["delay_s"].values()) == [0]
    assert oslo["contained_by"] == {"rome": oslo["tick"]}


def rejected(two: Sites, capsys: Capture) -> list[dict[str, Any]]:
    return shown(capsys, "site", "exceptions", two.file("oslo"))


@pytest.mark.slow
def test_a_rejected_transaction_is_written_again(two: Sites, capsys: Capture) -> None:
    two.write("oslo", "INSERT INTO a VALUES (20, 'twenty', 1.5), (21, 'twenty-one', NULL)")
    two.write("oslo", "INSERT INTO parents VALUES (1, 'one')")
    wlc.set_rule(two.file("oslo"), "parents", "epoch_trans")
    wlc.set_rule(two.file("oslo"), "u", "epoch_trans")
    two.exchange()
    before = len(rejected(two, capsys))
    two.write("oslo", "UPDATE a SET x = 2.5 WHERE id = 20", "UPDATE parents SET v = 'oslo' WHERE id = 1")
    two.write("rome", "UPDATE a SET v = 'O''Hara' WHERE id = 20")
    two.write("rome", "BEGIN; INSERT INTO parents VALUES (2, 'two'); INSERT INTO u VALUES (5, 'five');"
              " UPDATE parents SET v = 'rome' WHERE id = 1; COMMIT")  # fmt: skip
    two.exchange()
    row, *whole = rejected(two, capsys)[before:]
    assert (row["op_type"], row["local"]) == ("UPDATE_ROW", {"id": 20, "v": "twenty", "x": "2.5"})
    # Of an updated row only what its transaction changed is written again.
    assert run_app(app, "wlc", ["site", "exceptions", str(two.file("oslo")), "--resubmit", row["id"]]) == 0
    assert two.rows("oslo", "a")[-2] == (20, "O'Hara", 2.5)
    assert len(whole) == 3
    transaction = f"rome:{whole[0]['source_tick']}"
    assert wlc.resubmit(two.file("oslo"), transaction) == 3
    assert two.rows("oslo", "parents") == [(1, "rome"), (2, "two")]
    assert two.rows("oslo", "u") == [(5, "five")]
    assert all(each["resubmitted"] for each in rejected(two, capsys)[before:])
    for again in (row["id"], transaction):
        capsys.readouterr()
        assert run_app(app, "wlc", ["site", "exceptions", str(two.file("oslo")), "--resubmit", again]) == 2
        assert "was resubmitted at" in capsys.readouterr().err
    two.exchange()
    two.refuse_differences("a", "parents", "u")
    two.replica_equals("oslo")


@pytest.mark.slow
def test_rows_that_differ_from_what_the_exception_shows_are_not_written_over(two: Sites) -> None:
    two.write("oslo", "INSERT INTO a VALUES (30, 'thirty', 0), (31, 'x', 0), (32, 'x', 0)")
    two.exchange()
    before = len(wlc.exceptions(two.file("oslo")))
    two.write("oslo", "UPDATE a SET v = 'oslo' WHERE id BETWEEN 30 AND 32", "INSERT INTO a VALUES (33, 'oslo', 0)")
    two.write("rome", "UPDATE a SET v = 'rome' WHERE id IN (30, 31)", "DELETE FROM a WHERE id = 32",
              "INSERT INTO a VALUES (33, 'rome', 0)")  # fmt: skip
    two.exchange()
    by_key = {row.key["id"]: row for row in wlc.exceptions(two.file("oslo"))[before:]}
    changed, gone, deleted, added = (by_key[key] for key in (30, 31, 32, 33))
    two.write("oslo", "UPDATE a SET v = 'later' WHERE id = 30", "DELETE FROM a WHERE id = 31")
    for row, problem in (
        (changed, r'row {"id": 30} has changed since it was rejected, and is .*"later"'),
        (gone, r'main\.a has no row {"id": 31}'),
        (added, r'main\.a has a row {"id": 33} already: .*"oslo"'),
    ):
        with pytest.raises(InvalidError, match=problem):
            wlc.resubmit(two.file("oslo"), row.id)
    assert wlc.resubmit(two.file("oslo"), deleted.id) == 1
    assert [row[0] for row in two.rows("oslo", "a") if row[0] in (30, 31, 32, 33)] == [30, 33]
    with pytest.raises(InvalidError, match="nothing that could be written was rejected here as rome:999"):
        wlc.resubmit(two.file("oslo"), "rome:999")
    with pytest.raises(InvalidError, match="names no exception"):
        wlc.resubmit(two.file("oslo"), "rome")


@pytest.mark.slow
def test_the_author_writes_a_rejected_row_again_with_the_winner_before_its_eyes(two: Sites, capsys: Capture) -> None:
    two.write("oslo", "INSERT INTO a VALUES (50, 'fifty', 0), (51, 'fifty-one', 0)")
    two.exchange()
    two.write("oslo", "UPDATE a SET x = 2 WHERE id = 50", "DELETE FROM a WHERE id = 51")
    two.write("rome", "UPDATE a SET v = 'rome' WHERE id = 50", "DELETE FROM a WHERE id = 51")
    wlc.flush(two.file("rome"))
    known = len(wlc.exceptions(two.file("rome")))
    (done,) = shown(capsys, "site", "take", two.file("oslo"))
    assert (done["rejected"], done["own_rejected"]) == (0, 0)
    assert [(each["table"], each["cause"], each["rule"], each["rows"]) for each in done["in_conflict"]] == [
        ("main.a", "DATA_IN_CONFLICT", "epoch", 1),
        ("main.a", "ROW_DOES_NOT_EXIST", "epoch", 1),
    ]
    (done,) = shown(capsys, "site", "take", two.file("rome"))
    assert (done["own_rejected"], done["in_conflict"]) == (2, [])
    mine, theirs = (shown(capsys, "site", "exceptions", two.file(site)) for site in ("rome", "oslo"))
    changed, deleted = mine[known:]
    assert [each["id"] for each in (changed, deleted)] == [each["id"] for each in theirs[-2:]]
    assert (changed["site"], changed["local"]) == ("oslo", {"id": 50, "v": "fifty", "x": "2.0"})
    assert (deleted["cause"], deleted["local"]) == ("ROW_DOES_NOT_EXIST", None)
    # What was rejected is read with the position: another take says nothing of it.
    (done,) = shown(capsys, "site", "take", two.file("rome"))
    assert (done["transactions"], done["own_rejected"], len(wlc.exceptions(two.file("rome")))) == (0, 0, known + 2)
    assert run_app(app, "wlc", ["site", "exceptions", str(two.file("rome")), "--resubmit", changed["id"]]) == 0
    two.exchange()
    two.refuse_differences("a")
    assert (50, "rome", 2.0) in two.rows("oslo", "a")
    with pytest.raises(InvalidError, match="was resubmitted at"):
        wlc.resubmit(two.file("rome"), changed["id"])
    with pytest.raises(InvalidError, match="has changed since it was rejected"):
        wlc.resubmit(two.file("oslo"), changed["id"])


@pytest.mark.slow
def test_while_a_program_has_the_file_open_the_farm_answers(two: Sites, capsys: Capture) -> None:
    two.write("oslo", "INSERT INTO a VALUES (60, 'sixty', 0)")
    two.exchange()
    two.write("oslo", "UPDATE a SET x = 6 WHERE id = 60")
    two.write("rome", "UPDATE a SET v = 'rome' WHERE id = 60")
    two.exchange()
    two.exchange()
    asked = {
        site: [(*command, two.file(site)) for command in (("site", "exceptions"), ("site", "conflicts"), ("status",))]
        for site in ("oslo", "rome")
    }
    before = {each: shown_one(capsys, *each) for site in asked for each in asked[site]}
    for site, questions in asked.items():
        script = (
            f"import sys, wlc; c = wlc.connect({str(two.file(site))!r}); print('open', flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as held:
            assert held.stdout
            assert held.stdout.readline() == "open\n"
            for question in questions:
                assert comparable(shown_one(capsys, *question)) == comparable(before[question])
                assert "is open in process" in capsys.readouterr().err
            # What needs the file says so, and what can be asked meanwhile.
            assert run_app(app, "wlc", ["site", "exceptions", str(two.file(site)), "--resubmit", "rome:1"]) == 75
            hint = re.search(r"wlc status \S+", capsys.readouterr().err)
            assert hint
            assert run_app(app, "wlc", shlex.split(hint[0])[1:]) == 0
            held.communicate("")
    with pytest.raises(InvalidError, match="only a site writes rows again"):
        wlc.resubmit("sales", "rome:1")
    # Anywhere, of the database.
    rows = shown_one(capsys, "site", "exceptions", "sales", "--farm", two.farm)
    assert comparable(rows) == comparable(before["site", "exceptions", two.file("oslo")])


def shown_one(capsys: Capture, *arguments: object) -> Any:
    capsys.readouterr()
    assert run_app(app, "wlc", [*map(str, arguments), "--json"]) == 0
    captured = capsys.readouterr()
    sys.stderr.write(captured.err)
    return json.loads(captured.out)


def comparable(answer: Any) -> Any:
    """Leave out what only the file knows."""
    if isinstance(answer, dict):
        return {key: value for key, value in answer.items() if key not in ("unpublished", "bypassed")}
    return [{key: value for key, value in row.items() if key not in ("detected", "resubmitted")} for row in answer]


@pytest.mark.slow
def test_a_service_takes_at_sites_and_counts_what_was_rejected(two: Sites, tmp_path: Path) -> None:
    config, board = tmp_path / "dbfarm.toml", Board()
    config.write_text("".join(f"[sites.{site}]\nsource = '{two.file(site)}'\n" for site in ("oslo", "rome")))
    two.write("oslo", "INSERT INTO a VALUES (70, 'seventy', 0), (71, 'seventy-one', 0)")
    two.exchange()
    two.write("oslo", "UPDATE a SET x = 7 WHERE id IN (70, 71)")
    two.write("rome", "UPDATE a SET v = 'rome' WHERE id IN (70, 71)")
    wlc.flush(two.file("rome"))
    for work in works_of(read_settings(config)) * 2:
        done = work.do_round(cast("Turn", None))
        board.change(work.key, lambda standing, done=done: standing.after(done, utc_now()))
        assert bool(done.facts) == bool(done.transactions)
    text = Exposition(board).answer("")[0].decode()
    counted = re.findall(r'dbfarm_rejected_rows_total{item="(.*?)",work="take"} (.*)', text)
    assert counted == [("sites.oslo", "2.0"), ("sites.rome", "2.0")]
    two.refuse_differences("a")


@pytest.mark.slow
def test_undo_and_repair_at_a_site_say_the_same(tmp_path: Path, capsys: Capture) -> None:
    sites = Sites(tmp_path)
    sites.found(f"{SCHEMA}; CREATE TABLE bag (k INTEGER)")
    sites.join("rome")
    wlc.set_rule("sales", "t", "owner", site="oslo", farm=sites.farm)
    sites.exchange()
    file = str(sites.file("rome"))
    for table, row, other in (("t", "(2, 'oslo')", "(9, 'rome')"), ("bag", "(1)", "(9)")):
        sites.write("oslo", f"INSERT INTO {table} VALUES {row}")
        sites.exchange()
        said = [refusal(capsys, "undo", file, "--tick", wlc.tick(file))]
        with duckdb.connect(file) as connection:
            connection.execute(f"INSERT INTO {table} VALUES {other}")
        said.append(refusal(capsys, "farm", "repair", file))
        assert said[0] == said[1]
        assert "hint: " in said[0]
        assert not re.search(r"\bDB\b", said[0])
        with duckdb.connect(file) as connection:
            connection.execute(f"DELETE FROM {table} WHERE k = 9")


def refusal(capsys: Capture, *arguments: object) -> str:
    capsys.readouterr()
    assert run_app(app, "wlc", [*map(str, arguments)]) == 2
    return capsys.readouterr().err.partition("error: ")[2]


@pytest.mark.slow
def test_a_joined_site_has_the_beat_of_the_primary(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(SCHEMA)
    wlc.beat(sites.file("oslo"), 17)
    sites.join("rome")
    assert wlc.beat(sites.file("rome")) == 17


@pytest.mark.slow
def test_the_process_that_has_the_file_open_takes_in_the_background(two: Sites, tmp_path: Path) -> None:
    with wlc.connect(two.file("rome"), take=True, beat_s=0.1) as connection:
        two.write("oslo", "INSERT INTO a VALUES (40, 'forty', 0)")
        wlc.flush(two.file("oslo"))
        deadline = time.monotonic() + 60
        while not connection.execute("SELECT 1 FROM a WHERE id = 40").fetchall():
            assert time.monotonic() < deadline, connection.wlc.failure
            time.sleep(0.05)
        connection.execute("INSERT INTO a VALUES (41, 'rome', 0)")
        assert [each.site for each in connection.wlc.take()] == ["oslo"]
    # Closing has ended the thread and published what was written.
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wlc site take")]
    two.exchange()
    two.refuse_differences("a")
    alone = tmp_path / "alone.duckdb"
    wlc.master(alone, farm=str(tmp_path / "farm"), create=True)
    with pytest.raises(InvalidError, match="no site"):
        wlc.connect(alone, take=True)
    with pytest.raises(InvalidError, match="only reads"):
        wlc.connect(two.file("rome"), read_only=True, take=True)


def test_join_warns_of_keys_that_all_sites_would_number_alike(tmp_path: Path, capsys: Capture) -> None:
    sites = Sites(tmp_path)
    sites.found(
        "CREATE SEQUENCE numbers; CREATE TABLE orders (id INTEGER PRIMARY KEY DEFAULT nextval('numbers'), v VARCHAR,"
        " n INTEGER DEFAULT nextval('numbers')); CREATE TABLE a (id UUID PRIMARY KEY DEFAULT uuid())"
    )
    join = ["--name", "sales", "--farm", sites.farm, "--site", "rome"]
    assert run_app(app, "wlc", ["site", "join", "postgresql://nobody:secret@127.0.0.1:1/x", *join]) == 8
    shown = capsys.readouterr().err
    assert "PostgreSQL sites do not exist yet" in shown
    assert "secret" not in shown
    assert run_app(app, "wlc", ["site", "join", str(sites.file("rome")), *join]) == 0
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "sequence" in line]
    assert "key column id of main.orders defaults to a sequence" in warning
    assert "uuid()" in warning


# As the docs and the example show it ---------------------------------------------------------------------------------


KEYED = ("prices", "orders", "customers", "accounts", "limits", "measurements")
OF_DOCS = """
    CREATE TABLE log (v VARCHAR);
    CREATE TABLE settings (name VARCHAR PRIMARY KEY, value VARCHAR);
    CREATE TABLE stock (product VARCHAR PRIMARY KEY, amount INTEGER NOT NULL);
    CREATE TABLE events (v VARCHAR);
    CREATE TABLE documents (k INTEGER PRIMARY KEY, version INTEGER);
    CREATE TABLE tickets (k INTEGER PRIMARY KEY, revision INTEGER);
""" + "".join(f"CREATE TABLE {table} (k INTEGER PRIMARY KEY, v VARCHAR);" for table in KEYED)
PAGES = sorted((Path(__file__).parents[2] / "docs").glob("sites*.md"))
SITES_TEXT = "\n".join(page.read_text() for page in PAGES)
# With the name of a table, not of a column or rule in general; the chapters on roles name the farm otherwise.
COMMANDS = sorted(
    {match.rstrip(" ") for match in re.findall(r"wlc site rule sales [^`#\n]+", SITES_TEXT) if "TABLE" not in match}
)
STAR_RULES = ("epoch", "epoch_trans")


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Sites]:
    found = {}
    for is_mesh in (False, True):
        found[is_mesh] = Sites(tmp_path_factory.mktemp("mesh" if is_mesh else "star"))
        found[is_mesh].found(OF_DOCS, mesh=is_mesh)
        found[is_mesh].join("rome")
    return found


def test_every_rule_has_an_example() -> None:
    rules = {shlex.split(command)[5] for command in COMMANDS}
    assert rules >= {"owner", "epoch", "epoch_trans", "newest", "add", "max", "old"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_sets_a_rule(
    founded: dict[bool, Sites], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *arguments = shlex.split(command)
    table, rule = arguments[3:5]
    is_mesh = rule not in STAR_RULES
    if table == "main.log":
        # Another primary's table, after a change of the primary.
        arguments[-1] = "oslo"
    assert run_app(app, "wlc", [*arguments, "--farm", founded[is_mesh].farm]) == 0, capsys.readouterr().err
    assert table in capsys.readouterr().out


EXAMPLE = Path(__file__).parents[2] / "examples" / "sites.py"


@pytest.mark.slow
def test_three_sites_end_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, EXAMPLE], capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "300"}
    )
    assert done.returncode == 0, done.stderr
    assert "rome: site rome cannot write main.prices: the table belongs to site oslo" in done.stdout
    (rejected,) = [line for line in done.stdout.splitlines() if line.startswith("rome:")]
    assert "DATA_IN_CONFLICT" in rejected
    picture = done.stdout.split("== 6. Who has what")[1]
    (header, *sites) = [line.split() for line in picture.splitlines() if line and not line.startswith(("$", " ", "="))]
    assert header[:5] == ["site", "role", "history", "tick", "clock"]
    assert [(words[0], words[1]) for words in sites] == [
        ("oslo", "primary"),
        ("rome", "secondary"),
        ("paris", "secondary"),
    ]
    # Nobody is behind.
    assert picture.count("[]") == 3
    assert "customers all   (1, '999', 'Bergen'), (2, '222', 'Turin')" in picture
    assert "All sites are equal" in picture
