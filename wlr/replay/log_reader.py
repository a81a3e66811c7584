"""Reads the log of a farm database: its end, the snapshot to start from, and its batches in order."""

from __future__ import annotations

import shlex
import warnings
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.errors import CorruptError, ExpiredError, GapError, InvalidError, UnavailableError
from wlc.farm.log import refuse_other_past
from wlc.farm.model import Position
from wlc.farm.paths import log_path
from wlc.farm.reachable_past import first_after, not_restorable
from wlc.farm.read_ahead import read_ahead
from wlc.farm.store import MissingError
from wlc.tiers.same_past import is_only_behind
from wlr.replay.plan import bounds
from wlr.replay.plan.log_steps import cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Config, Manifest
    from wlc.tiers.attachment import Membership
    from wlr.replay.plan.bounds import Stop
    from wlr.replay.plan.step import Step


def local_folders(database: FarmDatabase) -> list[Path]:
    """Return the local folders of a farm database, from which data files are read without a copy."""
    return [Path(url) for url in (database.url, database.logs.url) if "://" not in url]


def last_tick(database: FarmDatabase, numbers: list[int], config: Config | None = None) -> int:
    """Return the last published tick; the configuration may be one batch behind, never ahead.

    Args:
        database: The farm database.
        numbers: Numbers of its newest batches, or of all, listed just before.
        config: Content of `wlc.config`; it is read if omitted.

    Raises:
        GapError: The newest batch was published and is missing.
        MissingError: There is no such database in the farm.
    """
    config = config or database.config()
    if numbers and numbers[-1] >= config.batches:
        return database.read_batch(numbers[-1])[0].last
    newest = config.batches - 1
    # Pruning keeps the newest batch, which may have been published after the listing.
    if newest and newest not in numbers and newest not in database.batch_numbers(after=newest - 1):
        message = f"batch {newest} of {database.name} was published and is missing"
        raise GapError(message, hint="Put the log file back.", path=database.logs.url)
    return config.tick


def refuse_rolled_back(database: FarmDatabase, numbers: list[int], end: int) -> None:
    """Refuse a farm that lacks a batch which the reader's witness has seen.

    Args:
        database: The farm database.
        numbers: Numbers of its batches.
        end: Its last tick.

    Raises:
        CorruptError: It was rolled back, or has another history.
    """
    if database.witness is None or (seen := database.witness.seen()) is None:
        return
    problem = None
    if end < seen.tick or (numbers[-1] if numbers else 0) < seen.batch:
        problem = f"ends at tick {end}, but had reached tick {seen.tick}: it was rolled back"
    elif seen.batch in numbers and database.read_batch(seen.batch)[1] != seen.chain:
        problem = f"holds another batch {seen.batch} than the one seen at {seen}"
    if problem:
        raise CorruptError(
            f"{database.url} {problem} (witness {database.witness.file})",
            hint="Ask the owner of the farm. If the owner rebuilt it on purpose, delete the witness file.",
            path=database.url,
            position=seen,
        )


def refuse_lost_position(
    database: FarmDatabase, membership: Membership | None, position: Position, end: int, last: int
) -> None:
    """Refuse a log that ends before the position of its reader, a replica or a feed.

    Args:
        database: The place that is read.
        membership: The reader's part in a tree of tiers; None if its place is fixed.
        position: The reader's position.
        end: Last tick of the log.
        last: Number of its last batch, by its configuration and its listing.

    Raises:
        UnavailableError: A relay lags behind the reader: wait.
        CorruptError: Its master was restored from a backup.
    """
    try:
        bounds.refuse_lost_position(position, end, last)
    except CorruptError as error:
        if not is_only_behind(database, membership, position):
            raise
        message = f"{database.url} ends with batch {last}, its reader is in batch {position.batch}"
        raise UnavailableError(message, hint=f"wlc tier show {shlex.quote(database.url)}", path=database.url) from error


def choose_snapshot(database: FarmDatabase, stop: Stop) -> Manifest | None:
    """Read the newest snapshot at or before the stop; None to start from an empty database.

    With signatures, it is the newest snapshot that verifies. Others cause a warning: an attacker with write access to
    the farm can add one.

    Raises:
        InvalidError: The stop is ahead of the farm.
        ExpiredError: Every snapshot and batch at or before the stop was pruned.
        CorruptError: The snapshot is damaged; or no suitable snapshot verifies.
    """
    numbers = database.batch_numbers()
    first, end = numbers[0] if numbers else None, last_tick(database, numbers)
    refuse_rolled_back(database, numbers, end)
    candidates = _Candidates(database, database.snapshot_ticks())
    while True:
        reach = bounds.Reach(tuple(candidates.reachable(needs_clocks=stop.until is not None)), first, end)
        try:
            tick = bounds.choose_snapshot(reach, stop)
        except ExpiredError as error:
            candidates.raise_refused(error)
            raise
        if tick is None:
            if 0 in candidates.refused:
                # The log began with an unknown snapshot.
                candidates.raise_refused(None)
            return None
        if (manifest := candidates.read(tick)) is not None:
            candidates.warn(tick)
            return manifest


