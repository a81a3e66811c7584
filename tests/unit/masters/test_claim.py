"""Every change of who publishes: one log, one history at a time, however long the former publisher was halted.

A publisher is halted before each of its calls of the store, and another one takes its place meanwhile, from the first
call to the last. Then the first one goes on. A site begins a history without another one's help when it was restored:
it dies or halts before each call, and what the former history still gets comes first. Handovers to another site are in
`test_handover.py`, derived databases in `tests/scenario/test_derived.py`.
"""

from __future__ import annotations

import itertools
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from tests.fault.breaker import (
    DELAYS,
    DIES_AFTER,
    DIES_BEFORE,
    FAILS,
    LOSES_ANSWER,
    Breaker,
    Died,
    Fault,
    breakable_store,
)
from tests.simulation.source import SimulatedSource, database_of, master_state
from wlc.farm.config import STARTED, STOPPED, first_config
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import FarmError, FencedError, InvalidError, UnavailableError
from wlc.farm.newest_batches import read_newest
from wlc.farm.reachable_past import read_window
from wlc.farm.store import memory
from wlc.masters.claim import claim
from wlc.masters.contract import DivergedError
from wlc.masters.fence import repair_config
from wlc.masters.master_state import SiteMembership, Wish
from wlc.masters.publish import publish
from wlc.multi_master import handover
from wlc.multi_master.circle import SiteHistory, change_circle, circle_object, read_circle
from wlc.multi_master.circle_place import SiteState
from wlc.multi_master.handover import hand_over
from wlc.multi_master.joining import _announced
from wlc.multi_master.membership import founded, with_site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wlc.farm.human_form import Progress
    from wlc.farm.model import Manifest

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
FARM = "memory://publishers"


class Master(SimulatedSource):
    """A master that can begin a history."""

    default_name = "sales"

    def check(self, *_: object, **__: object) -> None:
        pass

    def install(self, *states: Any, **__: object) -> None:
        self.remember(*states)

    def has_objects(self, *_: object, **__: object) -> bool:
        return True


@pytest.fixture(autouse=True)
def _empty_farm():
    yield
    for key in [key for key in memory._objects if key.startswith(FARM)]:
        del memory._objects[key]


def former(published: int) -> Master:
    """A master that has published so many batches, with a transaction that waits."""
    for key in [key for key in memory._objects if key.startswith(FARM)]:
        del memory._objects[key]
    state = replace(master_state(FARM, "sales", "aa", NOW, 0), state=STOPPED)
    source = Master("ann", state, lambda: NOW)
    database = database_of(source)
    database.create_config(replace(state.config(), beat_s=0.0))
    source.take_snapshot(database, is_first=True)
    source.remember(replace(state, state=STARTED))
    for _ in range(published):
        source.commit()
        publish(source, database)
    source.commit()
    return source


def elsewhere(source: Master) -> Master:
    """What a master remembers, on another machine, without what waits to be published."""
    copy = Master("bob", replace(source.require_state(), state=STOPPED), lambda: NOW)
    copy.values = dict(source.values)
    return copy


def takes_over(copy: Master, *, is_stopped: bool, publishes: bool) -> None:
    """Begin a history, and publish in it or not."""
    if is_stopped:
        database_of(copy).change_config(lambda config: replace(config, state=STOPPED))
    claim(copy, Wish(farm=FARM))
    if publishes:
        copy.commit()
        publish(copy, database_of(copy))


def publishes(source: Master) -> None:
    with suppress(FencedError):
        publish(source, database_of(source))
        repair_config(database_of(source), source.require_state())


def claims_again(source: Master) -> None:
    """The first one begins a history itself, and is halted at that."""
    source.journal.clear()
    source.remember(replace(source.require_state(), state=STOPPED))
    with suppress(FencedError, UnavailableError, InvalidError):
        claim(source, Wish(farm=FARM))


def snapshots(source: Master) -> None:
    source.journal.clear()
    with suppress(FencedError):
        source.take_snapshot(database_of(source), is_first=False)


@dataclass(frozen=True)
class Way:
    """What the first one does, and whether its history was ended with `wlc stop` before another one begins."""

    does: Callable[[Master], None]
    is_stopped: bool = True


WAYS = {
    "publishes": Way(publishes),
    "publishes and was moved": Way(publishes, is_stopped=False),
    "takes a snapshot": Way(snapshots),
    "begins a history": Way(claims_again),
}


