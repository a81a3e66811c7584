"""A database with several masters in one folder, as tests use it."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb
import pytest

import wlc
import wlr
from tests.scratch import attached
from wlc.capture.duckdb.shared import close_shared, open_shared
from wlc.farm.clock import utc_now
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.model import Origin
from wlc.farm.store.local import LocalStore
from wlc.masters import background
from wlc.multi_master.duckdb.conflict_window import WINDOW, KeptWindow, WantedWindow
from wlc.multi_master.site_life import SiteLife

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

SCHEMA = """
    CREATE TABLE a (id INTEGER PRIMARY KEY, v VARCHAR, x DOUBLE);
    CREATE TABLE parents (id INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE children (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents (id));
    CREATE TABLE bag (v VARCHAR);
    CREATE TABLE u (id INTEGER PRIMARY KEY, name VARCHAR UNIQUE);
    INSERT INTO a VALUES (1, 'one', 0.5), (2, 'two', '-0.0'::DOUBLE);
    INSERT INTO bag VALUES ('x'), ('x'), ('y');
"""


@dataclass
class Sites:
    """A database `sales` with the sites oslo, the primary, and others, in one folder."""

    folder: Path
    names: list[str] = field(default_factory=list)

    @property
    def farm(self) -> str:
        return str(self.folder / "farm")

    def file(self, site: str) -> Path:
        return self.folder / f"{site}.duckdb"

    def log(self, site: str) -> FarmDatabase:
        return open_database(f"{self.farm}/sales" if site == "oslo" else f"{self.farm}/sales/sites/{site}")

    def found(self, schema: str = SCHEMA, *, mesh: bool = False) -> None:
        with duckdb.connect(self.file("oslo")) as connection:
            connection.execute(schema)
        wlc.master(self.file("oslo"), farm=self.farm, name="sales", site="oslo", mesh=mesh)
        self.names.append("oslo")

    def join(self, site: str, *, start: str | None = None, again: bool = False) -> None:
        """Make another site, as `wlc site join` does."""
        file = self.file(site)
        if again:
            wlc.begin_anew(file, name="sales", farm=self.farm, site=site)
        found = wlc.joined_from(file, name="sales", farm=self.farm, site=site, start=start, again=again)
        if found is not None:
            wlr.replicate(found.url, into=file, tick=found.tick, register=False)
        wlc.join(file, name="sales", farm=self.farm, site=site, again=again)
        if site not in self.names:
            self.names.append(site)

    def write(self, site: str, *statements: str) -> None:
        with wlc.connect(self.file(site)) as connection:
            for statement in statements:
                connection.execute(statement)

    def take(self, site: str) -> int:
        return sum(each.transactions for each in wlc.take(self.file(site)))

    def exchange(self) -> None:
        """Let every site take in turn, until each of them has found nothing since another one found anything."""
        silent = 0
        with self.kept_open():
            for site in self.names * 5:
                silent = 0 if self.take(site) else silent + 1
                if silent == len(self.names):
                    return
        raise AssertionError("they never fall silent")

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Let each command find the files open: to open one takes as long as many commands."""
        with ExitStack() as stack:
            for name in self.names:
                stack.callback(close_shared, open_shared(str(self.file(name))))
            yield

    def rows(self, site: str, table: str) -> list[tuple[Any, ...]]:
        return _rows_of(self.file(site), [table])[table]

    def refuse_differences(self, *tables: str) -> None:
        found = {site: _rows_of(self.file(site), tables) for site in self.names}
        for table in tables:
            # As text, where NaN is itself and -0.0 is not 0.0.
            held = {site: repr(sorted(rows[table], key=repr)) for site, rows in found.items()}
            assert len(set(held.values())) == 1, held

    def names_of(self, site: str) -> list[Origin]:
        """Where the transactions of a site's log were first committed, in its order."""
        log = self.log(site)
        batches = [log.read_batch(number)[0] for number in log.batch_numbers()]
        return [
            Origin(t.origin.history, t.origin.tick) if t.origin else Origin(batch.history, t.tick)
            for batch in batches
            for t in batch.transactions
        ]

    def replica_equals(self, site: str, *tables: str) -> None:
        """A plain replica of a site's folder knows nothing of sites, and holds what the site holds."""
        into = self.folder / f"replica of {site}.duckdb"
        wlr.replicate(self.log(site).url, into=into, register=False)
        compared = tables or ("a", "parents", "children", "bag")
        assert repr(_rows_of(into, compared)) == repr(_rows_of(self.file(site), compared))
        assert all(check.outcome == "same" for check in wlr.verify(into).tables)
        # In full: an earlier run of the tests may have verified a farm in a folder of the same name.
        assert wlr.verify_farm(self.log(site).url, full=True).problems == ()


def _rows_of(file: Path, tables: Iterable[str]) -> dict[str, list[tuple[Any, ...]]]:
    with attached(file) as connection:
        return {table: connection.execute(f"FROM {table} ORDER BY ALL").fetchall() for table in tables}


@dataclass
class Backup:
    """A copy of a site's file, and of its folder in the farm if `with_folder`."""

    sites: Sites
    site: str
    data: bytes
    folder: Path | None

    def restore(self, *, with_folder: bool = False) -> None:
        # The same file, as `cp backup file` leaves it.
        self.sites.file(self.site).write_bytes(self.data)
        if with_folder:
            place = self.place(self.sites, self.site)
            shutil.rmtree(place)
            if self.folder is not None:
                shutil.copytree(self.folder, place)

    @staticmethod
    def place(sites: Sites, site: str) -> Path:
        return sites.folder / "farm" / "sales" / "sites" / site

    @staticmethod
    def of(sites: Sites, site: str, *, with_folder: bool = False) -> Backup:
        folder = None
        if with_folder:
            folder = sites.folder / f"folder of {site}"
            shutil.copytree(Backup.place(sites, site), folder)
        return Backup(sites, site, sites.file(site).read_bytes(), folder)


@contextmanager
def offline() -> Iterator[None]:
    """Let no program reach the farm: nobody can tell yet whether a site was restored, and nothing is published."""

    def refuse(*_: object) -> None:
        raise wlc.UnavailableError("offline")

    with patch.object(background, "publish", refuse), patch.object(SiteLife, "reconcile_log", refuse):
        yield


def write_offline(sites: Sites, site: str, *statements: str) -> None:
    """Let users commit while the farm cannot be reached."""
    with offline(), pytest.raises(wlc.UnavailableError, match="offline"):
        sites.write(site, *statements)


def prune_unread(sites: Sites, files: int = 2) -> None:
    """Let oslo publish so many log files, paris take them, and oslo prune all that it can, whoever lacks it."""
    for number in range(files):
        sites.write("oslo", f"INSERT INTO t VALUES ({number}, 'oslo')")
        wlc.flush(sites.file("oslo"))
    sites.take("paris")
    wlc.snapshot(sites.file("oslo"))
    wlc.prune(sites.log("oslo").url, deadline=timedelta(0), keep_for="0s")


def take_from(sites: Sites, *ways: str) -> list[int]:
    """Let sites take along ways as in `oslo>rome`, each of which publishes first; returns how many transactions."""
    taken = []
    for way in ways:
        source, site = way.split(">")
        wlc.flush(sites.file(source))
        taken.append(sum(each.transactions for each in wlc.take(sites.file(site), site=source)))
    return taken


def play(sites: Sites, steps: Iterable[str]) -> None:
    """Do steps in their order: with `rome: STATEMENT` a site commits, and with `oslo>rome` rome takes what oslo publishes.

    What a site commits without anything in between is one log file.
    """
    for site, group in groupby((step.partition(": ") for step in steps), key=lambda parts: parts[0]):
        statements = [statement for _, _, statement in group]
        if ">" in site:
            take_from(sites, site)
        else:
            sites.write(site, *statements)


def refuse_repetitions(sites: Sites) -> None:
    """Each transaction is in each log once, whatever way it came."""
    for name in sites.names:
        assert set(Counter((each.history, each.tick) for each in sites.names_of(name)).values()) <= {1}


def counters(sites: Sites) -> dict[str, int]:
    """Return what the primary has counted of rome's changes."""
    return {counter.name: counter.value for counter in wlc.conflicts(sites.file("oslo")) if counter.site == "rome"}


@contextmanager
def counted(sites: Sites, **expected: int) -> Iterator[None]:
    """Require that the counters rise by exactly this."""
    before = counters(sites)
    yield
    after = {name: value for name, value in counters(sites).items() if not name.endswith("_tick")}
    assert {
        name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)
    } == expected


