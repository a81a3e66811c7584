"""Applies a step: whole, then in halves until the transaction at fault is alone, with tables that enter."""

from __future__ import annotations

import secrets
import shlex
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.clock import utc_now
from wlc.farm.errors import ExpiredError, InseparableError, ReplayError, UnavailableError
from wlc.farm.group_sizes import group_sizes
from wlc.farm.model import Ddl
from wlc.farm.read_ahead import Fetcher
from wlr.replay import log_reader
from wlr.replay.plan.failure import MEMORY_HINT, Failure, StepError, with_changed
from wlr.replay.plan.patterns import exactly
from wlr.replay.plan.step import Step, tables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Name, Position, Transaction
    from wlr.engine.contract import OpenReplica, Target
    from wlr.replay.moved_tables import EnteringTable


_GO_ON = (
    "Replicate to a later tick, or to the end: a site that takes several transactions at once may hold some of them"
    " only together."
)


class UnfitError(Exception):
    """A transaction cannot be applied alone.

    Attributes:
        at_fault: The transaction.
        left: The transaction and the rest of its step.
        step_error: The cause.
    """

    def __init__(self, at_fault: Step, left: Step, step_error: StepError) -> None:
        self.at_fault = at_fault
        self.left = left
        self.step_error = step_error


@dataclass(slots=True)
class StepRun:
    """Applies steps to a replica.

    Attributes:
        into: The replica's target.
        fetcher: Gives the data files of steps.
        make_scratch: Makes a replica in a file, up to a tick, of the tables that patterns match.
        suspects: Tables of the transaction that failed last, unless the cause is known.
    """

    into: Target
    database: FarmDatabase
    fetcher: Fetcher
    make_scratch: Callable[[Path, int, tuple[str, ...]], Target]
    suspects: tuple[Name, ...] = ()

    def apply(self, replica: OpenReplica, step: Step) -> None:
        """Apply a step; cut one that fails in halves until the transaction at fault is alone.

        Raises:
            UnfitError: It breaks a constraint, and may fit with later ones: `report` is the error if none follow.
            Exception: It fails for another reason.
        """
        try:
            self._apply_in_parts(replica, step)
        except UnfitError as error:
            if not error.step_error.is_constraint:
                raise self.reported(replica, error) from error.step_error
            raise

    def reported(self, replica: OpenReplica, unfit: UnfitError, *, is_at_stop: bool = False) -> Exception:
        """Record a failed transaction, and return the error; `is_at_stop`: it may fit with later ones."""
        if is_at_stop and any(transaction.origin for transaction in unfit.left.transactions):
            unfit.step_error.remedy = _GO_ON
        error = self._failed(replica, unfit.at_fault, unfit.step_error)
        # Report an obstacle in the replica, or a lack of memory, instead.
        if error.hint != _GO_ON:
            return error
        return InseparableError(error.message, hint=_GO_ON, path=error.path, position=error.position)

    def _apply_in_parts(self, replica: OpenReplica, step: Step) -> None:
        try:
            self._apply_whole(replica, step)
        except StepError as error:
            if len(step.transactions) == 1:
                raise UnfitError(step, step, error) from error
            parts = step.parts(replica.parents) if error.is_reference else step.halves()
        else:
            return
        left = list(parts)
        while left:
            part = left.pop(0)
            try:
                self._apply_in_parts(replica, part)
            except UnfitError as error:
                if not (error.step_error.is_constraint and left):
                    raise UnfitError(error.at_fault, _joined([error.left, *left]), error.step_error) from error
                rest = self._apply_together(replica, error, _joined(left))
                left = [rest] if rest.transactions else []

    def _apply_together(self, replica: OpenReplica, error: UnfitError, following: Step) -> Step:
        """Apply a transaction that does not fit alone together with as many later ones as it needs; return the others.

        A site may have taken several transactions as one, which do not fit one by one: they replace rejected rows of
        the site itself.
        """
        for count in group_sizes(len(following.transactions)):
            more, rest = following.cut(count)
            with suppress(StepError):
                self._apply_whole(replica, error.left.joined(more if rest.transactions else following))
                return rest
        raise UnfitError(error.at_fault, error.left.joined(following), error.step_error) from error

    def _apply_whole(self, replica: OpenReplica, step: Step) -> None:
        with self._with_moved(replica, step) as whole, self._filtered(replica, step, whole) as chosen:
            replica.apply(chosen, self.fetcher.fetch)

    @contextmanager
    def _with_moved(self, replica: OpenReplica, step: Step) -> Iterator[Step]:
        """Add tables to a step if its renames make them match the replica's patterns."""
        patterns = replica.state.tables
        has_ddl = any(type(record) is Ddl for t in step.transactions[:1] for record in t.records)
        # A transaction with a schema change is a separate step.
        if not patterns or not has_ddl or not step.applied:
            yield step
            return
        # It needs DuckDB, which takes long to import.
        from wlr.replay.moved_tables import with_moved

        with tempfile.TemporaryDirectory(prefix="wlr-moved-") as folder:
            restore = partial(self.restored, step, Path(folder))
            whole, entering = with_moved(step, patterns, replica.holds, restore)
            local = {table.file.file.path: table.local for table in entering if table.file}
            self.fetcher.put(local)
            try:
                yield whole
            finally:
                self.fetcher.forget(local)

    @contextmanager
    def _filtered(self, replica: OpenReplica, step: Step, whole: Step) -> Iterator[Step]:
        """Apply the filters; `step` is that of the log, `whole` has moved tables, too."""
        if not replica.state.filters:
            yield whole
            return
        # They need DuckDB, which takes long to import.
        from wlr.replay.filters.filtered_steps import FilteredSteps
        from wlr.replay.filters.images import key_of, masking

        # A missing key is not the fault of a transaction.
        key = key_of(replica.state.filters)
        with tempfile.TemporaryDirectory(prefix="wlr-filter-") as folder:
            work = Path(folder)

            def restore(ddl: Ddl, old: Name, new: Name) -> EnteringTable | None:
                (transaction,) = step.transactions
                at = next(number for number, record in enumerate(transaction.records) if record is ddl)
                part = replace(transaction, records=transaction.records[: at + 1])
                return self.restored(step, work, part, old, new)

            with ExitStack() as opened:
                masks = partial(masking, key, work)
                run = FilteredSteps(
                    replica.state, lambda: opened.enter_context(masks()), work, self.fetcher.fetch, restore
                )
                chosen = run.filtered(whole)
            self.fetcher.put(run.local)
            try:
                yield chosen
            finally:
                self.fetcher.forget(run.local)

    def restored(
        self, step: Step, folder: Path, transaction: Transaction, old: Name, new: Name
    ) -> EnteringTable | None:
        """Restore a table from the farm as of a point within a step's transaction."""
        from wlr.replay.moved_tables import read_entering

        stamp, tick = secrets.token_hex(4), transaction.tick
        part = replace(step, transactions=(transaction,), digests={})
        try:
            scratch = self.make_scratch(folder / f"{stamp}.duckdb", tick - 1, (exactly(old), exactly(new)))
            inner = StepRun(scratch, self.database, Fetcher(self.database), self.make_scratch)
            with scratch.open(log_reader.local_folders(self.database)) as replica:
                try:
                    inner.apply(replica, part)
                except UnfitError as error:
                    raise inner.reported(replica, error) from error
        except ReplayError as error:
            raise StepError(f"table {old} cannot be restored: {error.message}", table=str(new)) from error
        except ExpiredError as error:
            message = f"transaction {tick} renames {old} to {new}, and the farm no longer has its rows: {error.message}"
            raise ExpiredError(message, hint="Rebuild the replica.", path=str(self.into)) from error
        with scratch.scanned(folder) as scan:
            return read_entering(scan, new, tick, folder / f"{stamp}.parquet")

    def _failed(self, replica: OpenReplica, step: Step, error: StepError) -> ReplayError | UnavailableError:
        if error.is_shortage:
            message = f"transaction {step.last} needs too much memory: {error.cause}"
            return UnavailableError(message, hint=MEMORY_HINT)
        failure = Failure(step.last, error.table, error.key, error.cause, utc_now(), remedy=error.remedy)
        if found := replica.obstacle(step, error):
            table = found.table or failure.table
            failure = replace(failure, table=table, obstacle=found.text, remedy=found.remedy)
        replica.remember(replace(replica.state, failure=failure))
        self.suspects = tables_of(step.transactions[0].records) if failure.obstacle is None else ()
        return self._replay_error(failure, replica.state.position)

    def _replay_error(self, failure: Failure, position: Position) -> ReplayError:
        hint = failure.remedy or self._way_on(failure)
        return ReplayError(str(failure), hint=hint, path=str(self.into), position=position)

    def _way_on(self, failure: Failure) -> str:
        """Return the commands that resolve a transaction which fits no replica."""
        into = shlex.quote(str(self.into))
        rebase = f"wlr replicate {shlex.quote(self.database.url)} --into {into} --rebase"
        skip = f"wlr accept {into} skips the transaction"
        if max(self.database.snapshot_ticks(), default=0) >= failure.tick:
            return f"{rebase} rebuilds the replica from a later snapshot; {skip}"
        return (
            f"wlc farm repair SOURCE at the master, if it was written without wlc.connect(); then {rebase}; or {skip}"
        )

    def with_changed(self) -> ReplayError | None:
        """Return the error that names a table of the failed transaction, if the replica's owner changed the table."""
        with tempfile.TemporaryDirectory(prefix="wlr-failed-") as folder:
            with self.into.scanned(Path(folder), self.database.storage_options) as scan:
                names = [name for name in self.suspects if scan.is_changed(name)]
            if not names:
                return None
            with self.into.open() as replica:
                failure = replica.state.failure
                if failure is None:
                    return None
                failure = with_changed(failure, names[0], self.into)
                replica.remember(replace(replica.state, failure=failure))
                return self._replay_error(failure, replica.state.position)


def _joined(steps: list[Step]) -> Step:
    return reduce(Step.joined, steps)