def halted(
    tmp_path: Path, way: Way, published: int, at: int, *, publishes: bool
) -> tuple[Breaker, Master, list[Master]]:
    """Halt the first one at a call of the store while another takes its place, then let it go on."""
    first, second = former(published), list[Master]()
    if way.does is claims_again:
        # Both are the same master, which two machines start.
        database_of(first).change_config(lambda config: replace(config, state=STOPPED))

    def meanwhile() -> None:
        second.append(elsewhere(first))
        takes_over(second[0], is_stopped=way.is_stopped, publishes=publishes)

    breaker = Breaker(tmp_path, tmp_path / "image", Fault(DELAYS, at), meanwhile)
    with breakable_store(breaker, breaks=True):
        way.does(first)
    return breaker, first, second


def check_one_log(database: FarmDatabase, second: Master) -> None:
    """The second one goes on, and the log is one chain in which each history is in one piece."""
    second.commit()
    assert publish(second, database).transactions == 1
    chain, histories = "", list[str]()
    for number in database.batch_numbers():
        batch, chain = database.read_batch(number, chain)
        histories.append(batch.history)
    grouped = [history for history, _ in itertools.groupby(histories)]
    assert len(grouped) == len(set(grouped)), f"histories {histories}"
    config, state = database.config(), second.require_state()
    assert (config.history, config.state, histories[-1]) == (state.history, STARTED, state.history)
    assert (config.batches, config.tick) == (state.batch + 1, state.tick) == (len(histories) + 1, batch.last)
    assert read_window(database).holds(state.tick)


@pytest.mark.parametrize("publishes", [False, True], ids=["only begun", "published"])
@pytest.mark.parametrize("published", [0, 2])
@pytest.mark.parametrize(
    "way",
    [pytest.param(way, id=name, marks=[pytest.mark.slow] * (way.does is claims_again)) for name, way in WAYS.items()],
)
def test_a_publisher_that_was_halted_harms_no_log_that_another_one_goes_on_with(
    tmp_path: Path, way: Way, published: int, publishes: bool
) -> None:
    for at in itertools.count():
        breaker, first, others = halted(tmp_path, way, published, at, publishes=publishes)
        if not others:
            break
        try:
            check_one_log(open_database(f"{FARM}/sales"), others[0])
            first.commit()
            with pytest.raises(FencedError):
                publish(first, open_database(f"{FARM}/sales"))
        except (AssertionError, FencedError) as error:
            error.add_note(breaker.broken)
            raise
    assert at > 2


@pytest.mark.slow
@pytest.mark.parametrize("how", [DIES_BEFORE, DIES_AFTER, FAILS, LOSES_ANSWER])
@pytest.mark.parametrize("published", [0, 2])
def test_a_history_whose_beginning_was_broken_off_begins_again(tmp_path: Path, how: str, published: int) -> None:
    for at in itertools.count():
        source = elsewhere(former(published))
        database = database_of(source)
        database.change_config(lambda config: replace(config, state=STOPPED))
        breaker = Breaker(tmp_path / "none", tmp_path / f"image {at}", Fault(how, at))
        (tmp_path / "none").mkdir(exist_ok=True)
        with breakable_store(breaker, breaks=True), suppress(Died, FarmError):
            claim(source, Wish(farm=FARM))
        if at >= len(breaker.calls):
            break
        try:
            # Readers can read what is there, whatever it is.
            assert read_window(database).tick is not None
            if not source.require_state().is_master:
                claim(source, Wish(farm=FARM))
            check_one_log(database, source)
        except (AssertionError, FarmError) as error:
            error.add_note(breaker.broken)
            raise
    assert at > 10


def joins(source: Master) -> None:
    """Become site Rome, as `wlc site join` does."""
    founder = open_database(f"{FARM}/sales")
    site = SiteState("rome", "sites/rome", {"aa": 0})

    def announce(state: Any) -> SiteState:
        grown = SiteHistory(state.history, state.parent)
        return replace(site, circle=change_circle(founder, lambda circle: with_site(circle, "rome", grown, NOW)))

    membership = SiteMembership(site, announce, is_replica=True, announced=_announced(read_circle(founder), site))
    claim(source, Wish(farm=f"{FARM}/sales/sites", name="rome", membership=membership))


