"""Sites that join, leave, stop, begin anew, lack what was pruned, or sign with keys of their own.

Docs: docs/sites-operation.md. Elsewhere known as cleanallruv_test of 389 Directory Server.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.scratch import attached
from tests.sites import Sites, before_call, prune_unread, take_from, write_offline
from wlc.farm.config import STARTED
from wlc.farm.database import FarmDatabase
from wlc.farm.errors import CorruptError, ExpiredError, FencedError, InvalidError
from wlc.multi_master import take_round
from wlc.multi_master.circle import read_circle
from wlc.multi_master.circle_place import site_database
from wlc.multi_master.duckdb import rejected_rows
from wlc.multi_master.site_life import SiteLife

if TYPE_CHECKING:
    Options = dict[str, str]
    from pathlib import Path


SCHEMA = "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR)"


@pytest.mark.slow
def test_three_sites_in_a_star(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """389-ds acceptance_test (pause and resume), ndb_rpl C3 circular."""
    sites = Sites(tmp_path)
    sites.found()
    for site in ("rome", "paris"):
        sites.join(site)
        for number, name in enumerate(sites.names):
            sites.write(name, f"INSERT INTO a VALUES ({len(sites.names) * 100 + number}, '{name}', 1)")
    # Nobody may prune what a site has not read.
    wlc.snapshot(sites.file("oslo"))
    assert wlc.prune(sites.log("oslo").url, keep_for="0s").delete_batches == ()
    sites.exchange()
    sites.refuse_differences("a")
    for site in sites.names:
        assert len(set(sites.names_of(site))) == len(sites.names_of(site))
    found = {each.site: each for each in wlc.sites("sales", farm=sites.farm)}
    assert [each.role for each in found.values()] == ["primary", "secondary", "secondary"]
    assert [sorted(each.read_by) for each in found.values()] == [["paris", "rome"], ["oslo"], ["oslo"]]
    assert not any(each.behind for each in found.values())
    # A site that does not take part neither reads nor is read.
    wlc.set_role("sales", "paris", "none", farm=sites.farm)
    sites.write("paris", "INSERT INTO a VALUES (900, 'paris', 1)")
    sites.exchange()
    assert sites.rows("paris", "a")[-1][0] == 900
    assert 900 not in [row[0] for row in sites.rows("oslo", "a")]
    wlc.set_role("sales", "paris", "secondary", farm=sites.farm)
    with pytest.raises(InvalidError, match="site oslo has read site paris"):
        wlc.leave("sales", "paris", farm=sites.farm)
    sites.exchange()
    sites.refuse_differences("a")
    assert [site.name for site in wlc.leave("sales", "paris", farm=sites.farm).sites] == ["oslo", "rome"]
    with pytest.raises(FencedError):
        wlc.take(sites.file("paris"))
    # The history of a site that left is in no vector any more.
    sites.names.remove("paris")
    sites.write("oslo", "INSERT INTO a VALUES (901, 'oslo', 1)")
    sites.exchange()
    sites.refuse_differences("a")
    assert run_app(app, "wlc", ["site", "list", "sales", "--farm", sites.farm, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [site["site"] for site in shown] == ["oslo", "rome"]


@pytest.mark.slow
@pytest.mark.parametrize("is_at_once", [False, True], ids=["by itself", "with what came after it"])
def test_a_site_that_lags_takes_what_one_that_left_has_written(tmp_path: Path, *, is_at_once: bool) -> None:
    """389-ds cleanallruv_test, a consumer lags."""
    sites = Sites(tmp_path)
    sites.found()
    sites.join("rome")
    sites.join("paris")
    sites.exchange()
    sites.write("paris", "INSERT INTO a VALUES (3, 'three', 3)")
    wlc.flush(sites.file("paris"))
    assert sites.take("oslo") == 1
    wlc.leave(sites.file("oslo"), "paris")
    sites.names.remove("paris")
    if not is_at_once:
        assert sites.take("rome") == 1
    sites.write("oslo", "INSERT INTO a VALUES (4, 'four', 4)")
    # It has published nothing before that.
    assert take_from(sites, "oslo>rome") == [2 if is_at_once else 1]
    sites.write("rome", "INSERT INTO a VALUES (5, 'five', 5)")
    sites.exchange()
    assert len(sites.rows("rome", "a")) == 5
    sites.refuse_differences("a")


@pytest.mark.slow
def test_a_site_leaves_while_the_others_write_and_take(tmp_path: Path) -> None:
    """389-ds's cleanallruv_test under load; the others come between two calls of the command's."""
    sites = Sites(tmp_path)
    sites.found("CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR)")
    for site in ("rome", "paris"):
        sites.join(site)
    sites.write("rome", "INSERT INTO t VALUES (1, 'rome')")
    sites.exchange()
    gone = wlc.status(sites.file("rome")).history
    assert all(gone in site.vector for site in wlc.sites("sales", farm=sites.farm))

    def write_and_take(first: int) -> None:
        for key, site in enumerate(("paris", "oslo"), start=first):
            sites.write(site, f"INSERT INTO t VALUES ({key}, '{site}')", f"UPDATE t SET v = v || '+' WHERE k = {key}")
            sites.take(site)

    with before_call(4, lambda: write_and_take(10)) as calls:
        wlc.leave("sales", "rome", farm=sites.farm)
    assert len(calls) >= 4
    sites.names.remove("rome")
    write_and_take(20)
    sites.exchange()
    sites.refuse_differences("t")
    assert sites.rows("paris", "t") == [(1, "rome"), (10, "paris+"), (11, "oslo+"), (20, "paris+"), (21, "oslo+")]
    assert all(gone not in site.vector for site in wlc.sites("sales", farm=sites.farm))


@pytest.mark.slow
def test_a_join_that_was_broken_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = Sites(tmp_path)
    sites.found()
    primary = wlc.joined_from(sites.file("rome"), name="sales", farm=sites.farm)
    assert primary is not None
    wlr.replicate(primary.url, into=sites.file("rome"), register=False)
    for method in ("create_config", "change_config"):
        with monkeypatch.context() as patch:

            def broken(*_: object) -> None:
                raise wlc.UnavailableError("broken")

            patch.setattr(FarmDatabase, method, broken)
            with pytest.raises(wlc.UnavailableError, match="broken"):
                wlc.join(sites.file("rome"), name="sales", farm=sites.farm, site="rome")
        assert wlc.joined_from(sites.file("rome"), name="sales", farm=sites.farm) is None
    wlc.join(sites.file("rome"), name="sales", farm=sites.farm, site="rome")
    sites.names.append("rome")
    sites.write("rome", "INSERT INTO a VALUES (70, 'rome', 1)")
    sites.exchange()
    sites.refuse_differences("a")
    sites.replica_equals("rome")
    with pytest.raises(InvalidError):
        wlc.join(sites.file("rome"), name="sales", farm=sites.farm, site="rome")
    wlc.stop(sites.file("rome"))
    with pytest.raises(InvalidError, match="was stopped: later changes are in no log") as caught:
        wlc.join(sites.file("rome"), name="sales", farm=sites.farm, site="rome")
    assert str(caught.value.hint).partition(";")[0].endswith("--site rome --again")


def test_what_cannot_be_a_site_says_so(tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "alone.duckdb") as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    farm = str(tmp_path / "farm")
    wlc.master(tmp_path / "alone.duckdb", farm=farm, name="alone")
    with pytest.raises(InvalidError, match="is the only master of alone"):
        wlc.take(tmp_path / "alone.duckdb")
    with pytest.raises(InvalidError, match="has one master and no sites"):
        wlc.join(tmp_path / "x.duckdb", name="alone", farm=farm, site="rome")
    # A master that runs becomes a site, too.
    wlc.master(tmp_path / "alone.duckdb", site="oslo")
    assert wlc.take(tmp_path / "alone.duckdb") == []
    with pytest.raises(InvalidError, match="is site oslo already"):
        wlc.master(tmp_path / "alone.duckdb", site="york")
    with pytest.raises(InvalidError, match="oslo is the primary"):
        wlc.set_role("alone", "oslo", "secondary", farm=farm)
    with duckdb.connect(tmp_path / "other.duckdb") as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with pytest.raises(InvalidError, match="no replica of alone"):
        wlc.join(tmp_path / "other.duckdb", name="alone", farm=farm, site="rome")


@pytest.mark.slow
def test_a_log_that_cannot_be_taken_holds_up_no_other_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = Sites(tmp_path)
    sites.found()
    for number, name in enumerate(("paris", "rome", "york")):
        sites.join(name)
        wish = "u VALUES (9, 'other')" if name == "rome" else f"u VALUES ({number}, 'same')"
        sites.write(name, f"INSERT INTO {wish}")
        wlc.flush(sites.file(name))
    sites.write("oslo", "INSERT INTO u VALUES (5, 'same')")
    for expected in ("1", "0"):
        assert run_app(app, "wlc", ["site", "take", str(sites.file("oslo"))]) == 5
        out, err = capsys.readouterr()
        assert [line.split()[:2] for line in out.splitlines()[1:]] == [["rome", expected]]
        assert re.search("error: tick 1 of history .*, which site paris published, does not fit", err)
        assert re.search("also: tick 1 of history .*, which site york published, does not fit", err)
    assert sites.rows("oslo", "u") == [(5, "same"), (9, "other")]
    # It was published and registered, so that rome need not keep it.
    assert sites.take("paris") == 2


@pytest.mark.slow
def test_a_site_that_was_stopped_or_left_goes_on_as_its_hints_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """389-ds cleanallruv_test, force."""
    sites = Sites(tmp_path)
    sites.found("CREATE TABLE a (id INTEGER PRIMARY KEY)")
    sites.join("rome")
    oslo, rome = sites.file("oslo"), sites.file("rome")
    # A circle that the farm lost is written as a site remembers it.
    (tmp_path / "farm" / "sales" / "circle.json").unlink()
    with pytest.raises(InvalidError, match="no sites"):
        wlc.take(rome)
    wlc.master(rome, site="rome")
    sites.write("oslo", "INSERT INTO a VALUES (81)")
    assert sites.take("rome") == 1
    with pytest.raises(InvalidError, match="whose log is read by rome") as caught:
        wlc.stop(oslo)
    assert "wlc site leave" in str(caught.value.hint)
    with monkeypatch.context() as patch:
        # It was alone when it was stopped.
        patch.setattr(SiteLife, "refuse_end", lambda *_: None)
        wlc.stop(oslo)
    before = sites.rows("oslo", "wlc.state")
    for site, moved in ((None, False), ("oslo", False), (None, True)):
        with pytest.raises(InvalidError, match="was site oslo of sales and was stopped") as caught:
            wlc.master(oslo, site=site, moved=moved)
        assert "wlc site leave" in str(caught.value.hint)
    assert sites.rows("oslo", "wlc.state") == before
    wlc.leave("sales", "rome", farm=sites.farm, force=True)
    wlc.stop(rome)
    with duckdb.connect(rome) as plain:
        # What was rejected stays readable, whatever becomes of the site.
        rejected_rows.prepare(plain, "rome")
        plain.execute("INSERT INTO wlc.counters VALUES ('rome', '', 'evicted', 7)")
    with pytest.raises(InvalidError, match="which it has left") as caught:
        wlc.master(rome)
    assert "--name OTHER" in str(caught.value.hint)
    # It is a database of its own then, and none of Oslo's sites.
    assert wlc.master(rome, name="other").farm == f"{sites.farm}/other"
    assert [(counter.name, counter.value) for counter in wlc.conflicts(rome)] == [("evicted", 7)]
    with pytest.raises(InvalidError, match="was site oslo"):
        wlc.master(oslo, site="york")
    again = wlc.master(oslo)
    assert [(site.site, site.history) for site in wlc.sites("sales", farm=sites.farm)] == [("oslo", again.history)]
    with pytest.raises(InvalidError, match="has a site Oslo already") as caught:
        wlc.joined_from(sites.file("new"), name="sales", site="Oslo", farm=sites.farm)
    assert "--site" in str(caught.value.hint)


# Sites that begin anew, or with the rows of another site, and what is left of those that are gone ----------------------


@pytest.fixture
def three(tmp_path: Path) -> Sites:
    sites = Sites(tmp_path)
    sites.found(f"{SCHEMA}; CREATE TABLE o (k INTEGER PRIMARY KEY)")
    wlc.set_rule("sales", "t", "epoch", farm=sites.farm)
    sites.join("rome")
    sites.join("paris")
    sites.write("rome", "INSERT INTO t VALUES (100, 'rome')", "UPDATE t SET v = 'again' WHERE k = 100")
    sites.exchange()
    return sites


def newest_vector(sites: Sites, site: str) -> dict[str, int]:
    circle = read_circle(sites.log("oslo"))
    log = site_database(sites.log("oslo"), circle.site(site).folder)
    return dict(log.read_batch(log.batch_numbers()[-1])[0].vector)


@pytest.mark.slow
def test_a_history_whose_site_left_leaves_all_vectors(three: Sites) -> None:
    """389-ds's cleanallruv, without a task: and what the site publishes later nobody takes."""
    gone = wlc.status(three.file("rome")).history
    assert all(gone in newest_vector(three, name) for name in three.names)
    kept = three.file("rome").read_bytes()
    wlc.leave("sales", "rome", farm=three.farm)
    three.names.remove("rome")
    # A program of the site was halted before it published, and goes on.
    three.log("rome").change_config(lambda config: replace(config, state=STARTED))
    with pytest.raises(FencedError, match="has left sales"):
        three.write("rome", "INSERT INTO t VALUES (101, 'late')")
    for name in three.names:
        three.write(name, f"INSERT INTO t VALUES ({len(name)}, '{name}')")
    three.exchange()
    for name in three.names:
        assert gone not in newest_vector(three, name), name
        assert not [key for key in three.rows(name, "t") if key[0] == 101]
    assert all(gone not in site.vector for site in wlc.sites("sales", farm=three.farm))
    # A change of a row that rome wrote is no conflict: everybody has seen it.
    three.write("paris", "UPDATE t SET v = 'paris' WHERE k = 100")
    three.exchange()
    assert (100, "paris") in three.rows("oslo", "t")
    assert wlc.exceptions(three.file("oslo")) == []
    # The name is free, with a folder of its own; the file of the former site is none of it.
    three.file("rome").unlink()
    three.join("rome")
    assert read_circle(three.log("oslo")).site("rome").folder == "sites/rome-2"
    three.write("rome", "INSERT INTO t VALUES (102, 'rome')", "UPDATE t SET v = 'rome' WHERE k = 100")
    three.exchange()
    three.refuse_differences("t")
    assert (102, "rome") in three.rows("paris", "t")
    assert gone not in newest_vector(three, "rome")
    (three.folder / "former.duckdb").write_bytes(kept)
    with pytest.raises(FencedError):
        wlc.take(three.folder / "former.duckdb")


