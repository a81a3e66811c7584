"""A Parquet replica: opened, rolled forward step by step, closed."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.fold import TargetTable
from wlc.farm.clock import utc_now
from wlc.farm.errors import FarmError
from wlc.farm.lease import Lease
from wlc.farm.model import Ddl
from wlr.engine.contract import OpenReplica
from wlr.engine.misfit import misfit
from wlr.engine.parquet import open_tables
from wlr.engine.parquet.catalog import LakeCatalog, by_id
from wlr.engine.parquet.executor import LocalExecutor
from wlr.engine.parquet.folder import (
    LEASE,
    LakeFolder,
    LakeTable,
    Pointer,
    TakenOverError,
    Version,
    with_version,
    work_folder,
)
from wlr.engine.replica_state import after
from wlr.replay.ddl import left_out
from wlr.replay.fold import unfit_changes
from wlr.replay.fold.files import Alteration, Executor, FilePart, MergeJob
from wlr.replay.fold.tally import Tally
from wlr.replay.plan.failure import ContradictionError, StepError, naming
from wlr.replay.plan.log_steps import Limits
from wlr.replay.plan.step import Fold

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from wlc.farm.model import Name, TableFile
    from wlr.engine.contract import Bulk
    from wlr.engine.replica_state import ReplicaState
    from wlr.replay.fold.files import MergedFiles
    from wlr.replay.plan.step import Action, Step, TableChange

# A step rewrites every file that it touches, so few large steps cost less; unfinished work is on disk.
LIMITS = Limits(rows=500_000_000, transactions=2_000_000, files=4096)


def open_replica(folder: LakeFolder, bulk: Bulk | None = None) -> OpenLake:
    """Open a replica for writing; other processes cannot until it is closed."""
    folder.require()
    lease = Lease(folder.store, LEASE)
    try:
        pointer, version = folder.require()
        current = folder.read_current(pointer)
        # From now on, a run that held the lease before us and still lives cannot commit.
        pointer = replace(pointer, run=lease.run, state=with_left_out(pointer.state, current))
        version = folder.replace_pointer(pointer, version)
        opened = open_tables.OpenTables(folder, lease.run)
        if pointer.state.open_tables:
            # Update the logs before removing files that only a stale entry names: the last run may have died between.
            opened.level(current, pointer.manifest)
        folder.sweep(current.position.tick, version, current.paths)
        executor: Executor = LocalExecutor(folder.store, work_folder(folder, lease))
        try:
            if bulk is not None:
                executor = bulk.executor(executor, folder.url, folder.storage_options)
            return OpenLake(folder, lease, pointer, version, current, executor, opened)
        except BaseException:
            executor.close()
            raise
    except BaseException:
        lease.release()
        raise


@dataclass(slots=True)
class _Draft:
    """The tables of an unfinished step.

    Attributes:
        tally: Their digests.
        written: Paths of the files that the step has written; later actions may have replaced them.
        is_manifest_written: The pointer may name the manifest from now on, even without an answer.
    """

    tables: dict[Name, tuple[FilePart, ...]]
    tally: Tally
    written: set[str] = field(default_factory=set)
    has_ddl: bool = False
    is_manifest_written: bool = False

    def noted(self, after: tuple[FilePart, ...], before: tuple[FilePart, ...]) -> tuple[FilePart, ...]:
        """Record the written files of a table, and return all of its files."""
        self.written |= {part.file.path for part in after} - {part.file.path for part in before}
        return after

    def take(self, job: MergeJob, outcome: MergedFiles) -> None:
        """Record the result of a table."""
        unfit_changes.refuse_other_weight(job.change, outcome.removed, outcome.added)
        self.tally.fold(job.change, lambda: outcome.total)
        self.tables[job.change.table] = self.noted(outcome.parts, job.parts)


class OpenLake(OpenReplica):
    """A lake whose lease this run holds."""

    limits = LIMITS

    def __init__(
        self,
        folder: LakeFolder,
        lease: Lease,
        pointer: Pointer,
        version: str,
        current: Version,
        executor: Executor,
        opened: open_tables.OpenTables,
    ) -> None:
        self.state = with_version(pointer.state, current)
        self._folder = folder
        self._lease = lease
        self._pointer = pointer
        self._version = version
        self._current = current
        self._executor = executor
        self._opened = opened
        self._loaded: LakeCatalog | None = None

    def holds(self, table: Name) -> bool:
        return table.folded in {held.table.folded for held in self._current.tables}

    def close(self) -> None:
        self._forget_catalog()
        self._executor.close()
        self._lease.release()

    @property
    def _catalog(self) -> LakeCatalog:
        # A run without new batches needs no executor.
        if self._loaded is None:
            catalog = LakeCatalog(
                self._current.catalog, self.state.tables, self._folder.url, is_whole=not self.state.accepted
            )
            catalog.load((*self._current.schema, *self._current.schema_after), self._current.sequences)
            self._loaded = catalog
        return self._loaded

    def _forget_catalog(self) -> None:
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    @property
    def current(self) -> Version:
        """The current version of the replica."""
        return self._current

    def remember(self, state: ReplicaState) -> None:
        self._point(self._current, state)
        self._open_tables()

    def move(self, state: ReplicaState) -> None:
        # The other log numbers its ticks differently: they must not find manifests of the old log.
        keep = {self._pointer.manifest}
        self._folder.remove([path for path in self._folder.all_manifests() if path not in keep], self._version)
        known = {name: getattr(state, name) for name in ("position", "batch_last", "clock", "digests", "contained")}
        version = replace(self._current, **known, catalog=state.catalog, made=utc_now())
        before, manifest = self._pointer.manifest, self._folder.write_version(version, self._lease.run)
        self._point(version, state, manifest)
        self._open_tables()
        if manifest[0] != before:
            with suppress(FarmError):
                self._folder.store.delete(before)

    def remove(self, listed: Collection[str]) -> None:
        """Remove files that no manifest needs; see `LakeFolder.remove`."""
        self._folder.remove(listed, self._version)

    def _point(self, current: Version, state: ReplicaState, manifest: tuple[str, str] | None = None) -> None:
        state = with_left_out(state, current)
        path, sha256 = manifest or (self._pointer.manifest, self._pointer.sha256)
        pointer = Pointer(path, sha256, self._lease.run, state)
        self._version = self._folder.commit_pointer(pointer)
        self._pointer, self._current, self.state = pointer, current, state

    def _open_tables(self) -> None:
        """Update the Delta logs to the pointer's manifest."""
        if self.state.open_tables:
            self._opened.level(self._current, self._pointer.manifest)

    # Steps -----------------------------------------------------------------------------------------------------------

    def apply(self, step: Step, fetch: Callable[[TableFile], Path]) -> None:
        actions = step.actions()
        left_out.leaving_out(lambda skipped: self._try(step, actions, fetch, skipped))
        # The step is committed, even if this fails; the next run updates the logs.
        self._open_tables()

    def _try(
        self, step: Step, actions: tuple[Action, ...], fetch: Callable[[TableFile], Path], skipped: set[int]
    ) -> int | None:
        """Apply a step; return the number of a failed action that may be left out, None on success."""
        tally = Tally(self._current.digests, names_digests=self.state.names_digests)
        draft = _Draft({table.table: table.parts for table in self._current.tables}, tally)
        number = 0
        try:
            for number, action in enumerate(actions):
                if number not in skipped:
                    self._act(draft, step, action, actions[number + 1 : number + 2], fetch)
            self._commit(draft, step)
        except BaseException as error:
            self._forget_catalog()
            # Files of the failed step are unused. If they cannot be removed now, the next run removes them.
            if not draft.is_manifest_written:
                with suppress(FarmError):
                    self._folder.sweep(self._current.position.tick, self._version, self._current.paths)
            if (
                isinstance(error, StepError)
                and not isinstance(error, ContradictionError)
                and number not in skipped
                and left_out.may_be_left_out(actions, number, self.state.tables, draft.tables)
            ):
                return number
            raise
        return None

    def _commit(self, draft: _Draft, step: Step) -> None:
        """Write the manifest, then replace the pointer: this commits the step."""
        schema, schema_after = self._current.schema, self._current.schema_after
        if draft.has_ddl:
            schema, schema_after = self._catalog.statements()
        layouts = self._catalog.tables()
        if self.state.open_tables:
            for name, parts in draft.tables.items():
                draft.tables[name] = draft.noted(open_tables.gathered(self._folder, name, parts, step.last), parts)
        version = Version(
            position=step.position,
            batch_last=step.mark.batch_last,
            clock=step.clock_after(self.state.clock),
            made=utc_now(),
            catalog=self._current.catalog,
            schema=schema,
            schema_after=schema_after,
            sequences=self._catalog.sequences(),
            tables=tuple(LakeTable(name, layouts[name].layout, parts) for name, parts in sorted(draft.tables.items())),
            digests=draft.tally.settle(step, draft.tables, self.state.tables),
            contained=step.contained(self._current.contained),
        )
        named = {part.file.path for parts in draft.tables.values() for part in parts}
        for path in draft.written - named:
            self._folder.store.delete(path)
        manifest = self._folder.write_version(version, self._lease.run)
        draft.is_manifest_written = True
        replaced = self._pointer.manifest if version.position == self._current.position else None
        try:
            self._point(version, after(self.state, step, version.digests), manifest)
        except TakenOverError:
            # Files of the manifest may be gone; it must not become a readable tick later.
            with suppress(FarmError):
                self._folder.store.delete(manifest[0])
            raise
        if replaced:
            # A repaired tick has one manifest, which readers of old ticks find.
            with suppress(FarmError):
                self._folder.store.delete(replaced)

    def _act(
        self,
        draft: _Draft,
        step: Step,
        action: Action,
        following: Sequence[Action],
        fetch: Callable[[TableFile], Path],
    ) -> None:
        if isinstance(action, Ddl):
            cleared = {
                change.table
                for next_one in following
                if isinstance(next_one, Fold)
                for change in next_one.changes
                if change.cleared is not None
            }
            self._run_ddl(draft, step, action, cleared)
            draft.tally.alter(action)
            return
        changes = [
            change
            for change in action.changes
            if unfit_changes.is_replicated(change.table, draft.tables, self.state.tables)
        ]
        self._change(draft, step, changes, fetch)
        for sequence in action.sequences:
            self._catalog.set_sequence(sequence)

    def _change(
        self, draft: _Draft, step: Step, changes: Sequence[TableChange], fetch: Callable[[TableFile], Path]
    ) -> None:
        jobs = []
        for change in changes:
            parts = draft.tables[change.table]
            if change.cleared is not None:
                unfit_changes.refuse_other_count(change, sum(part.file.rows for part in parts))
                draft.tables[change.table] = parts = ()
            if change.reads:
                jobs.append(self._job(step, change, parts, fetch))
            else:
                draft.tally.fold(change, lambda: 0)
        for job, outcome in zip(jobs, self._executor.merge(jobs, fetch), strict=True):
            draft.take(job, outcome)

    def _job(
        self, step: Step, change: TableChange, parts: tuple[FilePart, ...], fetch: Callable[[TableFile], Path]
    ) -> MergeJob:
        layout = change.reads[-1].file.layout
        declared = self._catalog.tables()[change.table].layout
        if layout.shape != declared.shape:
            cause = misfit(change, declared, fetch) or "data files have other columns than the table"
            raise StepError(cause, table=str(change.table))
        return MergeJob(TargetTable(change.table, change.table.sql, layout), change, parts, step.last)

    # Schema changes --------------------------------------------------------------------------------------------------

    def _run_ddl(self, draft: _Draft, step: Step, statement: Ddl, cleared: Collection[Name]) -> None:
        before = self._catalog.tables()
        if not self._catalog.run(statement):
            return
        is_first, draft.has_ddl = not draft.has_ddl, True
        after, old = self._catalog.tables(), by_id(before)
        tables: dict[Name, tuple[FilePart, ...]] = {}
        for name, table in after.items():
            was = old.get(table.id)
            if was is None:
                tables[name] = ()
            elif was.name in draft.tables:
                parts = draft.tables[was.name]
                # If all rows are published again, only the number of old rows matters.
                if name not in cleared and parts and was.layout != table.layout:
                    # The first statement of a step has the schema of the last step: the catalog need not be read.
                    schema = self._current.schema if is_first else self._catalog.statements()[0]
                    change = Alteration(
                        statement, was.name, was.layout, name, table.layout, schema, self._current.catalog
                    )
                    parts = self._converted(draft, step, change, parts)
                tables[name] = parts
        draft.tables = tables

    def _converted(
        self, draft: _Draft, step: Step, alteration: Alteration, parts: tuple[FilePart, ...]
    ) -> tuple[FilePart, ...]:
        """Return the files of a table after a possible change of its columns or its key."""
        if alteration.before.shape != alteration.after.shape:
            with naming(alteration.table):
                parts = draft.noted(self._executor.alter(alteration, parts, step.last), parts)
        if alteration.before.key_places != alteration.after.key_places:
            described = TargetTable(alteration.name, alteration.name.sql, alteration.after)
            parts = draft.noted(self._executor.sort(described, parts, step.last), parts)
        return parts


def with_left_out(state: ReplicaState, version: Version) -> ReplicaState:
    """Return a state that lists the tables that cannot be open; warn of new ones."""
    causes = open_tables.left_out(version) if state.open_tables else {}
    for what, cause in causes.items():
        if what not in state.left_out:
            warnings.warn(f"{what} is left out: {cause}", stacklevel=2)
    others = {what: cause for what, cause in state.left_out.items() if not open_tables.is_of_open_table(what)}
    return replace(state, left_out=others | causes)
