"""The capture of one connection: statements and calls that may write, in the open transaction or a separate one.

IMPORT DATABASE into a master: an export of a master holds the journal, which must not be imported.
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import duckdb

from wlc.capture.duckdb import acceptance, for_update, independent_insert, journal
from wlc.capture.duckdb.analysis import (
    MAY_CREATE,
    SEQUENCE_MOVERS,
    Effect,
    SchemaEffect,
    UnknownEffect,
    analyse,
    detached,
)
from wlc.capture.duckdb.captured_tables import CapturedTables
from wlc.capture.duckdb.open_transaction import OpenTransaction, user
from wlc.capture.duckdb.outcome import NOTHING, StatementOutcome, counted, submit
from wlc.capture.duckdb.small_change import SmallChanges
from wlc.capture.duckdb.uncaptured import refuse_changed
from wlc.dialect.duckdb.lexer import Token, tokens, words
from wlc.dialect.duckdb.settings import names_row_setting
from wlc.dialect.sql import literal
from wlc.farm.clock import utc_now
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wlc.capture.duckdb.images import Images
    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.capture.duckdb.shared import Shared


_JOURNAL = "wlc"


def import_statements(connection: duckdb.DuckDBPyConnection, text: str) -> list[str]:
    """Return the statements to run: the statement itself, or the script of an export without the schema `wlc`.

    Args:
        connection: Reads the export, which may lie in a bucket.
        text: Any statement.
    """
    parts = tokens(text)
    folder = next((token.name for token in parts if token.is_string), None)
    if parts[0].word != "IMPORT" or folder is None:
        return [text]
    try:
        found = [list(_read(connection, folder, file)) for file in ("schema.sql", "load.sql")]
    except duckdb.Error:
        # DuckDB reports what is wrong with the export.
        return [text]
    kept = [statement for script in found for statement in script if not _is_of_journal(tokens(statement))]
    if len(kept) == sum(map(len, found)):
        return [text]
    return [_from_folder(statement, folder) for statement in kept]


def _read(connection: duckdb.DuckDBPyConnection, folder: str, file: str) -> Iterator[str]:
    ((script,),) = connection.execute("SELECT content FROM read_text(?)", [f"{folder}/{file}"]).fetchall()
    return (statement.query for statement in connection.extract_statements(script))


def _is_of_journal(parts: list[Token]) -> bool:
    """Say whether a statement of an export makes the schema or one of its tables, or fills one."""
    match [token.word or token.text for token in parts[:5]]:
        case ["CREATE", "SCHEMA", *_]:
            return parts[2].name.lower() == _JOURNAL
        case ["CREATE", "TABLE", _, ".", *_]:
            return parts[2].name.lower() == _JOURNAL
        case ["COPY", _, ".", *_]:
            return parts[1].name.lower() == _JOURNAL
    return False


def _from_folder(statement: str, folder: str) -> str:
    """Return a COPY that reads from the export's present folder; other statements unchanged."""
    parts = tokens(statement)
    if parts[0].word != "COPY":
        return statement
    file = next(token for token in parts if token.is_string)
    place = literal(f"{folder}/{file.name.rpartition('/')[2]}")
    return statement[: file.start] + place + statement[file.end :]


_log = logging.getLogger("wlc")
_LINE = re.compile(r"^LINE \d+: (.*)$", re.MULTILINE)