@pytest.mark.slow
def test_a_site_that_was_silent_for_too_long_begins_anew(three: Sites, capsys: pytest.CaptureFixture[str]) -> None:
    """As the hint says; what only it had is named before, and stays in its former file and its former log."""
    three.write("rome", "INSERT INTO t VALUES (101, 'published')")
    wlc.flush(three.file("rome"))
    prune_unread(three)
    wlc.set_rule("sales", "o", "owner", site="rome", farm=three.farm)
    with pytest.raises(ExpiredError, match="was pruned") as caught:
        three.take("rome")
    write_offline(three, "rome", "INSERT INTO t VALUES (103, 'in the file only')")
    command = str(caught.value.hint)
    assert command.startswith("wlc site join ")
    arguments = shlex.split(command)[1:]
    assert run_app(app, "wlc", arguments) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "Its published transactions: 1 in its log" in shown
    assert "(rows: 1 of main.t). Its unpublished transactions: 1 in its file" in shown
    assert three.rows("rome", "t")
    agreed = shlex.split(shown.split("or agree: ")[1].split(" --yes")[0] + " --yes")[1:]
    assert run_app(app, "wlc", agreed) == 0
    assert "rome.duckdb.1 now" in capsys.readouterr().err
    with attached(three.folder / "rome.duckdb.1") as former:
        assert former.execute("SELECT v FROM t WHERE k = 103").fetchall() == [("in the file only",)]
    assert three.log("rome").read_batch(three.log("rome").batch_numbers()[-1])
    # What it owned is its own still.
    three.write("rome", "INSERT INTO o VALUES (1)", "INSERT INTO t VALUES (102, 'anew')")
    three.exchange()
    three.refuse_differences("t", "o")
    assert [row[0] for row in three.rows("oslo", "t") if row[0] in (101, 102, 103)] == [102]
    # Nothing is asked of a site that loses nothing.
    assert run_app(app, "wlc", arguments) == 0
    three.exchange()
    three.refuse_differences("t", "o")
    assert read_circle(three.log("oslo")).site("rome").folder == "sites/rome-3"


