"""A drop-in for DuckDB's connection that captures the changes of every committed transaction.

One call at a time on a connection: a concurrent call of another thread is refused, as in DuckDB.

Methods of DuckDB's connection that are delegated unchanged. `Connection` itself defines the captured ones.

A method that writes rows must be captured. So there is no generic delegation to the raw connection: each method is in a
list here or defined by `Connection`, and a test compares both with DuckDB's methods.

DuckDB's appender with captured flushes. DuckDB's appender writes only when it is flushed.
"""

from __future__ import annotations

import shlex
import threading
import weakref
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Self, SupportsInt, TypeVar, cast

import duckdb
from duckdb import _relation

from wlc.capture.duckdb import for_update, frames, module_functions, relations, uncaptured
from wlc.capture.duckdb.analysis import (
    UNKNOWN,
    AppendEffect,
    BeginEffect,
    CommitEffect,
    Effect,
    ReadEffect,
    RollbackEffect,
    SchemaEffect,
    SessionEffect,
    UnknownEffect,
)
from wlc.capture.duckdb.outcome import NOTHING, StatementOutcome, submit
from wlc.capture.duckdb.session import CaptureSession
from wlc.capture.duckdb.shared import Shared, close_shared
from wlc.dialect.duckdb.lexer import words
from wlc.farm.errors import FarmError, FencedError, InvalidError, UnavailableError
from wlc.farm.store import MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_Method = TypeVar("_Method", bound="Callable[..., Any]")


