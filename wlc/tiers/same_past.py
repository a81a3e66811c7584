"""Whether a place holds the past of a replica, or of another place: the chain of log files proves it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.errors import CorruptError, ExpiredError, GapError, InvalidError, UnavailableError
from wlc.farm.paths import log_path
from wlc.farm.store import MissingError
from wlc.tiers.upstreams import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Position
    from wlc.tiers.attachment import Membership


def prove_same_past(database: FarmDatabase, position: Position) -> None:
    """Check that a place has the batch that a position is in, or goes on right behind it.

    Raises:
        InvalidError: It does not hold the position yet.
        ExpiredError: It begins after the position.
        CorruptError: It has another past.
    """
    try:
        is_same = _holds(database, position)
    except GapError as error:
        raise ExpiredError(
            f"the log of {database.url} around batch {position.batch}, where the replica stands, was pruned",
            hint="Make the replica anew from it, or choose another place.",
            path=database.url,
            position=position,
        ) from error
    except MissingError as error:
        database.config()  # That there is no such place is another mistake.
        place = shlex.quote(database.url.rpartition("/")[0])
        raise InvalidError(
            f"{database.url} does not hold the replica's tick {position.tick} yet",
            hint=f"Wait until it has caught up, or bring it there: wlc tier ship DB --to {place}",
            path=database.url,
            position=position,
        ) from error
    if not is_same:
        raise CorruptError(
            f"{database.url} has another past than the replica, which is at {position}",
            hint=f"To take it: wlr replicate {shlex.quote(database.url)} --into ANOTHER",
            path=database.url,
            position=position,
        )


def is_only_behind(place: FarmDatabase, membership: Membership | None, position: Position) -> bool:
    """Say whether a place that ends before its reader's position is a relay behind, as what the origin lacks is lost.

    Args:
        place: What is read.
        membership: The reader's part in a tree of tiers; None if it reads what it was given.
        position: Where the reader stands.
    """
    if membership is None or membership.attachment.upstream == ORIGIN:
        return False
    try:
        prove_same_past(membership.registry, position)
        prove_same_database(place, membership.registry)
    except (UnavailableError, MissingError, ExpiredError):
        # The registry is away, or has pruned the batch: nothing says that it is lost.
        return True
    except (InvalidError, CorruptError):
        return False
    return True


def is_made_up(database: FarmDatabase, position: Position, numbers: Sequence[int]) -> bool:
    """Say whether the log shows that its master took no snapshot at a position: anybody who may add one can.

    A snapshot lies within the batch that it names, or begins a history behind it. The ticks between two batches stand
    for such beginnings, of which there may be several: a master that stops may have published nothing. Where the batch
    was pruned, nothing shows.

    Args:
        database: Its log is read.
        position: Of the snapshot.
        numbers: Of all batches that the log has, rising.

    Raises:
        CorruptError: A log file is damaged.
    """
    number, last = position.batch, -1
    if numbers and number < numbers[0] and (number, numbers[0]) != (0, 1):
        return False
    if number and number not in numbers:
        return True
    if number:
        batch, chain = database.read_batch(number)
        if chain != position.chain or batch.history == position.history:
            return chain != position.chain or not batch.first <= position.tick <= batch.last
        last = batch.last
    if number + 1 in numbers:
        return not last < position.tick < database.read_batch(number + 1)[0].first
    return not last < position.tick <= database.config().tick


def is_same_place(one: FarmDatabase, other: FarmDatabase) -> bool:
    """Say whether two URLs are one place: a directory may have several names."""
    if resolved(one.url) != resolved(other.url):
        return False
    return "://" not in one.url or one.store.raw.place() == other.store.raw.place()


def resolved(url: str) -> str:
    """Return the URL, or the path without symbolic links."""
    return url if "://" in url else str(Path(url).resolve())


def prove_same_database(place: FarmDatabase, registry: FarmDatabase) -> None:
    """Check that a place holds the database of the place that recommends it, and no other past of it.

    The last batch that both hold is compared byte for byte. Where there is none, their histories are compared.

    Raises:
        InvalidError: It is a place of another database, or there is none.
        CorruptError: It has another past.
    """
    if place.name != registry.name:
        raise InvalidError(f"{place.url} is a place of database {place.name}, not of {registry.name}", path=place.url)
    ours, theirs = registry.config(), place.config()
    is_same = _is_same_batch(place, registry, min(ours.batches, theirs.batches) - 1)
    if is_same is None:
        known = {ours.history, ours.parent.history if ours.parent else ours.history}
        is_same = not known.isdisjoint({theirs.history, theirs.parent.history if theirs.parent else theirs.history})
    if not is_same:
        raise CorruptError(
            f"{place.url} has another past than {registry.url}",
            hint=f"To take it: wlr replicate {shlex.quote(place.url)} --into ANOTHER",
            path=place.url,
        )


def _is_same_batch(one: FarmDatabase, other: FarmDatabase, number: int) -> bool | None:
    """Compare a log file as it lies there, which takes no key; None if one of the places does not hold it."""
    if number < 1:
        return None
    path = log_path(one.name, number)
    try:
        return one.logs.raw.read(path) == other.logs.raw.read(path)
    except MissingError:
        return None


def _holds(database: FarmDatabase, position: Position) -> bool:
    config = database.config()
    if position.batch == 0:
        # Nothing was published to the history; its id is all that there is to compare.
        history = config.history if config.batches == 1 else database.read_batch(1)[0].history
        return position.history in ("", history)
    try:
        return database.read_batch(position.batch)[1] == position.chain
    except GapError:
        return database.read_batch(position.batch + 1)[0].previous == position.chain
