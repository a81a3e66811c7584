"""Schema changes from the farm, run in PostgreSQL: translated, or in a PostgreSQL master's own dialect."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
from psycopg import errors

from wlc.dialect.sql import quote
from wlc.farm.errors import InvalidError, UnsupportedError
from wlc.farm.model import AlteredObject, CreatedObject, Ddl, Name, RenamedObject
from wlr.engine.postgres import missing_features, permitted_ddl
from wlr.engine.postgres.access import Access, is_access, unknown_access
from wlr.engine.postgres.catalog import MAIN, PostgresCatalog, is_own, views_over
from wlr.engine.postgres.permitted_ddl import ReachingError
from wlr.engine.postgres.replica_connection import applying, fetch, run, run_foreign
from wlr.engine.postgres.translate import PostgresStatement, Translation, Translator
from wlr.engine.postgres.wlr_schema import let_go
from wlr.replay.ddl import left_out
from wlr.replay.ddl.left_out import is_wanted, may_fail
from wlr.replay.ddl.running import refuse_oversized, short, understanding
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from wlc.dialect.postgres.server_connection import Connection
    from wlc.farm.model import DdlEffect, SequencePosition
    from wlr.engine.postgres.catalog import Names
    from wlr.engine.postgres.replica_connection import Address
    from wlr.replay.plan.step import Step

EXTENSION = "CREATE EXTENSION"
_UNDEFINED = "Create it in the replica's database as in the master, and replicate again."
_ITS_VALUES = "only a superuser can create it, from functions in C; its values are text here"
# Errors for a statement that names a missing or left-out object, or uses syntax of later majors.
_LACKS = (errors.UndefinedObject, errors.UndefinedFunction, errors.InvalidForeignKey, errors.SyntaxError)
# The same for objects without rows.
_LACKS_WHAT_COMES = (*_LACKS, errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)
_IS_THERE = (errors.DuplicateObject, errors.DuplicateTable, errors.DuplicateFunction)
_IS_PARTITIONED = "SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass(%s)"
_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
_KIN = """
    SELECT n.nspname, c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = {}
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {} = to_regclass(%s) ORDER BY c.oid
"""
_OWNERS_TYPE = """
    SELECT CASE WHEN typtype = 'b' THEN 'base' WHEN relkind = 'f' THEN 'foreign' END
    FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid WHERE t.oid = to_regtype(%s)
"""
_HINT = "rebuild the replica from a later snapshot, or accept the transaction with wlr accept"


def text_of(ddl: Ddl) -> str | None:
    """Return the statement in PostgreSQL's dialect if the master is PostgreSQL; None if it must be translated."""
    return ddl.statement if ddl.original is None and ddl.dialect == "postgres" else ddl.original


def missing_extensions(connection: Connection, schema: Iterable[Ddl]) -> list[str]:
    """Return the extensions that a master's schema needs and a database lacks."""
    wanted = [ddl.object.name for ddl in schema if ddl.kind == EXTENSION]
    present = {name for (name,) in fetch(connection, "SELECT extname FROM pg_extension")} if wanted else set()
    return [name for name in wanted if name not in present]


def access_of_accepted(step: Step) -> dict[str, str]:
    """Return the entries of changes of privileges and row security in skipped transactions."""
    found: dict[str, str] = {}
    for transaction in step.transactions if step.skipped else ():
        for record in transaction.records if transaction.tick in step.skipped else ():
            text = text_of(record) if isinstance(record, Ddl) else None
            if isinstance(record, Ddl) and text is not None and is_access(text):
                what = f"privileges of accepted transaction {transaction.tick} on {record.object}"
                found[what] = f"{found[what]}; {text}" if what in found else f"it was skipped; run {text}"
    return found


