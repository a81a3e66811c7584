"""Before each call of the store that a command makes, other sites do something: their commands wait for nobody.

The command ends well, or says what another one has changed, and then it is repeated; afterwards all sites are equal.
Samples are chosen by DBFARM_SEED; DBFARM_FAULTS=all tries each call.
"""

from __future__ import annotations

import os
import random
import shutil
from contextlib import ExitStack, suppress
from functools import cache
from typing import TYPE_CHECKING

import pytest

import wlc
from tests.fault.breaker import DELAYS, Breaker, Fault, abandon_masters, breakable_store
from tests.fault.prepared_sites import FARM, in_conflict, logged, one_home
from tests.fault.processes import seed
from tests.pieces import each
from wlc.farm.errors import InvalidError, UnavailableError
from wlc.multi_master.circle import read_circle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fault.prepared_sites import PreparedSites, Start

    # What others do, none of them with the file that is busy.
    What = Callable[[PreparedSites, str], None]

pytestmark = pytest.mark.slow

# Whose file a command has open, and the command.
COMMANDS: dict[str, tuple[str, Callable[[PreparedSites], object]]] = {
    "take at the primary": ("oslo", lambda sites: sites.take("oslo")),
    "take at a secondary": ("rome", lambda sites: sites.take("rome")),
    "publish at the primary": ("oslo", lambda sites: wlc.flush(sites.file("oslo"))),
    "publish at a secondary": ("rome", lambda sites: wlc.flush(sites.file("rome"))),
    "prune at the primary": ("oslo", lambda sites: _prune(sites, "oslo")),
    "prune at a secondary": ("rome", lambda sites: _prune(sites, "rome")),
    "join": ("york", lambda sites: sites.join("york")),
    "begin anew": ("rome", lambda sites: sites.join("rome", again=True)),
    "lose the primary": ("", lambda _: wlc.set_role("sales", "rome", "primary", lost="oslo", farm=FARM)),
}


def _primary(sites: PreparedSites) -> str:
    return read_circle(sites.log("oslo")).primary


def _prune(sites: PreparedSites, site: str) -> None:
    wlc.snapshot(sites.file(site))
    wlc.prune(sites.log(site).url, keep_for="0s")


def _write(sites: PreparedSites, site: str, key: int) -> None:
    sites.write(site, f"UPDATE t SET v = '{site}, meanwhile' WHERE k < 3", f"INSERT INTO t VALUES ({key}, '{site}')")
    wlc.flush(sites.file(site))


def they_write(sites: PreparedSites, busy: str) -> None:
    for key, name in enumerate(sites.names, start=100):
        if name != busy:
            _write(sites, name, key)


def they_take(sites: PreparedSites, busy: str) -> None:
    they_write(sites, busy)
    for name in sites.names:
        if name != busy:
            sites.take(name)


def they_prune(sites: PreparedSites, busy: str) -> None:
    for name in sites.names:
        if name != busy:
            _prune(sites, name)


def another_leads(sites: PreparedSites, busy: str) -> None:
    """The primary is lost, and a third site goes by the next one."""
    former = _primary(sites)
    leader, *others = sorted(set(sites.names) - {former, busy})
    wlc.set_role("sales", leader, "primary", lost=former, farm=FARM)
    for name in (leader, *others):
        sites.take(name)


def another_is_to_lead(sites: PreparedSites, busy: str) -> None:
    """The one that is busy, unless it is the primary; it has not taken over."""
    former = _primary(sites)
    leader = busy if busy in set(sites.names) - {former} else "lima"
    wlc.set_role("sales", leader, "primary", lost=former, farm=FARM)


def one_joins(sites: PreparedSites, busy: str) -> None:
    sites.join("turin")
    _write(sites, "turin", 110)


def one_begins_anew(sites: PreparedSites, busy: str) -> None:
    sites.join("lima", again=True)
    _write(sites, "lima", 111)


def one_leaves(sites: PreparedSites, busy: str) -> None:
    wlc.leave("sales", "lima", farm=FARM, force=True)
    sites.names.remove("lima")


def one_reads_nobody(sites: PreparedSites, busy: str) -> None:
    wlc.set_role("sales", "lima", "none", farm=FARM)


