"""Where a replay stops: at a tick, at a time, or at the end of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.farm.clock import format_time

if TYPE_CHECKING:
    from datetime import datetime

    from wlc.farm.model import Batch, Transaction


@dataclass(frozen=True, slots=True)
class Stop:
    """Where to stop: after `tick`, or before the first transaction committed later than `until`; else at the end.

    Attributes:
        is_awaited: What is not published yet is no error, and neither is a replica that is further already.
        is_moving: It moves on with the clock: what is too young now is not later.
    """

    tick: int | None = None
    until: datetime | None = None
    is_awaited: bool = False
    is_moving: bool = False

    def is_passed(self, tick: int, clock: datetime | None) -> bool:
        """Say whether nothing more can come at or before the stop, given the last tick and its commit time."""
        if self.tick is not None:
            return tick >= self.tick
        return self.until is not None and clock is not None and clock > self.until

    def includes(self, transaction: Transaction) -> bool:
        """Say whether the replica is to hold the transaction, given that it holds all before it."""
        if self.tick is not None:
            return transaction.tick <= self.tick
        return self.until is None or transaction.committed is None or transaction.committed <= self.until

    def is_before(self, batch: Batch, tick: int) -> bool:
        """Say whether the stop lies before the first transaction of a batch after `tick`."""
        if self.tick is None and self.until is None:
            return False
        following = next((transaction for transaction in batch.transactions if transaction.tick > tick), None)
        return following is not None and not self.includes(following)

    def __str__(self) -> str:
        if self.tick is not None:
            return f"tick {self.tick}"
        return "the end" if self.until is None else format_time(self.until)