def exclusive(method: _Method) -> _Method:
    """Make a method of a connection refuse to run while another thread runs one.

    The capture of a statement takes several calls of DuckDB. A concurrent call in between would write without capture.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._busy.acquire(blocking=False):
            raise duckdb.ResourceInUseException(
                "Resource In Use Error: connection is busy with another call; it refuses instead of waiting, so use a"
                " separate connection from cursor()"
            )
        try:
            return method(self, *args, **kwargs)
        finally:
            self._busy.release()

    return cast("_Method", call)


# Methods that fetch the last result. `_settled` first restores it on the raw connection.
_RESULTS = (
    "df",
    "fetchdf",
    "fetch_df",
    "fetch_df_chunk",
    "fetchnumpy",
    "torch",
    "tf",
    "to_arrow_table",
    "to_arrow_reader",
    "complete",
    "abort",
    "_result_as_arrow",
)
# Methods that write no rows: they read the catalog, bind or parse, register sources of statements, or make types.
_PASSED_ON = (
    "_bind",
    "_catalog_version",
    "_check_text",
    "_name_scope",
    "_own_sources",
    "_register_arrow_source",
    "_register_collection",
    "_register_declared",
    "_register_filelike",
    "_register_map",
    "_register_source",
    "_register_values",
    "_statement_count",
    "_table_kind",
    "array_type",
    "create_function",
    "decimal_type",
    "disable_profiling",
    "dtype",
    "enable_profiling",
    "enum_type",
    "extract_statements",
    "filesystem_is_registered",
    "get_profiling_information",
    "get_table_names",
    "install_extension",
    "interrupt",
    "list_filesystems",
    "list_type",
    "load_extension",
    "map_type",
    "query_progress",
    "register",
    "register_filesystem",
    "remove_function",
    "row_type",
    "sqltype",
    "string_type",
    "struct_type",
    "type",
    "union_type",
    "unregister",
    "unregister_filesystem",
)


def install(connection: type) -> None:
    """Add all these methods, and those that make relations, to a class unless it defines them."""
    for name in _RESULTS:
        setattr(connection, name, _result_method(name))
    for name in _PASSED_ON:
        setattr(connection, name, _passed_on_method(name))
    for name in _relation.CONNECTION_METHODS:
        if not hasattr(connection, name):
            setattr(connection, name, _relation_method(name))


def _relation_method(name: str) -> Any:
    # A relation runs its statement by `_submit` of its connection, the captured one.
    method = _relation.CONNECTION_METHODS[name]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    return _named(call, name)


def _result_method(name: str) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._settled(), name)(*args, **kwargs)

    return _named(call, name)


def _passed_on_method(name: str) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        returned = getattr(self._raw, name)(*args, **kwargs)
        # Some methods return the raw connection, for chained calls. Its statements would not be captured.
        return self if isinstance(returned, duckdb.DuckDBPyConnection) else returned

    return _named(call, name)


def _named(call: Any, name: str) -> Any:
    call.__name__, call.__doc__ = name, getattr(getattr(duckdb.DuckDBPyConnection, name, None), "__doc__", None)
    return call


class CapturedAppender:
    """DuckDB's appender with captured flushes.

    Args:
        raw: DuckDB's appender.
        capture: Runs a call that writes, captured.
    """

    def __init__(self, raw: Any, capture: Callable[[Callable[[], None]], object]) -> None:
        self._raw, self._capture = raw, capture

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.flush()
        else:
            self.clear()

    def append_row(self, *args: Any, **kwargs: Any) -> Any:
        """Buffer one row."""
        return self._raw.append_row(*args, **kwargs)

    def append_rows(self, *args: Any, **kwargs: Any) -> Any:
        """Buffer rows."""
        return self._raw.append_rows(*args, **kwargs)

    def clear(self) -> None:
        """Forget the buffered rows."""
        self._raw.clear()

    def flush(self) -> None:
        """Write the buffered rows, captured."""
        self._capture(self._raw.flush)


_SPLIT_MOST = 1000
# For type checkers; DuckDB's class can be neither derived from nor constructed.
if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as _Declared
else:
    _Declared = object


class Connection(_Declared):
    """Same methods, results and errors as `duckdb.DuckDBPyConnection`; made by `wlc.connect`.

    Every statement that may write is captured: SQL text by `_run_text`, calls by `_write`. Read-only calls go directly
    to DuckDB. Methods that are not defined here are in the lists above; there are no others.
    """

    def __init__(self, shared: Shared, raw: duckdb.DuckDBPyConnection) -> None:
        self._raw = raw
        relations.know(self)
        self._shared = shared
        self._session = CaptureSession(raw, shared)
        self._busy = threading.RLock()
        self._outcome: StatementOutcome | None = None
        self._count: int | None = None
        self._split: dict[str, tuple[tuple[str, str], ...]] = {}
        # Further operations of the process on the database, set by the function that opens the connection.
        self.make_taker: Callable[[], Any] = lambda: None
        self._before_close: list[Callable[[], None]] = []
        self._finalizer = weakref.finalize(self, _release, raw, shared, self._before_close)

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        """For `isinstance`; DuckDB's class can be neither derived from nor constructed."""
        return duckdb.DuckDBPyConnection

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be copied or pickled, as DuckDB's connection does."""
        return self._raw.__reduce_ex__(protocol)

    @property
    def wlc(self) -> Any:
        """The taker of a site whose database the process has open; see `wlc.multi_master.taker`."""
        return self.make_taker()

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
        """Run one statement for each set of parameters, each in a separate transaction unless one is open."""
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

    def _run_leading(self, statements: tuple[tuple[str, str], ...]) -> StatementOutcome | None:
        """Run all statements of a script but the last; return the last result set, or None."""
        kept = None
        for text, kind in statements[:-1]:
            self._run_text(text, kind, None, is_kept=True)
            if self._outcome is not None and self._outcome.held is not None:
                kept = self._outcome
        return kept

    def _keep(self, kept: StatementOutcome | None) -> None:
        """DuckDB returns the last result set of a script, even if statements without one follow."""
        if kept is not None and (self._outcome is None or self._outcome.held is None):
            self._outcome, self._count = kept, -1

    def begin(self) -> Self:
        """Start a transaction."""
        return self.execute("BEGIN TRANSACTION")

    def commit(self) -> Self:
        """Commit the transaction, captured; does nothing without one."""
        if self._session.transaction is None:
            self._raw.commit()
            return self
        return self.execute("COMMIT")

    def rollback(self) -> Self:
        """Roll the transaction back."""
        if self._session.transaction is None:
            self._raw.rollback()
            return self
        return self.execute("ROLLBACK")

    def checkpoint(self) -> Self:
        """Write the write-ahead log into the file; the last result is dropped, as in DuckDB."""
        self._outcome, self._count = None, None
        self._raw.checkpoint()
        return self

    def _statements(self, query: Any) -> tuple[tuple[str, str], ...]:
        """Text and type of each statement; remembered, because parsing takes time."""
        if not isinstance(query, str):
            return ((query.query, _kind(query)),)
        found = self._split.get(query)
        if found is None:
            found = self._parsed(query)
            if len(self._split) >= _SPLIT_MOST:
                self._split.clear()
            self._split[query] = found
        return found

    def _parsed(self, script: str) -> tuple[tuple[str, str], ...]:
        try:
            return tuple((part.query, _kind(part)) for part in self._raw.extract_statements(script))
        except duckdb.ParserException:
            # For a master that is no site, DuckDB itself refuses FOR UPDATE.
            if self._shared.state is None or self._shared.state.site is None:
                raise
            found = for_update.statements(script, self._raw.extract_statements, _kind)
            if found is None:
                raise
            return found

    @exclusive
    def _run_text(self, text: str, kind: str, parameters: Any, *, is_kept: bool = False) -> None:
        """Run one statement; `is_kept` keeps its rows apart from the connection, in case statements follow."""
        self._outcome, self._count = None, None
        session = self._session
        effect = session.effect(text, kind)
        match effect:
            case ReadEffect():
                session.before_read(text, kind, parameters)
                self._pass_on(text, parameters, is_kept=is_kept)
            case SessionEffect():
                session.before_settings(text, kind)
                self._pass_on(text, parameters, is_kept=is_kept)
            case BeginEffect():
                session.begin(text)
            case CommitEffect():
                session.commit(text)
                self._outcome = StatementOutcome(None, NOTHING)
            case RollbackEffect():
                session.rollback(text)
                self._outcome = StatementOutcome(None, NOTHING)
            case _:
                self._outcome = session.run(effect, text, parameters)
                self._count = -1 if self._outcome.held is not None else self._outcome.count

    def _pass_on(self, text: str, parameters: Any, *, is_kept: bool) -> None:
        if is_kept:
            self._outcome = submit(self._raw, text, parameters)
        else:
            self._raw.execute(text, parameters)

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

    def fetchmany(self, size: SupportsInt = 1) -> list[tuple[Any, ...]]:
        """The next rows."""
        return self._settled().fetchmany(size)

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
    def _write(self, effect: Effect, call: Callable[[], int | None], text: str = "") -> int | None:
        return self._session.write(effect, call, text)

    def append(self, table_name: str, df: Any, *, by_name: bool = False) -> Self:
        """Append a data frame to a table."""

        def call() -> int:
            return int(self._raw.append(table_name, df, by_name=by_name).fetchall()[0][0])

        self._outcome = None
        count = self._write(AppendEffect(tuple(_relation._split_qualified(table_name))), call)
        self._outcome, self._count = StatementOutcome(count, f"SELECT {count}::BIGINT AS Count"), count
        return self

    def appender(self, table: str, **options: Any) -> CapturedAppender:  # type: ignore[override]
        """An appender whose every flush is captured."""
        is_insert = options.get("action", "insert") == "insert"
        parts = tuple(_relation._split_qualified(table))
        effect = AppendEffect(parts, reports=False) if is_insert else UnknownEffect(frozenset({parts[-1].lower()}))
        return CapturedAppender(self._raw.appender(table, **options), partial(self._write, effect))

    def query_appender(self, dml: str, columns: Any, **options: Any) -> CapturedAppender:  # type: ignore[override]
        """An appender that runs a statement over its rows; every flush is captured."""
        effect = UnknownEffect(words(dml))
        return CapturedAppender(self._raw.query_appender(dml, columns, **options), partial(self._write, effect))

    @exclusive
    def _submit(self, sql: str, values: Any = None, format: Any = "rows", batch_size: int = 131072) -> Any:  # noqa: A002
        text, kind = self._statements(sql)[0]
        session = self._session
        effect = session.effect(text, kind)
        if isinstance(effect, ReadEffect):
            session.before_read(text, kind, values)
            return self._raw._submit(sql, values, format, batch_size)
        if isinstance(effect, SessionEffect):
            session.before_settings(text, kind)
            return self._raw._submit(sql, values, format, batch_size)
        if isinstance(effect, (BeginEffect, CommitEffect, RollbackEffect)):
            self._run_text(text, kind, values)
            return self._raw._submit(NOTHING, None, format, batch_size)
        outcome = session.run(effect, text, values)
        return self._raw._submit(outcome.rows, None, format, batch_size)

    def _prepare_script(self, sql: Any, values: Any = None, **options: Any) -> Any:
        if isinstance(sql, str) and self._shared.site is not None and for_update.locks(sql):
            raise InvalidError(
                "a relation, which runs later and as often as it is used, cannot have FOR UPDATE or FOR SHARE",
                hint="connection.execute(…).fetchall() reads the rows once",
            )
        statements = self._statements(sql)
        self._shared.rescue()
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

    def _create_view(self, name: Any, sql: str, **options: Any) -> None:
        replaces = "OR REPLACE " if options.get("replace") else ""
        text = f"CREATE {replaces}VIEW {_view_name(name)} AS {sql}"
        effect = SchemaEffect(words(sql), rewrites=False)
        self._write(effect, partial(self._raw._create_view, name, sql, **options), text)

    # Opening and closing --------------------------------------------------------------------------------------------

    def cursor(self) -> Connection:
        """Another connection to the same database, with separate transactions."""
        self._shared.users += 1
        other = Connection(self._shared, self._raw.cursor())
        other.make_taker = self.make_taker
        return other

    duplicate = cursor

    def before_close(self, call: Callable[[], None]) -> None:
        """Register a function to call before the connection is closed; it must not refer to the connection."""
        self._before_close.append(call)

    def close(self) -> None:
        """Close the connection; the last one to a database publishes what is pending.

        Raises:
            FarmError: The pending transactions could not be published now. They are safe in the database; the next
                `wlc flush` or connection publishes them.
        """
        if not self._finalizer.alive:
            return
        self._finalizer.detach()
        self._outcome, self._count = None, None
        failure = _release(self._raw, self._shared, self._before_close)
        if isinstance(failure, (UnavailableError, MissingError)):
            raise _unpublished(failure, self._shared) from failure
        if failure is not None:
            raise failure


