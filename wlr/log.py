"""The farm's log as whoever follows it reads it: where it ends, from where one can start, one batch after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.errors import CorruptError, GapError
from wlc.store import MissingError
from wlr import bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wlc.farm import FarmDatabase
    from wlc.model import Batch, Position
    from wlr.plan import Target


def last_tick(database: FarmDatabase, numbers: list[int]) -> int:
    """Return the last published tick; the configuration may be one batch behind, never ahead.

    Args:
        database: The farm database.
        numbers: Its batches, as just listed.

    Raises:
        GapError: The newest batch was published and is missing.
        MissingError: There is no such database in the farm.
    """
    config = database.config()
    if numbers and numbers[-1] >= config.batches:
        return database.read_batch(numbers[-1])[0].last
    newest = config.batches - 1
    # Pruning keeps the newest one. It may have come after the listing.
    if newest and newest not in numbers and newest not in database.batch_numbers(after=newest - 1):
        message = f"batch {newest} of {database.name} was published and is missing"
        raise GapError(message, hint="Put the log file back.", path=database.logs.url)
    return config.tick


def choose_snapshot(database: FarmDatabase, target: Target) -> int | None:
    """Return the tick of the newest snapshot at or before the target, None to start from an empty database.

    Raises:
        InvalidError: The target is ahead of the farm.
        ExpiredError: Nothing at or before the target is left.
    """
    numbers = database.batch_numbers()
    # A tick can be told without reading the manifest.
    clocks = target.until is not None
    snapshots = tuple(
        (tick, database.read_manifest(tick).clock if clocks else None) for tick in database.snapshot_ticks()
    )
    first = numbers[0] if numbers else None
    return bounds.choose_snapshot(bounds.Reach(snapshots, first, last_tick(database, numbers)), target)


def batches_from(
    database: FarmDatabase,
    number: int,
    position: Position,
    read: Callable[[int, str | None], tuple[Batch, str]] | None = None,
) -> Iterator[tuple[Batch, str]]:
    """Read the log file of a position, if the number is that one's, and those after it, verifying the chain.

    Args:
        database: The farm database.
        number: Of the batch to begin with: the position's, or the one after it.
        position: Where the reader stands.
        read: Reads a batch by its number and the chain hash before it; the farm's own function if omitted.

    Raises:
        CorruptError: A log file is damaged, the chain is broken, or the farm belongs to another past.
    """
    read = read or database.read_batch
    previous = position.chain if number == position.batch + 1 else None
    while True:
        try:
            batch, chain = read(number, previous)
        except MissingError:
            return
        if number == position.batch and chain != position.chain:
            raise CorruptError(
                f"batch {number} of {database.url} is not the one that the replica has applied",
                hint="The master was restored from another past: make the replica anew.",
                path=database.url,
                position=position,
            )
        yield batch, chain
        number, previous = number + 1, chain
