"""Schema changes from the farm, run in PostgreSQL in the words of PostgreSQL."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from wlc.errors import UnsupportedError
from wlc.model import Name, quote
from wlr.engine import StepError
from wlr.engine.duckdb.ddl import is_trigger, is_wanted, may_fail
from wlr.engine.postgres import original
from wlr.engine.postgres.catalog import Catalog, views_over
from wlr.engine.postgres.connection import applying, fetch, run, run_foreign
from wlr.engine.postgres.names import is_own
from wlr.engine.postgres.translate import Plan, Statement, Translator

if TYPE_CHECKING:
    from collections.abc import Collection

    from wlc.model import Ddl, SequencePosition
    from wlr.engine.postgres.connection import Address, Connection
    from wlr.engine.postgres.names import Names

_HINT = "make the replica anew from a later snapshot, or accept the transaction"


def text_of(ddl: Ddl) -> str | None:
    """Return the statement in PostgreSQL's own words, if the master is PostgreSQL; None if it is to be translated."""
    said: str | None = getattr(ddl, "original", None)
    return said if said is not None else ddl.statement if ddl.dialect == "postgres" else None


class SchemaChange:
    """One schema change in an open transaction.

    Args:
        connection: In a transaction as a replica.
        address: Where that is.
        names: How names are mapped.
        master: Name that statements give the database.
        patterns: Of the tables that are replicated; empty for all.
        replicated: Tables that are replicated.
    """

    def __init__(
        self,
        connection: Connection,
        address: Address,
        names: Names,
        master: str,
        patterns: Collection[str],
        replicated: Collection[Name],
    ) -> None:
        self._connection = connection
        self._address = address
        self._names = names
        self._master = master
        self._patterns = patterns
        self._replicated = replicated

    def run(self, ddl: Ddl, *, is_rewritten: bool = False, holds_back: list[Statement] | None = None) -> None:
        """Make the change; what has no counterpart and no rows is left out with a warning.

        Args:
            ddl: The change.
            is_rewritten: The table was emptied, and all its rows follow.
            holds_back: Takes what is better done once rows are loaded.

        Raises:
            StepError: It cannot be made.
        """
        if is_trigger(ddl) or not is_wanted(ddl, self._patterns):
            return
        self._refuse_own(ddl)
        try:
            with applying(self._address), self._connection.transaction():
                if (text := text_of(ddl)) is not None:
                    self._in_own_words(text, ddl)
                else:
                    self._search(ddl.search_path)
                    self._translated(ddl, is_rewritten=is_rewritten, holds_back=holds_back)
        except StepError as error:
            if may_fail(ddl, self._patterns, self._replicated):
                return
            error.table = error.table or str(ddl.object)
            raise

    def _refuse_own(self, ddl: Ddl) -> None:
        for schema in (ddl.object.schema, ddl.search_path):
            if is_own(self._names.schema(schema)) and text_of(ddl) != "":
                raise StepError(f"schema {schema} is not the farm's to change: {ddl.statement}", table=str(ddl.object))

    def _search(self, schema: str) -> None:
        run(self._connection, f"SET LOCAL search_path = {quote(self._names.schema(schema))}")

    def _in_own_words(self, text: str, ddl: Ddl) -> None:
        if not text:
            # It is there already, or of no use here.
            return
        original.check(self._connection, text, str(ddl.object))
        # Names in it are qualified, or those of extensions.
        run(self._connection, "SET LOCAL search_path = public")
        what = f"{ddl.kind} {ddl.object}"
        if cause := original.left_out(text):
            warnings.warn(f"{what} is left out: {cause}", stacklevel=2)
        else:
            self.execute(Statement(text, what if original.may_be_left_out(text) else None))

    def _translated(self, ddl: Ddl, *, is_rewritten: bool, holds_back: list[Statement] | None) -> None:
        catalog = Catalog(self._connection)
        try:
            plan = Translator(ddl, catalog, self._names, self._master, is_rewritten=is_rewritten).plan()
        except UnsupportedError as error:
            cause = f"no counterpart in PostgreSQL of {ddl.statement}: {error.message}; {_HINT}"
            raise StepError(cause, table=str(ddl.object)) from error
        if plan.left_out:
            warnings.warn(plan.left_out, stacklevel=2)
        if plan.touches is not None and plan.touches not in self._replicated and plan.touches in catalog.kinds:
            # A table of the same name that belongs to the replica's owner.
            raise StepError(f"table {plan.touches} is not a replicated one", table=str(ddl.object))
        if plan.fields_of is not None:
            self._refuse_rows(plan.fields_of, ddl)
        self._execute(plan, holds_back)

    def _execute(self, plan: Plan, holds_back: list[Statement] | None) -> None:
        views = views_over(self._connection, plan.replaces) if plan.replaces else []
        for view, kind, _ in reversed(views):
            run(self._connection, f"DROP {'MATERIALIZED ' if kind == 'm' else ''}VIEW {view.sql}")
        for statement in plan.statements:
            if holds_back is not None and statement.is_late:
                holds_back.append(statement)
            else:
                self.execute(statement)
        for view, kind, definition in views:
            made = f"CREATE {'MATERIALIZED ' if kind == 'm' else ''}VIEW {view.sql} AS {definition}"
            self.execute(Statement(made, f"view {view}"))

    def execute(self, statement: Statement) -> None:
        """Run a translated statement; one that may be left out does not stop the others.

        Raises:
            StepError: It failed, and must not be left out.
        """
        if statement.what is None:
            run_foreign(self._connection, statement.sql)
            return
        cause = "PostgreSQL has no counterpart"
        if statement.sql:
            try:
                with applying(self._address), self._connection.transaction():
                    run_foreign(self._connection, statement.sql)
                return
            except StepError as error:
                cause = error.cause
        warnings.warn(f"{statement.what} is left out: {cause}", stacklevel=2)

    def _refuse_rows(self, table: Name, ddl: Ddl) -> None:
        if fetch(self._connection, f"SELECT EXISTS (SELECT FROM {table.sql})")[0][0]:
            cause = f"fields of values that are there cannot be changed in PostgreSQL: {ddl.statement}; {_HINT}"
            raise StepError(cause, table=str(ddl.object))

    def set_sequence(self, sequence: SequencePosition) -> None:
        """Set the position of a sequence."""
        name = self._names.place(sequence.sequence)
        self._connection.execute("SELECT setval(%s::regclass, %s)", [name.sql, sequence.value])