def _unpublished(failure: UnavailableError | MissingError, shared: Shared) -> FarmError:
    """Build the error for commits that wait because the farm cannot be reached, or is not there."""
    why, hint = failure.message, f"wlc flush {shlex.quote(shared.path)}"
    if isinstance(failure, MissingError):
        why, hint = (
            f"{shared.publishes_to} is not there",
            (failure.hint or hint).replace("SOURCE", shlex.quote(shared.path)),
        )
    message = f"the commits are safe in {shared.path} and are published next time: {why}"
    return type(failure)(message, hint=hint, path=failure.path)


def _view_name(name: Any) -> str:
    parts = (name,) if isinstance(name, str) else tuple(name)
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def _release(raw: duckdb.DuckDBPyConnection, shared: Shared, before: Sequence[Callable[[], None]]) -> Exception | None:
    """Close one connection; publish if it was the last. Returns why publishing failed, or None."""
    for call in before:
        call()
    raw.close()
    failure: Exception | None = None
    if shared.users == 1 and shared.is_master and shared.publisher is not None:
        failure = shared.publisher.close()
        if shared.commits:
            shared.publisher.try_snapshot()
        if isinstance(failure, FencedError) and not shared.commits:
            # A process that only read has nothing to publish.
            failure = None
    uncaptured.end(shared)
    close_shared(shared)
    return failure


install(Connection)
module_functions.accept(Connection)
relations.accept(Connection)
frames.hide()


def _kind(statement: duckdb.Statement) -> str:
    """DuckDB's name of a statement's type; its Python package does not know all of them."""
    try:
        return str(statement.type.name)
    except ValueError:
        return UNKNOWN
