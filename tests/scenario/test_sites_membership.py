"""Sites that join, leave, stop, or do not take part."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from wlc.farm.database import FarmDatabase
from wlc.farm.errors import FencedError, InvalidError
from wlc.multi_master.duckdb import rejected_rows
from wlc.multi_master.site_life import SiteLife

if TYPE_CHECKING:
    from pathlib import Path


from tests.sites import Sites, before_call, take_from


@pytest.mark.slow
def test_three_sites_in_a_star(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert run_app(app, "wlc", ["sites", "sales", "--farm", sites.farm, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [site["site"] for site in shown] == ["oslo", "rome"]


@pytest.mark.slow
@pytest.mark.parametrize("is_at_once", [False, True], ids=["by itself", "with what came after it"])
def test_a_site_that_lags_takes_what_one_that_left_has_written(tmp_path: Path, *, is_at_once: bool) -> None:
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
@pytest.mark.parametrize("number", [1, 4])
def test_a_site_leaves_while_the_others_write_and_take(tmp_path: Path, number: int) -> None:
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

    with before_call(number, lambda: write_and_take(10)) as calls:
        wlc.leave("sales", "rome", farm=sites.farm)
    assert len(calls) >= number
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
    with pytest.raises(InvalidError, match="was stopped: what was written since is in no log") as caught:
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
        assert run_app(app, "wlc", ["take", str(sites.file("oslo"))]) == 5
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
    assert "wlc leave" in str(caught.value.hint)
    with monkeypatch.context() as patch:
        # It was alone when it was stopped.
        patch.setattr(SiteLife, "refuse_end", lambda *_: None)
        wlc.stop(oslo)
    before = sites.rows("oslo", "wlc.state")
    for site, moved in ((None, False), ("oslo", False), (None, True)):
        with pytest.raises(InvalidError, match="was site oslo of sales and was stopped") as caught:
            wlc.master(oslo, site=site, moved=moved)
        assert "wlc leave" in str(caught.value.hint)
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