@pytest.mark.slow
def test_what_cannot_begin_anew_says_so(three: Sites) -> None:
    with pytest.raises(InvalidError, match="oslo is the primary"):
        wlc.begin_anew(three.file("oslo"), name="sales", site="oslo", farm=three.farm)
    with pytest.raises(InvalidError, match="is a master of paris, and not site rome"):
        wlc.begin_anew(three.file("paris"), name="sales", site="rome", farm=three.farm)
    # A site whose file and folder are lost.
    three.file("rome").unlink()
    shutil.rmtree(three.folder / "farm" / "sales" / "sites" / "rome")
    found = wlc.begin_anew(three.file("rome"), name="sales", site="rome", farm=three.farm, dry_run=True)
    assert found is not None
    assert (found.is_nothing, found.kept_as) == (True, None)
    three.join("rome", again=True)
    three.write("rome", "INSERT INTO t VALUES (102, 'anew')")
    three.exchange()
    three.refuse_differences("t")


@pytest.mark.slow
def test_a_site_that_becomes_the_primary_meanwhile_does_not_begin_anew(three: Sites) -> None:
    """All others go by its log, which nobody could continue."""
    wlc.begin_anew(three.file("rome"), name="sales", farm=three.farm, site="rome")
    wlc.set_role("sales", "rome", "primary", lost="oslo", farm=three.farm)
    wlr.replicate(three.log("rome").url, into=three.file("rome"), register=False)
    with pytest.raises(InvalidError, match="it cannot begin anew") as caught:
        wlc.join(three.file("rome"), name="sales", farm=three.farm, site="rome", again=True)
    assert "sales oslo primary --lost rome" in (caught.value.hint or "")
    wlc.set_role("sales", "oslo", "primary", lost="rome", farm=three.farm)
    three.join("rome", again=True)
    three.write("rome", "INSERT INTO t VALUES (102, 'anew')")
    three.exchange()
    three.refuse_differences("t")


