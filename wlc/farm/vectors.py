"""Vectors: per history the last tick that a copy contains, compared and merged by pure functions.

A database of one master has a vector of one history. Each of several masters publishes the transactions taken from
other sites with their origin, and its vector says how much of every history it contains. Ticks of a history are taken
in order and without gaps, so one number per history is enough.

Old histories would accumulate in vectors. The normal form leaves out entries that others imply; `Lineage` restores
them, and only expanded vectors are compared.
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
    """The heir of an ended history: a copy that contains `at` contains the history up to its tick `last`."""

    at: Parent
    last: Tick


@dataclass(frozen=True, slots=True)
class Lineage:
    """Relations that restore the histories left out of vectors.

    Attributes:
        parents: For a history its parent, and the last tick that both share.
        heirs: For a history whose site has left, the place in another log from which on all of it is contained.
    """

    parents: Mapping[str, Origin] = field(default_factory=dict)
    heirs: Mapping[str, Heir] = field(default_factory=dict)

    def ancestors(self, history: str) -> Iterator[tuple[str, int]]:
        """Yield the ancestors of a history with the last shared tick of each, nearest first."""
        seen = {history}
        while (parent := self.parents.get(history)) is not None and parent.history not in seen:
            yield parent.history, parent.tick
            history = parent.history
            seen.add(history)


NO_LINEAGE = Lineage()


def expanded(vector: Vector, lineage: Lineage = NO_LINEAGE) -> dict[str, int]:
    """Return a vector with every contained history, including those that the normal form leaves out."""
    found = {history: tick for history, tick in vector.items() if tick}
    if not lineage.parents and not lineage.heirs:
        return found
    while True:
        # An implied tick may in turn imply another history.
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
    """Return a vector without the histories that other entries imply."""
    found = {history: tick for history, tick in sorted(vector.items()) if tick}
    known = {*lineage.heirs, *(parent.history for parent in lineage.parents.values())}
    for history in sorted(known & found.keys()):
        tick = found.pop(history)
        if expanded(found, lineage).get(history, 0) < tick:
            found[history] = tick
    return dict(sorted(found.items()))


def contains(vector: Vector, other: Vector, lineage: Lineage = NO_LINEAGE) -> bool:
    """Say whether a vector contains every tick of another one."""
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
    """Return the index of the first vector that lacks a tick of its predecessor, None if there is none.

    Vectors in a log's footers must never lose a tick.
    """
    for index, (before, after) in enumerate(pairwise(vectors), start=1):
        if not contains(after, before, lineage):
            return index
    return None
