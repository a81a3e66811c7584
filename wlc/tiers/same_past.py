"""Proof that a place holds the past of a replica or of another place: the chain of log files."""

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
    """Check that a place has the batch of a position, or begins with the next one.

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
        database.config()  # A missing place is a different error.
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
    """Say whether a place that ends before its reader's position is a relay that is only behind.

    If the origin ends before the position, the batches are lost.

    Args:
        place: The reader's upstream.
        membership: The reader's membership in a tree of tiers; None if it reads the given place.
        position: The reader's position.
    """
    if membership is None or membership.attachment.upstream == ORIGIN:
        return False
    try:
        prove_same_past(membership.registry, position)
        prove_same_database(place, membership.registry)
    except (UnavailableError, MissingError, ExpiredError):
        # The registry is unreachable, or has pruned the batch: a loss is not proved.
        return True
    except (InvalidError, CorruptError):
        return False
    return True


def is_made_up(database: FarmDatabase, position: Position, numbers: Sequence[int]) -> bool:
    """Say whether the log proves a snapshot to be forged: an attacker with the right to create objects can add one.

    A snapshot lies within the batch that it names, or begins a history after it. The ticks between two batches belong
    to such beginnings, possibly several: a stopped master may have published nothing. If the batch was pruned, nothing
    is proved.

    Args:
        database: The database whose log is read.
        position: Position of the snapshot.
        numbers: Numbers of all batches in the log, rising.

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
    """Check that a place holds the same database with the same past as the registry that lists it.

    The last common batch is compared byte for byte. Without a common batch, the histories are compared.

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
    """Compare a raw log file, which needs no key; None if one of the places lacks it."""
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
        # Nothing was published to the history, so only its id can be compared.
        history = config.history if config.batches == 1 else database.read_batch(1)[0].history
        return position.history in ("", history)
    try:
        return database.read_batch(position.batch)[1] == position.chain
    except GapError:
        return database.read_batch(position.batch + 1)[0].previous == position.chain
