"""Calls are broken while sites join, take and leave, or other sites do something before them; then the command is repeated.

What the repeated command leads to is where an undisturbed one leads: nothing lost, nothing twice, the same rejected. What
others do meanwhile makes no command wait: it ends well, or says what another one has changed, and is repeated then.
Samples are chosen by DBFARM_SEED; DBFARM_FAULTS=all breaks every single call, and lets others come before each.
"""

from __future__ import annotations

import os
import random
import shutil
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb
import pytest

import wlc
from tests.fault.breaker import (
    DELAYS,
    DIES_AFTER,
    DIES_BEFORE,
    FAILS,
    LOSES_ANSWER,
    Breaker,
    Died,
    Fault,
    abandon_masters,
    breakable_database,
    breakable_store,
)
from tests.fault.prepared_sites import FARM, in_conflict, logged, one_home
from tests.fault.processes import seed
from tests.pieces import each
from tests.sites import write_offline
from wlc.capture.duckdb.shared import close_shared, open_shared
from wlc.farm.errors import FarmError, InvalidError, UnavailableError
from wlc.multi_master.circle import read_circle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fault.prepared_sites import PreparedSites, Start
    from tests.sites import Sites

    # What others do, none of them with the file that is busy.
    What = Callable[[PreparedSites, str], None]


TABLES = ("t", "e", "u")
READS = ("read", "read_versioned", "fetch", "list", "exists")


@dataclass(frozen=True)
class SiteCommand:
    """A command that is broken.

    Attributes:
        prepare: What happens before it, besides what all have in common.
        run: The command; repeated when it was broken.
        is_refused_again: Once it has succeeded, it is refused.
        is_in_mesh: Its sites all read each other.
    """

    name: str
    prepare: Callable[[Sites], None]
    run: Callable[[Sites], object]
    is_refused_again: bool = False
    is_in_mesh: bool = False


def _take_both(sites: Sites) -> None:
    """The primary has rejected some of Rome's, and Rome has rows that must give way."""
    sites.take("oslo")
    sites.write("oslo", "INSERT INTO u VALUES (1, 'same')")
    wlc.flush(sites.file("oslo"))
    sites.write("rome", "INSERT INTO u VALUES (2, 'same')", "UPDATE e SET v = 'rome' WHERE k = 2")


def _hand_over(sites: Sites) -> None:
    """Rome has changes that Oslo has not judged, becomes the primary and judges them."""
    wlc.set_role(sites.file("oslo"), "rome", "primary")
    sites.take("rome")


def _lose(sites: Sites) -> None:
    wlc.set_role("sales", "rome", "primary", lost="oslo", farm=FARM)
    sites.take("rome")


def _with_verdicts(sites: Sites) -> None:
    """Oslo has judged Rome's changes and dies before it publishes that; Rome is the primary by then."""
    wlc.flush(sites.file("oslo"))
    with (
        patch("wlc.multi_master.take_round._publish"),
        patch("wlc.multi_master.take_round.publish", side_effect=Died),
        suppress(Died),
    ):
        sites.take("oslo")
    _lose(sites)


def _diverge(sites: Sites) -> None:
    """Oslo is restored from a backup, and commits before it is compared with its log."""
    file = sites.file("oslo")
    backup = file.read_bytes()
    sites.write("oslo", "UPDATE t SET v = 'lost' WHERE k = 2", "INSERT INTO e VALUES (8, 'lost')")
    wlc.flush(file)
    file.write_bytes(backup)
    write_offline(sites, "oslo", "UPDATE t SET v = 'since' WHERE k IN (2, 3)", "INSERT INTO e VALUES (7, 'since')")


COMMANDS = (
    SiteCommand("a restored primary goes on", _diverge, lambda sites: sites.take("oslo")),
    SiteCommand("hand over", lambda sites: None, _hand_over),
    SiteCommand("lose the primary", lambda sites: None, _lose),
    SiteCommand("a former primary goes on", _with_verdicts, lambda sites: sites.take("oslo")),
    SiteCommand("take at the primary", lambda sites: None, lambda sites: sites.take("oslo")),
    SiteCommand("take at a secondary", _take_both, lambda sites: sites.take("rome")),
    SiteCommand("join", lambda sites: None, lambda sites: sites.join("paris"), is_refused_again=True),
    SiteCommand(
        "join from another site",
        lambda sites: sites.exchange(),
        lambda sites: sites.join("paris", start="rome"),
        is_refused_again=True,
    ),
    SiteCommand("begin anew", lambda sites: None, lambda sites: sites.join("rome", again=True)),
    SiteCommand(
        "leave",
        lambda sites: sites.exchange(),
        lambda sites: wlc.leave("sales", "rome", farm=FARM),
        is_refused_again=True,
    ),
    SiteCommand("take in a mesh", lambda sites: None, lambda sites: sites.take("oslo"), is_in_mesh=True),
    SiteCommand(
        "join a mesh", lambda sites: None, lambda sites: sites.join("paris"), is_refused_again=True, is_in_mesh=True
    ),
    SiteCommand("rule", lambda sites: None, lambda sites: wlc.set_rule("sales", "t", "epoch", farm=FARM)),
    SiteCommand("role", lambda sites: None, lambda sites: wlc.set_role("sales", "rome", "none", farm=FARM)),
)


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Start]:
    """Oslo and Rome, which has published changes that are in conflict with Oslo's, in a star or in a mesh."""
    return cache(lambda is_mesh: in_conflict(tmp_path_factory.mktemp("broken") / "start", is_mesh=is_mesh))