def the_schema_changes(sites: PreparedSites, busy: str) -> None:
    if busy != _primary(sites):
        sites.write("oslo", "ALTER TABLE e ADD COLUMN w INTEGER", "UPDATE e SET w = k")
        wlc.flush(sites.file("oslo"))


MEANWHILE = (
    they_write,
    they_take,
    they_prune,
    another_leads,
    another_is_to_lead,
    one_joins,
    one_begins_anew,
    one_leaves,
    one_reads_nobody,
    the_schema_changes,
)
OF_STARS = {"lose the primary", another_leads, another_is_to_lead}


def _trials() -> list[tuple[str, What, bool]]:
    """Return commands, what others do meanwhile, and whether that is in a mesh."""
    found: list[tuple[str, What, bool]] = [
        (name, what, is_mesh)
        for is_mesh in (False, True)
        for name in COMMANDS
        for what in MEANWHILE
        # No primary begins anew: `tests/scenario/test_sites_anew.py`.
        if (name, what) != ("begin anew", another_is_to_lead) and not (is_mesh and OF_STARS & {name, what})
    ]
    return found if "DBFARM_FAULTS" in os.environ else random.Random(seed()).sample(found, 3)


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Start]:
    """Three sites, of which two have published changes that are in conflict with those of the first, in both forms."""

    def made(is_mesh: bool) -> Start:
        folder = tmp_path_factory.mktemp("meanwhile")
        sites = in_conflict(folder / "start", is_mesh=is_mesh, also="lima").restored(folder / "of three")
        _write(sites, "lima", 99)
        return sites.saved()

    return cache(made)


def _trial(start: Start, folder: Path, name: str, what: What, at: int) -> list[str]:
    """Run a command while others do something before one of its calls; returns all calls, theirs among them."""
    sites = start.restored(folder)
    busy, command = COMMANDS[name]
    breaker = Breaker(sites.folder, folder / "image", Fault(DELAYS, at), lambda: what(sites, busy))
    is_done = False
    try:
        with breakable_store(breaker, breaks=True):
            try:
                command(sites)
                is_done = True
            except (InvalidError, UnavailableError):
                assert at < len(breaker.calls)
        _settle(sites)
        if not is_done:
            # Who has become the primary meanwhile is not the one that the command calls lost.
            with suppress(InvalidError) if name == "lose the primary" else ExitStack():
                command(sites)
            _settle(sites)
    except BaseException as error:
        error.add_note(f"{name}, and {what.__name__}: {breaker.broken}")
        raise
    finally:
        abandon_masters()
    return breaker.calls


def _settle(sites: PreparedSites) -> None:
    """Let all take until they are silent, the primary first; they hold the same, and their logs are sound."""
    for site in read_circle(sites.log("oslo")).sites:
        if site.role == "none":
            wlc.set_role("sales", site.name, "secondary", farm=FARM)
    circle = read_circle(sites.log("oslo"))
    sites.names = sorted((site.name for site in circle.sites), key=lambda name: name != circle.primary)
    sites.exchange()
    sites.refuse_differences("t", "e", "u")
    logged(sites)


@pytest.mark.parametrize(
    ("name", "what", "is_mesh"),
    _trials(),
    ids=lambda each: {True: "mesh", False: "star"}.get(each) or getattr(each, "__name__", each),
)
def test_what_others_do_meanwhile_harms_nobody(
    starts: Callable[[bool], Start],
    tmp_path: Path,
    name: str,
    what: What,
    is_mesh: bool,
) -> None:
    wanted, chance = os.environ.get("DBFARM_FAULTS"), random.Random(f"{seed()} {name} {what.__name__} {is_mesh}")
    with one_home():
        start = starts(is_mesh)
        undisturbed = len(_trial(start, tmp_path / "undisturbed", name, what, at=10_000))
        numbers = range(undisturbed)
        if wanted != "all":
            numbers = sorted(chance.sample(numbers, min(int(wanted or 1), undisturbed)))  # type: ignore[assignment]
        for number in each(numbers):
            _trial(start, tmp_path / "world", name, what, number)
            shutil.rmtree(tmp_path / "world")
