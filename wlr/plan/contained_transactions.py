"""What a copy of a database contains: transactions of its own log and of other sites, and the proofs of both."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.farm.json_fields import TickFrom0, Ticks
from wlc.farm.log_columns import PlainRun, parts_of
from wlc.farm.model import Taken
from wlc.farm.vectors import raised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wlc.farm.model import Batch, Manifest, Transaction


@dataclass(frozen=True, slots=True)
class Contained:
    """What is contained at a tick of a log.

    Attributes:
        tick: That tick.
        vector: Per history the last tick contained.
        own: Last tick of the log that has records and is no other site's; 0 before the first, None if it is not known.
        proofs: The newest position read in each other site's log.
    """

    tick: TickFrom0 = 0
    vector: Ticks = field(default_factory=dict)
    own: TickFrom0 | None = 0
    proofs: tuple[Taken, ...] = ()


NOTHING = Contained()


def of_footer(batch: Batch) -> Contained:
    """Return what a batch says that its log contains after it."""
    # A log without anything of others does not say which ticks are its own: all of them are.
    own = batch.own or (batch.last if batch.vector.keys() <= {batch.history} else 0)
    return Contained(batch.last, dict(batch.vector), own, batch.taken)


def of_snapshot(manifest: Manifest) -> Contained:
    """Return what a snapshot says that it contains; it does not say which ticks are the log's own."""
    position = manifest.position
    vector = {**manifest.vector, position.history: position.tick} if position.tick else dict(manifest.vector)
    is_alone = vector.keys() <= {position.history}
    return Contained(position.tick, vector, position.tick if is_alone else 0 if position.batch == 0 else None)


def having_applied(before: Contained, transactions: Sequence[Transaction], history: str) -> Contained:
    """Return what is contained after some more transactions of a log's history."""
    if not transactions:
        return before
    own, origins = before.own, []
    for part in parts_of(transactions):
        if isinstance(part, PlainRun):
            own = part[-1].tick
            continue
        for transaction in part:
            if transaction.origin is not None:
                origins.append(transaction.origin)
            elif transaction.records:
                own = transaction.tick
    last = transactions[-1].tick
    return replace(before, tick=last, vector={**raised(before.vector, origins), history: last}, own=own)
