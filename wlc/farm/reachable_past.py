"""The restorable past: the oldest state from which every later one can be reached, and single states before it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.human_form import ForPeople
from wlc.farm.model import Origin
from wlc.farm.paths import log_path
from wlc.farm.store import MissingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime, timedelta

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Position


@dataclass(frozen=True, slots=True)
class Window(ForPeople):
    """The restorable states.

    Attributes:
        tick: This tick and every later one can be restored, except `lost`; None if nothing was published, or log files
            are missing after the newest snapshot.
        clock: When its transaction was committed, or that of tick 1 where the log begins with an empty database.
        older: Ticks of single snapshots before it, rising: batches after them were pruned or are missing.
        is_whole: Every state that ever existed can be restored.
        lost: First and last ticks of the ranges after `tick` that cannot be restored: from the end of a history to the
            first existing snapshot of the next one, if that grew from another tick. None as the last tick: there is no
            such snapshot.
    """

    tick: int | None
    clock: datetime | None
    older: tuple[int, ...] = ()
    is_whole: bool = False
    lost: tuple[tuple[int, int | None], ...] = ()

    def covers(self, age: timedelta, now: datetime) -> bool:
        """Say whether every state of the last `age` can be restored."""
        return self.is_whole or (self.clock is not None and self.clock <= now - age)

    def holds(self, tick: int) -> bool:
        """Say whether a tick can be restored."""
        is_after = self.tick is not None and tick >= self.tick
        return (is_after and self.lost_with(tick) is None) or tick in self.older

    def lost_with(self, tick: int) -> tuple[int, int | None] | None:
        """Return the unrestorable range that contains a tick; None if it is in none."""
        return next((each for each in self.lost if each[0] <= tick and (each[1] is None or tick <= each[1])), None)

    def reached_from(self, tick: int) -> int:
        """Return the first restorable tick at or after one in the window, or else the last one before it."""
        while (lost := self.lost_with(tick)) is not None:
            first, last = lost
            if last is None:
                return first - 1
            tick = last + 1
        return tick


def window_of(
    snapshots: Sequence[tuple[Position, datetime]],
    first_batch: int | None,
    first_commit: datetime | None,
    ends: Iterable[int] = (),
) -> Window:
    """Decide which states can be restored.

    Args:
        snapshots: Position and time of each, rising.
        first_batch: As of `first_of_unbroken`; None without a log.
        first_commit: Time of the first transaction if the log begins with an empty database; ignored otherwise.
        ends: As of `ends_of_histories`.
    """
    ticks = [position.tick for position, _ in snapshots]
    if begins_empty(snapshots[0][0] if snapshots else None, first_batch):
        return Window(0, first_commit, (), is_whole=True, lost=lost_between(ends, ticks, 0))
    if not snapshots:
        return Window(None, None, (), is_whole=first_batch is None)
    # Without a log, only the last snapshot is current.
    at = len(snapshots) - 1
    if first_batch is not None:
        at = bisect_left(snapshots, True, key=lambda found: is_joined(found[0], first_batch))
    if at == len(snapshots):
        return Window(None, None, tuple(ticks))
    position, clock = snapshots[at]
    older = tuple(found.tick for found, _ in snapshots[:at])
    lost = lost_between(ends, ticks, position.tick)
    return Window(position.tick, clock, older, is_whole=position.batch == 0 and not older, lost=lost)


def begins_empty(oldest: Position | None, first_batch: int | None) -> bool:
    """Say whether a log begins with an empty database rather than with the oldest snapshot, given its position."""
    return first_batch == 1 and (oldest is None or oldest.batch > 0)


def first_of_unbroken(batches: Sequence[int]) -> int | None:
    """Return the first batch number after which no batch is missing, given rising numbers; None without batches."""
    if not batches:
        return None
    before_last = batches[-1] - len(batches) + 1
    return batches[bisect_left(range(len(batches)), before_last, key=lambda place: batches[place] - place)]


def is_joined(position: Position, first_batch: int | None) -> bool:
    """Say whether the log continues after the snapshot at a position."""
    return first_batch is None or position.batch >= first_batch - 1


def read_window(database: FarmDatabase) -> Window:
    """Return the restorable states; reads few manifests, however many there are.

    Raises:
        CorruptError: A manifest or the first log file is damaged.
    """
    named = _named_batch(database)
    numbers, ticks = database.batch_numbers(), database.snapshot_ticks()
    first = first_of_unbroken(numbers)
    if named > (numbers[-1] if numbers else 0) and not database.logs.exists(log_path(database.name, named)):
        # Do not read a log whose end is missing.
        return Window(None, None)
    oldest = database.read_manifest(ticks[0]).position if ticks and first == 1 else None
    if begins_empty(oldest, first):
        batch, _ = database.read_batch(1)
        commits = (transaction.committed for transaction in batch.transactions if transaction.committed is not None)
        lost = lost_between(ends_of_histories(database, numbers, batch.history), ticks, 0)
        return Window(0, next(commits, None), (), is_whole=True, lost=lost)
    if not ticks:
        return window_of([], first, None)
    at = len(ticks) - 1
    if first is not None:
        at = bisect_left(ticks, True, key=lambda tick: is_joined(database.read_manifest(tick).position, first))
    if at == len(ticks):
        return Window(None, None, tuple(ticks))
    manifest = database.read_manifest(ticks[at])
    found = window_of([(manifest.position, manifest.clock)], first, None)
    lost = lost_between(ends_of_histories(database, numbers, manifest.position.history), ticks, manifest.position.tick)
    return Window(found.tick, found.clock, tuple(ticks[:at]), is_whole=found.is_whole and not at, lost=lost)


def _named_batch(database: FarmDatabase) -> int:
    """Return the number of the last batch that `wlc.config` knows, 0 if it knows none."""
    try:
        return database.config().batches - 1
    except (MissingError, CorruptError):
        return 0


def ends_of_histories(database: FarmDatabase, numbers: Sequence[int], history: str) -> list[int]:
    """Return the last ticks of histories whose successor grew from another tick, or with changes in no log.

    Args:
        database: The farm database.
        numbers: Numbers of its batches, rising; few are read.
        history: History of the oldest wanted state. If it is the present history, no batch is read.
    """
    try:
        present = database.config().history
    except (MissingError, CorruptError):
        present = database.read_batch(numbers[-1])[0].history if numbers else history
    return [] if history == present else list(_ends(database, numbers, present))


def _ends(database: FarmDatabase, numbers: Sequence[int], present: str) -> Iterator[int]:
    while numbers:
        history = database.read_batch(numbers[0])[0].history
        if history == present:
            return
        at = bisect_left(numbers, True, key=lambda number: database.read_batch(number)[0].history != history)
        end, numbers = database.read_batch(numbers[at - 1])[0].last, numbers[at:]
        later = database.read_batch(numbers[0])[0] if numbers else None
        if later is None or later.first > end + 1 or later.parent != Origin(history, end):
            yield end


def first_after(ticks: Iterable[int], tick: int) -> int | None:
    """Return the first of rising ticks after a given tick; None if there is none."""
    return next((each for each in ticks if each > tick), None)


def not_restorable(
    what: object, end: int, start: int | None, *, history: str = "another history", can: str = "reached"
) -> InvalidError:
    """Build the error for a tick or time after the end of a history: the next snapshot, at `start`, is later."""
    following = "no snapshot follows yet" if start is None else f"the next snapshot is at tick {start}"
    return InvalidError(
        f"{what} cannot be restored: tick {end} is followed by {history}, and {following}",
        hint=f"The nearest that can be {can}: --tick {end}{'' if start is None else f' and --tick {start}'}.",
    )


def lost_between(ends: Iterable[int], snapshot_ticks: Sequence[int], oldest: int) -> tuple[tuple[int, int | None], ...]:
    """Return first and last ticks of the unrestorable ranges after the oldest tick, see `Window.lost`."""
    lost: list[tuple[int, int | None]] = []
    for end in ends:
        start = first_after(snapshot_ticks, end)
        if end >= oldest and start != end + 1:
            lost.append((end + 1, None if start is None else start - 1))
    return tuple(lost)
