"""Checks that changes fit a replica, with the same errors for all engines."""

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
    """Return whether the replica replicates a table.

    Raises:
        StepError: The replica lacks a table that it should have.
    """
    if table in present:
        return True
    if matches(table, patterns):
        raise absent(table)
    return False


def absent(table: Name) -> StepError:
    """Build the error for a missing table."""
    return StepError("the table is not in the replica", table=str(table))


def refuse_other_count(change: TableChange, found: int) -> None:
    """Refuse to clear a table with another number of rows than in the master.

    Raises:
        StepError: The numbers differ.
    """
    if change.cleared is not None and found != change.cleared:
        message = f"all {change.cleared} rows were removed, the replica has {found}"
        raise StepError(message, table=str(change.table))


def missing(table: Name, count: int, removed: int) -> StepError:
    """Build the error for missing rows to remove."""
    message = f"{count} of {removed} rows to remove are not in the replica as they were in the master"
    return StepError(message, table=str(table))


def refuse_other_weight(change: TableChange, removed: int, added: int) -> None:
    """Refuse data files whose images do not add up to the counts in the log file.

    Raises:
        CorruptError: They do not; the message names them.
    """
    if added - removed != change.added - change.removed:
        files = ", ".join(sorted({read.file.file.path for read in change.reads}))
        listed = change.added - change.removed
        raise CorruptError(f"{files}: weights add up to {added - removed}, the log file says {listed}", path=files)


def refuse_change_of_own(before: Mapping[Name, object], after: Mapping[Name, object], statement: str) -> None:
    """Refuse a statement from the farm that changed a table which belongs to the replica's owner.

    Args:
        before: Fingerprints of the owner's tables, by name.
        after: Fingerprints after the statement.
        statement: The statement.

    Raises:
        StepError: The statement changed such a table.
    """
    if touched := sorted(name for name, text in before.items() if after.get(name) != text):
        message = f"table {touched[0]} belongs to the replica's owner, and the farm must not change it: {statement}"
        raise StepError(message, table=str(touched[0]))