def newest_snapshot(database: FarmDatabase, last: int) -> Manifest | None:
    """Read the newest verified snapshot up to a tick, as `choose_snapshot` does; None without any snapshot."""
    candidates = _Candidates(database, [tick for tick in database.snapshot_ticks() if tick <= last])
    for tick in reversed(candidates.ticks):
        if (manifest := candidates.read(tick)) is not None:
            candidates.warn(tick)
            return manifest
    candidates.raise_refused(None)
    return None


@dataclass(slots=True)
class _Candidates:
    """Snapshots to start from, and those among them that do not verify, with the reason."""

    database: FarmDatabase
    ticks: list[int]
    refused: dict[int, CorruptError] = field(default_factory=dict)

    def reachable(self, *, needs_clocks: bool) -> Iterator[tuple[int, datetime | None]]:
        """Yield tick and time of each; the tick is in the snapshot's name, the time in its manifest only."""
        for tick in self.ticks:
            manifest = self.read(tick) if needs_clocks else None
            if tick not in self.refused:
                yield tick, manifest.clock if manifest else None

    def read(self, tick: int) -> Manifest | None:
        """Return a manifest, None if it does not verify."""
        if tick in self.refused:
            return None
        try:
            return self.database.read_manifest(tick)
        except CorruptError as error:
            if not self.database.keys.verifying:
                raise
            self.refused[tick] = error
            return None

    def raise_refused(self, cause: Exception | None) -> None:
        """Report the newest snapshot that does not verify, if there is one."""
        if self.refused:
            raise self.refused[max(self.refused)] from cause

    def warn(self, chosen: int) -> None:
        """Warn of snapshots that are newer than the chosen one and do not verify."""
        for tick in sorted(self.refused):
            if tick > chosen:
                problem = self.refused[tick].message
                warnings.warn(f"snapshot {tick} is ignored, snapshot {chosen} is used: {problem}", stacklevel=4)


def batches_from(
    database: FarmDatabase,
    first: int,
    numbers: Sequence[int],
    position: Position,
    read: Callable[[int, str | None], tuple[Batch, str]] | None = None,
) -> Iterator[tuple[Batch, str]]:
    """Read batches and their chain hashes from a position to the end of the log, verifying the chain.

    Args:
        database: The farm database.
        first: Number of the first batch: that of the position, or the next one.
        numbers: Numbers of the newest batches, listed just before. Batches published during the reading are read, too.
        position: The reader's position.
        read: Reads a batch by its number and the chain hash before it; the farm's own function if omitted.

    Raises:
        CorruptError: A log file is damaged, the chain is broken, or the farm has another history.
    """
    read = read or database.read_batch
    previous = position.chain if first == position.batch + 1 else None
    listed = range(first, numbers[-1] + 1 if numbers else first)
    number = 0
    for batch, chain in read_ahead(listed, lambda wanted: read(wanted, None), is_remote=database.logs.is_remote):
        number = batch.number
        if previous is not None:
            where = f"{database.logs.url}/{log_path(database.name, batch.number)}"
            refuse_other_past(batch, previous, where)
        if number == position.batch and chain != position.chain:
            raise CorruptError(
                f"batch {number} of {database.url} differs from the one that its reader has read",
                hint=f"The master was restored from a backup: {bounds.REBASE}",
                path=database.url,
                position=position,
            )
        yield batch, chain
        previous = chain
    # Without new batches, the reader asks no further.
    while number > position.batch:
        number += 1
        try:
            batch, chain = read(number, previous)
        except MissingError:
            return
        yield batch, chain
        previous = chain


def steps_after(database: FarmDatabase, manifest: Manifest | None, stop: Stop) -> Iterator[Step]:
    """Cut the log after a snapshot, up to the stop, into steps.

    Raises:
        ExpiredError: The batch after the snapshot was pruned.
        CorruptError: A log file is damaged, or the chain is broken.
        InvalidError: The stop is after the end of the snapshot's history, and before the next one's first snapshot.
    """
    position = manifest.position if manifest else Position("", 0)
    numbers = database.batch_numbers()
    if bounds.is_single(position, numbers):
        bounds.refuse_hole(position, database.snapshot_ticks(), stop)
        return iter(())
    first = bounds.first_batch_to_read(position, position.tick, numbers, database.snapshot_ticks)
    return _to_stop(cut(batches_from(database, first, numbers, position), position, stop), database, stop)


