"""A drop-in for DuckDB's connection that captures what every committed transaction changed."""

from __future__ import annotations

import logging
import threading
import weakref
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self

import duckdb
from duckdb import _relation

from wlc.capture.duckdb import journal, methods
from wlc.capture.duckdb.appender import Appender
from wlc.capture.duckdb.exclusive import exclusive
from wlc.capture.duckdb.outcome import NOTHING, Outcome, submit
from wlc.capture.duckdb.shared import Shared, close_shared
from wlc.capture.duckdb.statement import (
    Append,
    Begin,
    Commit,
    Effect,
    Read,
    Rollback,
    Schema,
    Session,
    Unknown,
    analyse,
    detached,
)
from wlc.capture.duckdb.tables import Tables
from wlc.capture.duckdb.tokens import tokens, unquoted, words
from wlc.capture.duckdb.transaction import Transaction, user
from wlc.clock import format_time, utc_now
from wlc.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log = logging.getLogger("wlc")
_SPLIT_MOST = 1000
# Functions that move a sequence, in statements that only read otherwise.
_MOVERS = frozenset({"nextval", "setval"})


class Connection:
    """Same methods, results and errors as `duckdb.DuckDBPyConnection`; made by `wlc.connect`.

    Every statement that may write goes through one of two doors, `_run` for SQL text and `_capturing` for calls. What
    only reads goes straight to DuckDB.
    """

    def __init__(self, shared: Shared, raw: duckdb.DuckDBPyConnection) -> None:
        self._raw = raw
        self._shared = shared
        self._tables = Tables(raw, shared.catalog)
        self._transaction: Transaction | None = None
        self._is_explicit = False
        self._busy = threading.RLock()
        self._outcome: Outcome | None = None
        self._count: int | None = None
        self._prepared: dict[str, str] = {}
        self._split: dict[str, tuple[tuple[str, str], ...]] = {}
        self._cursors: weakref.WeakSet[Connection] = weakref.WeakSet()
        # A user's variables are looked up in the frames that call us, which lie behind our own.
        raw._submit("SET python_scan_all_frames = true").drain()
        self._finalizer = weakref.finalize(self, _release, raw, shared)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<wlc.Connection to {self._shared.path}>"

    # SQL text -------------------------------------------------------------------------------------------------------

    def execute(self, query: Any, parameters: Any = None) -> Self:
        """Run SQL; see DuckDB's `execute`."""
        statements = self._statements(query)
        kept = self._run_leading(statements)
        if statements:
            self._run_text(*statements[-1], parameters, is_kept=kept is not None)
            self._keep(kept)
        else:
            self._outcome = None
            self._raw.execute(query, parameters)
        return self

    def executemany(self, query: Any, parameters: Any = None) -> Self:
        """Run one statement for each set of parameters, each its own transaction unless one is open."""
        statements = self._statements(query)
        kept = self._run_leading(statements)
        if not statements or parameters is None or len(parameters) == 0:
            self._raw.executemany(query, parameters)
            return self
        changed = 0
        for values in parameters:
            self._run_text(*statements[-1], values, is_kept=kept is not None)
            changed += self._count or 0
        if self._count is not None and self._count >= 0:
            self._count = changed
        self._keep(kept)
        return self

    def _run_leading(self, statements: tuple[tuple[str, str], ...]) -> Outcome | None:
        """Run a script but for its last statement; returns the rows of the latest one that had any, if one had."""
        kept = None
        for text, kind in statements[:-1]:
            self._run_text(text, kind, None, is_kept=True)
            if self._outcome is not None and self._outcome.held is not None:
                kept = self._outcome
        return kept

    def _keep(self, kept: Outcome | None) -> None:
        """Of a script DuckDB returns the latest rows, even if statements without rows followed."""
        if kept is not None and (self._outcome is None or self._outcome.held is None):
            self._outcome, self._count = kept, -1

    def sql(self, query: Any, *, alias: str = "", params: Any = None) -> Any:
        """Run SQL; what reads becomes a relation. See DuckDB's `sql`."""
        return _relation.sql(self, query, alias=alias, params=params)  # type: ignore[arg-type]

    query = sql
    from_query = sql

    def begin(self) -> Self:
        """Start a transaction."""
        return self.execute("BEGIN TRANSACTION")

    def commit(self) -> Self:
        """Commit the transaction, captured; without one nothing happens."""
        if self._transaction is None:
            self._raw.commit()
            return self
        return self.execute("COMMIT")

    def rollback(self) -> Self:
        """Roll the transaction back."""
        if self._transaction is None:
            self._raw.rollback()
            return self
        return self.execute("ROLLBACK")

    def _statements(self, query: Any) -> tuple[tuple[str, str], ...]:
        """Text and type of each statement; parsing costs, so that texts used again are remembered."""
        if not isinstance(query, str):
            return ((query.query, query.type.name),)
        found = self._split.get(query)
        if found is None:
            found = tuple((part.query, part.type.name) for part in self._raw.extract_statements(query))
            if len(self._split) >= _SPLIT_MOST:
                self._split.clear()
            self._split[query] = found
        return found

    @exclusive
    def _run_text(self, text: str, kind: str, parameters: Any, *, is_kept: bool = False) -> None:
        """Run one statement; `is_kept` keeps what it returns apart, because others may follow."""
        self._outcome, self._count = None, None
        effect = self._effect(text, kind)
        match effect:
            case Read():
                if kind == "PREPARE":
                    self._remember_prepared(text)
                self._pass_on(text, parameters, is_kept=is_kept)
            case Session():
                self._keep_attached(text, kind)
                self._pass_on(text, parameters, is_kept=is_kept)
                self._tables.forget_names()
            case Begin():
                self._begin(text, explicit=True)
            case Commit():
                self._commit_explicit(text)
                self._outcome = Outcome(None, NOTHING)
            case Rollback():
                self._rollback_explicit(text)
                self._outcome = Outcome(None, NOTHING)
            case _:
                self._outcome = self._run(effect, text, parameters)
                self._count = -1 if self._outcome.held is not None else self._outcome.count

    def _pass_on(self, text: str, parameters: Any, *, is_kept: bool) -> None:
        self._look()
        if is_kept:
            self._outcome = submit(self._raw, text, parameters)
        else:
            self._raw.execute(text, parameters)

    def _look(self) -> None:
        """Let an open transaction that is about to read have its snapshot first, in the way that is safe."""
        if self._transaction is not None:
            with suppress(duckdb.TransactionException):
                # One that is aborted is told so by its statement.
                self._transaction.look()

    def _keep_attached(self, text: str, kind: str) -> None:
        """Refuse to let go of the master: its journal could not be published, nor later writes to it be captured."""
        catalog = self._shared.catalog
        if detached(text, kind) != catalog.lower():
            return
        if kind == "DETACH" and self._raw.execute("SELECT current_database()").fetchall() == [(catalog,)]:
            # DuckDB refuses this itself.
            return
        raise UnsupportedError(
            f"database {catalog} cannot be detached or replaced while its changes are captured",
            hint="close the connection instead",
        )

    def _effect(self, text: str, kind: str) -> Effect:
        effect = analyse(text, kind)
        if kind in ("EXECUTE", "EXPLAIN") and isinstance(effect, Unknown):
            named = [inner for name, inner in self._prepared.items() if name in effect.names]
            return Unknown(effect.names.union(*(words(inner) for inner in named)))
        if isinstance(effect, Read) and kind in ("SELECT", "EXPLAIN") and _MOVERS & words(text):
            return Unknown(_MOVERS)
        return effect

    def _remember_prepared(self, text: str) -> None:
        self._prepared[unquoted(tokens(text)[1].text).lower()] = text

    def _run(self, effect: Effect, text: str, parameters: Any) -> Outcome:
        """Run one statement that may write, captured, in the open transaction or one of its own."""
        with self._captured() as transaction:
            try:
                touched = transaction.before(effect, parameters, is_counted="returning" not in text.lower())
                outcome = submit(self._raw, text, parameters)
            except duckdb.Error as error:
                transaction.failed()
                raise self._told_of_the_whole(error, text) from error.__cause__
            if isinstance(effect, Unknown) and _MOVERS & effect.names:
                transaction.moves_sequences = True
            transaction.after(effect, text, touched, outcome.count)
        return outcome

    def _told_of_the_whole(self, error: duckdb.Error, text: str) -> duckdb.Error:
        """What DuckDB says of a statement of which the capture may have run a part first."""
        if isinstance(error, (duckdb.BinderException, duckdb.CatalogException)):
            try:
                self._raw._bind(text)
            except duckdb.Error as whole:
                if str(whole).partition("\n\n")[0] != str(error).partition("\n\n")[0]:
                    return whole
        return error

    # Transactions ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _captured(self) -> Iterator[Transaction]:
        """The open transaction, or a new one around one statement."""
        if self._transaction is not None:
            yield self._transaction
            return
        transaction = self._begin("BEGIN TRANSACTION", explicit=False)
        try:
            yield transaction
            self._commit("COMMIT")
        except BaseException:
            self._abandon()
            raise

    def _begin(self, statement: str, *, explicit: bool) -> Transaction:
        shared = self._shared
        known = shared.generation, shared.commits
        self._raw.execute(statement)
        self._transaction = Transaction(self._raw, shared, self._tables, user(), utc_now(), *known)
        self._is_explicit = explicit
        return self._transaction

    def _commit_explicit(self, statement: str) -> None:
        if self._transaction is None:
            self._raw.execute(statement)
            return
        try:
            if self._is_aborted():
                # DuckDB rolls such a transaction back, and says so or not.
                self._rollback_explicit(statement)
            else:
                self._commit(statement)
        except BaseException:
            self._abandon()
            raise

    def _is_aborted(self) -> bool:
        try:
            self._raw._table_kind((self._shared.catalog, "wlc", "state"))
        except duckdb.TransactionException:
            return True
        return False

    def _commit(self, statement: str) -> None:
        transaction = self._transaction
        assert transaction is not None
        with self._shared.commit_lock:
            committed = self._shared.commit_time()
            has_changes = transaction.complete(committed)
            with self._shared.changing_schema() if transaction.changes_schema else nullcontext():
                self._raw.execute(statement)
            if has_changes:
                transaction.committed(committed)
        self._transaction = None
        if transaction.changes_schema:
            self._tables.generation = -1
        if has_changes and self._shared.beat_s == 0:
            self._shared.try_publish()

    def _abandon(self) -> None:
        """The transaction failed: take it back, if DuckDB has not done so already."""
        transaction, self._transaction = self._transaction, None
        self._tables.generation = -1
        try:
            self._raw.execute("ROLLBACK")
        except duckdb.Error:
            _log.debug("nothing to roll back", exc_info=True)
        if transaction is not None and self._is_explicit:
            self._note_rollback(transaction)

    def _rollback_explicit(self, statement: str) -> None:
        transaction, self._transaction = self._transaction, None
        self._tables.generation = -1
        self._raw.execute(statement)
        if transaction is not None:
            self._note_rollback(transaction)

    def _note_rollback(self, transaction: Transaction) -> None:
        """Keep a rolled-back transaction that had changes as a header, for the DBA."""
        if not transaction.tick:
            return
        with self._shared.commit_lock:
            tick = self._shared.new_tick()
            entry = {"user": transaction.user, "started": format_time(transaction.started), "committed": None}
            try:
                journal.add_entry(self._raw, self._shared.catalog, tick, entry)
                self._shared.last_tick = tick
            except duckdb.Error:
                _log.warning("a rollback could not be journalled", exc_info=True)

    # Results --------------------------------------------------------------------------------------------------------

    def _settled(self) -> duckdb.DuckDBPyConnection:
        """The raw connection with the result of the last statement pending on it."""
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            self._raw.execute(outcome.rows)
        return self._raw

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All remaining rows."""
        return self._settled().fetchall()

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row."""
        return self._settled().fetchone()

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """The next rows."""
        return self._settled().fetchmany(size)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchone, None)

    @property
    def description(self) -> Any:
        """Columns of the last result."""
        return self._settled().description

    @property
    def rowcount(self) -> int:
        """Rows the last statement changed, or -1."""
        if self._outcome is not None and self._count is None:
            return -1
        return self._raw.rowcount if self._count is None else self._count

    # Calls that write -----------------------------------------------------------------------------------------------

    @exclusive
    def _write(self, effect: Effect, call: Callable[[], int | None]) -> int | None:
        """Capture a call that writes without SQL text; `call` returns how many rows it added, if it knows."""
        with self._captured() as transaction:
            touched = transaction.before(effect, None)
            count = call()
            transaction.after(effect, "", touched, count)
        return count

    def append(self, table_name: str, df: Any, *, by_name: bool = False) -> Self:
        """Append a data frame to a table."""

        def call() -> int:
            return int(self._raw.append(table_name, df, by_name=by_name).fetchall()[0][0])

        self._outcome = None
        count = self._write(Append(tuple(_relation._split_qualified(table_name))), call)
        self._outcome, self._count = Outcome(count, f"SELECT {count}::BIGINT AS Count"), count
        return self

    def appender(self, table: str, **options: Any) -> Appender:
        """An appender whose every flush is captured."""
        is_insert = options.get("action", "insert") == "insert"
        parts = tuple(_relation._split_qualified(table))
        effect = Append(parts, reports=False) if is_insert else Unknown(frozenset({parts[-1].lower()}))
        return Appender(self, self._raw.appender(table, **options), effect)

    def query_appender(self, dml: str, columns: Any, **options: Any) -> Appender:
        """An appender that runs a statement over its rows; every flush is captured."""
        return Appender(self, self._raw.query_appender(dml, columns, **options), Unknown(words(dml)))

    @exclusive
    def _submit(self, sql: str, values: Any = None, format: Any = "rows", batch_size: int = 131072) -> Any:  # noqa: A002
        text, kind = self._statements(sql)[0]
        effect = self._effect(text, kind)
        if isinstance(effect, Read):
            self._look()
            return self._raw._submit(sql, values, format, batch_size)
        if isinstance(effect, Session):
            self._keep_attached(text, kind)
            self._tables.forget_names()
            return self._raw._submit(sql, values, format, batch_size)
        if isinstance(effect, (Begin, Commit, Rollback)):
            self._run_text(text, kind, values)
            return self._raw._submit(NOTHING, None, format, batch_size)
        outcome = self._run(effect, text, values)
        return self._raw._submit(outcome.rows, None, format, batch_size)

    def _prepare_script(self, sql: Any, values: Any = None, **options: Any) -> Any:
        statements = self._statements(sql)
        if len(statements) < 2:
            return self._raw._prepare_script(sql, values, **options)
        kept = self._run_leading(statements)
        text, kind = statements[-1]
        if kept is None or kind == "SELECT" or values:
            return self._raw._prepare_script(text, values, **options)
        self._run_text(text, kind, None, is_kept=True)
        self._keep(kept)
        assert self._outcome is not None
        return self._raw._submit(self._outcome.rows, None, "rows"), None, None, None

    @exclusive
    def _create_view(self, name: Any, sql: str, **options: Any) -> None:
        effect = Schema(words(sql), rewrites=False)
        with self._captured() as transaction:
            touched = transaction.before(effect, None)
            self._raw._create_view(name, sql, **options)
            replaces = "OR REPLACE " if options.get("replace") else ""
            text = f"CREATE {replaces}VIEW {_view_name(name)} AS {sql}"
            transaction.after(effect, text, touched, None)

    # Opening and closing --------------------------------------------------------------------------------------------

    def cursor(self) -> Connection:
        """Another connection to the same database, with transactions of its own."""
        self._shared.users += 1
        made = Connection(self._shared, self._raw.cursor())
        self._cursors.add(made)
        return made

    duplicate = cursor

    def close(self) -> None:
        """Close the connection; the last one to a database publishes what is due.

        Raises:
            FarmError: What is journalled could not be published now. It is safe in the database; the next
                `wlc flush` or connection publishes it.
        """
        if not self._finalizer.alive:
            return
        self._finalizer.detach()
        failure = _release(self._raw, self._shared)
        if failure is not None:
            raise failure


def _view_name(name: Any) -> str:
    parts = (name,) if isinstance(name, str) else tuple(name)
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def _release(raw: duckdb.DuckDBPyConnection, shared: Shared) -> Exception | None:
    """Close one connection; publish if it was the last. Returns why publishing failed, or None."""
    raw.close()
    failure: Exception | None = None
    if shared.users == 1 and shared.is_master:
        shared.stop_beating()
        shared.try_publish()
        failure = shared.failure
    close_shared(shared)
    return failure


methods.install(Connection)