@pytest.mark.slow
def test_a_join_that_was_broken_off_twice_goes_on(tmp_path: Path) -> None:
    """It dies after any of its writes, and the second time after any call."""
    (tmp_path / "none").mkdir()

    def dies(source: Master, at: int) -> list[str]:
        breaker = Breaker(tmp_path / "none", tmp_path / f"image {next(numbers)}", Fault(DIES_AFTER, at))
        with breakable_store(breaker, breaks=True), suppress(Died):
            joins(source)
        return breaker.calls

    def begun() -> tuple[Master, FarmDatabase]:
        for key in [key for key in memory._objects if key.startswith(FARM)]:
            del memory._objects[key]
        founder = open_database(f"{FARM}/sales")
        founder.create_config(first_config("sales"))
        circle_object(founder).replace(founded("sales", "oslo", "aa", NOW), None)
        source = Master("rome", master_state(FARM, "none", "none", NOW, 0), lambda: NOW)
        source.remember(replace(source.require_state(), state=STOPPED))
        return source, founder

    numbers = itertools.count()
    calls = dies(begun()[0], 1000)
    writes = [at for at, call in enumerate(calls) if call.startswith(("create", "replace")) and "probe" not in call]
    assert len(writes) > 4
    for first, second in itertools.product(writes, range(2 * len(calls))):
        source, founder = begun()
        dies(source, first)
        if not source.require_state().is_master:
            dies(source, second)
        if not source.require_state().is_master:
            joins(source)
        state, site = source.require_state(), read_circle(founder).site("rome")
        assert (state.history, state.parent) == (site.history, site.histories[-1].parent)
        database = open_database(f"{FARM}/sales/sites/rome")
        check_one_log(database, source)
        assert database.read_batch(1)[0].history == site.history


# A site that was restored begins a history


class RestoredSite(Master):
    """Rome, which has committed something since its backup, or Oslo, whose folder was rolled back."""

    def take_back(self, *_: object, **__: object) -> int:
        raise DivergedError("it has committed something else", path=str(self))

    def take_snapshot(self, database: FarmDatabase, *, is_first: bool, progress: Progress | None = None) -> Manifest:
        publish(self, database)
        return super().take_snapshot(database, is_first=is_first)

    def renew(self, *states: Any, **__: object) -> None:
        self.remember(*states)

    step_down = renew

    def pass_sequences(self, *_: object, **__: object) -> None:
        pass

    def what_only_a_primary_writes(self, *_: object, **__: object) -> None:
        return None


def sites() -> tuple[FarmDatabase, dict[str, Master]]:
    """Oslo and Rome, the primary and a secondary, with three batches each, which the other one has taken."""
    for key in [key for key in memory._objects if key.startswith(FARM)]:
        del memory._objects[key]
    founder = open_database(f"{FARM}/sales")
    circle = with_site(founded("sales", "oslo", "aa", NOW), "rome", SiteHistory("bb"), NOW)
    circle_object(founder).replace(circle, None)
    found = dict[str, Master]()
    for name, other, history, folder in (("oslo", "bb", "aa", "sales"), ("rome", "aa", "bb", "sales/sites/rome")):
        farm, _, last = f"{FARM}/{folder}".rpartition("/")
        contained = SiteState(name, circle.site(name).folder, {other: 3}, circle=circle)
        state = master_state(farm, last, history, NOW, 0, contained)
        found[name] = RestoredSite(name, replace(state, vector={other: 3}), lambda: NOW)
        database_of(found[name]).create_config(replace(state.config(), beat_s=0.0))
        found[name].has_settled_past = True
        for _ in range(3):
            found[name].commit()
            publish(found[name], database_of(found[name]))
    return founder, found


def as_opened_again(source: Master, former: Master | None = None) -> RestoredSite:
    """The site in a new process, or as it was remembered in a backup."""
    found = RestoredSite(source.author, (former or source).require_state(), lambda: NOW)
    found.values, found.journal = dict(source.values), list(source.journal)
    found.has_settled_past = False
    return found


def rolled_back(founder: FarmDatabase, oslo: Master) -> RestoredSite:
    """Oslo, whose folder lost its last batch."""
    founder.delete_batch(3)
    founder.change_config(lambda config: replace(config, batches=3, tick=2))
    return as_opened_again(oslo)


def hands_over_late(founder: FarmDatabase) -> None:
    """Hand over to Rome, having looked at the logs before the folder was rolled back."""
    with patch.object(handover, "_refuse_rolled_back"):
        hand_over(founder, "rome")


