"""Whether a place holds the past of a replica: the chain of log files proves it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from wlc.farm.errors import CorruptError, ExpiredError, GapError, InvalidError
from wlc.farm.store import MissingError

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Position


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
        raise InvalidError(
            f"{database.url} does not hold the replica's tick {position.tick} yet",
            hint="Wait until it has caught up, or bring it there: wlc ship DB --to URL",
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