def _outcome(sites: Sites) -> object:
    """What everybody holds when all have taken everything, and what was rejected on the way."""
    circle = read_circle(sites.log("oslo"))
    sites.names = [site.name for site in circle.sites]
    taking = [site.name for site in circle.sites if site.role != "none"]
    with ExitStack() as stack:
        for name in taking:
            # Nothing is done by that, and each command need not open the file again.
            shared = open_shared(str(sites.file(name)))
            stack.callback(close_shared, shared)
        for name in taking:
            wlc.flush(sites.file(name))
        for _ in range(5):
            if not sum([sites.take(name) for name in taking]):
                break
        else:
            raise AssertionError("they never fall silent")
        reported = [wlc.exceptions(sites.file(name)) for name in taking]
    rejected = [
        sorted((row.source, str(row.table), str(row.key), row.op_type, row.cause) for row in rows) for rows in reported
    ]
    return {
        "rows": {name: {table: sites.rows(name, table) for table in TABLES} for name in sites.names},
        "transactions": {name: len(found) for name, found in logged(sites).items()},
        "rejected": rejected,
        "roles": [(site.name, site.role) for site in circle.sites],
        # A site that had begun anew when the command died does it once more.
        "left": bool(circle.past),
        "rules": circle.rules,
    }


def _trial(
    command: SiteCommand, start: Start, folder: Path, fault: Fault | None, *, store: bool
) -> tuple[Breaker, Any]:
    sites = start.restored(folder / "world")
    breaker = Breaker(sites.folder, folder / "image", fault)
    has_succeeded = False
    try:
        with ExitStack() as stack:
            stack.enter_context(breakable_store(breaker, breaks=store))
            if not store:
                stack.enter_context(breakable_database(breaker))
            try:
                command.run(sites)
                has_succeeded = True
            except Died:
                assert breaker.is_dead
            except FarmError:
                assert fault is not None
            except duckdb.Error:
                assert not store
        abandon_masters()
        if breaker.is_dead:
            sites.folder = breaker.image
        if not has_succeeded:
            with suppress(InvalidError) if command.is_refused_again else ExitStack():
                command.run(sites)
        return breaker, _outcome(sites)
    except BaseException as error:
        error.add_note(f"{command.name}: {breaker.broken}")
        raise
    finally:
        abandon_masters()


def _hows(call: str, *, store: bool) -> tuple[str, ...]:
    """How a call can be broken."""
    if store and call.split()[0] in READS:
        # Who dies there leaves what was written before, as who dies after that; and no answer is no answer.
        return (FAILS,)
    return (DIES_BEFORE, DIES_AFTER, FAILS, LOSES_ANSWER) if store else (DIES_BEFORE, DIES_AFTER, FAILS)


def _sampled() -> list[SiteCommand]:
    """Every third command, unless DBFARM_FAULTS wants more."""
    if "DBFARM_FAULTS" in os.environ:
        return list(COMMANDS)
    return [command for number, command in enumerate(COMMANDS) if (number + seed()) % 3 == 0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*a new history begins")
@pytest.mark.parametrize("command", _sampled(), ids=lambda command: command.name)
def test_a_repeated_command_ends_where_an_undisturbed_one_ends(
    common: Callable[[bool], Start], command: SiteCommand, tmp_path: Path
) -> None:
    wanted, chance = os.environ.get("DBFARM_FAULTS"), random.Random(f"{seed()} {command.name}")
    with one_home():
        prepared = common(command.is_in_mesh).restored(tmp_path / "start")
        command.prepare(prepared)
        start = prepared.saved()
        # One of both, unless more is wanted.
        for store in (True, False) if wanted else (chance.random() < 0.5,):
            sound, expected = _trial(command, start, tmp_path / f"sound {store}", None, store=store)
            faults = [Fault(how, at) for at, call in enumerate(sound.calls) for how in _hows(call, store=store)]
            if wanted != "all":
                faults = chance.sample(faults, min(int(wanted or 1), len(faults)))
            for _, fault in each([(store, fault) for fault in faults]):
                breaker, found = _trial(command, start, tmp_path / "broken", fault, store=store)
                assert found == expected, breaker.broken
                shutil.rmtree(tmp_path / "broken")
            print(f"{command.name}: {len(sound.calls)} calls, {len(faults)} faults")


# What others do meanwhile --------------------------------------------------------------------------------------------


# Whose file a command has open, and the command.
DISTURBED: dict[str, tuple[str, Callable[[PreparedSites], object]]] = {
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
        for name in DISTURBED
        for what in MEANWHILE
        # No primary begins anew: `tests/scenario/test_sites_membership.py`.
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


def _disturbed(start: Start, folder: Path, name: str, what: What, at: int) -> list[str]:
    """Run a command while others do something before one of its calls; returns all calls, theirs among them."""
    sites = start.restored(folder)
    busy, command = DISTURBED[name]
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


@pytest.mark.slow
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
        undisturbed = len(_disturbed(start, tmp_path / "undisturbed", name, what, at=10_000))
        numbers = range(undisturbed)
        if wanted != "all":
            numbers = sorted(chance.sample(numbers, min(int(wanted or 1), undisturbed)))  # type: ignore[assignment]
        for number in each(numbers):
            _disturbed(start, tmp_path / "world", name, what, number)
            shutil.rmtree(tmp_path / "world")
