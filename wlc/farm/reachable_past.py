"""How far back one can go: the oldest state from which every later one can be reached, and single ones before it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.farm.human_form import ForPeople

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Position


@dataclass(frozen=True, slots=True)
class Window(ForPeople):
    """What can be gone back to.

    Attributes:
        tick: This tick and every later one can be reached; None where nothing was published.
        clock: When its transaction was committed, or that of tick 1 where the log begins with an empty database.
        older: Ticks of single snapshots before it, rising: the log after them was pruned.
        is_whole: Nothing was ever there that cannot be reached any more.
    """

    tick: int | None
    clock: datetime | None
    older: tuple[int, ...] = ()
    is_whole: bool = False

    def covers(self, age: timedelta, now: datetime) -> bool:
        """Say whether every state of the last `age` can be reached."""
        return self.is_whole or (self.clock is not None and self.clock <= now - age)

    def holds(self, tick: int) -> bool:
        """Say whether a tick can be reached."""
        return (self.tick is not None and tick >= self.tick) or tick in self.older


def window_of(
    snapshots: Sequence[tuple[Position, datetime]], first_batch: int | None, first_commit: datetime | None
) -> Window:
    """Decide how far back one can go.

    Args:
        snapshots: Position and time of each, rising.
        first_batch: Number of the oldest batch; None without a log.
        first_commit: Time of the first transaction, where the log begins with an empty database; else ignored.
    """
    if begins_empty([position.tick for position, _ in snapshots], first_batch):
        return Window(0, first_commit, (), is_whole=True)
    if not snapshots:
        return Window(None, None, (), is_whole=first_batch is None)
    at = bisect_left(snapshots, True, key=lambda found: is_joined(found[0], first_batch))
    # Without a log, only the last snapshot goes on.
    at = min(at, len(snapshots) - 1) if first_batch is not None else len(snapshots) - 1
    position, clock = snapshots[at]
    older = tuple(found.tick for found, _ in snapshots[:at])
    return Window(position.tick, clock, older, is_whole=position.batch == 0 and not older)


def begins_empty(snapshot_ticks: Sequence[int], first_batch: int | None) -> bool:
    """Say whether a log begins with an empty database: a log that begins with a snapshot has one at tick 0."""
    return first_batch == 1 and (not snapshot_ticks or snapshot_ticks[0] > 0)


def is_joined(position: Position, first_batch: int | None) -> bool:
    """Say whether the log goes on after the snapshot at a position."""
    return first_batch is None or position.batch >= first_batch - 1


def read_window(database: FarmDatabase) -> Window:
    """Return how far back one can go; few manifests are read, however many there are.

    Raises:
        CorruptError: A manifest or the first log file is damaged.
    """
    numbers, ticks = database.batch_numbers(), database.snapshot_ticks()
    first = numbers[0] if numbers else None
    if begins_empty(ticks, first):
        batch, _ = database.read_batch(1)
        commits = (transaction.committed for transaction in batch.transactions if transaction.committed is not None)
        return window_of([], first, next(commits, None))
    if not ticks:
        return window_of([], first, None)
    at = len(ticks) - 1
    if first is not None:
        at = bisect_left(ticks, True, key=lambda tick: is_joined(database.read_manifest(tick).position, first))
    at = min(at, len(ticks) - 1)
    manifest = database.read_manifest(ticks[at])
    found = window_of([(manifest.position, manifest.clock)], first, None)
    return Window(found.tick, found.clock, tuple(ticks[:at]), is_whole=found.is_whole and not at)