@contextmanager
def clock_ahead(by: timedelta) -> Iterator[None]:
    """Let the clock of the machine be ahead of that of others, or behind, for what masters do meanwhile."""
    with ExitStack() as patches:
        for module in ("capture.duckdb.shared", "capture.duckdb.setup", "masters.claim", "multi_master.take_round"):
            patches.enter_context(patch(f"wlc.{module}.utc_now", lambda: utc_now() + by))
        yield


@contextmanager
def windows_compared() -> Iterator[list[int]]:
    """Compare the window of each step that is judged with one that is derived for this step alone.

    Yields:
        How many lines count in each of them.
    """
    cover, sizes = KeptWindow.cover, []

    def compared(kept: KeptWindow, connection: duckdb.DuckDBPyConnection, catalog: str, wanted: WantedWindow) -> None:
        def lines() -> list[tuple[object, ...]]:
            found = connection.execute(f"SELECT DISTINCT key, history, tick FROM {WINDOW} ORDER BY ALL").fetchall()
            return [line for line in found if line[2] > wanted.known.get(line[1], 0)]

        cover(kept, connection, catalog, wanted)
        shared = lines()
        connection.execute(f"CREATE OR REPLACE TEMP TABLE kept AS FROM {WINDOW}")
        cover(KeptWindow(), connection, catalog, wanted)
        assert lines() == shared
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {WINDOW.removeprefix('temp.')} AS FROM kept")
        sizes.append(len(shared))

    with patch.object(KeptWindow, "cover", compared):
        yield sizes


@contextmanager
def before_call(number: int, do: Callable[[], object]) -> Iterator[list[str]]:
    """Do something before a call of local stores with this number, as another process may; yields the calls by name."""
    made: list[str] = []
    others = [False]

    def counting(name: str) -> Callable[..., Any]:
        real = getattr(LocalStore, name)

        def call(store: LocalStore, *given: Any, **named: Any) -> Any:
            if not others[0]:
                made.append(name)
                if len(made) == number:
                    others[0] = True
                    do()
                    others[0] = False
            return real(store, *given, **named)

        return call

    counted: dict[str, Any] = {
        name: counting(name) for name in ("read", "read_versioned", "list", "exists", "create", "replace", "delete")
    }
    with patch.multiple(LocalStore, **counted):
        yield made
