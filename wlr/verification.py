"""Compare a replica with its master: by digests, then, where they differ, row by row with what the farm says."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm.digest import DIFFERS, compared
from wlc.farm.errors import UnsupportedError
from wlc.farm.human_form import ForPeople
from wlc.farm.model import Digest
from wlr.comparison import chosen_tables, opened_reference
from wlr.engine.adapters import target_at
from wlr.fold.tally import Uncompared

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from wlc.farm.model import Name
    from wlr.comparison import KeyRange
    from wlr.engine.scan import Scan

# An outcome of comparing a replica's table besides those of `wlc.farm.digest.compared` and `Uncompared`.
UNREADABLE = "unreadable"
# Where rows are compared with the farm's, if that is asked for.
_LOCATED = (DIFFERS, *(why.value for why in Uncompared))


@dataclass(frozen=True, slots=True)
class TableCheck(ForPeople):
    """The result of comparing one table.

    Attributes:
        outcome: "same"; "differs"; "accepted": not compared, because a transaction that changed it was skipped;
            "unverifiable": the log changed it and does not say what it holds then, although it named digests before;
            "unknown": the log has no digest of it; "unreadable": it has columns that cannot be read back.
        rows: Number of rows in the replica; None if the replica does not have the table.
        expected: Number of rows in the master; None if it is unknown.
        missing: Rows that differ, as for `KeyRange`; None unless they were asked for. `surplus` likewise.
        ranges: Where the first of them are.
    """

    table: str
    outcome: str
    rows: int | None
    expected: int | None
    missing: int | None = None
    surplus: int | None = None
    ranges: tuple[KeyRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Verified(ForPeople):
    """The result of comparing a replica with its master, whose folder in the farm has the URL `master`."""

    master: str
    tick: int
    tables: tuple[TableCheck, ...]

    @property
    def differing(self) -> tuple[TableCheck, ...]:
        """The tables that differ."""
        return tuple(table for table in self.tables if table.outcome == DIFFERS)

    @property
    def unverifiable(self) -> tuple[TableCheck, ...]:
        """The tables whose digests the log has lost."""
        return tuple(table for table in self.tables if table.outcome == Uncompared.LOST.value)


def verify(
    into: str | os.PathLike[str],
    *,
    tables: Sequence[str] = (),
    locate: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Verified:
    """Read every row of a replica and compare what its tables hold with what the master's log says.

    Args:
        into: The replica.
        tables: `schema.table`, or `table` in schema main; all tables if empty.
        locate: Say which rows differ: tables that differ are restored from the farm to a scratch place and compared.
        storage_options: Options of the file systems of replica and farm.
        progress: Called with tables done, tables in all, and what is being done.

    Raises:
        InvalidError: There is no replica, or it has no such table.
        CorruptError: A file of the replica, or of the farm, is damaged.
    """
    target = target_at(into, storage_options)
    with (
        tempfile.TemporaryDirectory(prefix="wlr-verify-") as work,
        target.scanned(Path(work), storage_options) as scan,
    ):
        wanted = chosen_tables(scan, tables)
        found = []
        for number, name in enumerate(wanted):
            if progress:
                progress(number, len(wanted), f"reading {name}")
            found.append(_check(scan, name))
        differing = [name for name, check in zip(wanted, found, strict=True) if check.outcome in _LOCATED]
        if locate and (present := [name for name in differing if name in scan.layouts]):
            with opened_reference(scan.state, present, Path(work), storage_options) as reference:
                located = {name: reference.locate(scan, name) for name in present}
            found = [
                _located(check, located[name]) if name in located else check
                for name, check in zip(wanted, found, strict=True)
            ]
        return Verified(scan.state.master, scan.state.position.tick, tuple(found))


def _check(scan: Scan, name: Name) -> TableCheck:
    held = scan.state.digests.get(name)
    told = held if isinstance(held, Digest) else None
    expected = told.rows if told else None
    try:
        own = scan.digest(name) if name in scan.layouts else None
    except UnsupportedError:
        return TableCheck(str(name), UNREADABLE, None, expected)
    outcome = held.value if isinstance(held, Uncompared) else compared(own, told)
    return TableCheck(str(name), outcome, own.rows if own else None, expected)


def _located(check: TableCheck, found: tuple[int, int, tuple[KeyRange, ...]]) -> TableCheck:
    missing, surplus, ranges = found
    return replace(check, missing=missing, surplus=surplus, ranges=ranges)
