"""What a replay reports when a transaction cannot be applied.

The environment variable that limits the memory of an engine, and the hint that names it.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from wlc.farm.human_form import ForPeople
from wlc.farm.json_fields import Later, Tick

if TYPE_CHECKING:
    from collections.abc import Iterator


# How the operating system and DuckDB report a full disk.
DISK_FULL = os.strerror(errno.ENOSPC)
_CAUSE_MAX = 2000


@dataclass(frozen=True, slots=True)
class Failure(ForPeople):
    """The transaction that could not be applied, and why.

    Attributes:
        table: The table at fault; None if it is unknown. `key`: the row at fault.
        obstacle: What in the replica itself is in the way; None if the transaction is at fault. A transaction that is
            not at fault cannot be accepted.
        remedy: What to do about it in the replica; None if that is unknown.
    """

    tick: Tick
    table: str | None
    key: str | None
    cause: str
    at: datetime
    obstacle: Later[str | None] = None
    remedy: Later[str | None] = None

    @property
    def reason(self) -> str:
        """What is in the way, and what the engine reported."""
        return self.cause if self.obstacle is None else f"{self.obstacle} ({self.cause})"

    def __str__(self) -> str:
        where = f", table {self.table}" if self.table else ""
        return f"transaction {self.tick}{where}{f', {self.key}' if self.key else ''}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something in the replica itself that is in the way of a sound transaction.

    Attributes:
        remedy: What to do about it.
        table: The table of the replica that it is about; None for that of the transaction.
    """

    text: str
    remedy: str
    table: str | None = None


def in_the_way(what: str) -> Obstacle:
    """Build the obstacle of an object of the owner's that has the name of one that a transaction creates."""
    text = f"{what} belongs to the replica's owner, and the master creates one of that name"
    return Obstacle(text, f"Rename or drop {what} in the replica, and replicate again.")


def lost(table: object) -> Obstacle:
    """Build the obstacle of a replicated table that somebody dropped."""
    return Obstacle(f"replicated table {table} was dropped in the replica", "Make the replica anew.", str(table))


def with_changed(failure: Failure, table: object, into: object) -> Failure:
    """Add to a failure that a table of the transaction was changed in the replica; its owner may do so on purpose."""
    cause = f"{failure.cause}; table {table} was changed in this replica since it was replicated"
    repair = f"wlr repair {into} --table {table} brings the master's rows back; wlr accept {into} skips the transaction"
    return replace(failure, cause=cause, remedy=repair)


class StepError(Exception):
    """A step could not be applied; the target was left as it was before the step.

    Args:
        cause: What the engine reported, or what does not fit.
        table: The table at fault, None if it is unknown.
        key: The row at fault, None if it is unknown.
        is_shortage: The machine has too little memory. A step of fewer transactions may succeed.
        is_reference: A foreign key was violated, perhaps only because transactions were folded.
        is_constraint: A constraint between rows was violated; the log of a site that has taken several transactions at
            once may keep it again a transaction later.
        remedy: What to do about it in the replica, None if that is unknown.
    """

    def __init__(
        self,
        cause: str,
        *,
        table: str | None = None,
        key: str | None = None,
        is_shortage: bool = False,
        is_reference: bool = False,
        is_constraint: bool = False,
        remedy: str | None = None,
    ) -> None:
        # An engine may repeat a statement of any length.
        cause = cause if len(cause) <= _CAUSE_MAX else f"{cause[:_CAUSE_MAX]} …"
        super().__init__(cause)
        self.cause = cause
        self.table = table
        self.key = key
        self.is_shortage = is_shortage
        self.is_reference = is_reference
        self.is_constraint = is_constraint
        self.remedy = remedy


class ContradictionError(StepError):
    """A schema statement did something else than the farm says. A replica of some tables must not go on without it."""


@contextmanager
def naming(table: object) -> Iterator[None]:
    """Name a table in errors of a step that name none."""
    try:
        yield
    except StepError as error:
        error.table = error.table or str(table)
        raise


MEMORY_VARIABLE = "WLR_MEMORY_LIMIT"
MEMORY_HINT = f"Give it more memory: export {MEMORY_VARIABLE}=8GB"
