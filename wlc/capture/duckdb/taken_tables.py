"""The tables of a master while it takes another site's transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.capture.duckdb import journal
from wlc.capture.duckdb.journal import CapturedTable
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import duckdb


@dataclass(frozen=True, slots=True)
class SeenTable(CapturedTable):
    """A table whose rows are read from another relation: a table, or a query in parentheses."""

    seen: str = ""

    @classmethod
    def of(cls, table: CapturedTable, seen: str) -> SeenTable:
        """Return a table that is read elsewhere."""
        return cls(table.id, table.catalog, table.name, table.layout, table.keys, table.has_rowid, seen=seen)

    @property
    def sql(self) -> str:
        """Where its rows are read."""
        return self.seen


@dataclass(frozen=True, slots=True)
class TakenTable:
    """A table of the master with its special properties.

    Attributes:
        is_referenced: Foreign keys refer to the table, so that a row whose key stays must stay.
        references_itself: Columns, and those that they refer to, of its foreign keys to itself.
    """

    table: CapturedTable
    is_referenced: bool
    references_itself: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]


def tables(connection: duckdb.DuckDBPyConnection, catalog: str) -> tuple[dict[Name, TakenTable], Mapping[Name, int]]:
    """Return the tables as the transaction sees them, and the order of each after those it refers to."""
    known = {name: number for number, (name, _) in journal.read_layouts(connection, catalog).items()}
    present = duckdb_catalog.tables(connection, catalog)
    keys = duckdb_catalog.references(connection, catalog)
    parents = duckdb_catalog.parents_of(keys)
    order = {name: place for place, name in enumerate(duckdb_catalog.ordered(present, parents))}
    found = {
        name: TakenTable(
            CapturedTable(known[name], catalog, name, layout),
            is_referenced=any(key.parent == name for key in keys),
            references_itself=tuple((key.columns, key.referred) for key in keys if key.table == key.parent == name),
        )
        for name, layout in present.items()
        if name in known
    }
    return found, order


def constrained(connection: duckdb.DuckDBPyConnection, catalog: str) -> set[Name]:
    """Return the tables that have a constraint between rows beside the key: UNIQUE, or a FOREIGN KEY from or to it."""
    indexes = "SELECT schema_name, table_name FROM duckdb_indexes() WHERE database_name = ? AND is_unique"
    found = {Name(*row) for row in connection.execute(indexes, [catalog]).fetchall()}
    found.update(duckdb_catalog.unique_keys(connection, catalog))
    for key in duckdb_catalog.references(connection, catalog):
        found |= {key.table, key.parent}
    return found


def refuse_triggers(
    connection: duckdb.DuckDBPyConnection, catalog: str, names: Iterable[Name], rows: str = "rows of other sites"
) -> None:
    """Refuse tables with a trigger, which would write other rows."""
    query = "SELECT schema_name, table_name, trigger_name FROM duckdb_triggers() WHERE database_name = ?"
    triggers = {
        Name(schema, table): trigger for schema, table, trigger in connection.execute(query, [catalog]).fetchall()
    }
    for name in names:
        if name in triggers:
            raise UnsupportedError(
                f"table {name} has a trigger, {triggers[name]}, which would run again for {rows}",
                hint=f"DROP TRIGGER {triggers[name]} ON {name}",
            )
