"""Make tables of a replica equal to the master's, writing only differing rows."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm.clock import utc_now
from wlc.farm.errors import InvalidError, ReplayError, UnavailableError
from wlc.farm.human_form import ForPeople
from wlc.farm.model import Change, Transaction
from wlr.care.verification import chosen_tables, opened_reference
from wlr.engine.adapters import target_at
from wlr.replay.plan.failure import StepError
from wlr.replay.plan.step import Mark, Step

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from wlr.care.verification import TableFix
    from wlr.engine.replica_state import ReplicaState


@dataclass(frozen=True, slots=True)
class RepairedTable(ForPeople):
    """The changes of one table of a replica."""

    table: str
    added: int
    removed: int


def repair(
    into: str | os.PathLike[str],
    tables: Sequence[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> list[RepairedTable]:
    """Make tables of a replica equal to the master's at the replica's tick, writing only differing rows.

    This also applies changes of accepted transactions, which replay skipped.

    Args:
        into: The replica.
        tables: `schema.table`, or `table` in schema main.
        storage_options: Options of the file systems of replica and farm.

    Raises:
        InvalidError: There is no replica, or it has no such table.
        ReplayError: The rows cannot be written; nothing was changed.

    Examples:
        >>> wlr.repair("copy.duckdb", ["orders"])
        [RepairedTable(table='main.orders', added=1, removed=0)]
    """
    target = target_at(into, storage_options)
    with tempfile.TemporaryDirectory(prefix="wlr-repair-") as folder:
        work = Path(folder)
        with target.scanned(work, storage_options) as scan:
            names = chosen_tables(scan, tables)
            if absent := [str(name) for name in names if name not in scan.layouts]:
                raise InvalidError(f"{target} has lost {', '.join(absent)}", hint="Rebuild the replica.")
            with opened_reference(scan.state, names, work, storage_options) as reference:
                fixes = [reference.fix(scan, name, number) for number, name in enumerate(names)]
            state = scan.state
        step = repair_step(state, fixes)
        local = {fix.path: fix.local for fix in fixes}
        with target.open([work]) as replica:
            if replica.state.position != state.position:
                raise UnavailableError(f"another process rolled {target} forward", hint="try again", path=str(target))
            try:
                replica.apply(step, lambda file: local[file.file.path])
            except StepError as error:
                hint = "Repair it together with the tables that it refers to, or rebuild the replica."
                raise ReplayError(f"{target} cannot be repaired: {error.cause}", hint=hint) from error
        return [RepairedTable(str(fix.table), fix.added, fix.removed) for fix in fixes]


def repair_step(state: ReplicaState, fixes: Sequence[TableFix]) -> Step:
    """Make a step that changes rows and keeps the position."""
    position = state.position
    records = tuple(Change(fix.table, fix.path, fix.added, fix.removed) for fix in fixes if fix.added or fix.removed)
    now = state.clock or utc_now()
    return Step(
        (Transaction(position.tick, "wlr repair", now, now, records),),
        {fix.path: fix.file for fix in fixes},
        (Mark(position.tick, position.history, position.batch, position.chain, state.batch_last),),
        state.catalog,
        digests={fix.table: fix.digest for fix in fixes},
        repaired=frozenset(fix.table for fix in fixes),
    )
