"""A PostgreSQL database that is a replica: opened, rolled forward step by step, closed."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg

from wlc.errors import InvalidError, UnavailableError
from wlc.model import Ddl, Name
from wlr.engine import StepError, fit
from wlr.engine.duckdb import changes
from wlr.engine.duckdb import connection as duckdb_connection
from wlr.engine.duckdb.target import spark_fold
from wlr.engine.postgres import connection as connections
from wlr.engine.postgres import state as states
from wlr.engine.postgres import write
from wlr.engine.postgres.catalog import Catalog, told_apart
from wlr.engine.postgres.connection import Address, applying, using
from wlr.engine.postgres.ddl import SchemaChange, text_of
from wlr.engine.postgres.names import MAIN, Names
from wlr.engine.postgres.workshop import Workshop
from wlr.engine.state import after, encode
from wlr.engine.tally import Tally
from wlr.plan import LIMITS, Fold

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from wlc.model import TableFile
    from wlr.bulk.folding import SparkFold
    from wlr.engine import Bulk, State
    from wlr.engine.duckdb.changes import Net
    from wlr.engine.place import Place
    from wlr.engine.postgres.connection import Connection
    from wlr.plan import Action, Step


def find_state(place: Place) -> State | None:
    """Read what a replica remembers of itself; None if the database is no replica.

    Raises:
        InvalidError: There is no such database, or it has a schema `wlr` of another kind.
        UnavailableError: It cannot be reached.
    """
    address = Address.of(place)
    connection = connections.connect(address)
    try:
        with using(address):
            found = states.find(connection, address)
            return None if found is None else found[0]
    finally:
        connection.close()


def read_state(place: Place) -> State:
    """Read what a replica remembers of itself.

    Raises:
        InvalidError: It is no replica.
        UnavailableError: It cannot be reached.
    """
    return states.required(find_state(place), Address.of(place))


def open_target(place: Place, folders: Sequence[Path] = (), bulk: Bulk | None = None) -> PostgresTarget:
    """Open a replica for writing; no other run can open it until it is closed."""
    address = Address.of(place)
    connection = connections.connect(address)
    try:
        connections.take_alone(connection, address)
        with using(address):
            found = states.find(connection, address)
            state, schema = found or (states.required(None, address), "")
            if address.schema not in (None, schema):
                message = f"the replica in {address.shown} has its tables in schema {schema}"
                raise InvalidError(message, hint="Leave ?schema= out.", path=address.shown)
            connections.refuse_without_privileges(connection, address)
            return PostgresTarget(address, connection, state, Names(schema), folders, bulk)
    except BaseException:
        connection.close()
        raise


class PostgresTarget:
    """An open replica.

    Attributes:
        state: What it remembers, as last committed.
        limits: How much a step may hold.
    """

    def __init__(
        self,
        address: Address,
        connection: Connection,
        state: State,
        names: Names,
        folders: Sequence[Path] = (),
        bulk: Bulk | None = None,
    ) -> None:
        self.state = state
        self._address = address
        self._connection = connection
        self._names = names
        self._replicated = states.read_tables(connection)
        self._folders = folders
        self._workshop_found: Workshop | None = None
        self._bulk = bulk
        self._spark_found: SparkFold | None = None
        self.limits = LIMITS if bulk is None or bulk.engine != "spark" else self._spark_limits()

    def _spark_limits(self) -> Any:
        self._spark_found = spark_fold(self._bulk, self._workshop.scratch.folder)
        return self._spark_found.limits if self._spark_found else LIMITS

    @property
    def _workshop(self) -> Workshop:
        """Made when it is needed: `accept` and the like have no rows to move."""
        if self._workshop_found is None:
            self._workshop_found = Workshop(connections.identity(self._connection), self._folders)
        return self._workshop_found

    def __enter__(self) -> PostgresTarget:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def parents(self) -> Mapping[Name, Collection[Name]]:
        # Foreign keys are not checked while a step is applied.
        return {}

    def close(self) -> None:
        """Let others open the replica."""
        if self._spark_found:
            self._spark_found.jobs.close()
        if self._workshop_found:
            self._workshop_found.close()
        self._connection.close()

    def update(self, **values: Any) -> None:
        with using(self._address):
            if "is_unlocked" in values:
                states.set_unlocked(self._connection, values["is_unlocked"])
            stored = {name: value for name, value in values.items() if name != "is_unlocked"}
            if stored:
                states.write(self._connection, encode(**stored))
        self.state = replace(self.state, **values)

    # Steps -----------------------------------------------------------------------------------------------------------

    def apply(self, step: Step, fetch: Callable[[TableFile], Path]) -> None:
        actions = step.actions()
        tally = Tally(self.state.digests)
        prepared: list[Net] | None = None
        # A fold does not read the target, so it need not be done while a transaction is open.
        if actions and isinstance(actions[0], Fold):
            prepared = self._prepare(actions[0], fetch)
        try:
            with applying(self._address), self._connection.transaction():
                connections.as_replica(self._connection)
                self._act_all(actions, fetch, prepared, tally)
                values = after(step, tally.settle(step, _Present(self._names, self._replicated)))
                states.write(self._connection, encode(**values))
        except BaseException as error:
            self._relearn()
            if isinstance(error, StepError) and error.key is None and len(step.transactions) == 1:
                error.key = self._missing_key(error, actions, fetch)
            raise
        finally:
            if prepared:
                changes.drop(self._workshop.duckdb, prepared)
        self.state = replace(self.state, **values)

    def _act_all(
        self,
        actions: tuple[Action, ...],
        fetch: Callable[[TableFile], Path],
        prepared: list[Net] | None,
        tally: Tally,
    ) -> None:
        cleared: dict[Name, int] = {}
        for number, action in enumerate(actions):
            if isinstance(action, Ddl):
                self._run_ddl(action, actions[number + 1 : number + 2], cleared)
                tally.alter(action)
            else:
                self._write(action, fetch, prepared if number == 0 else None, cleared, tally)
        if any(isinstance(action, Ddl) for action in actions):
            states.write_tables(self._connection, self._replicated)

    def _write(
        self,
        action: Fold,
        fetch: Callable[[TableFile], Path],
        prepared: list[Net] | None,
        cleared: dict[Name, int],
        tally: Tally,
    ) -> None:
        nets = prepared if prepared is not None else self._prepare(action, fetch)
        with self._folding(), changes.tallied(self._workshop.duckdb, nets, tally):
            for net in nets:
                with self._naming(net.change.table):
                    write.write(self._connection, self._workshop, net, cleared.pop(net.change.table, None))
        for sequence in action.sequences:
            self._schema().set_sequence(sequence)
        if prepared is None:
            changes.drop(self._workshop.duckdb, nets)

    @contextmanager
    def _naming(self, table: Name) -> Iterator[None]:
        """Name the table in errors of statements about it."""
        try:
            with applying(self._address):
                yield
        except StepError as error:
            error.table = error.table or str(table)
            raise

    def _relearn(self) -> None:
        """Forget what was learnt of tables that an undone step would have made."""
        # If the connection is gone, the error that led here says more.
        with suppress(psycopg.Error):
            self._replicated = states.read_tables(self._connection)

    def _folding(self) -> Any:
        return duckdb_connection.applying(self._workshop.folder)

    def _prepare(self, action: Fold, fetch: Callable[[TableFile], Path]) -> list[Net]:
        wanted = tuple(change for change in action.changes if self._is_replicated(change.table))
        workshop = self._workshop
        with self._folding():
            return changes.prepare(
                workshop.duckdb,
                self._names,
                replace(action, changes=wanted),
                lambda read: workshop.scratch.reachable(fetch(read.file)),
                self._spark_found,
            )

    def _is_replicated(self, table: Name) -> bool:
        present = (table,) if self._names.place(table) in self._replicated else ()
        return fit.is_replicated(table, present, self.state.tables)

    def _missing_key(
        self, error: StepError, actions: tuple[Action, ...], fetch: Callable[[TableFile], Path]
    ) -> str | None:
        """Find a row that a failed transaction removes and the replica does not have, to name it."""
        if not actions or not isinstance(actions[0], Fold):
            return None
        only = tuple(change for change in actions[0].changes if str(change.table) == error.table and change.removed)
        found: str | None = None
        # The failure stands without it.
        with suppress(StepError, UnavailableError, psycopg.Error):
            for net in self._prepare(replace(actions[0], changes=only), fetch):
                with self._connection.transaction(force_rollback=True):
                    write.stage_removed(self._connection, self._workshop, net, keeps=False)
                    found = write.missing(self._connection, net)
                changes.drop(self._workshop.duckdb, [net])
        return found

    # Schema changes --------------------------------------------------------------------------------------------------

    def _schema(self) -> SchemaChange:
        return SchemaChange(
            self._connection, self._address, self._names, self.state.catalog, self.state.tables, self._replicated
        )

    def _run_ddl(self, ddl: Ddl, following: tuple[Action, ...], cleared: dict[Name, int]) -> None:
        if text_of(ddl) is not None and self._names.main not in ("public", MAIN):
            refuse_schema(ddl, self._address)
        before, own = Catalog(self._connection).tables, told_apart(self._connection, self._replicated)
        is_rewritten = self._clear_ahead(ddl, following, cleared)
        self._schema().run(ddl, is_rewritten=is_rewritten)
        fit.refuse_change_of_own(own, told_apart(self._connection, ()), text_of(ddl) or ddl.statement)
        present = Catalog(self._connection).tables
        self._replicated = (self._replicated & present) | (present - before)

    def _clear_ahead(self, ddl: Ddl, following: tuple[Action, ...], cleared: dict[Name, int]) -> bool:
        """Empty a table whose rows all follow, so that a change of it has no values to compute; say whether it was."""
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
    """The master's names of the replicated tables, as a collection that is only looked into."""

    def __init__(self, names: Names, replicated: Collection[Name]) -> None:
        self._names = names
        self._replicated = replicated

    def __contains__(self, name: object) -> bool:
        return isinstance(name, Name) and self._names.place(name) in self._replicated


def refuse_schema(ddl: Ddl, address: Address) -> None:
    """Refuse `?schema=` for a master that is PostgreSQL: its statements name their schemas.

    Raises:
        InvalidError: Always.
    """
    message = f"{address.shown}: the master is PostgreSQL, whose tables keep their schemas ({ddl.object})"
    raise InvalidError(message, hint="Leave ?schema= out.", path=address.shown)
