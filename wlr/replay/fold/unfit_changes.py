"""Whether changes fit a replica, and the errors for those that do not: the same words whatever the target is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.errors import CorruptError
from wlr.replay.plan.failure import StepError
from wlr.replay.plan.patterns import matches

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from wlc.farm.model import Name
    from wlr.replay.plan.step import TableChange


def is_replicated(table: Name, present: Collection[Name], patterns: Collection[str]) -> bool:
    """Say whether a table's changes count: not if the replica is of other tables.

    Raises:
        StepError: The replica should have the table, and does not.
    """
    if table in present:
        return True
    if matches(table, patterns):
        raise absent(table)
    return False


def absent(table: Name) -> StepError:
    """Build the error for a table that is not there."""
    return StepError("the table is not in the replica", table=str(table))


def refuse_other_count(change: TableChange, found: int) -> None:
    """Refuse to clear a table that does not have as many rows as it had in the master.

    Raises:
        StepError: It has more or fewer.
    """
    if change.cleared is not None and found != change.cleared:
        message = f"all {change.cleared} rows were removed, the replica has {found}"
        raise StepError(message, table=str(change.table))


def missing(table: Name, count: int, removed: int) -> StepError:
    """Build the error for rows to remove that are not there."""
    message = f"{count} of {removed} rows to remove are not in the replica as they were in the master"
    return StepError(message, table=str(table))


def refuse_other_weight(change: TableChange, removed: int, added: int) -> None:
    """Refuse data files whose images do not add up to what the log file says.

    Raises:
        CorruptError: They do not; the message names them.
    """
    if added - removed != change.added - change.removed:
        files = ", ".join(sorted({read.file.file.path for read in change.reads}))
        told = change.added - change.removed
        raise CorruptError(f"{files}: weights add up to {added - removed}, the log file says {told}", path=files)


def refuse_change_of_own(before: Mapping[Name, object], after: Mapping[Name, object], statement: str) -> None:
    """Refuse a statement from the farm that changed a table which belongs to the replica's owner.

    Args:
        before: What tells such a table from a changed one, by name.
        after: The same behind the statement.
        statement: The statement.

    Raises:
        StepError: It did.
    """
    if touched := sorted(name for name, told in before.items() if after.get(name) != told):
        message = f"table {touched[0]} belongs to the replica's owner, and is not the farm's to change: {statement}"
        raise StepError(message, table=str(touched[0]))
