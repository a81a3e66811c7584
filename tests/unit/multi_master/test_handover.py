"""P13: every term has one primary, whatever the order of the store calls of those who want to be it.

Two successors and the primary, which publishes, run in threads that wait for their turn before every call of the store.
A schedule says whose turn it is: all schedules up to a depth, then some that a seed chooses; some actors die.
"""

from __future__ import annotations

import random
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from tests.fault.processes import seed, wants_all
from wlc.farm.config import first_config
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import CorruptError, FencedError, InvalidError
from wlc.farm.model import Batch, Handover, Origin, Transaction
from wlc.farm.store import memory
from wlc.farm.store.memory import MemoryStore
from wlc.multi_master.circle import SiteHistory, change_circle, circle_object, read_circle
from wlc.multi_master.circle_place import site_database
from wlc.multi_master.handover import hand_over, note_handover
from wlc.multi_master.membership import founded, with_role, with_site, with_successor_of_none, without_site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
FARM = "memory://handover"
HISTORIES = {"oslo": "aa", "rome": "bb", "paris": "cc"}
CALLS = ("read", "read_versioned", "list", "exists", "create", "replace", "delete")


def batch(number: int, previous: str, site: str = "oslo", term: int | None = 1) -> Batch:
    name, history = "sales" if site == "oslo" else site, HISTORIES[site]
    committed = Transaction(number, "user", NOW, NOW)
    return Batch(
        name, number, history, number, number, previous, name, (committed,), vector={history: number}, term=term
    )


@pytest.fixture
def farm() -> Iterator[FarmDatabase]:
    """Oslo is the primary and has published a batch; Rome and Paris have published nothing."""
    yield founder()
    for key in [key for key in memory._objects if key.startswith(FARM)]:
        del memory._objects[key]


def founder() -> FarmDatabase:
    for key in [key for key in memory._objects if key.startswith(FARM)]:
        del memory._objects[key]
    found = open_database(f"{FARM}/sales")
    circle = founded("sales", "oslo", "aa", NOW)
    for site in ("rome", "paris"):
        circle = with_site(circle, site, SiteHistory(HISTORIES[site]), NOW)
    circle_object(found).replace(circle, None)
    for member in circle.sites:
        log = site_database(found, member.folder)
        log.create_config(_config(log.name, member.history))
    found.publish(batch(1, ""), {})
    return found


def _config(name: str, history: str) -> Any:
    return replace(first_config(name), history=history)


class Died(BaseException):
    """An actor dies."""


@dataclass
class Actor:
    """Someone who calls the store, one call per turn; `dies_at` is the number of the call, `done` if it dies after."""

    name: str
    run: Callable[[FarmDatabase], object]
    dies_at: int = 0
    dies_after: bool = False
    calls: int = 0
    outcome: object = None
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    paused: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    is_over: bool = False

    def work(self) -> None:
        _here.actor = self
        self.turn.acquire()
        try:
            self.outcome = self.run(open_database(f"{FARM}/sales"))
        except (InvalidError, FencedError, Died) as error:
            self.outcome = error
        self.is_over = True
        self.paused.release()

    def call(self, do: Callable[[], Any]) -> Any:
        """Make one call of the store, and wait for the next turn."""
        self.calls += 1
        if self.calls == self.dies_at and not self.dies_after:
            raise Died
        found = do()
        if self.calls == self.dies_at:
            raise Died
        self.paused.release()
        self.turn.acquire()
        return found


_here = threading.local()


@contextmanager
def gates() -> Iterator[None]:
    """Let every call of an actor wait for its turn."""

    def gated(name: str) -> Callable[..., Any]:
        real = getattr(MemoryStore, name)

        def call(store: MemoryStore, *given: Any, **named: Any) -> Any:
            actor = getattr(_here, "actor", None)
            return real(store, *given, **named) if actor is None else actor.call(lambda: real(store, *given, **named))

        return call

    with ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(patch.object(MemoryStore, name, gated(name)))
        yield


