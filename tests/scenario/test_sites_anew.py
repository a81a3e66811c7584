"""Sites that begin anew, or with the rows of another site, and what is left of those that are gone.

Docs: docs/sites-operation.md.
"""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.scratch import attached
from tests.sites import Sites, prune_unread, write_offline
from wlc.farm.config import STARTED
from wlc.farm.errors import ExpiredError, FencedError, InvalidError
from wlc.multi_master.circle import read_circle
from wlc.multi_master.circle_place import site_database

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SCHEMA = "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR); CREATE TABLE o (k INTEGER PRIMARY KEY)"


@pytest.fixture
def three(tmp_path: Path) -> Sites:
    sites = Sites(tmp_path)
    sites.found(SCHEMA)
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
    assert command.startswith("wlc join ")
    arguments = shlex.split(command)[1:]
    assert run_app(app, "wlc", arguments) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "Transactions of its own: 1 in its log" in shown
    assert "(rows: 1 of main.t). Transactions that are published nowhere: 1 in its file" in shown
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
