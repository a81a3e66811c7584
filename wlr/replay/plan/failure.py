"""The failure of a replay whose transaction cannot be applied.

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
    """The transaction that could not be applied, and the cause.

    Attributes:
        table: The table at fault; None if it is unknown. `key`: the row at fault.
        obstacle: The obstacle in the replica itself; None if the transaction is at fault. A transaction that is not at
            fault cannot be accepted.
        remedy: The remedy in the replica; None if unknown.
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
        """The obstacle, and the engine's report."""
        return self.cause if self.obstacle is None else f"{self.obstacle} ({self.cause})"

    def __str__(self) -> str:
        where = f", table {self.table}" if self.table else ""
        return f"transaction {self.tick}{where}{f', {self.key}' if self.key else ''}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """An obstacle in the replica itself that blocks a sound transaction.

    Attributes:
        remedy: The remedy.
        table: The replica's table; None for that of the transaction.
    """

    text: str
    remedy: str
    table: str | None = None


def in_the_way(what: str) -> Obstacle:
    """Build the obstacle of an owner's object with the name of an object that a transaction creates."""
    text = f"{what} belongs to the replica's owner, and the master creates an object of that name"
    return Obstacle(text, f"Rename or drop {what} in the replica, and replicate again.")


def lost(table: object) -> Obstacle:
    """Build the obstacle of a replicated table that the owner dropped."""
    return Obstacle(f"replicated table {table} was dropped in the replica", "Rebuild the replica.", str(table))


def with_changed(failure: Failure, table: object, into: object) -> Failure:
    """Add to a failure that the replica's owner, perhaps on purpose, changed a table of the transaction."""
    cause = f"{failure.cause}; table {table} was changed in this replica since it was replicated"
    repair = f"wlr repair {into} --table {table} brings the master's rows back; wlr accept {into} skips the transaction"
    return replace(failure, cause=cause, remedy=repair)


class StepError(Exception):
    """A step could not be applied; the target is unchanged.

    Args:
        cause: The engine's report, or the mismatch.
        table: The table at fault, None if it is unknown.
        key: The row at fault, None if it is unknown.
        is_shortage: The machine has too little memory. A step of fewer transactions may succeed.
        is_reference: A foreign key was violated, perhaps only because transactions were folded.
        is_constraint: A constraint between rows was violated. In the log of a site that has taken several transactions
            at once, a later transaction may satisfy it again.
        remedy: The remedy in the replica, None if unknown.
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
    """A schema statement had other effects than the farm says. Even a replica of some tables must not skip it."""


@contextmanager
def naming(table: object) -> Iterator[None]:
    """Add the table to a step's errors that name none."""
    try:
        yield
    except StepError as error:
        error.table = error.table or str(table)
        raise


MEMORY_VARIABLE = "WLR_MEMORY_LIMIT"
MEMORY_HINT = f"Give it more memory: export {MEMORY_VARIABLE}=8GB"
