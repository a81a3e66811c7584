"""Keys, references and order of a target's tables, which writing to them needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb.fold import TargetTable
from wlc.dialect.sql import quote
from wlc.farm.model import Name, Reference
from wlr.ddl.shown_catalog import shown

if TYPE_CHECKING:
    import duckdb

    from wlc.farm.model import Layout
    from wlr.ddl.claims import ShownCatalog
    from wlr.engine.duckdb.objects import DatabaseObject


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
    return shown_tables(catalog, shown(connection, catalog))


def shown_tables(catalog: str, shown: ShownCatalog) -> TargetTables:
    """Describe the tables that a catalog shows."""
    tables = shown.schema.tables
    keys = {name: [c for c in table.constraints if isinstance(c, Reference)] for name, table in tables.items()}
    parents = {name: frozenset(key.to for key in listed) for name, listed in keys.items() if listed}
    itself = {name: tuple((key.columns, key.keys) for key in listed if key.to == name) for name, listed in keys.items()}
    return TargetTables(
        catalog,
        tuple(catalogs.ordered(keys, parents)),
        parents,
        frozenset(name for name, sql in shown.definitions.items() if "COLLATE" in sql.upper()),
        {name: listed for name, listed in itself.items() if listed},
    )
