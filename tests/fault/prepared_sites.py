"""Sites in a farm in memory that tests make once, and put back before each trial."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import wlc
import wlr
from tests.sites import Sites
from wlc.capture.duckdb.home import Home
from wlc.farm.store import memory
from wlc.multi_master.circle import read_circle
from wlc.multi_master.circle_place import site_database

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.farm.database import FarmDatabase

FARM = "memory://prepared-sites"
SCHEMA = """
    CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE e (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE u (k INTEGER PRIMARY KEY, v VARCHAR UNIQUE);
    INSERT INTO t VALUES (1, 'x'), (2, 'x'), (3, 'x');
    INSERT INTO e VALUES (1, 'x'), (2, 'x');
"""
RULES = {False: {"t": "epoch_trans", "e": "epoch", "u": "epoch"}, True: {"t": "newest", "e": "newest"}}


class PreparedSites(Sites):
    """Sites in a farm in memory."""

    @property
    def farm(self) -> str:
        return FARM

    def log(self, site: str) -> FarmDatabase:
        """Its present log: a site that began anew has another folder."""
        founder = super().log("oslo")
        return founder if site == "oslo" else site_database(founder, read_circle(founder).site(site).folder)

    def saved(self) -> Start:
        """Return what a trial begins with: the sites as they are now."""
        return Start(self.folder, {key: memory._objects[key] for key in _keys()}, tuple(self.names))


@dataclass(frozen=True)
class Start:
    """What every trial begins with."""

    folder: Path
    farm: dict[str, bytes]
    names: tuple[str, ...]

    def put_back(self) -> None:
        """Put the farm back."""
        empty_farm()
        memory._objects.update(self.farm)

    def restored(self, folder: Path) -> PreparedSites:
        """Put the farm back, and copies of the files into a folder."""
        shutil.copytree(self.folder, folder)
        self.put_back()
        return PreparedSites(folder, list(self.names))


def _keys() -> list[str]:
    return [key for key in memory._objects if key.startswith(FARM)]


def empty_farm() -> None:
    """Remove what an earlier test left there."""
    for key in _keys():
        del memory._objects[key]


def one_home() -> Any:
    """Let the copies of files stand for one place: a copy of a master would publish nothing."""
    return patch("wlc.capture.duckdb.shared.home_at", lambda _: Home("host", "boot", "/world", 1, 1))


def in_conflict(folder: Path, *, is_mesh: bool, also: str = "") -> Start:
    """Make Oslo and Rome, which has published changes that are in conflict with Oslo's, and one more without any."""
    with one_home():
        sites = PreparedSites(folder)
        sites.folder.mkdir()
        empty_farm()
        sites.found(SCHEMA, mesh=is_mesh)
        for name in ("rome", also) if also else ("rome",):
            sites.join(name)
        for table, rule in RULES[is_mesh].items():
            wlc.set_rule("sales", table, rule, farm=FARM)
        sites.exchange()
        sites.write("oslo", "UPDATE t SET v = 'oslo' WHERE k = 1", "DELETE FROM e WHERE k = 1")
        sites.write(
            "rome",
            "BEGIN; UPDATE t SET v = 'rome' WHERE k < 3; INSERT INTO e VALUES (3, 'rome'); COMMIT",
            "UPDATE t SET v = 'later' WHERE k = 3",
            "UPDATE e SET v = 'rome'",
        )
        wlc.flush(sites.file("rome"))
        sites.write("oslo", "INSERT INTO t VALUES (9, 'waits')")
        return sites.saved()


def logged(sites: Sites) -> dict[str, list[tuple[str, int]]]:
    """Return what each site's log holds, as sites and ticks; all of it is sound, and nothing is there twice."""
    histories = {each.history: site.name for site in read_circle(sites.log("oslo")).sites for each in site.histories}
    logs = {}
    for name in sites.names:
        found = [(histories.get(each.history, ""), each.tick) for each in sites.names_of(name)]
        # A site that was restored takes back what it had published.
        others = [each for each in found if each[0] != name]
        assert len(set(others)) == len(others), "a transaction is twice in a log"
        assert wlr.verify_farm(sites.log(name).url, full=True).problems == ()
        logs[name] = found
    return logs
