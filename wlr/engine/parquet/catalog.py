"""The schema of a Parquet replica as a DuckDB catalog in memory, with empty tables: DDL from the log runs there.

Comparing the catalog before and after DDL shows its effect on rows: a new table has none, a dropped table has lost
them, and a table with other stored columns needs its files rewritten, see `alter`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb.schema import schema_statements
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Name, SequencePosition
from wlr.engine.calculator import applying, open_scratch
from wlr.engine.contract import loading
from wlr.replay.ddl import left_out, running
from wlr.replay.ddl.claims import NOTHING, Claims, shown
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from wlc.farm.model import Ddl, Layout
    from wlr.replay.ddl.claims import ShownCatalog

_HINT = "It was written by another version, or does not fit --tables."


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table of the catalog: `id` survives alterations and renames."""

    id: int
    name: Name
    layout: Layout


class LakeCatalog:
    """The schema at one moment. Changes cannot be undone: after a failure, it is loaded again.

    There is no transaction, because other cursors must see the changes to read the whole schema.

    Args:
        name: Name that DDL text gives the database.
        patterns: Patterns of the replicated tables; empty for all.
        url: The replica, for messages.
        is_whole: No transaction was skipped.
    """

    def __init__(self, name: str, patterns: Collection[str], url: str, *, is_whole: bool = True) -> None:
        self._name = name
        self._patterns = patterns
        self._is_whole = is_whole
        self._where = Path(url)
        self._connection = open_scratch(name)
        self._connection.execute("SET enable_external_access = false")
        self._shown: ShownCatalog | None = None
        self._tables: dict[Name, CatalogTable] | None = None
        # Ids of rebuilt tables, with their first ids.
        self._first_ids: dict[int, int] = {}

    def load(self, statements: Iterable[Ddl], sequences: Iterable[SequencePosition] = ()) -> None:
        """Build the schema of a snapshot or a manifest.

        Raises:
            UnsupportedError: A statement cannot be run.
            CorruptError: The statements' effects differ from the recorded ones.
        """
        ran = []
        for statement in statements:
            try:
                ran += [statement] if self.run(statement, is_snapshot=True) else []
            except StepError as error:
                if left_out.may_fail(statement, self._patterns, self.tables()):
                    continue
                raise left_out.unmet_reference(statement, self._patterns) or UnsupportedError(
                    f"{statement.kind} {statement.object} cannot be run: {error.cause}",
                    hint=_HINT,
                ) from error
        with loading("the schema", _HINT):
            Claims(NOTHING, self._patterns).refuse_contradiction(ran, self._show())
        for sequence in sequences:
            self.set_sequence(sequence)

    def tables(self) -> dict[Name, CatalogTable]:
        """Return all user tables."""
        if self._tables is None:
            shown = self._show()
            self._tables = {
                name: CatalogTable(self._first_ids.get(oid := shown.ids[name], oid), name, table.layout)
                for name, table in shown.schema.tables.items()
                if table.layout is not None
            }
        return self._tables

    def _show(self) -> ShownCatalog:
        self._shown = self._shown or shown(self._connection, self._name)
        return self._shown

    def run(self, statement: Ddl, *, is_snapshot: bool = False) -> bool:
        """Run a statement from the log or a snapshot, unless it is about a table that is not replicated.

        Returns:
            Whether it ran.

        Raises:
            StepError: It cannot be run.
        """
        if not left_out.is_run(statement, self._patterns):
            return False
        # The statements of a snapshot alter no table, and are compared together.
        before = NOTHING if is_snapshot else self._show()
        self._shown = self._tables = None
        try:
            with applying(self._where):
                if is_snapshot:
                    statement = running.without_outside(self._connection, self._name, statement)
                else:
                    running.check(self._connection, self._name, statement)
                rebuilt = running.run(self._connection, self._name, statement)
            if not is_snapshot:
                claims = Claims(before, self._patterns, is_whole=self._is_whole)
                claims.refuse_contradiction([statement], self._show(), [rebuilt] if rebuilt else ())
        except StepError as error:
            error.table = str(statement.object)
            raise
        if rebuilt:
            first = before.ids[rebuilt]
            self._first_ids[self._show().ids[rebuilt]] = self._first_ids.get(first, first)
        return True

    def set_sequence(self, sequence: SequencePosition) -> None:
        """Set the position of a sequence."""
        running.set_sequence(self._connection, self._name, sequence)

    def statements(self) -> tuple[tuple[Ddl, ...], tuple[Ddl, ...]]:
        """Return the statements that rebuild the schema: before and after the loading of rows."""
        return schema_statements(self._connection, self._name)

    def sequences(self) -> tuple[SequencePosition, ...]:
        """Return the positions of sequences."""
        return tuple(
            SequencePosition(name, value) for name, value in catalogs.sequences(self._connection, self._name).items()
        )

    def close(self) -> None:
        """Forget it."""
        self._connection.close()


def by_id(tables: Mapping[Name, CatalogTable]) -> dict[int, CatalogTable]:
    """Index tables by their ids."""
    return {table.id: table for table in tables.values()}
