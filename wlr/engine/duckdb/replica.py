"""A DuckDB replica: opened, rolled forward step by step, closed.

Obstacles in a DuckDB replica itself that block a sound transaction.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import duckdb

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.opening import alone
from wlc.dialect.duckdb.permitted_ddl import GUARD
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnavailableError
from wlc.farm.model import Ddl, Name
from wlc.farm.schema_fold import table_effects
from wlr.engine import quarantine_tables
from wlr.engine.calculator import Scratch, applying, is_broken, using
from wlr.engine.contract import OpenReplica
from wlr.engine.duckdb import changes, guard, objects
from wlr.engine.duckdb import wlr_schema as states
from wlr.engine.duckdb.objects import OWNERS, Contents, read_tables, shown_tables
from wlr.engine.duckdb.replica_file import attach, detach_for_good, has_table, work_folder
from wlr.engine.duckdb.storage_version import storable
from wlr.engine.misfit import misfit
from wlr.engine.replica_state import OWNER, after, changed
from wlr.replay.ddl import left_out, running
from wlr.replay.ddl.claims import Claims, shown
from wlr.replay.fold import net_changes as net_changes
from wlr.replay.fold import unfit_changes
from wlr.replay.fold.tally import Tally
from wlr.replay.plan.failure import ContradictionError, Obstacle, StepError, in_the_way, lost
from wlr.replay.plan.log_steps import LIMITS
from wlr.replay.plan.step import Fold, tables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from wlc.farm.model import TableFile
    from wlr.engine.contract import Bulk
    from wlr.engine.duckdb.objects import TargetTables
    from wlr.engine.quarantine_tables import Quarantined
    from wlr.engine.replica_state import ReplicaState
    from wlr.replay.ddl.claims import ShownCatalog
    from wlr.replay.fold.net_changes import FoldsElsewhere, NetChange
    from wlr.replay.fold.tally import Held
    from wlr.replay.plan.step import Action, Step


def find(
    connection: duckdb.DuckDBPyConnection,
    tables: TargetTables,
    replicated: Collection[Name],
    step: Step,
    error: StepError,
) -> Obstacle | None:
    """Find the obstacle that blocked a step; see `wlr.engine.contract.OpenReplica.obstacle`."""
    if gone := sorted(set(replicated) - set(tables.order)):
        return lost(gone[0])
    held = {name.folded for name in replicated}
    records = step.transactions[0].records
    for record in records:
        if isinstance(record, Ddl) and record.kind.startswith("CREATE ") and error.table == str(record.object):
            is_own = record.object.folded not in held
            has_own = record.object.folded in {name.folded for name in tables.order}
            if is_own and (has_own or "already exists" in error.cause or OWNERS in error.cause):
                return in_the_way(f"{record.kind.removeprefix('CREATE ').lower()} {record.object}")
    changed = tables_of(records)
    if error.is_reference:
        for child, parents in tables.parents.items():
            if child.folded not in held and parents & set(changed):
                text = f"table {child} belongs to the replica's owner, and refers to rows that the transaction removes"
                return Obstacle(text, f"Remove these rows of {child}, or its foreign key, and replicate again.")
    return _trigger(connection, tables.catalog, changed)


def _trigger(connection: duckdb.DuckDBPyConnection, catalog: str, changed: Collection[Name]) -> Obstacle | None:
    """Find a trigger of the owner: the master's triggers are never created here."""
    query = (
        "SELECT trigger_name, schema_name, table_name FROM duckdb_triggers() WHERE database_name = ?"
        " AND NOT starts_with(trigger_name, ?)"
    )
    for trigger, *table in connection.execute(query, [catalog, GUARD]).fetchall():
        if any([name.schema, name.name] == table for name in changed):
            text = f"trigger {trigger} on replicated table {'.'.join(table)} belongs to the replica's owner"
            return Obstacle(text, f"Drop trigger {trigger}, and replicate again.")
    return None