def test_nobody_succeeds_a_primary_whose_folder_was_rolled_back() -> None:
    """The handover would have a tick that others know as another transaction's."""
    founder, found = sites()
    source = rolled_back(founder, found["oslo"])
    before = read_circle(founder)
    with pytest.raises(FencedError, match="ends at tick 2, and site rome has taken tick 3") as refused:
        hand_over(founder, "rome")
    assert (founder.batch_numbers(), read_circle(founder)) == ([1, 2], before)
    assert str(refused.value.hint).endswith("at site oslo: wlc flush FILE")
    with pytest.warns(UserWarning, match="a new history begins"):
        publish(source, founder)
    assert hand_over(founder, "rome").primary == "rome"


def diverged(rome: Master) -> RestoredSite:
    """Rome from a backup that lacks its last batch, with another transaction instead."""
    batch, chain = database_of(rome).read_batch(2)
    found = as_opened_again(rome)
    found.remember(replace(rome.require_state(), batch=2, chain=chain, tick=batch.last))
    found.commit()
    return found


def settled(source: Master) -> Master:
    """Let a site publish until it is in step, as its owner does."""
    for _ in range(4):
        with suppress(UnavailableError), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            publish(source, database_of(source))
            return source
    raise AssertionError("it never gets through")


@pytest.mark.parametrize("is_lost", [False, True], ids=["rolled back", "rolled back after the handover"])
def test_a_program_that_runs_on_publishes_nothing_in_a_history_that_a_handover_ended(is_lost: bool) -> None:
    """Its folder was rolled back meanwhile, so that the handover does not stand at the next number."""
    founder, found = sites()
    oslo = found["oslo"]
    if is_lost:
        hand_over(founder, "rome")
        founder.delete_batch(4)
        founder.change_config(lambda config: replace(config, batches=4, tick=3))
    else:
        rolled_back(founder, oslo)
        hands_over_late(founder)
    oslo.commit()
    if is_lost:
        with pytest.raises(FencedError, match="a handover ended history aa of sales, and .* does not hold it"):
            publish(oslo, founder)
        assert founder.batch_numbers() == [1, 2, 3]
        return
    with pytest.warns(UserWarning, match="a new history begins"):
        publish(oslo, founder)
    assert read_circle(founder).site("oslo").history == oslo.require_state().history == founder.read_batch(4)[0].history
    check_chain(founder)


@pytest.mark.slow
@pytest.mark.parametrize("how", [DIES_BEFORE, DELAYS])
@pytest.mark.parametrize("accident", ["a handover", "a program of the former history"])
def test_a_history_that_a_site_begins_moves_behind_what_came_first(tmp_path: Path, accident: str, how: str) -> None:
    (tmp_path / "none").mkdir()
    for at in itertools.count():
        founder, found = sites()
        rome = found["rome"]
        source = rolled_back(founder, found["oslo"]) if accident == "a handover" else diverged(rome)
        database, came = database_of(source), list[str]()

        def meanwhile(founder: FarmDatabase = founder, rome: Master = rome, came: list[str] = came) -> None:
            came.append("something")
            if accident == "a handover":
                hands_over_late(founder)
            else:
                rome.commit()
                with suppress(FencedError):
                    publish(rome, database_of(rome))

        breaker = Breaker(tmp_path / "none", tmp_path / f"image {at}", Fault(how, at), meanwhile)
        with breakable_store(breaker, breaks=True), suppress(Died):
            settled(source)
        if at >= len(breaker.calls):
            break
        if not came:
            meanwhile()
        try:
            site = source.require_state().site
            assert site is not None
            source = as_opened_again(source)
            settled(source)
            source.commit()
            publish(source, database)
            state, (newest, chain) = source.require_state(), read_newest(database) or pytest.fail("nothing")
            assert (newest.history, newest.number, chain) == (state.history, state.batch, state.chain)
            assert read_circle(founder).site(site.name).history == state.history
            check_chain(database)
        except (AssertionError, FarmError) as error:
            error.add_note(breaker.broken)
            raise
    assert at > 10


def check_chain(database: FarmDatabase) -> None:
    """No tick comes twice in the log, whose batches follow each other, and every snapshot has its place there."""
    chain, last = "", 0
    for number in database.batch_numbers():
        batch, chain = database.read_batch(number, chain)
        assert batch.first > last
        last = batch.last
    newest = database.read_manifest(database.snapshot_ticks()[-1]).position
    assert database.read_batch(newest.batch)[1] == newest.chain
