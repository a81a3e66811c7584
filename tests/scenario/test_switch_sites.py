"""A replica of one site goes on from the log of another one, without a row copied, or is told why it cannot.

Docs: docs/sites-operation.md.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import wlc
import wlr
from tests.scratch import attached
from tests.sites import Sites
from wlc.farm.errors import CorruptError, InvalidError
from wlr.engine.adapters import target_at

pytestmark = pytest.mark.slow

SCHEMA = "CREATE TABLE a (id INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO a VALUES (1, 'one'), (2, 'two')"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    """Oslo and rome; rome has taken what oslo wrote."""
    sites = Sites(tmp_path_factory.mktemp("switch"))
    sites.found(SCHEMA)
    sites.join("rome")
    sites.write("oslo", "INSERT INTO a VALUES (3, 'three')", "CREATE VIEW w AS FROM a")
    sites.take("rome")
    return sites


def replica(sites: Sites, site: str, name: str, **more: object) -> Path:
    into = sites.folder / name
    wlr.replicate(sites.log(site).url, into=into, register=False, **more)  # type: ignore[arg-type]
    return into


def switched(sites: Sites, into: Path, site: str) -> wlr.Switched:
    return wlr.switch(into, sites.log(site).url, register=False)


def goes_on(sites: Sites, into: Path, site: str) -> None:
    """The replica reads that site's log from its next tick on, and equals a new replica of it."""
    wlr.replicate(into=into, register=False)
    assert all(check.outcome == "same" for check in wlr.verify(into).tables)
    assert wlr.status(into).tick == sites.log(site).config().tick


@pytest.mark.parametrize("name", ["copy.duckdb", "lake"])
def test_there_and_back(two: Sites, name: str) -> None:
    into = replica(two, "rome", name)
    state = target_at(into).read_state()
    oslo, rome = two.log("oslo").config(), two.log("rome").config()
    assert state.contained.vector == {oslo.history: 2, rome.history: rome.tick}
    assert [proof.site for proof in state.contained.proofs] == ["oslo"]
    assert state.contained.own == 0
    assert wlr.status(into).proofs == state.contained.proofs
    planned = wlr.switch(into, two.log("oslo").url, dry_run=True)
    assert planned == wlr.Switched(2, two.log("rome").url, two.log("oslo").url, is_dry_run=True)
    assert target_at(into).read_state() == state
    assert switched(two, into, "oslo") == replace(planned, is_dry_run=False)
    assert wlr.replicate(into=into, register=False).transactions == 0
    assert switched(two, into, "rome").tick == rome.tick
    goes_on(two, into, "rome")


