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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wlc.farm.model import Origin

Vector = Mapping[str, int]


class VectorOrder(Enum):
    """How one vector relates to another."""

    EQUAL = "equal"
    COVERS = "covers"
    COVERED = "is covered"
    CONCURRENT = "concurrent"


@dataclass(frozen=True, slots=True)
class Lineage:
    """What is known of histories that vectors leave out.

    Attributes:
        parents: For a history the one that it grew from, and the last tick it shares with it.
        retired: For a history that will never go on its last tick. A vector without an entry for it contains all of
            it; one that contains nothing of it has the entry 0.
    """

    parents: Mapping[str, Origin] = field(default_factory=dict)
    retired: Mapping[str, int] = field(default_factory=dict)

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
    found = {**{history: last for history, last in lineage.retired.items() if history not in vector}, **vector}
    for history in [history for history, tick in found.items() if tick]:
        for ancestor, tick in lineage.ancestors(history):
            found[ancestor] = max(found.get(ancestor, 0), tick)
    return {history: tick for history, tick in found.items() if tick}


def raised(vector: Vector, origins: Iterable[Origin]) -> dict[str, int]:
    """Return a vector that contains some more transactions, too."""
    found = dict(vector)
    for origin in origins:
        found[origin.history] = max(found.get(origin.history, 0), origin.tick)
    return found


def normal(vector: Vector, lineage: Lineage = NO_LINEAGE) -> dict[str, int]:
    """Return a vector without the histories that its other entries, or their retirement, imply."""
    implied: dict[str, int] = {}
    for history in (history for history, tick in vector.items() if tick):
        for ancestor, tick in lineage.ancestors(history):
            implied[ancestor] = max(implied.get(ancestor, 0), tick)

    def stays(history: str, tick: int) -> bool:
        if history in lineage.retired:
            # Without an entry all of it is contained, so one that contains less must keep its entry, even 0.
            return tick < lineage.retired[history]
        return tick > implied.get(history, 0)

    return {history: tick for history, tick in sorted(vector.items()) if stays(history, tick)}


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
    # Neither contains anything of a retired history whose entry is 0 in both.
    both.update(dict.fromkeys(lineage.retired.keys() - both.keys(), 0))
    return normal(both, lineage)


def first_fall(vectors: Iterable[Vector], lineage: Lineage = NO_LINEAGE) -> int | None:
    """Return the index of the first vector that lacks a tick of the one before it, None if they never fall.

    The vectors of a log's footers must never fall: what is contained stays contained.
    """
    for index, (before, after) in enumerate(pairwise(vectors), start=1):
        if not contains(after, before, lineage):
            return index
    return None