@pytest.mark.slow
def test_a_site_begins_with_the_rows_of_another_one(three: Sites) -> None:
    """As far as the primary has them: what it may still reject is not copied."""
    three.write("rome", "INSERT INTO t VALUES (101, 'rome')")
    three.exchange()
    three.write("rome", "INSERT INTO t VALUES (1, 'rome')")
    wlc.flush(three.file("rome"))
    three.write("oslo", "INSERT INTO t VALUES (1, 'oslo')")
    three.join("york", start="rome")
    assert [row[0] for row in three.rows("york", "t")] == [100, 101]
    three.write("york", "UPDATE t SET v = 'york' WHERE k = 101")
    three.exchange()
    three.refuse_differences("t")
    assert (101, "york") in three.rows("paris", "t")
    assert (1, "oslo") in three.rows("york", "t")
    three.replica_equals("york", "t")
    with pytest.raises(InvalidError, match="has no site 'bern'"):
        three.join("turin", start="bern")


# A site that lacks what was pruned learns who still has it: another site, or the snapshot to begin anew with -------------


def pruned(folder: Path, *, mesh: bool) -> Sites:
    """Oslo prunes what rome, which was silent for too long, has not read; paris has taken it."""
    sites = Sites(folder)
    sites.found(SCHEMA, mesh=mesh)
    wlc.set_rule("sales", "t", "newest" if mesh else "epoch", farm=sites.farm)
    sites.join("rome")
    sites.join("paris")
    prune_unread(sites)
    return sites


