"""Vectors: per history the last tick that a copy contains, compared and merged by pure functions.

A database of one master has a vector of one history. With several masters, each publishes what it took from others
with its origin kept, and a vector says how much of every history is contained. Ticks of a history are taken in order
and without gaps, so one number per history is enough.

Old histories would pile up in vectors. The normal form leaves out what other entries imply; `Lineage` is what is needed
to put it back, and vectors are always compared with everything put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING

from wlc.farm.json_fields import Tick
from wlc.farm.model import Origin, Parent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Vector = Mapping[str, int]


class VectorOrder(Enum):
    """How one vector relates to another."""

    EQUAL = "equal"
    COVERS = "covers"
    COVERED = "is covered"
    CONCURRENT = "concurrent"


@dataclass(frozen=True, slots=True)
class Heir:
    """Who contains a history that ended: whoever contains `at` contains it up to its tick `last`."""

    at: Parent
    last: Tick


@dataclass(frozen=True, slots=True)
class Lineage:
    """What is known of histories that vectors leave out.

    Attributes:
        parents: For a history the one that it grew from, and the last tick it shares with it.
        heirs: For a history whose site has left the place in another log from which on all of it is contained.
    """

    parents: Mapping[str, Origin] = field(default_factory=dict)
    heirs: Mapping[str, Heir] = field(default_factory=dict)

    def ancestors(self, history: str) -> Iterator[tuple[str, int]]:
        """Yield the histories that a history grew from with the last tick of each that it contains, nearest first."""
        seen = {history}
        while (parent := self.parents.get(history)) is not None and parent.history not in seen:
            yield parent.history, parent.tick
            history = parent.history
            seen.add(history)


NO_LINEAGE = Lineage()


def expanded(vector: Vector, lineage: Lineage = NO_LINEAGE) -> dict[str, int]:
    """Return a vector with every history that it contains, those that the normal form leaves out included."""
    found = {history: tick for history, tick in vector.items() if tick}
    if not lineage.parents and not lineage.heirs:
        return found
    while True:
        # A tick that is implied may be the place from which on another history is contained.
        implied = [each for history in found for each in lineage.ancestors(history)]
        implied += [
            (history, heir.last)
            for history, heir in lineage.heirs.items()
            if found.get(heir.at.history, 0) >= heir.at.tick
        ]
        before = dict(found)
        for history, tick in implied:
            if tick > found.get(history, 0):
                found[history] = tick
        if found == before:
            return found


def raised(vector: Vector, origins: Iterable[Origin]) -> dict[str, int]:
    """Return a vector that contains some more transactions, too."""
    found = dict(vector)
    for origin in origins:
        found[origin.history] = max(found.get(origin.history, 0), origin.tick)
    return found


def normal(vector: Vector, lineage: Lineage = NO_LINEAGE) -> dict[str, int]:
    """Return a vector without the histories that its other entries imply."""
    found = {history: tick for history, tick in sorted(vector.items()) if tick}
    known = {*lineage.heirs, *(parent.history for parent in lineage.parents.values())}
    for history in sorted(known & found.keys()):
        tick = found.pop(history)
        if expanded(found, lineage).get(history, 0) < tick:
            found[history] = tick
    return dict(sorted(found.items()))


def contains(vector: Vector, other: Vector, lineage: Lineage = NO_LINEAGE) -> bool:
    """Say whether a vector contains every tick that another one contains."""
    mine = expanded(vector, lineage)
    return all(mine.get(history, 0) >= tick for history, tick in expanded(other, lineage).items())


def compare(vector: Vector, other: Vector, lineage: Lineage = NO_LINEAGE) -> VectorOrder:
    """Say how a vector relates to another one; `CONCURRENT` if each contains a tick that the other lacks."""
    covers, is_covered = contains(vector, other, lineage), contains(other, vector, lineage)
    if covers and is_covered:
        return VectorOrder.EQUAL
    if covers:
        return VectorOrder.COVERS
    return VectorOrder.COVERED if is_covered else VectorOrder.CONCURRENT


def merged(vector: Vector, other: Vector, lineage: Lineage = NO_LINEAGE) -> dict[str, int]:
    """Return the least vector that contains two others, in normal form."""
    one, two = expanded(vector, lineage), expanded(other, lineage)
    both = {history: max(one.get(history, 0), two.get(history, 0)) for history in one.keys() | two.keys()}
    return normal(both, lineage)


def first_fall(vectors: Iterable[Vector], lineage: Lineage = NO_LINEAGE) -> int | None:
    """Return the index of the first vector that lacks a tick of the one before it, None if they never fall.

    The vectors of a log's footers must never fall: what is contained stays contained.
    """
    for index, (before, after) in enumerate(pairwise(vectors), start=1):
        if not contains(after, before, lineage):
            return index
    return None