def _to_stop(steps: Iterator[Step], database: FarmDatabase, stop: Stop) -> Iterator[Step]:
    try:
        yield from steps
    except InvalidError as error:
        if error.position is None:
            raise
        end = error.position.tick
        raise not_restorable(stop, end, first_after(database.snapshot_ticks(), end)) from error


Read = Callable[[int], tuple["Batch", str]]


def batch_of(database: FarmDatabase, tick: int) -> int:
    """Return the number of the first batch that ends at a tick or after it, one more than the last if none does.

    Raises:
        ExpiredError: That batch was pruned.
    """
    return _batch_of(database, tick, database.batch_numbers(), database.read_batch)


def _batch_of(database: FarmDatabase, tick: int, numbers: Sequence[int], read: Read) -> int:
    place = bisect_left(numbers, tick, key=lambda number: read(number)[0].last)
    if place == 0 and numbers and numbers[0] > 1:
        oldest = read(numbers[0])[0].first
        if oldest > tick:
            message = f"the log of {database.name} before tick {oldest} was pruned"
            raise ExpiredError(message, hint=f"Read the changes from tick {oldest} on.")
    if place < len(numbers):
        return numbers[place]
    return numbers[-1] + 1 if numbers else 1


def batches_of(database: FarmDatabase, first: int, last: int, *, after: int | None = None) -> list[tuple[Batch, str]]:
    """Read the batches that hold a range of ticks, both included, with their chain hashes; every log file once.

    Args:
        database: The farm database.
        first: The first tick.
        last: The last tick.
        after: The tick that their changes must continue from; None for any.

    Raises:
        ExpiredError: The first of them was pruned.
        InvalidError: Between them, or after `after`, a history begins that does not continue the one before.
    """
    numbers = database.batch_numbers()
    read = cache(database.read_batch)
    start = _batch_of(database, first, numbers, read)
    end = min(_batch_of(database, last, numbers, read), numbers[-1] if numbers else 0)
    found = _followed(database, start, end, None, read)
    _refuse_break_before(found, after, numbers, read)
    return found


def batches_between(
    database: FarmDatabase, first: int, last: int, chain: str | None = None, *, after: int | None = None
) -> list[tuple[Batch, str]]:
    """Read batches and their chain hashes, verifying that each follows the one before.

    Args:
        database: The farm database.
        first: Number of the first batch.
        last: Number of the last batch, included.
        chain: Chain hash of the batch before the first; None if it is unknown.
        after: As in `batches_of`.

    Raises:
        ExpiredError: The first batch was pruned.
        InvalidError: As in `batches_of`.
    """
    numbers = database.batch_numbers()
    if numbers and first < numbers[0]:
        message = f"batch {first} of {database.name} was pruned, the oldest one is {numbers[0]}"
        raise ExpiredError(message, hint="Read the table again, then the changes after its tick.")
    found = _followed(database, first, last, chain, database.read_batch)
    _refuse_break_before(found, after, numbers, database.read_batch)
    return found


def _followed(
    database: FarmDatabase, first: int, last: int, previous: str | None, read: Read
) -> list[tuple[Batch, str]]:
    found: list[tuple[Batch, str]] = []
    for number in range(first, last + 1):
        batch, chain = read(number)
        if previous is not None:
            refuse_other_past(batch, previous, f"{database.logs.url}/{log_path(database.name, number)}")
        if found:
            before, before_chain = found[-1]
            bounds.refuse_break(batch, Position(before.history, before.last, before.number, before_chain))
        found.append((batch, chain))
        previous = chain
    return found


def _refuse_break_before(
    found: Sequence[tuple[Batch, str]], after: int | None, numbers: Sequence[int], read: Read
) -> None:
    """Refuse batches if the first begins a history that does not continue from the reader's tick."""
    batch = found[0][0] if found else None
    if batch is not None and after is not None and after < batch.first:
        bounds.refuse_break(batch, end_before(batch, numbers, read))


def end_before(batch: Batch, numbers: Sequence[int], read: Read) -> Position:
    """Return the position of a reader that has read everything before a batch."""
    history, tick = batch.history, batch.first - 1
    # Only the first batch of a history names its parent.
    if batch.parent is not None and batch.number > 1:
        is_there = batch.number - 1 in numbers
        before = read(batch.number - 1)[0] if is_there else None
        history, tick = (before.history, before.last) if before else (batch.parent.history, batch.parent.tick)
    return Position(history, tick, batch.number - 1, batch.previous)
