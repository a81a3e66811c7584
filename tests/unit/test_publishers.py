"""Every change of who publishes: one log, one history at a time, however long the former publisher was halted.

A publisher is halted before each of its calls of the store, and another one takes its place meanwhile, from the first
call to the last. Then the first one goes on. The way of sites is in `test_handover.py`, that of derived databases in
`tests/scenario/test_derived.py`.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

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
from wlc.farm.config import STARTED, STOPPED
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import FarmError, FencedError, InvalidError, UnavailableError
from wlc.farm.reachable_past import read_window
from wlc.farm.store import memory
from wlc.masters.claim import Wish, claim
from wlc.masters.fence import settle
from wlc.masters.publish import publish

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
        settle(database_of(source), source.require_state())


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
