"""Sites in a farm in memory that tests make once, and put back before each trial."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
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


# What examples of a state machine begin with --------------------------------------------------------------------------

NAMES = ("oslo", "paris", "rome", "york")
COMMON = {"t": "epoch_trans", "e": "epoch"}
# Whose reads count, as long as it has the rule epoch_trans.
READ_TABLE = "t"
# What the tables hold when an example begins.
ROWS = {(READ_TABLE, 1): "x", (READ_TABLE, 2): "x"}
MODELLED = {**COMMON, "s": "epoch_trans", "n": "", "o": "owner"}
OWNER = 1
# Tables with constraints, which the model does not know, beside the common ones: in the end they are equal.
CONSTRAINED = {
    "u": "CREATE TABLE u (k INTEGER PRIMARY KEY, v VARCHAR UNIQUE)",
    "parents": "CREATE TABLE parents (k INTEGER PRIMARY KEY, v VARCHAR)",
    "children": "CREATE TABLE children (k INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents (k))",
}
CONSTRAINED_RULES = {"u": "epoch", "parents": "epoch_trans", "children": "epoch_trans"}


@dataclass(frozen=True)
class Beginning(Start):
    """Files and farm of three sites that an example begins with, or of two, and a replica of each.

    Attributes:
        rules: Rules of the tables that the model knows.
        constrained: Tables that it does not know.
    """

    rules: dict[str, str]
    constrained: tuple[str, ...]

    @property
    def is_constrained(self) -> bool:
        return bool(self.constrained)


made_folders: list[Path] = []


@cache
def started(number: int, *, is_constrained: bool) -> Beginning:
    """Make so many sites once, with tables of the one kind or the other."""
    rules = dict(COMMON if is_constrained else MODELLED)
    constrained = CONSTRAINED if is_constrained else {}
    made = PreparedSites(Path(tempfile.mkdtemp(prefix="dbfarm-", dir=quick_folder())))
    made_folders.append(made.folder)
    empty_farm()
    rows = [f"INSERT INTO {table} VALUES ({key}, '{held}')" for (table, key), held in ROWS.items()]
    made.found("; ".join([*(_table(table) for table in rules), *constrained.values(), *rows]))
    for name in NAMES[1:number]:
        made.join(name)
    for table, found in {**rules, **(CONSTRAINED_RULES if is_constrained else {})}.items():
        if found:
            wlc.set_rule(
                "sales",
                table,
                found,
                site=NAMES[OWNER] if found == "owner" else "",
                reads=reads_of(table, found),
                farm=made.farm,
            )
    for name in made.names:
        wlc.take(made.file(name))
    for name in made.names:
        wlr.replicate(made.log(name).url, into=replica_of(made.folder, name), register=False)
    return Beginning(made.folder, made.saved().farm, tuple(made.names), rules, tuple(constrained))


def _table(table: str) -> str:
    key = "VARCHAR COLLATE NOCASE" if table == "s" else "INTEGER"
    return f"CREATE TABLE {table} (k {key} PRIMARY KEY, v VARCHAR)"


def reads_of(table: str, found: str) -> str:
    return "shared" if (table, found) == (READ_TABLE, "epoch_trans") else "none"


def replica_of(folder: Path, site: str) -> Path:
    return folder / f"replica of {site}.duckdb"


def quick_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
