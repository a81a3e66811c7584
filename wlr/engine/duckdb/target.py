"""A DuckDB file that is a replica: opened, rolled forward step by step, closed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb

from wlc import catalog as catalogs
from wlc.errors import InvalidError
from wlc.model import Ddl, Name, quote
from wlc.opening import alone
from wlr import fold
from wlr.engine import StepError, fit
from wlr.engine.duckdb import changes, ddl, guard
from wlr.engine.duckdb import state as states
from wlr.engine.duckdb.connection import Scratch, applying, attach, has_table, using
from wlr.engine.duckdb.tables import read_tables
from wlr.engine.state import OWNER, after, encode
from wlr.engine.tally import Tally
from wlr.plan import LIMITS, Fold

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from wlc.model import Digest, TableFile
    from wlr.bulk.folding import SparkFold
    from wlr.engine import Bulk, State
    from wlr.engine.duckdb.changes import Net
    from wlr.plan import Action, Step

_PROBE = "wlr_target"
_OBJECTS = """
    SELECT count(*) FROM (SELECT table_name FROM duckdb_tables() WHERE database_name = $1 UNION ALL
    SELECT view_name FROM duckdb_views() WHERE database_name = $1 AND NOT internal)
"""


def find_state(into: Path) -> State | None:
    """Read what a replica remembers of itself; None if nothing is there, or an empty database.

    Raises:
        InvalidError: Something else is there.
        UnavailableError: It is in use.
    """
    if not into.parent.is_dir():
        raise InvalidError(f"there is no folder {into.parent}", hint=f"mkdir -p {into.parent}", path=str(into))
    if not into.exists() or (into.is_file() and into.stat().st_size == 0):
        return None
    if not into.is_file():
        raise InvalidError(f"{into} is a folder, not a DuckDB file", path=str(into))
    connection = attach(into, _PROBE, read_only=True)
    try:
        with using(into):
            if has_table(connection, _PROBE, "wlr", "state"):
                return states.read(connection, _PROBE, str(into))
            if connection.execute(_OBJECTS, [_PROBE]).fetchall()[0][0]:
                hint = "Replicate into a file that does not exist yet."
                raise InvalidError(f"{into} is a DuckDB database, but not a replica", hint=hint, path=str(into))
            return None
    finally:
        connection.close()


def read_state(into: Path) -> State:
    """Read what a replica remembers of itself.

    Raises:
        InvalidError: It is no replica.
        UnavailableError: It is in use.
    """
    state = find_state(into)
    if state is None:
        raise InvalidError(f"there is no replica {into}", hint=f"wlr replicate MASTER --into {into}", path=str(into))
    return state


def read_master(source: Path) -> dict[str, str]:
    """Read the state of a master; empty if the database is none."""
    connection = attach(source, _PROBE, read_only=True)
    try:
        with using(source):
            if not has_table(connection, _PROBE, "wlc", "state"):
                return {}
            return dict(connection.execute(f"SELECT key, value FROM {_PROBE}.wlc.state").fetchall())
    finally:
        connection.close()


def open_target(into: Path, folders: Sequence[Path] = (), bulk: Bulk | None = None) -> DuckDBTarget:
    """Open a replica for writing; nobody else can open it until it is closed."""
    state = read_state(into)
    connection = attach(into, state.catalog)
    scratch = Scratch(work_folder(into), folders)
    try:
        with using(into):
            scratch.confine(connection)
            # It may have been written to since it was looked at.
            state = states.read(connection, state.catalog, str(into))
            return DuckDBTarget(into, connection, state, scratch, spark_fold(bulk, scratch.folder))
    except BaseException:
        connection.close()
        raise


def spark_fold(bulk: Bulk | None, work: Path) -> SparkFold | None:
    """Return who folds for a database, None where this process does; net changes are put into the folder `work`."""
    # A database does the same in one process until it is asked for Spark: steps are small enough for it.
    if bulk is None or bulk.engine != "spark":
        return None
    from wlr.bulk.folding import SparkFold
    from wlr.bulk.jobs import Jobs

    return SparkFold(Jobs(bulk), work)


def work_folder(into: Path) -> Path:
    """Scratch space beside the replica, where there is room for what it is made of."""
    return into.with_name(f".{into.name}.work")


class DuckDBTarget:
    """An open replica.

    Attributes:
        state: What it remembers, as last committed.
        limits: How much a step may hold.
    """

    def __init__(
        self,
        path: Path,
        connection: duckdb.DuckDBPyConnection,
        state: State,
        scratch: Scratch,
        spark: SparkFold | None = None,
    ) -> None:
        self.state = state
        self.limits = spark.limits if spark else LIMITS
        self._spark = spark
        self._path = path
        self._connection = connection
        self._catalog = state.catalog
        self._scratch = scratch
        self._replicated = states.read_tables(connection, self._catalog)
        self._tables = read_tables(connection, self._catalog)

    def __enter__(self) -> DuckDBTarget:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def parents(self) -> Mapping[Name, Collection[Name]]:
        return self._tables.parents

    def close(self) -> None:
        """Close the file and let others open it."""
        # Others are kept from opening the file for the moment of closing it, and not while it is written to.
        with suppress(duckdb.Error):
            self._connection.execute(f"CHECKPOINT {quote(self._catalog)}")
        if self._spark:
            self._spark.jobs.close()
        # The next one to open the file has a work folder of the same name.
        self._scratch.remove()
        with alone(self._path):
            self._connection.close()

    def update(self, **values: Any) -> None:
        with using(self._path):
            if "is_unlocked" in values:
                self._set_unlocked(values["is_unlocked"])
            stored = {name: value for name, value in values.items() if name != "is_unlocked"}
            if stored:
                self._connection.execute("BEGIN")
                states.write(self._connection, self._catalog, encode(**stored))
                self._connection.execute("COMMIT")
        self.state = replace(self.state, **values)

    def _set_unlocked(self, is_unlocked: bool) -> None:
        table = f"{quote(self._catalog)}.wlr.guard"
        self._connection.execute(f"DELETE FROM {table}")
        if is_unlocked:
            self._connection.execute(f"INSERT INTO {table} VALUES ('{OWNER}')")

    # Steps -----------------------------------------------------------------------------------------------------------

    def apply(self, step: Step, fetch: Callable[[TableFile], Path]) -> None:
        actions = step.actions()
        ddl.leaving_out(lambda skipped: self._try(step, actions, fetch, skipped))

    def _try(
        self, step: Step, actions: tuple[Action, ...], fetch: Callable[[TableFile], Path], skipped: set[int]
    ) -> int | None:
        """Apply a step; returns the number of an action that failed and may be left out, None once it is done."""
        has_ddl = any(isinstance(action, Ddl) for action in actions)
        number = 0
        tally = Tally(self.state.digests)
        prepared: list[Net] | None = None
        with applying(self._path):
            # A fold does not read the target, so it need not be done while a transaction is open.
            if actions and isinstance(actions[0], Fold):
                prepared = self._prepare(actions[0], fetch)
        try:
            with applying(self._path):
                self._connection.execute("BEGIN")
                for number, action in enumerate(actions):
                    if number not in skipped:
                        self._act(action, fetch, prepared if number == 0 else None, tally)
                if has_ddl:
                    states.write_tables(self._connection, self._catalog, self._replicated)
                if actions:
                    guard.put_on(self._connection, self._catalog, self._replicated)
                self._commit(step, tally.settle(step, self._replicated))
        except BaseException as error:
            self._rollback()
            if (
                isinstance(error, StepError)
                and number not in skipped
                and ddl.may_be_left_out(actions, number, self.state.tables, self._replicated)
            ):
                return number
            if isinstance(error, StepError) and error.key is None and len(step.transactions) == 1:
                error.key = self._missing_key(error, actions, fetch)
            raise
        finally:
            if prepared:
                changes.drop(self._connection, prepared)
        return None

    def _act(
        self, action: Action, fetch: Callable[[TableFile], Path], prepared: list[Net] | None, tally: Tally
    ) -> None:
        if isinstance(action, Ddl):
            self._run_ddl(action)
            tally.alter(action)
            return
        nets = prepared if prepared is not None else self._prepare(action, fetch)
        with changes.tallied(self._connection, nets, tally):
            guard.take_off(self._connection, self._catalog, [net.change.table for net in nets])
            changes.write(self._connection, self._tables, nets, self._path)
        for sequence in action.sequences:
            ddl.set_sequence(self._connection, self._catalog, sequence)
        if prepared is None:
            changes.drop(self._connection, nets)

    def _commit(self, step: Step, digests: Mapping[Name, Digest | None]) -> None:
        values = after(step, digests)
        states.write(self._connection, self._catalog, encode(**values))
        self._connection.execute("COMMIT")
        self.state = replace(self.state, **values)

    def _rollback(self) -> None:
        """Undo a step, and what was learnt of tables that it would have made."""
        try:
            self._connection.execute("ROLLBACK")
            self._connection.execute(f"USE {quote(self._catalog)}.main")
            self._replicated = states.read_tables(self._connection, self._catalog)
            self._tables = read_tables(self._connection, self._catalog)
        except duckdb.Error:
            # Either no transaction is open any more, or the instance is broken; the error that led here says more.
            return

    def _prepare(self, action: Fold, fetch: Callable[[TableFile], Path]) -> list[Net]:
        wanted = tuple(
            change for change in action.changes if fit.is_replicated(change.table, self._replicated, self.state.tables)
        )
        return changes.prepare(
            self._connection,
            self._tables,
            replace(action, changes=wanted),
            lambda read: self._scratch.reachable(fetch(read.file)),
            self._spark,
        )

    def _missing_key(
        self, error: StepError, actions: tuple[Action, ...], fetch: Callable[[TableFile], Path]
    ) -> str | None:
        """Find a row that a failed transaction removes and the replica does not have, to name it."""
        if not actions or not isinstance(actions[0], Fold):
            return None
        only = tuple(change for change in actions[0].changes if str(change.table) == error.table and change.removed)
        try:
            for net in self._prepare(replace(actions[0], changes=only), fetch):
                found = self._connection.execute(fold.missing_sql(net.table, net.source)).fetchall()
                changes.drop(self._connection, [net])
                if found:
                    return str(found[0][0])
        except (StepError, duckdb.Error):
            # The failure stands without it.
            return None
        return None

    # Schema changes --------------------------------------------------------------------------------------------------

    def _run_ddl(self, statement: Ddl) -> None:
        if not ddl.is_run(statement, self.state.tables):
            return
        before, own = set(catalogs.tables(self._connection, self._catalog)), self._own_tables(self._replicated)
        ddl.check(self._connection, self._catalog, statement)
        try:
            with applying(self._path):
                ddl.run(self._connection, self._catalog, statement, self._replicated)
            fit.refuse_change_of_own(own, self._own_tables(()), statement.statement)
        except StepError as error:
            error.table = str(statement.object)
            raise
        self._tables = read_tables(self._connection, self._catalog)
        present = set(self._tables.order)
        self._replicated = (self._replicated & present) | (present - before)

    def _own_tables(self, replicated: Collection[Name]) -> dict[Name, tuple[Any, ...]]:
        """What tells a table from a changed one, for those that are not replicated: they are the owner's."""
        query = f"SELECT schema_name, table_name, table_oid, sql FROM duckdb_tables() WHERE {catalogs.USER}"
        found = catalogs.rows(self._connection, self._catalog, query)
        return {Name(*row[:2]): row[2:] for row in found if Name(*row[:2]) not in replicated}
