"""One replication: make the replica unless it exists, then apply the log up to the stop, step by step.

The disk space that a new replica needs, for the error of a full disk.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm import newest_batches
from wlc.farm.config import BEAT_S
from wlc.farm.errors import CorruptError, ExpiredError, FarmError, ReplayError, UnavailableError, UnsupportedError
from wlc.farm.human_form import Doing, ForPeople, Progress
from wlc.farm.model import Ddl
from wlc.farm.read_ahead import Fetcher
from wlc.farm.store import MissingError
from wlr.care.replica_settings import refuse_unlocked
from wlr.engine.adapters import target_at
from wlr.engine.contract import DatabaseFile, NewReplica, Rebuildable
from wlr.engine.replica_state import ReplicaState
from wlr.replay import log_reader
from wlr.replay.ddl.left_out import created_by, without_counterparts
from wlr.replay.options import REMEMBERED, ReplicaOptions, remembered
from wlr.replay.plan import bounds
from wlr.replay.plan.bounds import Stop
from wlr.replay.plan.common_position import of_footer, of_snapshot
from wlr.replay.plan.failure import DISK_FULL
from wlr.replay.plan.log_steps import LIMITS, Limits, cut
from wlr.replay.plan.patterns import ANY, idle, matches
from wlr.replay.plan.row_filters import EVERYTHING
from wlr.replay.plan.step import StepTotals
from wlr.replay.registration import register_replica
from wlr.replay.step_run import StepRun, UnfitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Config, Manifest, Name, Position, Transaction
    from wlc.tiers.attachment import Membership
    from wlr.engine.contract import Bulk, OpenReplica, Target
    from wlr.replay.moved_tables import EnteringTable
    from wlr.replay.plan.common_position import Contained
    from wlr.replay.plan.row_filters import RowFilters
    from wlr.replay.plan.step import Step


@dataclass(frozen=True, slots=True)
class Replicated(ForPeople):
    """The result of a replication, or of a dry run.

    Attributes:
        tick: Last transaction that the replica holds; `clock`: when it was committed, None before the first.
        transactions: Number of transactions applied from the log; `rows`: row images in them; `bytes`: size of the
            data files that hold them.
        batches: Number of their log files.
        snapshot: Tick of the snapshot that this run made the replica from, `loaded`: its rows; None if the replica
            existed before.
        is_paused: The replica is paused until `resume`, so nothing was done.
        is_target_reached: The stop is final: its tick, or a transaction after its time, is published. True without a
            stop.
        is_back: The transactions were undone: the replica went back.
        rebuilt_because: Why the replica was rebuilt from a snapshot instead; empty if it was not.
    """

    tick: int
    clock: datetime | None
    transactions: int
    rows: int
    batches: int
    snapshot: int | None
    is_dry_run: bool = False
    is_paused: bool = False
    is_target_reached: bool = True
    is_back: bool = False
    rebuilt_because: str = ""
    bytes: int = 0
    loaded: int | None = None


@dataclass(slots=True)
class Replay:
    """One replication into the target `into`.

    Attributes:
        registers: Whether to register the replica in the farm.
        bulk: Executes large work.
        progress: Called with ticks done, ticks in all, and what is being done.
        membership: The replica's part in a tree of tiers; None if its place is fixed.
        delay_s: Intended lag.
        identity: Id of a new replica; a random one if empty.
        options: They change the state; `access` of a new replica defaults to whether it verifies signatures.
        key_file: New path of the key of hashes; "" to keep the remembered path.
    """

    into: Target
    database: FarmDatabase
    stop: Stop
    registers: bool = False
    bulk: Bulk | None = None
    progress: Progress | None = None
    membership: Membership | None = None
    delay_s: float = 0.0
    identity: str = ""
    options: ReplicaOptions = field(default_factory=ReplicaOptions)
    key_file: str = ""
    _made_from: int | None = None
    _loaded: int | None = None
    _peeked: tuple[Batch, str] | None = None
    _file: DatabaseFile | None = field(init=False)
    _fetcher: Fetcher = field(init=False)
    _run: StepRun = field(init=False)
    _totals: StepTotals = field(default_factory=StepTotals)
    _is_level: bool = False
    _is_target_reached: bool = True
    _start: int = 0
    _end: int = 0
    _beat_s: float = BEAT_S

    def __post_init__(self) -> None:
        self._file = DatabaseFile.of(self.into)
        self._fetcher = Fetcher(self.database)
        self._run = StepRun(self.into, self.database, self._fetcher, self.scratch)

    def rehearse(self, state: ReplicaState | None) -> Replicated:
        """Return the result of a dry run; `state` is that of the replica, None if it does not exist."""
        if state is None:
            state = self._new_state(self._choose(), ())
        tick, clock = state.position.tick, state.clock
        for step in self.steps(state):
            self._totals.add(step)
            tick, clock = step.last, step.clock or clock
        return self._result(tick, clock, is_dry_run=True)

    def make(
        self, tables: tuple[str, ...], filters: RowFilters = EVERYTHING, *, may_be_idle: bool = False
    ) -> Replicated:
        """Make the replica and roll it forward.

        Args:
            tables: Patterns of its tables; empty for all.
            filters: Filters of rows, columns and values.
            may_be_idle: Whether a pattern may match no table.
        """
        manifest = self._choose()
        # Views and the like of filtered tables are ignored, as in a replica of some tables.
        state = remembered(self._new_state(manifest, tables or (ANY,) if filters else tables), self.options)
        # Check before any change that the log can be read from there on.
        steps = self.steps(state)
        if filters:
            from wlr.replay.filters.schema import named_tables

            named = named_tables(filters, manifest, steps)
            steps, state = self.steps(state), replace(state, filters=named)
        if not may_be_idle:
            self._refuse_idle_patterns(steps, manifest, tables)
        if self._file:
            self._file.refuse_taken(self._schema_changes(state, manifest), tables)
        self._build(state, manifest, self.into.build)
        return self.roll_forward()

    def _schema_changes(self, state: ReplicaState, manifest: Manifest | None) -> Iterator[Ddl]:
        """Return the statements of the snapshot, and those of the log after it up to the stop."""
        if manifest is not None:
            yield from (*manifest.schema, *manifest.schema_after)
        for step in self.steps(state):
            yield from (ddl for transaction in step.transactions for ddl in transaction.records if isinstance(ddl, Ddl))

    def rebuild(self, before: ReplicaState, why: str, *, dry_run: bool = False) -> Replicated:
        """Rebuild a replica in its place, and roll it forward.

        Args:
            before: Its state; it keeps its settings, and retries accepted transactions.
            why: The cause, for the report.
            dry_run: Only report it.
        """
        refuse_unlocked(before, self.into, why)
        manifest = self._choose()
        state = replace(self._new_state(manifest, before.tables), filters=before.filters)
        if dry_run:
            return replace(self.rehearse(None), rebuilt_because=why)
        own = Rebuildable.required(self.into, "rebuilding a replica", "Replicate into another place.")
        self.steps(state)
        # Do not carry over accepted failures: in the new history, the same tick is a different transaction.
        known = {name: getattr(before, name) for name in ("id", *REMEMBERED, "beat_s", "follows_beat", "swaps")}
        self._build(replace(state, **known, verify=state.verify or before.verify), manifest, own.rebuild)
        return replace(self.roll_forward(), rebuilt_because=why)

    def _build(self, state: ReplicaState, manifest: Manifest | None, build: Callable[[NewReplica], None]) -> None:
        self._register(state)
        fetch = partial(self.database.fetch_snapshot, manifest) if manifest else self.database.fetch
        new = NewReplica(state, manifest, fetch, self.database.release, self._folders(), self.progress)
        self._loaded = new.rows if manifest else None
        try:
            if not state.filters:
                build(new)
                return
            # It needs DuckDB, which takes long to import.
            from wlr.replay.filters.filtered_steps import filtered

            with tempfile.TemporaryDirectory(prefix="wlr-filter-") as work, filtered(new, Path(work)) as chosen:
                build(chosen)
        except UnavailableError as error:
            raise with_space(error, self.into, new) from error

    def _refuse_idle_patterns(
        self, steps: Iterator[Step], manifest: Manifest | None, patterns: tuple[str, ...]
    ) -> None:
        """Refuse a pattern that matches no table of the snapshot or of the log after it."""
        tables = {table.table for table in manifest.tables} if manifest else set()
        if not (left := idle(patterns, tables)):
            return
        # Only in this case the whole log is read twice.
        tables.update(name for step in steps for transaction in step.transactions for name in created_by(transaction))
        bounds.refuse_idle(left, tables)

    def roll_forward(self, found: ReplicaState | None = None) -> Replicated:
        """Apply the log from the replica's position up to the stop.

        Args:
            found: The replica's state of a moment ago; None if it was not read.
        """
        try:
            return self._roll_forward(found)
        except (CorruptError, ExpiredError):
            # The log between an older file of the replica and the replica itself may have been pruned.
            if not (self._file and self._file.begins_again()):
                raise
            self._totals = StepTotals()
            return self._roll_forward(None)
        except ReplayError:
            changed = None
            # Report the failure, even if reading the replica fails, too.
            with suppress(FarmError):
                changed = self._run.with_changed()
            if changed is not None:
                raise changed from None
            raise

    def _roll_forward(self, found: ReplicaState | None) -> Replicated:
        ahead = None
        if found is not None and self.into.is_settled():
            # Without new transactions, do not open the replica for writing, which would disturb its readers.
            ahead = self._ahead(found)
            if self._is_level and self._with_settings(found) == found:
                self._register(found)
                self._note_witness(found)
                return self._result(found.position.tick, found.clock)
        opened = self._file.open_to_roll if self._file else self.into.open
        with opened(self._folders(), self.bulk) as replica:
            if ahead is None or replica.state != found:
                ahead = self._ahead(replica.state)
            start = replica.state
            steps = self._cut(start, ahead, replica.limits)
            self._register(start)
            known = self._with_settings(start)
            if known != start:
                replica.remember(known)
            try:
                self._apply(replica, steps)
            finally:
                self._fetcher.close()
                if replica.state.position != start.position or replica.state.failure != start.failure:
                    self._register(replica.state)
            self._note_witness(replica.state)
            return self._result(replica.state.position.tick, replica.state.clock)

    def _apply(self, replica: OpenReplica, steps: Iterator[Step]) -> None:
        """Apply steps; transactions that do not fit at the end of a step are applied with the next one."""
        unfit: UnfitError | None = None
        for each in steps:
            if unfit is not None and any(chain(unfit.left.schema_changes(), each.schema_changes())):
                break
            self._fetcher.expect(file for file in each.files.values() if replica.holds(file.table))
            step = each if unfit is None else unfit.left.joined(each)
            try:
                self._run.apply(replica, step)
            except UnfitError as error:
                if unfit is not None and error.left.first == unfit.left.first:
                    break
                unfit = error
                step = step.until(unfit.left.first)
            else:
                unfit = None
            if step.transactions:
                self._totals.add(step)
                self._report(step)
            if unfit is None:
                self._fetcher.release(set(step.files))
        if unfit is not None:
            raise self._run.reported(replica, unfit, is_at_stop=self.stop.tick == unfit.left.last) from unfit

    def _with_settings(self, state: ReplicaState) -> ReplicaState:
        """Return a state with the settings of this run."""
        return replace(
            remembered(state, self.options),
            master=self.database.url,
            verify=self.database.keys.verify_words() or state.verify,
            beat_s=self._beat_s if state.follows_beat else state.beat_s,
            attachment=self.membership.attachment if self.membership else None,
            swaps=self._file.wants_swaps(state.swaps) if self._file else state.swaps,
            filters=replace(state.filters, key_file=self.key_file) if self.key_file else state.filters,
        )

    def _note_witness(self, state: ReplicaState) -> None:
        if self.database.witness is not None:
            self.database.witness.note(state.position)

    # Planning

    def _choose(self) -> Manifest | None:
        manifest = log_reader.choose_snapshot(self.database, self.stop)
        self._made_from = manifest.position.tick if manifest else None
        return manifest

    def _new_state(self, manifest: Manifest | None, tables: tuple[str, ...]) -> ReplicaState:
        identity, verify = self.identity or secrets.token_hex(8), self.database.keys.verify_words()
        # Keys that are given later do not apply to a replica made without keys.
        access = bool(verify) if (asked := self.options.get("access")) is None else asked
        if manifest is None:
            catalog = self._catalog_of_first_batch()
            return ReplicaState(identity, self.database.url, catalog, tables, verify=verify, access=access)
        position = manifest.position
        clock = manifest.clock if position.tick else None
        digests = {name: digest for name, digest in manifest.digests.items() if matches(name, tables)}
        return ReplicaState(
            identity,
            self.database.url,
            manifest.catalog,
            tables,
            position=position,
            batch_last=position.tick,
            clock=clock,
            digests=digests,
            names_digests=bool(manifest.digests),
            verify=verify,
            access=access,
            contained=self._contained_in(manifest),
            left_out=without_counterparts({}, (*manifest.schema, *manifest.schema_after), tables),
        )

    def _contained_in(self, manifest: Manifest) -> Contained:
        contained, position = of_snapshot(manifest), manifest.position
        if contained.own is None:
            # Only the batch marks the site's own ticks; it may have been pruned.
            with suppress(FarmError):
                batch, chain = self.database.read_batch(position.batch)
                if chain == position.chain and batch.last == position.tick:
                    return of_footer(batch)
        return contained

    def _catalog_of_first_batch(self) -> str:
        try:
            self._peeked = self.database.read_batch(1, "")
        except MissingError:
            return self.database.name
        return self._peeked[0].catalog

    def steps(self, state: ReplicaState) -> Iterator[Step]:
        """Check that the target can be reached from a state, and cut the log between the two into steps."""
        return self._cut(state, self._ahead(state))

    def _cut(self, state: ReplicaState, ahead: Iterator[tuple[Batch, str]], limits: Limits = LIMITS) -> Iterator[Step]:
        failed = state.failure.tick if state.failure else None
        return cut(ahead, state.position, self.stop, limits=limits, skipped=state.accepted, alone=failed)

    def _ahead(self, state: ReplicaState) -> Iterator[tuple[Batch, str]]:
        """Check that the target can be reached from a state, and return the batches of the log that lead to it."""
        config = self.database.config()
        self._beat_s = config.beat_s
        # An existing replica does not read older batches, but the witness may have seen them.
        before = 0 if self.database.witness else state.position.batch
        numbers = newest_batches.numbers_from(self.database, before)
        end = log_reader.last_tick(self.database, numbers, config)
        if self._made_from is None:
            log_reader.refuse_rolled_back(self.database, numbers, end)
        self._is_target_reached = self.stop == Stop() or self.stop.is_passed(end, config.write)
        if self.stop.is_awaited and self.stop.is_passed(state.position.tick, state.clock):
            self._is_level = True
            return iter(())
        bounds.refuse_ahead(end, self.stop)
        bounds.refuse_behind(state.position, state.clock, self.stop)
        last = max([config.batches - 1, *numbers[-1:]])
        log_reader.refuse_lost_position(self.database, self.membership, state.position, end, last)
        if bounds.is_single(state.position, numbers) and (
            self._made_from is not None or self.stop.tick == state.position.tick
        ):
            bounds.refuse_hole(state.position, self.database.snapshot_ticks(), self.stop)
            return iter(())
        forks = self._refuse_beyond_break(numbers, state.position, config)
        first = bounds.first_batch_to_read(state.position, state.batch_last, numbers, self.database.snapshot_ticks)
        self._start = state.position.tick
        self._end = end if self.stop.tick is None else min(end, self.stop.tick)
        batches = log_reader.batches_from(self.database, first, numbers, state.position, self._read)
        batches = bounds.counting(batches, forks) if forks else batches
        peeked = next(batches, None)
        if peeked is None:
            self._is_level = True
            return iter(())
        self._peeked, tick = peeked, state.position.tick
        is_at_end = peeked[0].number >= numbers[-1] and peeked[0].last <= tick
        self._is_level = is_at_end or self.stop.is_before(peeked[0], tick)
        if not state.position.tick and self._made_from is None:
            bounds.refuse_before_first(peeked[0], self.stop)
        return chain((peeked,), batches)

    def _refuse_beyond_break(self, numbers: list[int], position: Position, config: Config) -> Mapping[str, int]:
        """Refuse to continue into a later history if changes between the two are in no log."""
        if not position.history and numbers and bounds.is_whole(self._read(numbers[0], None)[0], config.history):
            return {}
        if position.history != config.history and (position.history or config.tick):
            # Read every number, to report a missing batch: without it, a history may seem to have no origin.
            without_gaps = range(numbers[-1], numbers[0] - 1, -1) if numbers else ()
            newest_first = (self.database.read_batch(number)[0] for number in without_gaps)
            ticks = self.database.snapshot_ticks
            is_restorable = self._leads_behind
            return bounds.refuse_beyond_break(newest_first, position, config.history, self.stop, is_restorable, ticks)
        return {}

    def _leads_behind(self, end: int) -> bool:
        """Return whether a replica at the stop would be made from a snapshot after a tick."""
        manifest = log_reader.choose_snapshot(self.database, self.stop)
        return manifest is not None and manifest.position.tick > end

    def _read(self, number: int, previous: str | None) -> tuple[Batch, str]:
        if (
            self._peeked is not None
            and self._peeked[0].number == number
            and previous in (None, self._peeked[0].previous)
        ):
            return self._peeked
        return self.database.read_batch(number, previous)

    def begins_with(self, manifest: Manifest | None) -> None:
        """Plan the steps after a snapshot that the caller chose, None for an empty database."""
        self._made_from = manifest.position.tick if manifest else None

    # Applying

    def restored(
        self, step: Step, transaction: Transaction, old: Name, new: Name, folder: Path
    ) -> EnteringTable | None:
        """Restore a table from the farm as of a point within a step's one transaction; None for a view."""
        return self._run.restored(step, folder, transaction, old, new)

    def scratch(self, file: Path, tick: int, tables: tuple[str, ...]) -> Target:
        """Make a replica of some tables in a scratch file."""
        scratch = Replay(target_at(file), self.database, Stop(tick))
        try:
            scratch.make(tables, may_be_idle=True)
        except (UnsupportedError, ReplayError):
            # A table cannot be created without the tables that it refers to.
            file.unlink(missing_ok=True)
            scratch = Replay(target_at(file), self.database, Stop(tick))
            scratch.make(())
        return scratch.into

    def _folders(self) -> list[Path]:
        return log_reader.local_folders(self.database)

    # Reporting

    def _report(self, step: Step) -> None:
        if self.progress:
            total = max(self._end - self._start, 1)
            now = Doing(f"at tick {step.last}", self._totals.rows, self._totals.bytes)
            self.progress(min(step.last - self._start, total), total, now)

    def _result(self, tick: int, clock: datetime | None, *, is_dry_run: bool = False) -> Replicated:
        totals = self._totals
        counts = totals.transactions, totals.rows, len(totals.batches)
        # The run may have applied batches that were published after the listing.
        is_target_reached = self._is_target_reached or self.stop.is_passed(tick, clock)
        return Replicated(
            *(tick, clock, *counts, self._made_from, is_dry_run),
            is_target_reached=is_target_reached,
            bytes=totals.bytes,
            loaded=self._loaded,
        )

    def _register(self, state: ReplicaState) -> None:
        if self.registers:
            register_replica(
                self.database, state, self.into, self.membership, delay_s=self.delay_s, is_level=self._is_level
            )


def with_space(error: UnavailableError, into: Target, new: NewReplica) -> UnavailableError:
    """Add the needed and the free disk space to the error of a full disk."""
    if DISK_FULL not in error.message or "://" in into.place.url:
        return error
    needed = sum(file.bytes for table in new.tables for file in table.files)
    place = next(folder for folder in into.place.path.absolute().parents if folder.is_dir())
    free = shutil.disk_usage(place).free
    message = f"{error.message}; the snapshot's files have {needed} bytes, and {place} has {free} bytes free"
    return UnavailableError(message, hint=error.hint, path=error.path)