@pytest.mark.slow
def test_an_edit_between_is_refused_until_it_was_taken(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(SCHEMA)
    sites.join("rome")
    sites.write("oslo", "INSERT INTO a VALUES (3, 'three')")
    sites.take("rome")
    sites.write("rome", "INSERT INTO a VALUES (9, 'edit')")
    into = replica(sites, "rome", "copy.duckdb")
    with pytest.raises(InvalidError, match="oslo has not taken them"):
        switched(sites, into, "oslo")
    sites.take("oslo")
    wlc.flush(sites.file("oslo"))
    assert switched(sites, into, "oslo").now == sites.log("oslo").url
    sites.write("oslo", "UPDATE a SET v = 'later'")
    goes_on(sites, into, "oslo")
    # The primary dies: the replica goes on from the secondary.
    sites.take("rome")
    shutil.move(sites.file("oslo"), sites.folder / "gone")
    assert switched(sites, into, "rome").now == sites.log("rome").url
    sites.write("rome", "DELETE FROM a WHERE id = 1")
    goes_on(sites, into, "rome")


def restored(sites: Sites, site: str, *statements: str) -> None:
    """Bring file and folder of a site back to where they were saved, and let it write something."""
    for kept in (sites.file(site), Path(sites.log(site).url)):
        saved = kept.with_name(f"saved {kept.name}")
        if kept.is_dir():
            shutil.rmtree(kept)
            shutil.copytree(saved, kept)
        else:
            shutil.copy(saved, kept)
    sites.write(site, *statements)


def save(sites: Sites, site: str) -> None:
    for kept in (sites.file(site), Path(sites.log(site).url)):
        saved = kept.with_name(f"saved {kept.name}")
        shutil.copytree(kept, saved) if kept.is_dir() else shutil.copy(kept, saved)


@pytest.mark.slow
@pytest.mark.parametrize("statement", ["INSERT INTO a VALUES (4, 'four')", "INSERT INTO a VALUES (40, 'other')"])
def test_a_restored_site_is_refused_with_the_last_common_tick(tmp_path: Path, statement: str) -> None:
    """Also if the same is written again: the log files have other hashes."""
    sites = Sites(tmp_path)
    sites.found(SCHEMA)
    sites.join("rome")
    sites.write("oslo", "INSERT INTO a VALUES (3, 'three')")
    sites.take("rome")
    wlc.flush(sites.file("rome"))
    circle = (Path(sites.log("oslo").url) / "circle.json").read_bytes()
    rome = Path(sites.log("rome").url)
    shutil.copytree(rome, tmp_path / "rome now")
    sites.names.remove("rome")
    save(sites, "oslo")
    sites.write("oslo", "INSERT INTO a VALUES (4, 'four')")
    direct = replica(sites, "oslo", "direct.duckdb")
    sites.take("rome")
    wlc.flush(sites.file("rome"))
    through = replica(sites, "rome", "through.duckdb")
    shutil.copytree(rome, tmp_path / "rome later")
    restored(sites, "oslo", statement)
    shutil.rmtree(rome, ignore_errors=True)
    shutil.copytree(tmp_path / "rome later", rome)
    assert (Path(sites.log("oslo").url) / "circle.json").read_bytes() == circle
    with pytest.raises(InvalidError, match=r"restored.*the last tick that both hold is 1") as caught:
        switched(sites, through, "oslo")
    assert str(caught.value.hint).endswith("--rebase")
    with pytest.raises(CorruptError, match="is not the one that its reader has read"):
        wlr.replicate(into=direct, register=False)
    with pytest.raises(InvalidError, match="restored"):
        wlr.replicate(sites.log("oslo").url, into=through, register=False)
    planned = wlr.replicate(sites.log("oslo").url, into=through, register=False, rebase=True, dry_run=True)
    assert "restored" in planned.anew
    for into in (direct, through):
        done = wlr.replicate(sites.log("oslo").url, into=into, register=False, rebase=True)
        assert done.anew
        goes_on(sites, into, "oslo")
        assert sites.rows("oslo", "a") == rows_in(into)


def rows_in(into: Path) -> list[tuple[object, ...]]:
    with attached(into) as connection:
        return connection.execute("FROM a ORDER BY ALL").fetchall()


@pytest.mark.slow
def test_a_bad_past_is_undone_where_a_relay_keeps_it(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(SCHEMA)
    sites.write("oslo", "INSERT INTO a VALUES (3, 'three')")
    save(sites, "oslo")
    sites.write("oslo", "UPDATE a SET v = 'bad'", "INSERT INTO a VALUES (5, 'five')")
    wlc.flush(sites.file("oslo"))
    wlc.ship(sites.log("oslo").url, to=str(tmp_path / "relay"))
    places = [str(tmp_path / "copy.duckdb"), str(tmp_path / "lake")]
    for into in places:
        wlr.replicate(str(tmp_path / "relay" / "sales"), into=into, register=False)
    restored(sites, "oslo", "INSERT INTO a VALUES (6, 'six')")
    for into in places:
        with pytest.raises(CorruptError, match="its reader is at tick 3"):
            wlr.replicate(sites.log("oslo").url, into=into, register=False)
        planned = wlr.replicate(sites.log("oslo").url, into=into, register=False, rebase=True, dry_run=True)
        assert (planned.tick, planned.transactions, planned.is_back, planned.anew) == (1, 2, True, "")
        done = wlr.replicate(sites.log("oslo").url, into=into, register=False, rebase=True)
        assert (done.tick, done.anew, done.transactions) == (2, "", 1)
        assert all(check.outcome == "same" for check in wlr.verify(into).tables)
        assert wlr.status(into).master == sites.log("oslo").url
    assert sites.rows("oslo", "a") == rows_in(Path(places[0]))