def play(actors: Sequence[Actor], schedule: Iterator[int]) -> None:
    """Run actors, each of whose calls is one turn; the schedule says whose."""
    threads = [threading.Thread(target=actor.work, daemon=True) for actor in actors]
    with gates():
        for thread in threads:
            thread.start()
        while waiting := [actor for actor in actors if not actor.is_over]:
            actor = waiting[next(schedule, 0) % len(waiting)]
            actor.turn.release()
            assert actor.paused.acquire(timeout=60), f"{actor.name} hangs"
        for thread in threads:
            thread.join()


def successor(to: str, dies_at: int = 0, *, dies_after: bool = False) -> Actor:
    return Actor(to, lambda found: hand_over(found, to), dies_at, dies_after)


def publisher(number: int = 2) -> Actor:
    """The primary, which publishes its next batch."""

    def publish(found: FarmDatabase) -> object:
        return found.publish(batch(number, found.read_batch(number - 1)[1]), {})

    return Actor("publisher", publish)


def refuse_two_primaries(found: FarmDatabase, actors: Sequence[Actor]) -> None:
    """Every term has one primary, and nobody was told otherwise."""
    circle = read_circle(found)
    ends: dict[int, str] = {}
    for site in circle.sites:
        log, chain, is_ended = site_database(found, site.folder), "", False
        for number in log.batch_numbers():
            read, chain = log.read_batch(number, chain)
            assert not is_ended, "something was published behind a handover"
            if read.handover is not None:
                is_ended = True
                assert ends.setdefault(read.handover.term, read.handover.to) == read.handover.to
                assert read.handover.term <= circle.term
    assert sorted(ends) == list(range(2, circle.term + 1))
    assert circle.primary == ends.get(circle.term, "oslo")
    assert [site.name for site in circle.sites if site.role == "primary"] == [circle.primary]
    for actor in actors:
        if actor.name == "publisher":
            assert isinstance(actor.outcome, str) == (found.read_batch(2)[0].handover is None)
        elif isinstance(actor.outcome, InvalidError):
            assert actor.name not in ends.values()
        elif not isinstance(actor.outcome, Died):
            assert actor.name in ends.values()


def finish(found: FarmDatabase, actors: Sequence[Actor]) -> None:
    """Whoever died is called again, if nobody else followed."""
    for actor in actors:
        if isinstance(actor.outcome, Died) and actor.name != "publisher":
            before = read_circle(found)
            try:
                after = hand_over(found, actor.name)
            except InvalidError:
                after = read_circle(found)
            assert after.term >= before.term


def trial(actors: Sequence[Actor], schedule: Iterator[int]) -> None:
    found = founder()
    play(actors, schedule)
    finish(found, actors)
    refuse_two_primaries(found, actors)


@pytest.mark.slow
def test_all_interleavings_up_to_a_depth(farm: FarmDatabase) -> None:
    for turns in product(range(2), repeat=12 if wants_all() else 8):
        # Behind the depth, the last one goes on: it is the one that the schedule favours least.
        trial([successor("rome"), successor("paris")], iter(turns))
    for turns in product(range(3), repeat=8 if wants_all() else 5):
        trial([successor("rome"), successor("paris"), publisher()], iter(turns))


@pytest.mark.slow
def test_interleavings_by_chance_of_some_who_die(farm: FarmDatabase) -> None:
    chance = random.Random(seed())
    for _ in range(2000 if wants_all() else 200):
        dying = [(chance.randint(1, 16), chance.random() < 0.5) if chance.random() < 0.6 else (0, False) for _ in "12"]
        actors = [successor(to, at, dies_after=after) for to, (at, after) in zip(("rome", "paris"), dying, strict=True)]
        actors += [publisher()] if chance.random() < 0.5 else []
        trial(actors, iter([chance.randrange(3) for _ in range(100)]))


