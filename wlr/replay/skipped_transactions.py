"""Transactions that replay skips: the replica keeps their rows, and can apply them later."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb.parquet_sql import PASSING, rows_of
from wlc.dialect.sql import literal
from wlc.farm.clock import parse_tick, utc_now
from wlc.farm.database import describe_file, open_database
from wlc.farm.errors import CorruptError, InvalidError, ReplayError, UnavailableError
from wlc.farm.human_form import ForPeople
from wlc.farm.model import Change, Clear, Ddl, TableFile, Transaction
from wlr.care.replica_settings import place_read
from wlr.engine.adapters import target_at
from wlr.engine.calculator import connect, reading
from wlr.engine.contract import Guarded
from wlr.engine.quarantine_tables import Quarantined
from wlr.replay import log_reader
from wlr.replay.plan.failure import StepError
from wlr.replay.plan.step import LOCAL, Mark, Step
from wlr.replay.registration import with_keys

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from wlc.farm.database import FarmDatabase
    from wlr.engine.contract import Target
    from wlr.engine.replica_state import ReplicaState
    from wlr.replay.plan.failure import Failure
    from wlr.replay.plan.row_filters import RowFilters


@dataclass(frozen=True, slots=True)
class Retried(ForPeople):
    """The result of retrying an accepted transaction.

    Attributes:
        rows: Row images that were applied; 0 for a transaction ahead of the replica, which the next replication tries.
    """

    tick: int
    rows: int


def accept(into: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Failure:
    """Skip exactly the transaction that failed: the next replication continues after it.

    A DuckDB or PostgreSQL replica keeps its rows, read from the farm, in `wlr.quarantine`, together with the
    acceptance; see `retry`.

    Returns:
        The failure that was accepted.

    Raises:
        InvalidError: No transaction has failed, or an obstacle in the replica itself blocks it.
        UnavailableError: The farm cannot be read.

    Examples:
        >>> wlr.accept("copy.duckdb").tick
        4
        >>> wlr.replicate(into="copy.duckdb").tick
        4
    """
    target = target_at(into, storage_options)
    failure = _failure_of(target, target.read_state())
    with tempfile.TemporaryDirectory(prefix="wlr-accept-") as folder:
        work = Path(folder)
        kept: list[Quarantined] = []
        if Guarded.of(target):
            state = target.read_state()
            database = open_database(place_read(into, storage_options=storage_options), storage_options=storage_options)
            kept = _rows_of(with_keys(state.verify, database), failure.tick, work, state.filters)
        with target.open([work]) as replica:
            if _failure_of(target, replica.state).tick != failure.tick:
                raise UnavailableError(f"another process rolled {target} forward", hint="try again", path=str(target))
            accepted = replica.state.accepted | {failure.tick}
            replica.quarantine(replace(replica.state, accepted=accepted, failure=None), kept)
    return failure


def _failure_of(target: Target, state: ReplicaState) -> Failure:
    failure = state.failure
    if failure is None:
        message = f"no transaction has failed in {target}"
        raise InvalidError(message, hint=f"wlr status {shlex.quote(str(target))}", path=str(target))
    if failure.obstacle is not None:
        message = f"transaction {failure.tick} is sound and cannot be skipped: {failure.obstacle}"
        raise InvalidError(message, hint=failure.remedy, path=str(target))
    return failure


def _rows_of(database: FarmDatabase, tick: int, work: Path, filters: RowFilters) -> list[Quarantined]:
    """Copy the images of a transaction, a file for each table; skip tables that the replica has only in part."""
    batch, _ = database.read_batch(log_reader.batch_of(database, tick))
    files = {file.file.path: file for file in batch.files}
    found = []
    for record in (r for t in batch.transactions if t.tick == tick for r in t.records):
        if isinstance(record, Ddl):
            found.append(Quarantined(tick, record.object, statement=record.statement))
        elif isinstance(record, Clear):
            found.append(Quarantined(tick, record.table, removed=record.removed, statement="TRUNCATE"))
        elif isinstance(record, Change) and filters.of(record.table):
            not_kept = "the replica does not keep rows of a partly replicated table"
            found.append(Quarantined(tick, record.table, record.added, record.removed, statement=not_kept))
        elif isinstance(record, Change):
            local = database.fetch(files[record.path])
            try:
                found.append(_images(files[record.path], record, tick, local, work / f"{len(found)}.parquet"))
            finally:
                database.release(local)
    return found


def _images(file: TableFile, change: Change, tick: int, local: Path, into: Path) -> Quarantined:
    rows = f"SELECT * FROM {rows_of(local)} WHERE _tick = {tick}"
    try:
        with connect(into.parent) as connection, reading(f"rows of {change.table}"):
            connection.execute(f"COPY ({rows}) TO {literal(str(into))} ({PASSING})")
    except CorruptError as error:
        # Such rows may have made the transaction fail.
        return Quarantined(tick, change.table, change.added, change.removed, statement=error.message)
    return Quarantined(tick, change.table, change.added, change.removed, file.layout, into)


def retry(
    into: str | os.PathLike[str], tick: int | str | None = None, *, storage_options: Mapping[str, Any] | None = None
) -> list[Retried]:
    """Apply the rows of accepted transactions, in commit order, each in one transaction that ends its acceptance.

    Args:
        into: A DuckDB or PostgreSQL replica.
        tick: Only this transaction; all accepted ones if omitted.
        storage_options: Options of the file systems of replica and farm.

    Raises:
        ReplayError: A transaction does not fit and stays in quarantine; those before it were applied.
        InvalidError: No transaction was accepted, or not this one.
        UnsupportedError: A Parquet replica has no quarantine.

    Examples:
        >>> [done.tick for done in wlr.retry("copy.duckdb")]
        [4]
    """
    target = target_at(into, storage_options)
    accepted = sorted(target.read_state().accepted)
    wanted = accepted if tick is None else [parse_tick(tick)]
    if not wanted or not set(wanted) <= set(accepted):
        message = f"{target} has not accepted {'any transaction' if tick is None else f'transaction {tick}'}"
        raise InvalidError(message, hint=f"wlr status {shlex.quote(str(target))}", path=str(target))
    Guarded.required(target, "wlr replica retry", _repair(target))
    return list(_retried(target, wanted, storage_options))


def _retried(target: Target, ticks: Sequence[int], storage_options: Mapping[str, Any] | None) -> Iterator[Retried]:
    for tick in ticks:
        with tempfile.TemporaryDirectory(prefix="wlr-retry-") as folder:
            work = Path(folder)
            with target.scanned(work, storage_options) as scan:
                layouts, position = dict(scan.layouts), scan.state.position
            with target.open([work]) as replica:
                if replica.state.position != position:
                    raise UnavailableError(
                        f"another process rolled {target} forward", hint="try again", path=str(target)
                    )
                found = replica.quarantined(work)
                own = [each for each in found if each.tick == tick]
                is_ahead = tick > position.tick
                if not is_ahead:
                    _refuse_others(target, tick, own)
                    for each in own:
                        there = layouts.get(each.table)
                        if each.layout and replica.holds(each.table) and there and there.shape != each.layout.shape:
                            raise _misfit(target, tick, f"table {each.table} was altered since")
                step, local = _step(replica.state, tick, [] if is_ahead else own, found, work)
                try:
                    replica.apply(step, lambda file, local=local: local[file.file.path])  # type: ignore[misc]
                except StepError as error:
                    raise _misfit(target, tick, error.cause) from error
            yield Retried(tick, step.rows)


def _refuse_others(target: Target, tick: int, own: Sequence[Quarantined]) -> None:
    if not own:
        raise _misfit(target, tick, "the replica did not keep its rows when it was accepted")
    for each in own:
        if each.statement:
            raise _misfit(target, tick, f"it does more than change rows of {each.table}: {each.statement}")


def _misfit(target: Target, tick: int, cause: str) -> ReplayError:
    return ReplayError(
        f"transaction {tick} cannot be applied to {target}: {cause}",
        hint=_repair(target),
        path=str(target),
    )


def _repair(target: Target) -> str:
    return f"wlr repair {shlex.quote(str(target))} --table TABLE restores the master's rows"


def _step(
    state: ReplicaState, tick: int, own: Sequence[Quarantined], found: Sequence[Quarantined], work: Path
) -> tuple[Step, dict[str, Path]]:
    """Make a step that applies rows at the replica's position, and ends the acceptance."""
    position = state.position
    files, local, records = {}, {}, []
    for number, each in enumerate(own):
        assert each.file is not None
        assert each.layout is not None
        path, here = f"{LOCAL}retry/{number}.parquet", work / f"retry {number}.parquet"
        with connect(work) as connection:
            rows = f"SELECT * REPLACE (CAST({position.tick} AS BIGINT) AS _tick) FROM {rows_of(each.file)}"
            connection.execute(f"COPY ({rows}) TO {literal(str(here))} ({PASSING})")
        files[path] = TableFile(describe_file(here, path, each.added + each.removed), each.table, each.layout)
        local[path] = here
        records.append(Change(each.table, path, each.added, each.removed))
    # A table without other skipped changes is compared with the master's digests again.
    others = {each.table for each in found if each.tick != tick}
    is_known = state.accepted <= {each.tick for each in found}
    mended = frozenset(each.table for each in own if is_known and each.table not in others)
    now = state.clock or utc_now()
    return Step(
        (Transaction(position.tick, "wlr replica retry", now, now, tuple(records)),),
        files,
        (Mark(position.tick, position.history, position.batch, position.chain, state.batch_last),),
        state.catalog,
        repaired=mended,
        retried=frozenset({tick}),
    ), local