class CaptureSession:
    """A connection of DuckDB with its open transaction.

    Attributes:
        transaction: None outside a transaction.
    """

    def __init__(self, raw: duckdb.DuckDBPyConnection, shared: Shared) -> None:
        self.tables = CapturedTables(raw, shared.catalog, shared.macro_changes)
        self.transaction: OpenTransaction | None = None
        self._raw = raw
        self._shared = shared
        self._is_explicit = False
        self._small = SmallChanges(raw, self.tables)
        self._prepared: dict[str, frozenset[str]] = {}

    # Statements -----------------------------------------------------------------------------------------------------

    def effect(self, text: str, kind: str) -> Effect:
        """Return the possible effect of a statement; that of a prepared one is found by its name.

        Args:
            text: One statement.
            kind: DuckDB's name of its type.

        Raises:
            UnsupportedError: It creates a macro that hides a function of the capture.
        """
        if kind in for_update.CLAUSES:
            return for_update.effect(text, kind)
        if kind in MAY_CREATE:
            acceptance.refuse_hiding(text)
        effect = analyse(text, kind)
        if kind in ("EXECUTE", "EXPLAIN") and isinstance(effect, UnknownEffect):
            return UnknownEffect(effect.names.union(*(self._prepared.get(name, ()) for name in effect.names)))
        return effect

    def before_read(self, text: str, kind: str, parameters: Any = None) -> None:
        """Prepare for a statement that writes nothing: an open transaction takes its snapshot safely."""
        if kind == "PREPARE":
            # The statement may fail, and an earlier one of this name remains.
            name = tokens(text)[1].name.lower()
            self._prepared[name] = self._prepared.get(name, frozenset()) | words(text)
        if self.transaction is None:
            self._shared.rescue()
        else:
            # If DuckDB has aborted the transaction, the statement itself reports it.
            with suppress(duckdb.TransactionException):
                self.transaction.look()
                if kind == "SELECT" and self._shared.site is not None and self.transaction.reads is not None:
                    self.transaction.reads.note(text, parameters)

    def before_settings(self, text: str, kind: str) -> None:
        """Prepare for a statement that changes settings, the search path or attached databases.

        Raises:
            UnsupportedError: It detaches the master, whose journal could not be published then.
        """
        if kind not in ("ATTACH", "DETACH"):
            # Such statements read nothing, and DuckDB detaches only databases that the transaction has not accessed.
            self.before_read(text, kind)
        self.tables.forget_names()
        if kind in ("ATTACH", "DETACH"):
            self.tables.forget_macros()
        self.tables.prepared.is_outdated = True
        if names_row_setting(text):
            self._note_row_settings()
        if "enable_external_access" in text.lower():
            self._shared.allow_work()
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

    def _note_row_settings(self) -> None:
        """Record that settings which affect accepted rows vary, and the settings under which rows were written."""
        self._shared.row_settings_vary = True
        if self.transaction is not None:
            with suppress(duckdb.TransactionException):
                self.transaction.note_row_settings()

    def run(self, effect: Effect, text: str, parameters: Any) -> StatementOutcome:
        """Run one statement that may write, captured.

        Raises:
            FencedError: Its changes could not be published.
        """
        if self.transaction is None:
            table = self._small.table(effect, parameters, settings_vary=self._shared.row_settings_vary)
            if table is not None:
                count = independent_insert.run(self._shared, self.tables, table, effect, text, parameters)
                if count is None:
                    count = self._run_small(effect, table, text, parameters)
                if count:
                    self._publish()
                if count is not None:
                    return counted(count)
        with self.captured() as transaction:
            try:
                touched = transaction.before(effect, parameters, is_counted="returning" not in text.lower())
                self._refuse_early(effect, touched)
                outcome = self._submit(effect, text, parameters)
            except duckdb.Error as error:
                transaction.failed()
                raise self._error_of_whole(error, text) from error.__cause__
            if isinstance(effect, UnknownEffect) and SEQUENCE_MOVERS & effect.names:
                transaction.moves_sequences = True
            transaction.after(effect, text, touched, outcome.count)
        return outcome

    def _run_small(self, effect: Effect, table: CapturedTable, text: str, parameters: Any) -> int | None:
        """Run and commit a statement as a small change; None if it must run the general way."""
        shared, small = self._shared, self._small
        with shared.commit_lock:
            generation = shared.generation
            if self.tables.generation != generation or shared.site is not None:
                # Other sites need more information about a transaction, and may forbid it.
                return None
            shared.refuse_writes()
            transaction = self.begin("BEGIN TRANSACTION", explicit=False)
            committed = shared.commit_time()
            tick = transaction.tick = shared.new_tick()
            header = journal.JournalEntry(tick, transaction.user, transaction.started, committed).header
            try:
                count = small.run(effect, table, text, parameters, tick, header)
                if count is not None:
                    refuse_changed(shared, [table.name] if small.removed else ())
                    self._raw.execute("COMMIT")
            except BaseException:
                self._abandon()
                raise
            if count is None:
                self._abandon()
            self.transaction = None
            self.tables.generation = generation
            if count:
                name = (table.name,)
                shared.committed(tick, committed, name if small.removed else (), name if small.added else ())
        return count

    def write(self, effect: Effect, call: Callable[[], int | None], text: str = "") -> int | None:
        """Capture a call that writes without SQL text.

        Args:
            effect: The possible effect of the call.
            call: Returns the number of added rows, if known.
            text: An equivalent statement, if the call changes the schema.

        Raises:
            FencedError: Its changes could not be published.
        """
        with self.captured() as transaction:
            touched = transaction.before(effect, None)
            self._refuse_early(effect, touched)
            count = call()
            transaction.after(effect, text, touched, count)
        return count

    def _submit(self, effect: Effect, text: str, parameters: Any) -> StatementOutcome:
        if not (isinstance(effect, SchemaEffect) and effect.loads):
            return submit(self._raw, text, parameters)
        # Its scripts may hold any statement.
        self._note_row_settings()
        statements = import_statements(self._raw, text)
        if statements == [text]:
            return submit(self._raw, text, parameters)
        for statement in statements:
            submit(self._raw, statement, None)
        return StatementOutcome(None, NOTHING)

    def _refuse_early(self, effect: Effect, touched: Sequence[Images]) -> None:
        """Refuse a statement that certainly writes rows; others are refused at the commit if they have written."""
        if touched and not isinstance(effect, (SchemaEffect, UnknownEffect)):
            self._shared.refuse_writes()

    def _error_of_whole(self, error: duckdb.Error, text: str) -> duckdb.Error:
        """DuckDB's error about the whole statement, if the capture has run a part of it first."""
        if isinstance(error, (duckdb.BinderException, duckdb.CatalogException)):
            try:
                self._raw._bind(text)
            except (duckdb.BinderException, duckdb.CatalogException) as whole:
                one, other = str(error), str(whole)
                # The text after LINE is a part of the text that DuckDB got.
                shown = _LINE.search(one)
                is_of_whole = shown is None or shown[1].strip(" .") in " ".join(text.splitlines())
                if not is_of_whole or one.partition("\n\n")[0] != other.partition("\n\n")[0]:
                    return whole
            except duckdb.Error:
                # It cannot be bound now: the statement has aborted the user's transaction.
                return error
        return error

    # Transactions ---------------------------------------------------------------------------------------------------

    @contextmanager
    def captured(self) -> Iterator[OpenTransaction]:
        """The open transaction, or a new one around one statement."""
        if self.transaction is not None:
            try:
                yield self.transaction
            except (UnsupportedError, duckdb.TransactionException):
                # The statement, or an earlier one, is not captured. Nothing of the transaction may be committed.
                with suppress(duckdb.Error):
                    self._raw.execute("SELECT error('the transaction was refused')").fetchall()
                raise
            return
        transaction = self.begin("BEGIN TRANSACTION", explicit=False)
        try:
            yield transaction
            self._commit("COMMIT")
        except BaseException:
            self._abandon()
            raise

    def begin(self, statement: str, *, explicit: bool = True) -> OpenTransaction:
        """Start a transaction; an explicit one is the user's."""
        shared = self._shared
        known = shared.generation, shared.commits
        self._raw.execute(statement)
        self.transaction = OpenTransaction(self._raw, shared, self.tables, user(), utc_now(), *known)
        self._is_explicit = explicit
        return self.transaction

    def commit(self, statement: str) -> None:
        """Commit the user's transaction with the user's statement."""
        if self.transaction is None:
            self._raw.execute(statement)
            return
        try:
            if self._is_aborted():
                # DuckDB rolls such a transaction back, with or without an error.
                self.rollback(statement)
            else:
                self._commit(statement)
        except BaseException:
            self._abandon()
            raise

    def rollback(self, statement: str) -> None:
        """Roll the user's transaction back with the user's statement."""
        transaction, self.transaction = self.transaction, None
        self.tables.generation = -1
        self._raw.execute(statement)
        if transaction is not None:
            self._note_rollback(transaction)

    def _is_aborted(self) -> bool:
        try:
            self._raw._table_kind((self._shared.catalog, "wlc", "state"))
        except duckdb.TransactionException:
            return True
        return False

    def _commit(self, statement: str) -> None:
        transaction = self.transaction
        assert transaction is not None
        with (shared := self._shared).commit_lock:
            committed = shared.commit_time()
            if has_changes := transaction.complete(committed):
                shared.refuse_writes()
            # Otherwise another connection has changed the schema, too.
            sees_all = transaction.generation == shared.generation
            with shared.changing_schema() if transaction.changes_schema else nullcontext():
                self._raw.execute(statement)
            if transaction.changes_schema:
                self.tables.generation = shared.generation if sees_all else -1
                shared.seen = self.tables.seen(transaction.objects) if sees_all else None
            if has_changes:
                transaction.committed(committed)
        self.transaction = None
        if has_changes:
            self._publish()

    def _publish(self) -> None:
        """Publish committed transactions if they must not wait."""
        if self._shared.beat_s == 0 and self._shared.publisher is not None:
            self._shared.publisher.try_publish()

    def _abandon(self) -> None:
        """Roll back a failed transaction, unless DuckDB has already done so."""
        transaction, self.transaction = self.transaction, None
        self.tables.generation = -1
        try:
            self._raw.execute("ROLLBACK")
        except duckdb.Error:
            _log.debug("nothing to roll back", exc_info=True)
        if transaction is not None and self._is_explicit:
            self._note_rollback(transaction)

    def _note_rollback(self, transaction: OpenTransaction) -> None:
        """Journal a rolled-back transaction that had changes as a header, for the DBA."""
        if not transaction.tick:
            return
        with self._shared.commit_lock:
            tick = self._shared.new_tick()
            entry = journal.JournalEntry(tick, transaction.user, transaction.started, committed=None)
            try:
                journal.add_entry(self._raw, self._shared.catalog, entry)
                self._shared.last_tick = tick
            except duckdb.Error:
                _log.warning("a rollback could not be journalled", exc_info=True)
