"""A PostgreSQL database that is a replica: opened, rolled forward step by step, closed."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg

from wlc.farm.errors import InvalidError, UnavailableError
from wlc.farm.model import Ddl, Name
from wlc.farm.schema_fold import table_effects
from wlr.engine import quarantine_tables
from wlr.engine.calculator import applying as applying_locally
from wlr.engine.calculator import is_broken
from wlr.engine.contract import OpenReplica
from wlr.engine.postgres import replica_connection as connections
from wlr.engine.postgres import wlr_schema as states
from wlr.engine.postgres import write
from wlr.engine.postgres.catalog import MAIN, Names, PostgresCatalog, distinguishing, refuse_schema
from wlr.engine.postgres.ddl import SchemaChange, access_of_accepted, text_of, warn_of_missing
from wlr.engine.postgres.duckdb_folding import Workshop, work_folder
from wlr.engine.postgres.replica_connection import Address, applying, using
from wlr.engine.postgres.shown_catalog import shown, shown_after
from wlr.engine.replica_state import after, changed
from wlr.replay.ddl.claims import Claims
from wlr.replay.ddl.left_out import to_retry
from wlr.replay.fold import net_changes as net_changes
from wlr.replay.fold import unfit_changes
from wlr.replay.fold.tally import Tally
from wlr.replay.plan.failure import StepError, in_the_way, lost, naming
from wlr.replay.plan.log_steps import LIMITS
from wlr.replay.plan.step import Fold

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from wlc.dialect.postgres.server_connection import Connection
    from wlc.farm.model import TableFile
    from wlr.engine.contract import Bulk
    from wlr.engine.place import Place
    from wlr.engine.quarantine_tables import Quarantined
    from wlr.engine.replica_state import ReplicaState
    from wlr.replay.fold.net_changes import NetChange
    from wlr.replay.plan.failure import Obstacle
    from wlr.replay.plan.step import Action, Step


def open_replica(place: Place, folders: Sequence[Path] = (), bulk: Bulk | None = None) -> OpenPostgres:
    """Open a replica for writing; no other run can open it until it is closed."""
    address = Address.of(place)
    connection = connections.connect(address)
    try:
        connections.take_alone(connection, address)
        with using(address):
            state, schema = states.read(connection, address)
            if address.schema not in (None, schema):
                message = f"the replica in {address.shown} has its tables in schema {schema}"
                raise InvalidError(message, hint="Leave ?schema= out.", path=address.shown)
            connections.refuse_without_privileges(connection, address)
            return OpenPostgres(address, connection, state, Names(schema), folders, bulk)
    except BaseException:
        connection.close()
        raise


class OpenPostgres(OpenReplica):
    """A replica's database, open for writing."""

    def __init__(
        self,
        address: Address,
        connection: Connection,
        state: ReplicaState,
        names: Names,
        folders: Sequence[Path] = (),
        bulk: Bulk | None = None,
    ) -> None:
        self.state = state
        self._address = address
        self._connection = connection
        self._names = names
        self._replicated = states.read_tables(connection)
        self._left_out = dict(state.left_out)
        self._has_tried_again = False
        self._made_anew: set[Name] = set()
        self._folders = folders
        self._workshop_found: Workshop | None = None
        self._elsewhere = bulk.folding(work_folder(connections.identity(connection))) if bulk else None
        self.limits = self._elsewhere.limits if self._elsewhere else LIMITS

    @property
    def _workshop(self) -> Workshop:
        """Create it when it is needed: `accept` and the like move no rows."""
        if self._workshop_found is None:
            self._workshop_found = Workshop(connections.identity(self._connection), self._folders)
        return self._workshop_found

    def holds(self, table: Name) -> bool:
        return self._names.place(table).folded in {name.folded for name in self._replicated}

    def close(self) -> None:
        if self._elsewhere:
            self._elsewhere.close()
        if self._workshop_found:
            self._workshop_found.close()
        self._connection.close()

    def remember(self, state: ReplicaState) -> None:
        with using(self._address), self._connection.transaction():
            if state.is_unlocked != self.state.is_unlocked:
                states.set_unlocked(self._connection, state.is_unlocked)
            states.write(self._connection, changed(self.state, state))
        self.state = state

    def quarantine(self, state: ReplicaState, kept: Sequence[Quarantined]) -> None:
        with using(self._address), self._connection.transaction():
            for statement in quarantine_tables.create_sql("wlr", "bytea"):
                connections.run(self._connection, statement)
            for each in kept:
                into = "COPY wlr.quarantine FROM STDIN (FORMAT csv)"
                self._workshop.bring(self._connection, quarantine_tables.shown_sql(each), (), into)
                if each.file is not None:
                    row = f"INSERT INTO wlr.quarantine_files VALUES ({quarantine_tables.file_values(each)}, %s)"
                    self._connection.execute(row.encode(), [each.file.read_bytes()])
            states.write(self._connection, changed(self.state, state))
        self.state = state

    def quarantined(self, work: Path) -> list[Quarantined]:
        with using(self._address):
            if not self._has_quarantine():
                return []
            files, statements = (
                connections.fetch(self._connection, query.format("wlr"))
                for query in (quarantine_tables.FILES, quarantine_tables.STATEMENTS)
            )
        return quarantine_tables.read(files, statements, work)

    def _has_quarantine(self) -> bool:
        query = "SELECT to_regclass('wlr.quarantine') IS NOT NULL"
        return bool(connections.fetch(self._connection, query)[0][0])

    # Steps -----------------------------------------------------------------------------------------------------------

    def apply(self, step: Step, fetch: Callable[[TableFile], Path]) -> None:
        actions = step.actions()
        tally = Tally(self.state.digests, names_digests=self.state.names_digests)
        prepared: list[NetChange] | None = None
        self._left_out = {**self.state.left_out, **access_of_accepted(step)}
        # A fold does not read the target, so it is done before the transaction is opened.
        if actions and isinstance(actions[0], Fold):
            prepared = self._prepare(actions[0], fetch)
        try:
            with applying(self._address), self._connection.transaction():
                connections.as_replica(self._connection)
                self._act_all(actions, fetch, prepared, tally)
                self._try_again(actions)
                present = _Present(self._names, self._replicated)
                state = after(self.state, step, tally.settle(step, present, self.state.tables))
                state = replace(state, left_out=self._left_out)
                if step.retried and self._has_quarantine():
                    for statement in quarantine_tables.delete_sql("wlr", step.retried):
                        connections.run(self._connection, statement)
                states.write(self._connection, changed(self.state, state))
        except BaseException as error:
            self._relearn()
            if isinstance(error, StepError) and error.key is None and len(step.transactions) == 1:
                error.key = self._missing_key(error, actions, fetch)
            raise
        finally:
            if prepared:
                net_changes.drop(self._workshop.duckdb, prepared)
        warn_of_missing(state.left_out, self.state.left_out)
        self.state = state

    def _act_all(
        self,
        actions: tuple[Action, ...],
        fetch: Callable[[TableFile], Path],
        prepared: list[NetChange] | None,
        tally: Tally,
    ) -> None:
        cleared: dict[Name, int] = {}
        changes, meant = [action for action in actions if isinstance(action, Ddl)], []
        # A PostgreSQL master says nothing of generated columns.
        has_generated = all(text_of(ddl) is None for ddl in changes)
        claims = self._claims(has_generated=has_generated) if changes else None
        for number, action in enumerate(actions):
            if isinstance(action, Ddl):
                meant += [action] if self._run_ddl(action, actions[number + 1 : number + 2], cleared) else []
                tally.alter(action)
            else:
                self._write(action, fetch, prepared if number == 0 else None, cleared, tally)
        if claims is not None:
            # What PostgreSQL does to partitions and the like, statements say that follow.
            after = shown_after(self._connection, claims.before, has_generated=has_generated)
            claims.refuse_contradiction(meant, after, self._made_anew)
            states.write_tables(self._connection, self._replicated)

    def _write(
        self,
        action: Fold,
        fetch: Callable[[TableFile], Path],
        prepared: list[NetChange] | None,
        cleared: dict[Name, int],
        tally: Tally,
    ) -> None:
        nets = prepared if prepared is not None else self._prepare(action, fetch)
        with self._folding(), net_changes.tallied(self._workshop.duckdb, nets, tally) as totals:
            for net in nets:
                with self._naming(net.change.table):
                    write.write(self._connection, self._workshop, net, cleared.pop(net.change.table, None), totals)
        for sequence in action.sequences:
            self._schema().set_sequence(sequence)
        if prepared is None:
            net_changes.drop(self._workshop.duckdb, nets)

    @contextmanager
    def _naming(self, table: Name) -> Iterator[None]:
        """Name the table in errors of statements about it."""
        with naming(table), applying(self._address):
            yield

    def _relearn(self) -> None:
        """Read again which tables are replicated, after a step that would have created some was undone."""
        # If the connection is lost, the error that led here says more.
        with suppress(psycopg.Error):
            self._replicated = states.read_tables(self._connection)

    @contextmanager
    def _folding(self) -> Iterator[None]:
        workshop = self._workshop
        try:
            with applying_locally(workshop.folder):
                yield
        except StepError:
            if is_broken(workshop.duckdb):
                workshop.close()
                self._workshop_found = None
            raise

    def _prepare(self, action: Fold, fetch: Callable[[TableFile], Path]) -> list[NetChange]:
        wanted = tuple(change for change in action.changes if self._is_replicated(change.table))
        workshop = self._workshop
        with self._folding():
            return net_changes.prepare(
                workshop.duckdb,
                self._names,
                replace(action, changes=wanted),
                lambda read: workshop.scratch.reachable(fetch(read.file)),
                self._elsewhere,
            )

    def _is_replicated(self, table: Name) -> bool:
        present = (table,) if self._names.place(table) in self._replicated else ()
        return unfit_changes.is_replicated(table, present, self.state.tables)

    def _missing_key(
        self, error: StepError, actions: tuple[Action, ...], fetch: Callable[[TableFile], Path]
    ) -> str | None:
        """Name a row that a failed transaction removes and the replica does not have."""
        if not actions or not isinstance(actions[0], Fold):
            return None
        only = tuple(change for change in actions[0].changes if str(change.table) == error.table and change.removed)
        found: str | None = None
        # The failure is reported without a key if this fails, too.
        with suppress(StepError, UnavailableError, psycopg.Error):
            for net in self._prepare(replace(actions[0], changes=only), fetch):
                with self._connection.transaction(force_rollback=True):
                    write.stage_removed(self._connection, self._workshop, net, keeps=False)
                    found = write.missing(self._connection, net)
                net_changes.drop(self._workshop.duckdb, [net])
        return found

    def obstacle(self, step: Step, error: StepError) -> Obstacle | None:
        with using(self._address):
            catalog = PostgresCatalog(self._connection)
            if gone := sorted(self._replicated - catalog.tables):
                return lost(gone[0])
            for record in step.transactions[0].records:
                if isinstance(record, Ddl) and record.kind.startswith("CREATE ") and error.table == str(record.object):
                    place = self._names.place(record.object)
                    is_there = catalog.find(place) is not None or "already exists" in error.cause
                    if is_there and not self.holds(record.object):
                        return in_the_way(f"{record.kind.removeprefix('CREATE ').lower()} {place}")
        return None

    # Schema changes --------------------------------------------------------------------------------------------------

    def _schema(self) -> SchemaChange:
        return SchemaChange(
            self._connection,
            self._address,
            self._names,
            self.state.catalog,
            self.state.tables,
            self._replicated,
            self._left_out,
            gives=self.state.access,
        )

    def _run_ddl(self, ddl: Ddl, following: tuple[Action, ...], cleared: dict[Name, int]) -> bool:
        """Make a schema change, and say whether it is meant for this replica."""
        if text_of(ddl) is not None and self._names.main not in ("public", MAIN):
            refuse_schema(ddl, self._address.shown)
        before, own = PostgresCatalog(self._connection).tables, distinguishing(self._connection, self._replicated)
        altered = {self._names.place(effect.object.name) for effect in table_effects(ddl)}
        states.let_go(self._connection, self._replicated & altered)
        is_rewritten = self._clear_ahead(ddl, following, cleared)
        change = self._schema()
        is_meant = change.run(ddl, is_rewritten=is_rewritten)
        unfit_changes.refuse_change_of_own(own, distinguishing(self._connection, ()), text_of(ddl) or ddl.statement)
        present = PostgresCatalog(self._connection).tables
        self._replicated = (self._replicated & present) | (present - before)
        self._made_anew |= change.made_anew
        return is_meant

    def _claims(self, *, has_generated: bool) -> Claims:
        self._made_anew.clear()
        before = shown(self._connection, has_generated=has_generated)
        return Claims(before, self.state.tables, is_whole=not self.state.accepted, place=self._names.place)

    def _try_again(self, actions: tuple[Action, ...]) -> None:
        """Make what was left out, if a schema change, or the owner since the last run, made what it lacked."""
        if not self._has_tried_again or any(isinstance(action, Ddl) for action in actions):
            own = distinguishing(self._connection, self._replicated) if any(to_retry(self._left_out)) else {}
            self._schema().try_again()
            unfit_changes.refuse_change_of_own(
                own, distinguishing(self._connection, ()) if own else {}, "what was left out"
            )
        self._has_tried_again = True

    def _clear_ahead(self, ddl: Ddl, following: tuple[Action, ...], cleared: dict[Name, int]) -> bool:
        """Empty a table if all its rows follow, so that its change computes no values; say whether it was emptied."""
        rewrites = (
            isinstance(action, Fold)
            and any(change.table == ddl.object and change.cleared is not None for change in action.changes)
            for action in following
        )
        table = self._names.place(ddl.object)
        if text_of(ddl) is not None or not any(rewrites) or table not in self._replicated:
            return False
        cleared[ddl.object] = connections.run(self._connection, f"DELETE FROM ONLY {table.sql}") + cleared.get(
            ddl.object, 0
        )
        return True


class _Present:
    """The master's names of the replicated tables, for `in` only."""

    def __init__(self, names: Names, replicated: Collection[Name]) -> None:
        self._names = names
        self._replicated = replicated

    def __contains__(self, name: object) -> bool:
        return isinstance(name, Name) and self._names.place(name) in self._replicated
