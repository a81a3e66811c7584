"""One replication: make the replica if there is none, then apply the log step by step up to the target."""

from __future__ import annotations

import getpass
import secrets
import socket
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.clock import utc_now
from wlc.errors import CorruptError, ReplayError, UnavailableError
from wlc.registry import Replica, register
from wlc.store import MissingError
from wlr import bounds, engine, log, plan
from wlr.engine import Failure, State, StepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from wlc.farm import FarmDatabase
    from wlc.model import Batch, Manifest, Position, TableFile
    from wlr.engine import Place, Target
    from wlr.plan import Step


@dataclass(frozen=True, slots=True)
class Result:
    """What a replication did, or would do.

    Attributes:
        tick: Last transaction that the replica holds; `clock`: when it was committed, None before the first.
        transactions: Number of transactions applied from the log; `rows`: row images in them.
        batches: Number of log files they came from.
        snapshot: Tick of the snapshot that the replica was made from in this run, None if it was there before.
    """

    tick: int
    clock: datetime | None
    transactions: int
    rows: int
    batches: int
    snapshot: int | None
    is_dry_run: bool = False


@dataclass(slots=True)
class Replay:
    """One replication into `place`.

    Attributes:
        registers: Tell the farm of the replica.
        bulk: How to do large work.
        keep: What to remember of how long old ticks stay readable; None for what it remembers.
        progress: Called with ticks done, ticks in all, and what is being done.
    """

    place: Place
    database: FarmDatabase
    target: plan.Target
    registers: bool = False
    bulk: engine.Bulk | None = None
    keep: str | None = None
    progress: Callable[[int, int, str], None] | None = None
    _made_from: int | None = None
    _peeked: tuple[Batch, str] | None = None
    _files: dict[str, Path] = field(default_factory=dict)
    _batches: set[int] = field(default_factory=set)
    _transactions: int = 0
    _rows: int = 0
    _start: int = 0
    _end: int = 0

    def rehearse(self, state: State | None) -> Result:
        """Say what the replication would do; `state` is that of the replica, None if there is none."""
        if state is None:
            state = self._new_state(self._choose(), ())
        tick, clock = state.position.tick, state.clock
        for step in self._steps(state):
            self._count(step)
            tick, clock = step.last, step.clock or clock
        return self._result(tick, clock, is_dry_run=True)

    def make(self, tables: tuple[str, ...]) -> Result:
        """Make the replica and roll it forward."""
        manifest = self._choose()
        state = self._new_state(manifest, tables)
        # Asked before anything is touched: can the log be read on from there?
        self._steps(state)
        self._register(state)
        fetch = partial(self.database.fetch_snapshot, manifest) if manifest else self.database.fetch
        release, folders = self.database.release, self._folders()
        engine.build(self.place, state, manifest, fetch, release, folders=folders, progress=self.progress)
        return self.roll_forward()

    def roll_forward(self) -> Result:
        """Apply the log from where the replica stands up to the target."""
        with engine.open_target(self.place, self._folders(), self.bulk) as replica:
            start = replica.state
            steps = self._steps(start, replica.limits)
            self._register(start)
            told = {"master": self.database.url, "keep": start.keep if self.keep is None else self.keep}
            told["verify"] = self.database.keys.verify_words() or start.verify
            if any(getattr(start, name) != value for name, value in told.items()):
                replica.update(**told)
            try:
                for step in steps:
                    self._apply(replica, step)
                    self._count(step)
                    self._report(step)
                    self._release(step)
            finally:
                self._release(None)
                if replica.state.position != start.position:
                    self._register(replica.state)
            return self._result(replica.state.position.tick, replica.state.clock)

    # Planning

    def _choose(self) -> Manifest | None:
        self._made_from = log.choose_snapshot(self.database, self.target)
        return None if self._made_from is None else self.database.read_manifest(self._made_from)

    def _new_state(self, manifest: Manifest | None, tables: tuple[str, ...]) -> State:
        identity, verify = secrets.token_hex(8), self.database.keys.verify_words()
        if manifest is None:
            return State(identity, self.database.url, self._catalog_of_first_batch(), tables, verify=verify)
        position = manifest.position
        clock = manifest.clock if position.tick else None
        digests = {name: digest for name, digest in manifest.digests.items() if plan.matches(name, tables)}
        return State(
            identity,
            self.database.url,
            manifest.catalog,
            tables,
            position,
            position.tick,
            clock,
            digests=digests,
            verify=verify,
        )

    def _catalog_of_first_batch(self) -> str:
        try:
            self._peeked = self.database.read_batch(1, "")
        except MissingError:
            return self.database.name
        return self._peeked[0].catalog

    def _steps(self, state: State, limits: plan.Limits = plan.LIMITS) -> Iterator[Step]:
        """Check that the target can be reached from there, and cut what lies between into steps."""
        numbers = self.database.batch_numbers()
        end = log.last_tick(self.database, numbers)
        bounds.refuse_ahead(end, self.target)
        bounds.refuse_behind(state.position, state.clock, self.target)
        if state.position.tick > end:
            raise CorruptError(
                f"the farm ends at tick {end}, the replica is at {state.position} already",
                hint="The master was restored from another past: make the replica anew.",
                position=state.position,
            )
        snapshots = self.database.snapshot_ticks()
        self._refuse_beyond_break(numbers, state.position)
        first = bounds.first_batch_to_read(
            state.position, state.batch_last, numbers, snapshots[-1] if snapshots else None
        )
        self._start, self._end = state.position.tick, end if self.target.tick is None else self.target.tick
        batches = log.batches_from(self.database, first, state.position, self._read)
        peeked = next(batches, None)
        if peeked is None:
            return iter(())
        self._peeked = peeked
        failed = state.failure.tick if state.failure else None
        ahead = chain((peeked,), batches)
        return plan.cut(ahead, state.position, self.target, limits=limits, skipped=state.accepted, alone=failed)

    def _refuse_beyond_break(self, numbers: list[int], position: Position) -> None:
        """Refuse to go on into a later history that grew with changes that no log has."""
        config = self.database.config()
        if not position.history and numbers and bounds.is_whole(self._read(numbers[0], None)[0], config.history):
            return
        if position.history != config.history and (position.history or config.tick):
            # One that is missing is named so: without it a history may seem to have grown from nothing.
            without_gaps = range(numbers[-1], numbers[0] - 1, -1) if numbers else ()
            newest_first = (self.database.read_batch(number)[0] for number in without_gaps)
            bounds.refuse_beyond_break(newest_first, position, config.history, self.target)

    def _read(self, number: int, previous: str | None) -> tuple[Batch, str]:
        if (
            self._peeked is not None
            and self._peeked[0].number == number
            and previous in (None, self._peeked[0].previous)
        ):
            return self._peeked
        return self.database.read_batch(number, previous)

    # Applying

    def _apply(self, replica: Target, step: Step) -> None:
        """Apply a step; one that fails is cut in halves until the transaction at fault is alone."""
        try:
            replica.apply(step, self._fetch)
        except StepError as error:
            if len(step.transactions) == 1:
                raise self._failed(replica, step, error) from error
            parts = step.parts(replica.parents) if error.is_reference else step.halves()
        else:
            return
        for part in parts:
            self._apply(replica, part)

    def _failed(self, replica: Target, step: Step, error: StepError) -> Exception:
        if error.is_shortage:
            hint = f"Give it more memory: {engine.MEMORY_VARIABLE}."
            return UnavailableError(f"transaction {step.last} needs too much memory: {error.cause}", hint=hint)
        failure = Failure(step.last, error.table, error.key, error.cause, utc_now())
        replica.update(failure=failure)
        return ReplayError(
            str(failure),
            hint=f"Repair the replica and replicate again, or skip the transaction: wlr accept {self.place}",
            path=str(self.place),
            position=replica.state.position,
        )

    def _fetch(self, file: TableFile) -> Path:
        path = file.file.path
        if path not in self._files:
            self._files[path] = self.database.fetch(file)
        return self._files[path]

    def _release(self, step: Step | None) -> None:
        """Give up files of batches before the one that the step ended in; all if there is no step."""
        kept = set() if step is None else {path for path in self._files if path in step.files}
        for path in set(self._files) - kept:
            self.database.release(self._files.pop(path))

    def _folders(self) -> list[Path]:
        """Local folders of the farm, which data files are read from directly."""
        return [Path(url) for url in (self.database.url, self.database.logs.url) if "://" not in url]

    # Telling

    def _count(self, step: Step) -> None:
        self._transactions += len(step.applied)
        self._rows += step.rows
        self._batches |= {mark.batch for mark in step.marks}

    def _report(self, step: Step) -> None:
        if self.progress:
            total = max(self._end - self._start, 1)
            self.progress(min(step.last - self._start, total), total, f"at tick {step.last}")

    def _result(self, tick: int, clock: datetime | None, *, is_dry_run: bool = False) -> Result:
        return Result(tick, clock, self._transactions, self._rows, len(self._batches), self._made_from, is_dry_run)

    def _register(self, state: State) -> None:
        if not self.registers:
            return
        position = state.position if state.position.history else None
        replica = Replica(
            state.id, str(self.place), position, state.clock, utc_now(), socket.gethostname(), _user_name()
        )
        register(self.database, replica)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number that has no name.
        return "unknown"