def test_a_handover_that_died_before_its_batch_binds_nobody(farm: FarmDatabase) -> None:
    names = farm.batch_numbers()
    for at in range(1, 30):
        found = founder()
        actor = successor("rome", at)
        play([actor], iter(()))
        if found.batch_numbers() != names or not isinstance(actor.outcome, Died):
            break
        assert read_circle(found).term == 1
        found.publish(batch(2, found.read_batch(1)[1]), {})
    # From its batch on it binds everybody, whoever lets the circle follow.
    assert isinstance(actor.outcome, Died)
    assert read_circle(found).term == 1
    with pytest.raises(FencedError):
        found.publish(batch(2, found.read_batch(1)[1]), {})
    assert note_handover(found, found, found.read_batch(2)[0]).primary == "rome"
    assert note_handover(found, found, found.read_batch(2)[0]).term == 2


def test_a_successor_that_left_is_not_succeeded_by_nobody(farm: FarmDatabase) -> None:
    actor = successor("rome", 1000)
    with patch("wlc.multi_master.handover.change_circle", side_effect=Died):
        play([actor], iter(()))
    change_circle(farm, lambda circle: without_site(circle, "rome"))
    circle = note_handover(farm, farm, farm.read_batch(2)[0])
    assert (circle.primary, circle.term, circle.has_ended("aa")) == ("oslo", 2, True)


def test_a_handover_of_another_term_or_to_nobody_is_refused(farm: FarmDatabase) -> None:
    last = replace(batch(2, farm.read_batch(1)[1]), term=3, handover=Handover("rome", 3))
    farm.publish(last, {})
    with pytest.raises(CorruptError, match="term 3"):
        note_handover(farm, farm, last)
    with pytest.raises(CorruptError, match="term 3"):
        hand_over(farm, "rome")
    with pytest.raises(InvalidError, match="no site 'berlin'"):
        hand_over(founder(), "berlin")


def test_a_role_of_pass_cannot_become_primary(farm: FarmDatabase) -> None:
    change_circle(farm, lambda circle: with_role(with_role(circle, "rome", "none"), "rome", "pass"))
    with pytest.raises(InvalidError, match="pass"):
        hand_over(farm, "rome")
    assert hand_over(farm, "paris").ddl == "paris"


def test_a_successor_that_has_decided_nothing_leaves_no_reign(farm: FarmDatabase) -> None:
    hand_over(farm, "rome")
    circle = hand_over(farm, "paris")
    assert [(former_term.site, former_term.is_effective) for former_term in circle.former_terms] == [
        ("oslo", True),
        ("rome", False),
    ]
    rome = hand_over(farm, "rome")
    # What Rome publishes in a term that it leads, is in that term.
    log = site_database(farm, rome.site("rome").folder)
    later = replace(batch(2, log.read_batch(1)[1], "rome", rome.term), history="dd", vector={"dd": 2})
    change_circle(farm, lambda circle: with_site(circle, "rome", SiteHistory("dd", Origin("bb", 1)), NOW))
    log.publish(later, {})
    assert hand_over(farm, "oslo").former_terms[-1].is_effective


def test_a_primary_whose_history_was_ended_is_succeeded_without_a_batch(farm: FarmDatabase) -> None:
    """It never went on after it was succeeded, and became the primary again: its log holds nothing to end."""
    hand_over(farm, "rome")
    again = hand_over(farm, "oslo")
    numbers = farm.batch_numbers()
    assert (again.term, again.has_ended(again.site("oslo").history)) == (3, True)
    circle = hand_over(farm, "paris")
    assert (circle.term, circle.primary, farm.batch_numbers()) == (4, "paris", numbers)
    assert len(circle.former_terms) == 2
    # Oslo goes on first: then its history is ended by a batch.
    hand_over(farm, "oslo")
    begun = SiteHistory("dd", Origin("aa", 2))
    gone_on = change_circle(farm, lambda circle: with_site(circle, "oslo", begun, NOW))
    assert with_successor_of_none(gone_on, gone_on, "rome") == gone_on
