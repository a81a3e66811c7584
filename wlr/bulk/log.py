"""The farm's log as a reader that keeps nothing between two reads needs it: from a snapshot, or from a batch, on."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from wlc.errors import ExpiredError
from wlc.model import Position
from wlr import bounds, log, plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wlc.farm import FarmDatabase
    from wlc.model import Batch, Manifest, TableFile, Transaction

# A committed transaction, and the data files of its batch by path.
Logged = tuple["Transaction", "Mapping[str, TableFile]"]


def choose(database: FarmDatabase, target: plan.Target) -> Manifest | None:
    """Read the newest snapshot at or before the target, None where the log begins with an empty database.

    Raises:
        InvalidError: The target is ahead of the farm.
        ExpiredError: Nothing at or before the target is left.
    """
    tick = log.choose_snapshot(database, target)
    return None if tick is None else database.read_manifest(tick)


def after(database: FarmDatabase, manifest: Manifest | None, target: plan.Target) -> Iterator[Logged]:
    """Read the committed transactions behind a snapshot up to the target, in order.

    Raises:
        ExpiredError: What comes next was pruned.
        CorruptError: A log file is damaged, or the chain is broken.
        InvalidError: A batch belongs to a history that grew from elsewhere.
    """
    position = manifest.position if manifest else Position("", 0)
    numbers = database.batch_numbers()
    ticks = database.snapshot_ticks()
    first = bounds.first_batch_to_read(position, position.tick, numbers, ticks[-1] if ticks else None)
    for step in plan.cut(log.batches_from(database, first, position), position, target):
        for transaction in step.applied:
            yield transaction, step.files


def batch_of(database: FarmDatabase, tick: int) -> int:
    """Return the number of the first batch that ends at a tick or after it, one more than the last if none does.

    Raises:
        ExpiredError: That batch was pruned.
    """
    numbers = database.batch_numbers()
    place = bisect_left(numbers, tick, key=lambda number: database.read_batch(number)[0].last)
    if place == 0 and numbers and numbers[0] > 1 and database.read_batch(numbers[0])[0].first > tick:
        oldest = database.read_batch(numbers[0])[0].first
        message = f"the log of {database.name} before tick {oldest} was pruned"
        raise ExpiredError(message, hint=f'Read the changes with option("from_tick", {oldest}) or later.')
    if place < len(numbers):
        return numbers[place]
    return numbers[-1] + 1 if numbers else 1


def batches(database: FarmDatabase, first: int, last: int | None, chain: str | None = None) -> list[tuple[Batch, str]]:
    """Read the batches `first` to `last`, both included, verifying that each follows the one before.

    Args:
        database: The farm database.
        first: Number of the first one; nothing is read if it is not published.
        last: Number of the last one, None for the newest.
        chain: Chain hash of the batch before the first, None if it is not known.

    Raises:
        ExpiredError: The first one was pruned.
        InvalidError: A new history begins between them with changes that are in no log.
    """
    numbers = database.batch_numbers()
    if numbers and first < numbers[0]:
        message = f"batch {first} of {database.name} was pruned, the oldest one is {numbers[0]}"
        raise ExpiredError(message, hint="Read the table anew, then the changes after its tick.")
    found: list[tuple[Batch, str]] = []
    end = last if last is not None else (numbers[-1] if numbers else 0)
    for number in range(first, end + 1):
        batch, chain = database.read_batch(number, chain)
        if found:
            before, before_chain = found[-1]
            bounds.check_history(batch, Position(before.history, before.last, before.number, before_chain))
        found.append((batch, chain))
    return found