def warn_of_missing(lacking: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Warn of new or changed entries of objects that wait for other objects."""
    for what, statement in left_out.to_retry(lacking):
        if before.get(what) != lacking[what] and not is_access(statement):
            warnings.warn(f"{what} is left out: {left_out.without_statement(lacking[what])}", stacklevel=2)


class SchemaChange:
    """One schema change in an open transaction.

    Args:
        connection: Connection in a transaction with the role of a replica.
        address: Address of the database.
        names: Maps the master's names to the replica's.
        master: Name that statements give the database.
        patterns: Patterns of the replicated tables; empty for all.
        replicated: Replicated tables.
        left_out: Objects that the replica lacks, with the causes; kept up to date.
        gives: Whether to grant roles the privileges of the farm.

    Attributes:
        access: Makes changes of privileges and row security.
        rebuilt: Tables that were created again.
    """

    def __init__(
        self,
        connection: Connection,
        address: Address,
        names: Names,
        master: str,
        patterns: Collection[str],
        replicated: Collection[Name],
        left_out: dict[str, str],
        *,
        gives: bool,
    ) -> None:
        self._connection = connection
        self._address = address
        self._names = names
        self._master = master
        self._patterns = patterns
        self._replicated = replicated
        self._left_out = left_out
        self.access = Access(connection, address, replicated, left_out, gives=gives)
        self.rebuilt: set[Name] = set()

    def run(self, ddl: Ddl, *, is_rewritten: bool = False, holds_back: list[PostgresStatement] | None = None) -> bool:
        """Make the change. An object without rows and without a counterpart is left out with a warning.

        Args:
            ddl: The change.
            is_rewritten: The table was emptied, and all its rows follow.
            holds_back: Receives the statements that run faster after rows are loaded.

        Returns:
            Whether the change is for this replica.

        Raises:
            StepError: The change cannot be made.
        """
        # Missing extensions were refused before.
        if not is_wanted(ddl, self._patterns) or ddl.kind == EXTENSION:
            return False
        self._refuse_own(ddl)
        text = text_of(ddl)
        is_meant = ddl.original != ""
        try:
            refuse_oversized(ddl.statement if text is None else text)
            with understanding(ddl.statement), applying(self._address), self._connection.transaction():
                if text is not None and is_access(text):
                    run(self._connection, "SET LOCAL search_path = public")
                    self.access.run(text)
                    return True
                was_lacking = left_out.listed_object(ddl) in self._left_out
                left_out.follow(self._left_out, ddl)
                if text is None:
                    self._search(ddl.search_path)
                    self._translated(ddl, is_rewritten=is_rewritten, holds_back=holds_back)
                elif not text and self._lacks_names(ddl):
                    is_meant = True
                    self._translated(ddl, is_rewritten=False, holds_back=None)
                # An existing object with the name of a left-out one belongs to the owner.
                elif text and not (was_lacking and ddl.kind.startswith("DROP ")):
                    self._in_own_words(text, ddl)
        except StepError as error:
            if text is not None and self._do_without(text, ddl, error):
                return True
            if may_fail(ddl, self._patterns, self._replicated):
                return True
            error.table = error.table or str(ddl.object)
            if isinstance(error.__cause__, errors.UndefinedObject):
                error.remedy = error.remedy or _UNDEFINED
            raise
        return is_meant

    def _refuse_own(self, ddl: Ddl) -> None:
        for schema in (ddl.object.schema, *ddl.search_path):
            if is_own(self._names.schema(schema)) and text_of(ddl) != "":
                message = f"the farm must not change schema {schema}: {short(ddl.statement)}"
                raise StepError(message, table=str(ddl.object))

    def _search(self, schemas: Sequence[str]) -> None:
        listed = ", ".join(quote(self._names.schema(schema)) for schema in schemas)
        run(self._connection, f"SET LOCAL search_path = {listed}")

    def _in_own_words(self, text: str, ddl: Ddl) -> None:
        self._left_out.pop(missing_features.redefined(text), None)
        if (from_above := missing_features.inherited(text)) and from_above[1] in self._columns(from_above[0]):
            # A partition must not even be queried.
            return
        cause = permitted_ddl.cause_to_leave_out(self._connection, text, str(ddl.object))
        # Its names are qualified, or belong to extensions.
        run(self._connection, "SET LOCAL search_path = public")
        verb, _, kind = ddl.kind.partition(" ")
        what = left_out.listed_object(ddl)
        if kind == "TYPE" and self._stands_in(text, ddl):
            return
        # Its other effects concern other tables.
        indexed = ddl.does[0].of if ddl.kind == "CREATE INDEX" and ddl.does else None
        if self._patterns and indexed and not self._is_there(indexed):
            # This replica does not have the table.
            return
        view = permitted_ddl.view_of(text)
        if cause:
            self._leave_out(what, cause)
            if view is not None:
                self.access.withdraw(view)
            return
        made = PostgresStatement(text, what if permitted_ddl.may_be_left_out(text) else None)
        self.execute(made, view=view, is_change=verb not in ("CREATE", "DROP"), is_retried=verb == "CREATE")

    def try_again(self) -> None:
        """Make left-out objects whose missing objects exist now.

        One statement may create an object that another one needs.
        """
        is_made = True
        while is_made:
            tried = [self._is_made(what, statement) for what, statement in [*left_out.to_retry(self._left_out)]]
            is_made = any(tried)

    def _is_made(self, what: str, statement: str) -> bool:
        error = self._try(statement, what)
        if is_access(statement):
            # On failure, it is listed again.
            return what not in self._left_out
        if error and isinstance(error.__cause__, _LACKS_WHAT_COMES):
            return False
        if error is None or isinstance(error.__cause__, _IS_THERE):
            del self._left_out[what]
        else:
            self._list(what, error, statement)
        return error is None

    def _lacks_names(self, ddl: Ddl) -> bool:
        """Return whether a column should have got its name from a parent table that this replica lacks.

        Otherwise, PostgreSQL already has the object of an empty statement, or does not need it.
        """
        if not self._patterns or ddl.kind != "ALTER TABLE" or ddl.layout is None or ddl.object not in self._replicated:
            return False
        present = self._columns(ddl.object)
        return any(column.name not in present for column in ddl.layout.columns)

    def _columns(self, table: Name) -> set[str]:
        return {name for (name,) in fetch(self._connection, _COLUMNS, [table.sql])}

    def _stands_in(self, text: str, ddl: Ddl) -> bool:
        """Return whether a type needs no statement: the owner of the replica created it, and keeps it.

        This may be a base type, which otherwise becomes a domain, or the row type of a foreign table.
        """
        found = fetch(self._connection, _OWNERS_TYPE, [ddl.object.sql])
        is_domain = ddl.kind == "CREATE TYPE" and text.startswith("CREATE DOMAIN ")
        if found == [("foreign",)] or (found == [("base",)] and (is_domain or ddl.kind == "DROP TYPE")):
            return True
        if is_domain:
            self._leave_out(f"base type {ddl.object}", _ITS_VALUES)
        return False

    def _do_without(self, text: str, ddl: Ddl, error: StepError) -> bool:
        """Make a change of tables without parts that the server cannot create, and return whether that is possible.

        Args:
            text: The failed statement; statements derived from it name no other objects.
            ddl: Its record.
            error: Its error.
        """
        own = [effect for effect in ddl.does if ddl.object in (effect.object.name, effect.of)]
        altered = (effect.parents for effect in own if isinstance(effect, AlteredObject))
        parents = next((found for found in altered if found is not None), None)
        if self._refers_to_nothing(ddl.object, own, parents, error):
            if parents is not None:
                return True
        elif parents is not None and isinstance(error.__cause__, psycopg.Error):
            return self._inherit(ddl.object, parents)
        elif not isinstance(error, ReachingError) and not isinstance(error.__cause__, _LACKS):
            return False
        if any(isinstance(effect, RenamedObject) and left_out.listed(effect) in self._left_out for effect in own):
            return True
        for lesser in missing_features.lesser(text):
            if lesser.sql and self._try(lesser.sql, str(ddl.object)):
                continue
            for part in lesser.parts:
                if failed := self._try(part.sql, str(ddl.object)) if part.sql else error:
                    self._list(part.what, failed, part.sql)
            return True
        return False

    def _refers_to_nothing(
        self, table: Name, own: Collection[DdlEffect], parents: Sequence[Name] | None, error: StepError
    ) -> bool:
        """Return whether a change failed because it names a second table that the replica lacks."""
        if not isinstance(error.__cause__, errors.UndefinedTable):
            return False
        made = {effect.object.kind for effect in own if isinstance(effect, CreatedObject)}
        if "TABLE" in made:
            return True
        is_above = parents is not None and not any(map(self._is_there, parents[-1:]))
        return (is_above or "CONSTRAINT" in made) and self._is_there(table)

    def _inherit(self, table: Name, parents: Collection[Name]) -> bool:
        """Make a table inherit from its parents, since a parent's partitioning is left out; return whether it can."""
        present = self._kin("inhparent", "inhrelid", table)
        changes = [f"NO INHERIT {parent.sql}" for parent in present if parent not in parents]
        changes += [f"INHERIT {parent.sql}" for parent in parents if parent not in present]
        statements = [f"ALTER TABLE {table.sql} {change}" for change in changes]
        if not any(self._try(each, str(table)) for each in statements):
            return True
        if not parents or fetch(self._connection, _IS_PARTITIONED, [table.sql]) != [(True,)]:
            return False
        # A partitioned table cannot inherit.
        let_go(self._connection, [table])
        partitions = self._kin("inhrelid", "inhparent", table)
        if (
            any(self._try(each, str(table)) for each in missing_features.flattened(table, partitions))
            or not all(self._inherit(partition, [table]) for partition in partitions)
            or any(self._try(each, str(table)) for each in statements)
        ):
            return False
        self.rebuilt.add(table)
        self._leave_out(f"partitioning of table {table}", "that of its parent table is left out")
        return True

    def _kin(self, wanted: str, known: str, table: Name) -> list[Name]:
        return [Name(*found) for found in fetch(self._connection, _KIN.format(wanted, known), [table.sql])]

    def _try(self, statement: str, about: str) -> StepError | None:
        """Run a statement of the farm, or one derived from it, and return the cause of a failure."""
        try:
            with self._undoing():
                run(self._connection, "SET LOCAL search_path = public")
                if is_access(statement):
                    self.access.run(statement)
                    return None
                permitted_ddl.check(self._connection, statement, about)
                permitted_ddl.refuse_owners(self._connection, statement, about)
                self._run_foreign(statement, permitted_ddl.view_of(statement))
        except StepError as error:
            return error
        return None

    @contextmanager
    def _undoing(self) -> Iterator[None]:
        """Roll back a failing part of a step, also after a missing privilege."""
        try:
            with applying(self._address), self._connection.transaction():
                yield
        except InvalidError as error:
            raise StepError(error.message) from error.__cause__

    def _run_foreign(self, statement: str, view: Name | None) -> None:
        run_foreign(self._connection, statement)
        if view is not None:
            self.access.refuse_owners(view)

    def _list(self, what: str, error: StepError, statement: str) -> None:
        """List a left-out object, with the statement that makes it; "" without one."""
        if statement and isinstance(error.__cause__, _LACKS_WHAT_COMES):
            # It may be created in the same step, whose end warns of it.
            self._left_out[what] = f"{error.cause}{left_out.THEN_RUN}{statement}"
        else:
            self._leave_out(what, error.cause, f"{left_out.OR_RUN}{statement}" if statement else "")

    def _leave_out(self, what: str, cause: str, remedy: str = "") -> None:
        self._left_out[what] = f"{cause}{remedy}"
        warnings.warn(f"{what} is left out: {cause}", stacklevel=2)

    def _is_there(self, name: Name) -> bool:
        return fetch(self._connection, "SELECT to_regclass(%s)::oid", [name.sql]) != [(None,)]

    def _translated(self, ddl: Ddl, *, is_rewritten: bool, holds_back: list[PostgresStatement] | None) -> None:
        catalog = PostgresCatalog(self._connection)
        try:
            made = Translator(ddl, catalog, self._names, self._master, is_rewritten=is_rewritten).translate()
        except UnsupportedError as error:
            cause = f"no counterpart in PostgreSQL of {short(ddl.statement)}: {error.message[:200]}; {_HINT}"
            raise StepError(cause, table=str(ddl.object)) from error
        if made.left_out:
            what, _, cause = made.left_out.partition(" is left out: ")
            self._leave_out(what, cause)
        if made.touches is not None and made.touches not in self._replicated and made.touches in catalog.kinds:
            # A table of the same name belongs to the replica's owner.
            raise StepError(f"table {made.touches} is not replicated", table=str(ddl.object))
        if made.fields_of is not None:
            self._refuse_rows(made.fields_of, ddl)
        self._execute(made, holds_back)
        if self._patterns and self._names.main == MAIN != ddl.object.schema and ddl.kind == "CREATE TABLE":
            # The statement of a PostgreSQL master does not apply: the table was restored under its new name.
            for what in (unknown_access(ddl.object), f"constraints, defaults and indexes of table {ddl.object}"):
                self._left_out[what] = "a rename moved the table into the replica; rebuild the replica"

    def _execute(self, translation: Translation, holds_back: list[PostgresStatement] | None) -> None:
        views = views_over(self._connection, translation.replaces) if translation.replaces else []
        for view, kind, _ in reversed(views):
            run(self._connection, f"DROP {'MATERIALIZED ' if kind == 'm' else ''}VIEW {view.sql}")
        for statement in translation.statements:
            if holds_back is not None and statement.is_late:
                holds_back.append(statement)
            else:
                self.execute(statement)
        for view, kind, definition in views:
            made = f"CREATE {'MATERIALIZED ' if kind == 'm' else ''}VIEW {view.sql} AS {definition}"
            self.execute(PostgresStatement(made, f"view {view}"))

    def execute(
        self,
        statement: PostgresStatement,
        *,
        view: Name | None = None,
        is_change: bool = False,
        is_retried: bool = False,
    ) -> None:
        """Run a translated statement. If it fails and may be left out, list it.

        Args:
            statement: The statement.
            view: The view that it makes or changes, of a PostgreSQL master.
            is_change: It changes an object, whose entries stay.
            is_retried: It can be run again once the missing objects exist.

        Raises:
            StepError: The statement failed and must not be left out.
        """
        if statement.what is None:
            run_foreign(self._connection, statement.sql)
            return
        if not statement.sql:
            self._leave_out(statement.what, "PostgreSQL has no counterpart")
        else:
            try:
                with self._undoing():
                    self._run_foreign(statement.sql, view)
                if not is_change:
                    self._left_out.pop(statement.what, None)
                return
            except StepError as error:
                if is_change and (self._patterns or statement.what in self._left_out):
                    return
                is_lacking = isinstance(error.__cause__, _LACKS_WHAT_COMES)
                self._list(statement.what, error, statement.sql if is_retried and is_lacking else "")
        if view is not None:
            self.access.withdraw(view)

    def _refuse_rows(self, table: Name, ddl: Ddl) -> None:
        if fetch(self._connection, f"SELECT EXISTS (SELECT FROM {table.sql})")[0][0]:
            cause = f"fields of existing values cannot be changed in PostgreSQL: {short(ddl.statement)}; {_HINT}"
            raise StepError(cause, table=str(ddl.object))

    def set_sequence(self, sequence: SequencePosition) -> None:
        """Set the position of a sequence."""
        name = self._names.place(sequence.sequence)
        # The sequence of an identity column belongs to its table, which a replica of some tables may lack.
        found = "to_regclass(%s)" if self._patterns else "%s::regclass"
        self._connection.execute(f"SELECT setval({found}, %s)".encode(), [name.sql, sequence.value])