class OpenDuckDB(OpenReplica):
    """A replica's file, open for writing."""

    def __init__(
        self,
        path: Path,
        connection: duckdb.DuckDBPyConnection,
        state: ReplicaState,
        scratch: Scratch,
        elsewhere: FoldsElsewhere | None = None,
    ) -> None:
        self.state = state
        self.limits = elsewhere.limits if elsewhere else LIMITS
        self._elsewhere = elsewhere
        self._path = path
        self._connection = connection
        self._catalog = state.catalog
        self._scratch = scratch
        self._unguarded: set[Name] = set()
        self._parked: tuple[Name, ...] = ()
        # Read for a schema change only.
        self._shown: ShownCatalog | None = None
        self._know(states.known_contents(path, state.catalog) or self._read_contents())

    def _read_contents(self) -> Contents:
        return Contents(
            states.read_tables(self._connection, self._catalog),
            read_tables(self._connection, self._catalog),
            objects.noted(self._connection, self._catalog),
            is_guarded=False,
        )

    @property
    def contents(self) -> Contents:
        """The contents of the file as of the last step."""
        return Contents(self._replicated, self._tables, self._made, self._is_guarded)

    def _know(self, contents: Contents) -> None:
        self._replicated, self._tables, self._made, self._is_guarded = contents
        self._shown = None
        self._unguarded.clear()

    @property
    def parents(self) -> Mapping[Name, Collection[Name]]:
        return self._tables.parents

    def holds(self, table: Name) -> bool:
        return table.folded in {name.folded for name in self._replicated}

    def close(self) -> None:
        """Close the file and allow other processes to open it."""
        # Other processes cannot open the file during the close, but can during the removal of the work folder.
        with suppress(duckdb.Error):
            self._connection.execute(f"CHECKPOINT {quote(self._catalog)}")
        if self._elsewhere:
            self._elsewhere.close()
        # The next process to open the file uses a work folder of the same name.
        self._scratch.remove()
        with alone(self._path):
            detach_for_good(self._connection, self._catalog)
            with suppress(OSError):
                states.note_closed(self._path, self.state, self.contents)

    def remember(self, state: ReplicaState) -> None:
        with using(self._path):
            self._connection.execute("BEGIN")
            if state.is_unlocked != self.state.is_unlocked:
                self._set_unlocked(state.is_unlocked)
            states.write(self._connection, self._catalog, changed(self.state, state))
            self._connection.execute("COMMIT")
        self.state = state

    def quarantine(self, state: ReplicaState, kept: Sequence[Quarantined]) -> None:
        schema = f"{quote(self._catalog)}.wlr"
        with using(self._path):
            self._connection.execute("BEGIN")
            try:
                for statement in quarantine_tables.create_sql(schema, "BLOB"):
                    self._connection.execute(statement)
                for each in kept:
                    self._connection.execute(f"INSERT INTO {schema}.quarantine {quarantine_tables.shown_sql(each)}")
                    if each.file is not None:
                        bytes_sql = f"(SELECT content FROM read_blob({literal(str(each.file))}))"
                        values = f"{quarantine_tables.file_values(each)}, {bytes_sql}"
                        self._connection.execute(f"INSERT INTO {schema}.quarantine_files VALUES ({values})")
                states.write(self._connection, self._catalog, changed(self.state, state))
                self._connection.execute("COMMIT")
            except BaseException:
                self._rollback()
                raise
        self.state = state

    def quarantined(self, work: Path) -> list[Quarantined]:
        if not has_table(self._connection, self._catalog, "wlr", "quarantine"):
            return []
        schema = f"{quote(self._catalog)}.wlr"
        with using(self._path):
            files, statements = (
                self._connection.execute(query.format(schema)).fetchall()
                for query in (quarantine_tables.FILES, quarantine_tables.STATEMENTS)
            )
        return quarantine_tables.read(files, statements, work)

    def _set_unlocked(self, is_unlocked: bool) -> None:
        table = f"{quote(self._catalog)}.wlr.guard"
        self._connection.execute(f"DELETE FROM {table}")
        if is_unlocked:
            self._connection.execute(f"INSERT INTO {table} VALUES ('{OWNER}')")

    # Steps -----------------------------------------------------------------------------------------------------------

    def apply(self, step: Step, fetch: Callable[[TableFile], Path]) -> None:
        actions = step.actions()
        try:
            try:
                left_out.leaving_out(lambda skipped: self._try(step, actions, fetch, skipped, presumes=True))
            except net_changes.PresumedError:
                # With added-up images, this finds the same error.
                left_out.leaving_out(lambda skipped: self._try(step, actions, fetch, skipped))
        except StepError as error:
            is_one = len(step.transactions) == len(actions) == 1
            if not (error.is_reference and is_one and self._apply_parked(step, actions, fetch)):
                raise

    def _apply_parked(self, step: Step, actions: tuple[Action, ...], fetch: Callable[[TableFile], Path]) -> bool:
        """Apply a step of one transaction with the referring rows parked; return whether that helps."""
        (action,) = actions
        if isinstance(action, Ddl):
            return False
        try:
            with applying(self._path):
                nets = self._prepare(action, fetch)
                parked = changes.parked_rows(self._connection, self._catalog)
                try:
                    self._parked = parked.park(changes.referred(self._connection, self._catalog, nets))
                finally:
                    net_changes.drop(self._connection, nets)
            return bool(self._parked) and self._try(step, actions, fetch, set()) is None
        except StepError:
            # The first error says more.
            return False
        finally:
            self._parked = ()
            # An error may have closed the connection.
            changes.parked_rows(self._connection, self._catalog).rescue(str(self._path))

    def _try(
        self,
        step: Step,
        actions: tuple[Action, ...],
        fetch: Callable[[TableFile], Path],
        skipped: set[int],
        *,
        presumes: bool = False,
    ) -> int | None:
        """Apply a step; return the number of a failed action that may be left out, None on success."""
        has_ddl = any(isinstance(action, Ddl) for action in actions)
        number = 0
        tally = Tally(self.state.digests, names_digests=self.state.names_digests)
        prepared: list[NetChange] | None = None
        try:
            with applying(self._path):
                # A fold does not read the target, so it runs before the transaction.
                if actions and isinstance(actions[0], Fold):
                    prepared = self._prepare(actions[0], fetch, presumes=presumes)
                self._connection.execute("BEGIN")
                for number, action in enumerate(actions):
                    if number not in skipped:
                        self._act(action, fetch, prepared if number == 0 else None, tally)
                if has_ddl:
                    self._note_made()
                if actions:
                    self._put_guards_on(has_ddl=has_ddl)
                self._commit(step, tally.settle(step, self._replicated, self.state.tables))
        except BaseException as error:
            self._rollback()
            net_changes.doubt(prepared or (), error)
            if (
                isinstance(error, StepError)
                and not isinstance(error, ContradictionError)
                and number not in skipped
                and left_out.may_be_left_out(actions, number, self.state.tables, self._replicated)
            ):
                return number
            if isinstance(error, StepError) and error.key is None and len(step.transactions) == 1:
                error.key = self._missing_key(error, actions, fetch)
                self._explain(error, actions, fetch)
            raise
        finally:
            if prepared:
                net_changes.drop(self._connection, prepared)
        return None

    def _act(
        self, action: Action, fetch: Callable[[TableFile], Path], prepared: list[NetChange] | None, tally: Tally
    ) -> None:
        if isinstance(action, Ddl):
            self._run_ddl(action)
            tally.alter(action)
            return
        nets = prepared if prepared is not None else self._prepare(action, fetch)
        with net_changes.tallied(self._connection, nets, tally):
            written = changes.on_parked(self._connection, self._tables, self._parked, nets) if self._parked else nets
            self._take_guards_off({net.change.table for net in written} & self._replicated)
            changes.write(self._connection, self._tables, written, self._path)
            if self._parked:
                net_changes.drop(self._connection, [net for net in written if net not in nets])
                changes.parked_rows(self._connection, self._catalog).forget(self._parked)
                self._parked = ()
        for sequence in action.sequences:
            running.set_sequence(self._connection, self._catalog, sequence)
        if prepared is None:
            net_changes.drop(self._connection, nets)

    def _take_guards_off(self, tables: Collection[Name]) -> None:
        guard.take_off(self._connection, self._catalog, tables)
        self._unguarded.update(tables)

    def _put_guards_on(self, *, has_ddl: bool) -> None:
        if self.state.not_locked:
            return
        if has_ddl or not self._is_guarded:
            guard.put_on(self._connection, self._catalog, self._replicated)
        else:
            # No other table has lost its guard: checking all takes longer.
            guard.put_back(self._connection, self._catalog, self._unguarded)
        self._unguarded.clear()
        self._is_guarded = True

    def _commit(self, step: Step, digests: Mapping[Name, Held]) -> None:
        state = after(self.state, step, digests)
        if step.retried and has_table(self._connection, self._catalog, "wlr", "quarantine"):
            for statement in quarantine_tables.delete_sql(f"{quote(self._catalog)}.wlr", step.retried):
                self._connection.execute(statement)
        states.write(self._connection, self._catalog, changed(self.state, state))
        self._connection.execute("COMMIT")
        self.state = state

    def _rollback(self) -> None:
        """Roll back a step, and read the catalog again."""
        try:
            self._connection.execute("ROLLBACK")
            self._connection.execute(f"USE {quote(self._catalog)}.main")
            self._know(self._read_contents())
        except duckdb.Error:
            # No transaction is open any more, unless DuckDB failed. The first error is reported.
            if is_broken(self._connection):
                self._open_anew()

    def _open_anew(self) -> None:
        self._connection.close()
        self._connection = attach(self._path, self._catalog)
        self._scratch.confine(self._connection)
        self._know(self._read_contents())

    def _prepare(self, action: Fold, fetch: Callable[[TableFile], Path], *, presumes: bool = False) -> list[NetChange]:
        wanted = tuple(
            change
            for change in action.changes
            if unfit_changes.is_replicated(change.table, self._replicated, self.state.tables)
        )
        return net_changes.prepare(
            self._connection,
            self._tables,
            replace(action, changes=wanted),
            lambda read: self._scratch.reachable(fetch(read.file)),
            self._elsewhere,
            presumes=presumes,
        )

    def _missing_key(
        self, error: StepError, actions: tuple[Action, ...], fetch: Callable[[TableFile], Path]
    ) -> str | None:
        """Find a row that a failed transaction removes and the replica lacks, to name it."""
        if not actions or not isinstance(actions[0], Fold):
            return None
        only = tuple(change for change in actions[0].changes if str(change.table) == error.table and change.removed)
        try:
            for net in self._prepare(replace(actions[0], changes=only), fetch):
                found = self._connection.execute(fold.missing_sql(net.table, net.source)).fetchall()
                net_changes.drop(self._connection, [net])
                if found:
                    return str(found[0][0])
        except (StepError, duckdb.Error):
            # The failure is reported without the row.
            return None
        return None

    def _explain(self, error: StepError, actions: tuple[Action, ...], fetch: Callable[[TableFile], Path]) -> None:
        """Name the value that does not fit its column, if any."""
        present = catalogs.tables(self._connection, self._catalog)
        for change in (change for action in actions if isinstance(action, Fold) for change in action.changes):
            if str(change.table) == error.table and change.table in present:
                error.cause = misfit(change, present[change.table], fetch) or error.cause

    def obstacle(self, step: Step, error: StepError) -> Obstacle | None:
        with using(self._path):
            return find(self._connection, self._tables, self._replicated, step, error)

    # Schema changes --------------------------------------------------------------------------------------------------

    def _run_ddl(self, statement: Ddl) -> None:
        if not left_out.is_run(statement, self.state.tables):
            return
        before = self._shown or shown(self._connection, self._catalog)
        others = objects.present(self._connection, self._catalog) if self._made is not None else {}
        try:
            with applying(self._path):
                running.check(self._connection, self._catalog, statement)
                altered = self._replicated & {effect.object.name for effect in table_effects(statement)}
                guard.let_go(self._connection, self._catalog, altered)
                self._take_guards_off(altered)
                with storable(self._connection, self.state, statement):
                    rebuilt = running.run(self._connection, self._catalog, statement)
                after = shown(self._connection, self._catalog)
            own = before.fingerprints(before.ids.keys() - self._replicated)
            unfit_changes.refuse_change_of_own(own, after.fingerprints(after.ids), statement.statement)
            claims = Claims(before, self.state.tables, is_whole=not self.state.accepted)
            claims.refuse_contradiction([statement], after, [rebuilt] if rebuilt else ())
            if self._made is not None:
                now = objects.present(self._connection, self._catalog)
                objects.refuse_change_of_own(self._made, others, now, statement.statement)
                self._made = objects.made_since(self._made, others, now)
        except StepError as error:
            error.table = str(statement.object)
            raise
        self._shown, self._tables = after, shown_tables(self._catalog, after)
        self._replicated = (self._replicated & after.ids.keys()) | (after.ids.keys() - before.ids.keys())

    def _note_made(self) -> None:
        states.write_tables(self._connection, self._catalog, self._replicated)
        if self._made is not None:
            objects.note(self._connection, self._catalog, self._made)


