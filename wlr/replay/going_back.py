"""Take a replica back to an earlier tick of its log: later transactions are undone, the newest first.

A change set is row images with weights; with all weights negated, it undoes itself. The log cannot undo a schema
change, or restore the rows of an emptied table: in these cases, the replica is rebuilt from a snapshot.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.parquet_sql import PASSING, rows_of
from wlc.dialect.sql import literal
from wlc.farm.clock import utc_now
from wlc.farm.database import describe_file
from wlc.farm.errors import CorruptError, ExpiredError, InvalidError, UnavailableError
from wlc.farm.model import Change, Clear, Ddl, TableFile, Transaction
from wlr.engine.calculator import connect
from wlr.replay import log_reader
from wlr.replay.farm_log import FarmLog
from wlr.replay.fold.data_check import refuse_other_images
from wlr.replay.fold.net_changes import sources
from wlr.replay.plan import bounds
from wlr.replay.plan.bounds import Stop
from wlr.replay.plan.common_position import Point
from wlr.replay.plan.failure import StepError
from wlr.replay.plan.log_steps import LIMITS, Limits, cut
from wlr.replay.plan.step import LOCAL, Fold, Mark, Step
from wlr.replay.registration import register_replica
from wlr.replay.run import Replay, Replicated

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Digest, Name
    from wlc.tiers.attachment import Membership
    from wlr.engine.contract import Bulk, OpenReplica, Target
    from wlr.engine.replica_state import ReplicaState
    from wlr.replay.plan.step import TableChange


@dataclass(frozen=True, slots=True)
class WayBack:
    """The way back of a replica.

    Attributes:
        point: The place to go back to; None if the log does not reach back to it.
        steps: Steps from there to the replica's position, in the order of the log.
        digests: The known digests there.
        obstacle: Why the rows cannot be undone; empty if they can.
    """

    point: Point | None
    steps: tuple[Step, ...] = ()
    digests: Mapping[Name, Digest] = field(default_factory=dict)
    obstacle: str = ""

    def done(self, *, is_dry_run: bool = False) -> Replicated:
        """Report the undone transactions."""
        assert self.point is not None
        transactions, rows = sum(len(step.applied) for step in self.steps), sum(step.rows for step in self.steps)
        batches = {mark.batch for step in self.steps for mark in step.marks}
        tick, clock = self.point.position.tick, self.point.clock
        return Replicated(tick, clock, transactions, rows, len(batches), None, is_dry_run, is_back=True)


def go_back(replay: Replay, state: ReplicaState, *, dry_run: bool) -> Replicated:
    """Undo the transactions after the stop, or rebuild the replica from a snapshot if they cannot be undone."""
    way = way_back(replay.database, state, replay.stop, membership=replay.membership)
    if way.point is None or way.obstacle:
        return replay.rebuild(state, way.obstacle, dry_run=dry_run)
    if dry_run:
        return way.done(is_dry_run=True)
    if replay.registers:
        # Register before a row is undone: pruning must keep the log from the stop on.
        there = replace(state, position=way.point.position, clock=way.point.clock)
        register_replica(replay.database, there, replay.into, replay.membership, delay_s=replay.delay_s)
    try:
        undo(way, state, replay.into, replay.database, replay.bulk)
    except StepError as error:
        return replay.rebuild(state, f"its rows cannot be undone: {error.cause}")
    return way.done()


def way_back(
    database: FarmDatabase,
    state: ReplicaState,
    stop: Stop,
    limits: Limits = LIMITS,
    membership: Membership | None = None,
) -> WayBack:
    """Find the way from a replica's position back to a stop.

    Raises:
        CorruptError: A log file is damaged, or the farm has another history than the replica.
        UnavailableError: A relay lags behind the replica.
    """
    log, here = FarmLog(database), state.position
    if here.batch and log.chain(here.batch) not in (None, here.chain):
        raise CorruptError(
            f"batch {here.batch} of {database.url} differs from the one that its reader has read",
            hint=f"The master was restored from a backup: {bounds.REBASE}",
            path=database.url,
            position=here,
        )
    end = log_reader.last_tick(database, log.numbers)
    last = max([database.config().batches - 1, *log.numbers[-1:]])
    log_reader.refuse_lost_position(database, membership, here, end, last)
    point = log.last_place(stop, here)
    # Retention can remove batches between two snapshots.
    between = set(range(point.position.batch + 1, here.batch + 1)) if point else {0}
    if point is None or here.batch not in log.numbers or not between <= set(log.numbers):
        return WayBack(None, obstacle=f"the log does not reach back to {stop}")
    if skipped := sorted(tick for tick in state.accepted if point.position.tick < tick <= here.tick):
        # A later repair, or the snapshot of the replica, may have added the skipped rows.
        return WayBack(
            point, obstacle=f"transaction {skipped[0]} was accepted, so the replica may or may not have its rows"
        )
    if state.filters:
        return WayBack(point, obstacle="the log can undo whole tables only, and the replica holds chosen rows")
    try:
        steps = tuple(_steps(log, point, state, limits))
    except (InvalidError, ExpiredError) as error:
        return WayBack(None, obstacle=error.message)
    obstacle = next((cause for step in steps if (cause := _not_undone(step))), "")
    return WayBack(point, steps, {} if obstacle else log.digests(point.position), obstacle)


def _steps(log: FarmLog, point: Point, state: ReplicaState, limits: Limits) -> list[Step]:
    first = bounds.first_batch_to_read(point.position, point.batch_last, log.numbers, log.database.snapshot_ticks)
    batches = log_reader.batches_from(log.database, first, log.numbers, point.position, lambda n, _: log.batch(n))
    stop = Stop(state.position.tick)
    return list(cut(batches, point.position, stop, limits=limits))


def _not_undone(step: Step) -> str:
    """Return why the log alone cannot undo steps; "" if it can."""
    for tick, _, record in step.applied.records():
        if isinstance(record, Ddl):
            return f"transaction {tick} changes the schema ({record.kind} {record.object})"
        if isinstance(record, Clear):
            return f"transaction {tick} empties table {record.table}"
    return ""


def undo(way: WayBack, state: ReplicaState, into: Target, database: FarmDatabase, bulk: Bulk | None = None) -> None:
    """Undo the steps of a way back, each with the position before it in one transaction.

    Raises:
        StepError: A step cannot be undone in this replica; all later ones are undone.
        CorruptError: The digest of a table would differ from the master's.
    """
    assert way.point is not None
    with tempfile.TemporaryDirectory(prefix="wlr-back-") as folder:
        work = Path(folder)
        with into.open([*log_reader.local_folders(database), work], bulk) as replica:
            if replica.state.position != state.position:
                raise UnavailableError(f"another process moved {into}", hint="try again", path=str(into))
            run = _Undoing(replica, database, work)
            try:
                run.all(way)
            finally:
                run.connection.close()


@dataclass(slots=True)
class _Undoing:
    replica: OpenReplica
    database: FarmDatabase
    work: Path
    connection: duckdb.DuckDBPyConnection = field(init=False)
    _made: int = 0

    def __post_init__(self) -> None:
        self.connection = connect(self.work)

    def all(self, way: WayBack) -> None:
        """Undo all steps, the last one first."""
        assert way.point is not None
        begins = [way.point]
        for step in way.steps:
            begins.append(_after(step, begins[-1]))
        for number in reversed(range(len(way.steps))):
            self._undo(way.steps[number], begins[number], way.digests if number == 0 else {})

    def _undo(self, step: Step, begin: Point, digests: Mapping[Name, Digest]) -> None:
        """Undo a step; cut one that fails in halves, because of foreign keys."""
        local: dict[str, Path] = {}
        try:
            back = self._negated(step, begin, digests, local)
            self.replica.apply(back, lambda file: local[file.file.path])
        except StepError:
            if len(step.transactions) == 1:
                raise
            first, second = step.halves()
            self._undo(second, _after(first, begin), {})
            self._undo(first, begin, digests)
        finally:
            for file in local.values():
                file.unlink(missing_ok=True)

    def _negated(self, step: Step, begin: Point, digests: Mapping[Name, Digest], local: dict[str, Path]) -> Step:
        """Write a step of one transaction that undoes a step."""
        files: dict[str, TableFile] = {}
        records = []
        for action in step.actions():
            assert isinstance(action, Fold)
            for change in action.changes:
                if self.replica.holds(change.table) and change.reads:
                    file = self._file(change, begin.position.tick, local)
                    files[file.file.path] = file
                    records.append(Change(change.table, file.file.path, change.removed, change.added))
        now, position = begin.clock or utc_now(), begin.position
        known = {name: digest for name, digest in digests.items() if self.replica.holds(name)}
        return Step(
            (Transaction(position.tick, "wlr", now, now, tuple(records)),),
            files,
            (Mark(position.tick, position.history, position.batch, position.chain, begin.batch_last),),
            step.catalog,
            digests=known,
            footer=begin.contained,
            is_start=begin.clock is None,
        )

    def _file(self, change: TableChange, tick: int, local: dict[str, Path]) -> TableFile:
        """Write the images of a change with negated weights, under one tick."""
        fetched: list[Path] = []

        def fetch(file: TableFile) -> str:
            fetched.append(self.database.fetch(file))
            return str(fetched[-1])

        try:
            found = sources(change, lambda read: fetch(read.file))
            refuse_other_images(self.connection, change, found)
            images = " UNION ALL BY NAME ".join(
                f"SELECT * REPLACE (CAST({tick} AS BIGINT) AS _tick, {fold.NEGATED}) FROM {rows_of(*source.files)}"
                f" WHERE _tick BETWEEN {source.first} AND {source.last}"
                for source in found
            )
            self._made += 1
            path, into = f"{LOCAL}back/{self._made}.parquet", self.work / f"back {self._made}.parquet"
            self.connection.execute(f"COPY ({images}) TO {literal(str(into))} ({PASSING})")
        finally:
            for file in fetched:
                self.database.release(file)
        local[path] = into
        described = describe_file(into, path, change.added + change.removed)
        return TableFile(described, change.table, change.reads[-1].file.layout)


def _after(step: Step, begin: Point) -> Point:
    """Return the position after a step."""
    clock = step.clock or begin.clock
    return Point(step.position, step.mark.batch_last, step.contained(begin.contained), step.catalog, clock)
