"""Many nodes under one virtual clock, with the product's own decisions: who publishes, takes, chooses and deletes what.

Requests take time and get lost, places are away, processes are killed and begin again, clocks differ. Afterwards all
calm down, and everybody must come to hold everything, each transaction once. DBFARM_EXAMPLES says how many worlds of a
kind are tried; what fails says the command that tries that world again. `tests/bench/scale.py` measures with the same.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.fault.processes import seed, wants_all
from tests.pieces import each
from tests.sampling import EXAMPLES
from tests.simulation.nodes import ROUND_S, Relay
from tests.simulation.world import RECHOOSE_S, World, refuse_bad_tree, silent_after_s, sites, tree_of_tiers, world
from wlc.farm.errors import FarmError
from wlc.masters import prune, publish
from wlc.multi_master import missing_steps
from wlc.tiers import choice

if TYPE_CHECKING:
    from collections.abc import Callable

FEW, MANY = 8, 10_000
SITES = ("oslo", "rome", "paris", "lima", "turin")


def tree(number: int) -> World:
    """A master, relays that may disappear for good, and replicas."""
    chance = random.Random(number)
    relays = chance.randint(0, 4)
    with world(number, loss=chance.uniform(0, 0.05), latency_s=chance.choice((0.05, 0.3, 1))) as found:
        tree_of_tiers(found, relays, chance.randint(1, 6), fanout=chance.randint(1, 3))
        for node in found.masters:
            node.prunes_every = chance.randint(3, 12)
        found.start()
        found.trouble(chance.randint(10, 40), kills=chance.uniform(0, 0.3), cuts=chance.uniform(0, 0.3))
        gone = (f"relay{relays - 1}",) if relays and chance.random() < 0.5 else ()
        found.calm(gone)
        if gone:
            # Time enough to notice that it is silent, and to choose anew in the round after that.
            found.run_rounds((silent_after_s(found, gone[0]) + RECHOOSE_S) / ROUND_S + 3)
        found.rounds_until_settled(20, gone)
        refuse_bad_tree(found, gone)
        return found


def owned(number: int) -> World:
    """A tree whose owner takes places out and puts them back, changes how many may read there, and forgets some."""
    chance = random.Random(number)
    with world(number, loss=chance.uniform(0, 0.05), latency_s=chance.choice((0.05, 0.3, 1))) as found:
        tree_of_tiers(found, chance.randint(0, 4), chance.randint(1, 6), fanout=chance.randint(1, 3))
        found.start()
        for _ in range(chance.randint(10, 30)):
            found.trouble(1, kills=chance.uniform(0, 0.3), cuts=chance.uniform(0, 0.3))
            if chance.random() < 0.3:
                found.administer()
        found.calm()
        found.open_all()
        found.run_rounds(RECHOOSE_S / ROUND_S + 3)
        found.rounds_until_settled(20)
        refuse_bad_tree(found)
        return found


def star(number: int) -> World:
    """Sites of which one reads all others, and is read by them."""
    return agreed(number, is_mesh=False)


def mesh(number: int) -> World:
    """Sites that all read each other."""
    return agreed(number, is_mesh=True)


def agreed(number: int, *, is_mesh: bool) -> World:
    chance = random.Random(number)
    names = SITES[: chance.randint(2, len(SITES))]
    with world(number, loss=chance.uniform(0, 0.03), latency_s=chance.choice((0.05, 0.3))) as found:
        sites(found, names, is_mesh=is_mesh)
        for node in found.masters:
            node.prunes_every = chance.randint(3, 12)
        found.start()
        found.trouble(chance.randint(10, 40), kills=chance.uniform(0, 0.3), cuts=chance.uniform(0, 0.3))
        found.calm()
        # P1: a star needs two rounds for each site at most, and what a halted one has left to do before it.
        found.rounds_until_settled(2 * len(names) + 4)
        return found


KINDS = pytest.mark.parametrize("kind", [tree, owned, star, mesh], ids=lambda kind: kind.__name__)


@KINDS
def test_one_world_settles(kind: Callable[[int], World]) -> None:
    assert kind(seed()).network.journal


@pytest.mark.slow
@KINDS
def test_everybody_comes_to_hold_everything_once(kind: Callable[[int], World]) -> None:
    first = seed()
    for number in each(range(first, first + (EXAMPLES or (MANY if wants_all() else FEW)))):
        try:
            kind(number)
        except BaseException as error:
            command = f"DBFARM_SEED={number} DBFARM_EXAMPLES=1 pytest {__file__} -k {kind.__name__}"
            error.add_note(f"again: {command}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tree, star, mesh], ids=lambda kind: kind.__name__)
def test_a_seed_always_gives_the_same_requests(kind: Callable[[int], World]) -> None:
    assert kind(7).network.journal == kind(7).network.journal != kind(8).network.journal


def _forget_what_was_published(*_: object) -> None:
    """A master that does not look whether it has published the batch already."""


def _take_everything(batch: object, lineage: object) -> dict[str, int]:
    """A site that does not leave out what it contains."""
    return {}


def _no_children(replicas: object) -> list[object]:
    """A place that deletes what its readers still need."""
    return []


def _anybody(*_: object, **__: object) -> None:
    """A reader that goes to whoever is registered, silent or not, whatever it holds."""


@pytest.mark.parametrize(
    ("kind", "module", "name", "wrong"),
    [
        (star, publish, "_present_batch", _forget_what_was_published),
        (mesh, missing_steps, "expanded", _take_everything),
        pytest.param(owned, prune, "children", _no_children, marks=pytest.mark.slow),
        pytest.param(tree, choice, "exclusion", _anybody, marks=pytest.mark.slow),
    ],
    ids=["publish", "take", "retention", "choose"],
)
def test_a_wrong_decision_is_caught(
    kind: Callable[[int], World], module: object, name: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, wrong)
    with pytest.raises((AssertionError, FarmError)):
        list(map(kind, range(80)))


@pytest.mark.deep
@pytest.mark.parametrize("count", [100, 200])
def test_a_tree_of_many_settles(count: int) -> None:
    with world(seed(), loss=0.01, latency_s=0.3) as found:
        tree_of_tiers(found, count // 9, count - count // 9 - 1, fanout=8)
        found.start()
        found.trouble(10)
        found.calm()
        # All come at once and race for slots, and who loses one reads what all have registered anew.
        found.rounds_until_settled(count // 2)
        refuse_bad_tree(found)


@pytest.mark.deep
@pytest.mark.parametrize("is_mesh", [False, True], ids=["star", "mesh"])
def test_sixteen_sites_settle(is_mesh: bool) -> None:
    with world(seed(), loss=0.01, latency_s=0.3) as found:
        sites(found, tuple(f"site{number}" for number in range(16)), is_mesh=is_mesh)
        found.start()
        found.trouble(10)
        found.calm()
        found.rounds_until_settled(36)


def test_relays_share_the_load_of_many_replicas() -> None:
    with world(1, loss=0.0, latency_s=0.05) as found:
        tree_of_tiers(found, 4, 12, fanout=4)
        found.start()
        found.run_rounds(10)
        found.calm()
        found.rounds_until_settled(10)
        refuse_bad_tree(found)
        assert all(node.requests for node in found.nodes.values() if isinstance(node, Relay))