Opened = TypeVar("Opened", bound=OpenDuckDB)


def open_replica(
    into: Path,
    catalog: str,
    folders: Sequence[Path] = (),
    bulk: Bulk | None = None,
    *,
    spare: duckdb.DuckDBPyConnection | None = None,
) -> OpenDuckDB:
    """Open a replica for writing; see `open_as`."""
    return open_as(OpenDuckDB, into, catalog, folders, bulk, spare)


def open_as(
    kind: type[Opened],
    into: Path,
    catalog: str,
    folders: Sequence[Path],
    bulk: Bulk | None,
    spare: duckdb.DuckDBPyConnection | None = None,
) -> Opened:
    """Open a replica for writing; other processes cannot open it until it is closed.

    Args:
        kind: Class of the open replica.
        into: The file.
        catalog: The replica's name of the database.
        folders: Folders that data files will be read from.
        bulk: Executes large work.
        spare: Connection that read the file, for opening it again.

    Raises:
        UnavailableError: It is in use, or another replica has replaced it.
    """
    connection = attach(into, catalog, spare=spare)
    scratch = Scratch(work_folder(into), folders)
    try:
        with using(into):
            scratch.confine(connection)
            # Another process may have written to it, or rebuilt it, since it was read.
            state = states.read(connection, catalog, str(into))
            if state.catalog != catalog:
                raise UnavailableError(f"another process rebuilt {into}", hint="Run it again.", path=str(into))
            changes.parked_rows(connection, catalog).rescue(str(into))
            return kind(into, connection, state, scratch, bulk.folding(scratch.folder) if bulk else None)
    except BaseException:
        connection.close()
        raise
