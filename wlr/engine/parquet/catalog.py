"""The schema of a Parquet replica as a DuckDB catalog in memory, with empty tables: DDL from the log runs there.

What DDL means for the rows is found by comparing the catalog before and after: a table that is new has none, one that
is gone has lost them, and one whose stored columns changed needs its files rewritten, see `alter`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb.schema import schema_statements
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Name, SequencePosition
from wlr.ddl import relevance, running
from wlr.engine.calculator import applying, open_scratch
from wlr.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from wlc.farm.model import Ddl, Layout


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table of the catalog: `id` stays the same however it is altered or renamed."""

    id: int
    name: Name
    layout: Layout


class LakeCatalog:
    """The schema at one moment. Changes cannot be undone: after a failure it is loaded anew.

    They are not made in a transaction, because other cursors have to see them for the schema to be read completely.

    Args:
        name: Name that DDL text gives the database.
        patterns: Which tables are replicated; empty for all.
        url: The replica, for messages.
    """

    def __init__(self, name: str, patterns: Collection[str], url: str) -> None:
        self._name = name
        self._patterns = patterns
        self._where = Path(url)
        self._connection = open_scratch(name)
        self._connection.execute("SET enable_external_access = false")
        self._tables: dict[Name, CatalogTable] | None = None
        # Ids of tables that were made anew, with those that they had first.
        self._first_ids: dict[int, int] = {}

    def load(self, statements: Iterable[Ddl], sequences: Iterable[SequencePosition] = ()) -> None:
        """Build the schema of a snapshot or a manifest.

        Raises:
            UnsupportedError: A statement cannot be run.
        """
        for statement in statements:
            try:
                self.run(statement, is_snapshot=True)
            except StepError as error:
                if relevance.may_fail(statement, self._patterns, self.tables()):
                    continue
                raise relevance.unmet_reference(statement, self._patterns) or UnsupportedError(
                    f"{statement.kind} {statement.object} cannot be run: {error.cause}",
                    hint="It was written by another version, or does not fit --tables.",
                ) from error
        for sequence in sequences:
            self.set_sequence(sequence)

    def tables(self) -> dict[Name, CatalogTable]:
        """Return all user tables."""
        if self._tables is not None:
            return self._tables
        layouts = catalogs.tables(self._connection, self._name)
        ids = self._ids()
        self._tables = {
            name: CatalogTable(self._first_ids.get(ids[name], ids[name]), name, layout)
            for name, layout in layouts.items()
        }
        return self._tables

    def _ids(self) -> dict[Name, int]:
        query = f"SELECT schema_name, table_name, table_oid FROM duckdb_tables() WHERE {catalogs.USER}"
        return {Name(schema, name): oid for schema, name, oid in catalogs.rows(self._connection, self._name, query)}

    def run(self, statement: Ddl, *, is_snapshot: bool = False) -> bool:
        """Run a statement from the log or a snapshot, unless it is about a table that is not replicated.

        Returns:
            Whether it ran.

        Raises:
            StepError: It cannot be run.
        """
        if not relevance.is_run(statement, self._patterns):
            return False
        # A snapshot's statements alter no table.
        before = {} if is_snapshot else self.tables()
        self._tables = None
        try:
            with applying(self._where):
                if is_snapshot:
                    statement = running.without_outside(self._connection, self._name, statement)
                else:
                    running.check(self._connection, self._name, statement)
                made_anew = running.run(self._connection, self._name, statement)
        except StepError as error:
            error.table = str(statement.object)
            raise
        if made_anew:
            self._first_ids[self._ids()[made_anew]] = before[made_anew].id
        return True

    def set_sequence(self, sequence: SequencePosition) -> None:
        """Set the position of a sequence."""
        running.set_sequence(self._connection, self._name, sequence)

    def statements(self) -> tuple[tuple[Ddl, ...], tuple[Ddl, ...]]:
        """Return the statements that build the schema again: before rows are loaded, and after."""
        return schema_statements(self._connection, self._name)

    def sequences(self) -> tuple[SequencePosition, ...]:
        """Return where sequences stand."""
        return tuple(
            SequencePosition(name, value) for name, value in catalogs.sequences(self._connection, self._name).items()
        )

    def close(self) -> None:
        """Forget it."""
        self._connection.close()


def by_id(tables: Mapping[Name, CatalogTable]) -> dict[int, CatalogTable]:
    """Index tables by their ids."""
    return {table.id: table for table in tables.values()}
