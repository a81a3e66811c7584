"""A replica of one site goes on from the log of another one, without a row copied, or is told why it cannot."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.sites import Sites
from wlc.farm.errors import InvalidError
from wlr.engine.adapters import target_at

if TYPE_CHECKING:
    from pathlib import Path

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
    planned = wlr.switch(into, two.log("oslo").url, dry_run=True)
    assert planned == wlr.Switched(2, two.log("rome").url, two.log("oslo").url, is_dry_run=True)
    assert target_at(into).read_state() == state
    assert switched(two, into, "oslo") == replace(planned, is_dry_run=False)
    assert wlr.replicate(into=into, register=False).transactions == 0
    assert switched(two, into, "rome").tick == rome.tick
    goes_on(two, into, "rome")


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
