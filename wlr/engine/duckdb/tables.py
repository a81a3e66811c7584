"""Keys, references and order of a target's tables, which writing to them needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb.fold import TargetTable
from wlc.dialect.sql import quote
from wlc.farm.model import Name

if TYPE_CHECKING:
    import duckdb

    from wlc.farm.model import Layout
    from wlr.engine.duckdb.objects import DatabaseObject

_COLLATED = "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = ? AND sql ILIKE '%COLLATE%'"


@dataclass(frozen=True, slots=True)
class TargetTables:
    """A target's tables as its catalog describes them at one moment.

    Attributes:
        order: All user tables, every one after those it refers to.
        parents: For each table with foreign keys those that they refer to.
    """

    catalog: str
    order: tuple[Name, ...]
    parents: dict[Name, frozenset[Name]]
    collated: frozenset[Name]
    references_itself: dict[Name, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = field(default_factory=dict)

    def describe(self, name: Name, layout: Layout) -> TargetTable:
        """Describe a table whose rows have a layout."""
        return TargetTable(
            name,
            f"{quote(self.catalog)}.{name.sql}",
            layout,
            is_collated=name in self.collated,
            is_referenced=any(name in parents for parents in self.parents.values()),
            references_itself=self.references_itself.get(name, ()),
            has_rowid=all(column.name.lower() != "rowid" for column in layout.columns),
        )


class Contents(NamedTuple):
    """What a replica's file contains besides rows, and what only a schema change alters.

    Attributes:
        replicated: Tables that are replicated.
        tables: All tables.
        made: What replication made besides tables; None unless the file is shared with things of an owner's.
        is_guarded: Every replicated table is known to have its guard.
    """

    replicated: set[Name]
    tables: TargetTables
    made: frozenset[DatabaseObject] | None
    is_guarded: bool


def read_tables(connection: duckdb.DuckDBPyConnection, catalog: str) -> TargetTables:
    """Read the catalog as it is now."""
    itself: dict[Name, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {}
    keys = catalogs.references(connection, catalog)
    parents = catalogs.parents_of(keys)
    for key in keys:
        if key.table == key.parent:
            itself[key.table] = (*itself.get(key.table, ()), (key.columns, key.referred))
    return TargetTables(
        catalog,
        tuple(catalogs.ordered(catalogs.tables(connection, catalog), parents)),
        parents,
        frozenset(Name(*row) for row in connection.execute(_COLLATED, [catalog]).fetchall()),
        itself,
    )