@pytest.mark.slow
def test_in_a_star_it_is_a_snapshot_of_the_primary(tmp_path: Path) -> None:
    sites = pruned(tmp_path, mesh=False)
    tick = sites.log("oslo").snapshot_ticks()[-1]
    told = f"; the newest snapshot of site oslo is of tick {tick}, [0-9.]+s old(\\n|$)"
    with pytest.raises(ExpiredError, match="its log begins with batch 2" + told) as caught:
        sites.take("rome")
    hint = f"wlc site join {sites.file('rome')} --name {sites.log('oslo').url} --site rome --again"
    assert caught.value.hint == hint
    # The primary says so of what it cannot judge, too.
    sites.write("rome", "INSERT INTO t VALUES (9, 'rome')")
    with pytest.raises(ExpiredError, match="which changes are concurrent cannot be said.*" + told):
        sites.take("oslo")
    assert run_app(app, "wlc", [*shlex.split(hint)[1:], "--yes"]) == 0
    assert sites.rows("rome", "t") == sites.rows("oslo", "t") == [(0, "oslo"), (1, "oslo")]


@pytest.mark.slow
def test_in_a_mesh_it_is_another_site_that_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = pruned(tmp_path, mesh=True)
    assert run_app(app, "wlc", ["site", "take", str(sites.file("rome")), "--from", "oslo"]) == 7
    shown = " ".join(capsys.readouterr().err.split())
    assert "; site paris has it" in shown
    command = shown.partition("hint: ")[2]
    assert command == f"wlc site take {sites.file('rome')} --from paris"
    assert run_app(app, "wlc", shlex.split(command)[1:]) == 0
    assert sites.rows("rome", "t") == [(0, "oslo"), (1, "oslo")]
    assert run_app(app, "wlc", ["site", "take", str(sites.file("rome"))]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_in_a_mesh_a_log_that_was_read_before_is_read_on_behind_what_came_through_another_site(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(SCHEMA, mesh=True)
    wlc.set_rule("sales", "t", "newest", farm=sites.farm)
    sites.join("rome")
    sites.join("paris")
    sites.write("oslo", "INSERT INTO t VALUES (9, 'oslo')")
    sites.exchange()
    prune_unread(sites, 4)
    with pytest.raises(ExpiredError, match="; site paris has it"):
        wlc.take(sites.file("rome"), site="oslo")
    assert sites.take("rome") == 4
    sites.write("oslo", "INSERT INTO t VALUES (5, 'oslo')")
    wlc.flush(sites.file("oslo"))
    assert sum(each.transactions for each in wlc.take(sites.file("rome"), site="oslo")) == 1
    assert sites.rows("rome", "t") == sites.rows("oslo", "t")


@pytest.mark.slow
def test_nothing_is_named_that_does_not_help(tmp_path: Path) -> None:
    """Paris has no log that rome could read, and then the farm cannot be read at all."""
    sites = pruned(tmp_path, mesh=True)
    paris = sites.log("paris")
    for number in paris.batch_numbers():
        paris.delete_batch(number)
    with pytest.raises(ExpiredError, match="; the newest snapshot of site oslo is of tick"):
        wlc.take(sites.file("rome"), site="oslo")
    for tick in sites.log("oslo").snapshot_ticks():
        sites.log("oslo").delete_snapshot(tick)
    with pytest.raises(ExpiredError, match=r"its log begins with batch 2(\n|$)") as without:
        wlc.take(sites.file("rome"), site="oslo")
    assert str(without.value.hint).endswith(" --site rome --again")
    with (
        patch.object(take_round, "snapshot_that_covers", side_effect=wlc.UnavailableError("away")),
        pytest.raises(ExpiredError, match=r"its log begins with batch 2(\n|$)"),
    ):
        wlc.take(sites.file("rome"), site="oslo")


# Keys: sites that sign with keys of their own, encrypt with a common one, and verify each other --------------------------


def keys(sites: Sites, site: str) -> Options:
    folder = sites.folder
    return {
        "encryption_key_file": str(folder / "farm.key"),
        "signing_key_file": str(folder / f"{site}.key"),
        "verify_key_file": str(folder / "sites.pub"),
    }


@pytest.fixture
def signed(tmp_path: Path) -> Sites:
    """What docs/sites.md shows."""
    sites = Sites(tmp_path)
    for kind, name in (("encryption", "farm"), ("signing", "oslo"), ("signing", "rome")):
        assert run_app(app, "wlc", ["farm", "key", kind, str(tmp_path / f"{name}.key")]) == 0
    public = "".join((tmp_path / f"{site}.key.pub").read_text() for site in ("oslo", "rome"))
    (tmp_path / "sites.pub").write_text(public)
    with duckdb.connect(sites.file("oslo")) as connection:
        connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t VALUES (1, 'both')")
    wlc.master(sites.file("oslo"), farm=sites.farm, name="sales", site="oslo", storage_options=keys(sites, "oslo"))
    found = wlc.joined_from(
        sites.file("rome"), name="sales", farm=sites.farm, site="rome", storage_options=keys(sites, "rome")
    )
    assert found is not None
    wlr.replicate(found.url, into=sites.file("rome"), register=False, storage_options=keys(sites, "rome"))
    wlc.join(sites.file("rome"), name="sales", farm=sites.farm, site="rome", storage_options=keys(sites, "rome"))
    sites.names += ["oslo", "rome"]
    return sites


@pytest.mark.slow
def test_a_lost_primary_believes_the_signed_handover_of_its_successor(signed: Sites) -> None:
    signed.write("oslo", "INSERT INTO t VALUES (2, 'oslo')")
    signed.write("rome", "INSERT INTO t VALUES (3, 'rome')")
    signed.exchange()
    wlc.set_role("sales", "rome", "primary", lost="oslo", farm=signed.farm, storage_options=keys(signed, "rome"))
    signed.take("rome")
    # Oslo comes back.
    signed.write("oslo", "INSERT INTO t VALUES (4, 'oslo')")
    signed.exchange()
    signed.refuse_differences("t")
    assert len(signed.rows("rome", "t")) == 4
    # Whoever verifies with other keys believes nothing of it.
    with pytest.raises(CorruptError, match="it must be signed with"):
        wlc.take(signed.file("rome"), storage_options={"verify_key_file": str(signed.folder / "rome.key.pub")})


@pytest.mark.slow
def test_nobody_changes_signed_sites_without_a_key(signed: Sites) -> None:
    """It would be refused by all of them, and a handover stays for ever."""
    unsigned = {name: file for name, file in keys(signed, "rome").items() if name != "signing_key_file"}
    before = signed.folder.joinpath("farm", "sales", "circle.json").read_bytes()
    batches = signed.log("oslo").batch_numbers()
    for change in (
        lambda: wlc.set_rule("sales", "t", "epoch", farm=signed.farm, storage_options=unsigned),
        lambda: wlc.set_role("sales", "rome", "none", farm=signed.farm, storage_options=unsigned),
        lambda: wlc.set_role("sales", "rome", "primary", lost="oslo", farm=signed.farm, storage_options=unsigned),
        lambda: wlc.leave("sales", "rome", farm=signed.farm, force=True, storage_options=unsigned),
        lambda: wlc.joined_from(
            signed.file("york"), name="sales", farm=signed.farm, site="york", storage_options=unsigned
        ),
    ):
        with pytest.raises(InvalidError, match="circle.json is signed, and no signing key is given") as caught:
            change()
        assert "signing_key_file=FILE" in str(caught.value.hint)
    assert signed.folder.joinpath("farm", "sales", "circle.json").read_bytes() == before
    assert signed.log("oslo").batch_numbers() == batches
    # As the hint says: a site's file knows its key.
    wlc.set_rule(signed.file("oslo"), "t", "epoch")
    signed.write("rome", "INSERT INTO t VALUES (5, 'rome')")
    signed.exchange()
    signed.refuse_differences("t")
