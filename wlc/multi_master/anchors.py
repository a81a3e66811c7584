"""Anchors: where one site continues reading another site's log, decided from vectors alone.

The log of a site is the complete sequence of its states: its own transactions and the taken ones, in its commit order.
The footer of each batch holds the site's vector after it. The reader of the log has a vector, too.

389 Directory Server computes such an anchor per replica id, and sends from the least of them on, up to stops that it
fixes per replica id at the start. A log here is append-only, and nothing is inserted after a position, so the newest
batch at the start of a round is the only stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.errors import ExpiredError
from wlc.farm.model import Origin
from wlc.farm.vectors import NO_LINEAGE, contains, expanded

if TYPE_CHECKING:
    from collections.abc import Callable

    from wlc.farm.model import Batch
    from wlc.farm.vectors import Lineage, Vector


def anchor(
    first: int,
    stop: int,
    footer: Callable[[int], Vector],
    mine: Vector,
    *,
    before: Vector | None = None,
    floor: int = 0,
    lineage: Lineage = NO_LINEAGE,
) -> int | None:
    """Return the number of the first batch with a tick that a vector does not contain.

    Footers never fall along a log, so a binary search finds the batch: it reads a logarithmic number of footers.

    Args:
        first: Number of the oldest batch that is kept.
        stop: Number of the newest batch to read; less than `first` if there is none.
        footer: Returns the vector after a batch.
        mine: The reader's vector.
        before: The vector just before the oldest kept batch; None if unknown, empty for batch 1.
        floor: A batch that the reader already contained, 0 if none: vectors only grow.
        lineage: Restores histories that vectors leave out.

    Returns:
        The batch to start with; None if nothing is missing.

    Raises:
        ExpiredError: The missing ticks begin before the oldest kept batch, or may.
    """
    low, high = max(first, floor + 1), stop + 1
    if low >= high or contains(mine, footer(stop), lineage):
        return None
    start = low
    while low < high:
        middle = (low + high) // 2
        if contains(mine, footer(middle), lineage):
            low = middle + 1
        else:
            high = middle
    if low == start == first and floor < first - 1 and not (before is not None and contains(mine, before, lineage)):
        raise ExpiredError(f"what is missing begins before batch {first}, the oldest that is kept")
    return low


def before(batch: Batch, lineage: Lineage = NO_LINEAGE) -> dict[str, int]:
    """Return the vector just before a batch whose predecessor was pruned, expanded.

    Ticks of a history have no gaps, so the vector contained no tick that implies one of the batch.
    """
    begins = Origin(batch.history, batch.first - 1) if batch.parent is None else batch.parent
    others = {history: tick for history, tick in batch.vector.items() if history != batch.history}
    past = expanded({**others, begins.history: begins.tick}, lineage)
    first = {each.origin.history: each.origin.tick for each in reversed(batch.transactions) if each.origin is not None}
    for history, tick in first.items():
        _take_out(past, history, tick, lineage)
    return past


def _take_out(vector: dict[str, int], history: str, tick: int, lineage: Lineage) -> None:
    """Remove a tick from an expanded vector, with all ticks that imply it."""
    if vector.get(history, 0) < tick:
        return
    del vector[history]
    if tick > 1:
        vector[history] = tick - 1
    for later in list(vector):
        if any(ancestor == history and last >= tick for ancestor, last in lineage.ancestors(later)):
            _take_out(vector, later, 1, lineage)
    heir = lineage.heirs.get(history)
    if heir is not None and heir.last >= tick:
        _take_out(vector, heir.at.history, heir.at.tick, lineage)


def has_seen(vector: Vector, batch: Batch, lineage: Lineage = NO_LINEAGE) -> bool:
    """Say whether a vector contains all transactions of a site's log up to the end of a batch.

    A site that has taken only echoes does not publish its position in that log: then it contains the last own tick that
    has records, if there is one, and the taken transactions.
    """
    if batch.last <= expanded(vector, lineage).get(batch.history, 0):
        return True
    if batch.own is not None:
        return contains(vector, {**batch.vector, batch.history: batch.own}, lineage)
    if not batch.vector.keys() - {batch.history}:
        # It was alone: every tick is its own.
        return False
    taken = expanded(batch.vector, lineage)
    taken.pop(batch.history, None)
    return contains(vector, taken, lineage)
