"""Schema changes of a plain connection as the capture records them, and what they add up to beside the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.capture.duckdb import schema_change
from wlc.capture.duckdb.schema_change import CatalogEntry, effects
from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb.catalog import OWNED, USER, tables
from wlc.dialect.duckdb.constraints import LISTED
from wlc.farm.model import Check, Reference, Unique
from wlc.farm.schema_fold import column_names

if TYPE_CHECKING:
    import duckdb

    from wlc.capture.duckdb.schema_change import Objects
    from wlc.farm.model import Ddl, DdlEffect, Layout, Name, TableConstraint
    from wlc.farm.schema_fold import SchemaFold


_TABLES = f"""
    SELECT 'TABLE', t.schema_name, t.table_name, t.table_oid, sql, comment, NULL, NULL, c.listed, NULL
    FROM (FROM duckdb_tables() WHERE {USER}) t LEFT JOIN ({LISTED}) c USING (table_oid)
    UNION ALL SELECT 'INDEX', schema_name, index_name, index_oid, sql, comment, NULL, table_name, NULL,
        CASE WHEN is_unique THEN CAST(expressions AS VARCHAR[]) END FROM duckdb_indexes() WHERE {OWNED}
    UNION ALL SELECT 'VIEW', schema_name, view_name, view_oid, sql, comment, NULL, NULL, NULL, NULL
        FROM duckdb_views() WHERE {USER}
    UNION ALL SELECT 'SEQUENCE', schema_name, sequence_name, sequence_oid, NULL, comment, NULL, NULL, NULL, NULL
        FROM duckdb_sequences() WHERE {OWNED}
    UNION ALL SELECT 'TYPE', schema_name, type_name, type_oid, NULL, comment, NULL, NULL, NULL, NULL
        FROM duckdb_types() WHERE {USER}
    UNION ALL SELECT 'SCHEMA', schema_name, schema_name, oid, NULL, comment, NULL, NULL, NULL, NULL
        FROM duckdb_schemas() WHERE {USER} AND schema_name <> 'main'
"""


class TableChanges:
    """Says what statements do to a database, but for macros and triggers, in less time than `SchemaChanges`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
        self._connection, self._catalog = connection, catalog
        self._objects: Objects = {}
        self.layouts: dict[Name, Layout] = {}

    def run(self, text: str) -> tuple[DdlEffect, ...]:
        """Run a statement, and return what it did."""
        self._connection.execute(text)
        rows = catalogs.rows(self._connection, self._catalog, _TABLES)
        after = {(kind, schema, name): CatalogEntry(*rest) for kind, schema, name, *rest in rows}
        before, self._objects = self._objects, after
        old, self.layouts = self.layouts, catalogs.tables(self._connection, self._catalog)
        return effects(before, after, old, self.layouts)


class SchemaChanges:
    """Runs statements in the database `memory`, and returns their records."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._objects = schema_change.objects(connection, "memory")
        self._layouts = tables(connection, "memory")

    def run(self, text: str) -> list[Ddl]:
        """Return what is recorded of a statement, nothing if it changes nothing."""
        self._connection.execute(text)
        before, after = self._objects, schema_change.objects(self._connection, "memory")
        old, self._objects = self._layouts, after
        layouts = self._layouts = tables(self._connection, "memory")
        if before == after:
            return []
        change = schema_change.difference(effects(before, after, old, layouts))
        return schema_change.statements(self._connection, "memory", text, change, layouts)


def refuse_differences(fold: SchemaFold, connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Compare what statements said with what a database has: tables, constraints, indexes, and names of the rest."""
    layouts = tables(connection, catalog)
    assert {name: table.layout for name, table in fold.tables.items()} == layouts
    for name, layout in layouts.items():
        assert (fold.tables[name].columns, fold.tables[name].key) == (column_names(layout), layout.primary_key)
    said = {(name.schema, name.name): found.constraints for name, found in fold.tables.items() if found.constraints}
    shown = {name: sorted(map(_shown, found)) for name, found in said.items()}
    assert shown == {name: sorted(found) for name, found in _constraints(connection, catalog).items()}
    query = f"""
        SELECT schema_name, index_name, table_name, is_unique, is_unique::INTEGER * len(CAST(expressions AS VARCHAR[]))
        FROM duckdb_indexes() WHERE {OWNED}
    """
    indexes = [
        (name.schema, name.name, found.of.name, bool(found.unique), len(found.unique))
        for name, found in fold.indexes.items()
    ]
    assert sorted(indexes) == sorted(catalogs.rows(connection, catalog, query))
    others = {(found.kind, found.name.schema, found.name.name) for found, _ in fold.others}
    assert others == set(catalogs.rows(connection, catalog, _OTHERS))


_OTHERS = f"""
    SELECT 'VIEW', schema_name, view_name FROM duckdb_views() WHERE {USER}
    UNION ALL SELECT 'SEQUENCE', schema_name, sequence_name FROM duckdb_sequences() WHERE {OWNED}
    UNION ALL SELECT 'TYPE', schema_name, type_name FROM duckdb_types() WHERE {USER}
    UNION ALL SELECT 'MACRO', schema_name, function_name FROM duckdb_functions() WHERE {USER}
    UNION ALL SELECT 'SCHEMA', schema_name, schema_name FROM duckdb_schemas() WHERE {USER} AND schema_name <> 'main'
"""
_CONSTRAINTS = f"""
    SELECT schema_name, table_name, constraint_type, constraint_column_names, expression, referenced_table,
        referenced_column_names
    FROM duckdb_constraints() WHERE {OWNED} AND constraint_type IN ('UNIQUE', 'CHECK', 'FOREIGN KEY')
    ORDER BY constraint_index
"""


def _constraints(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[tuple[str, str], list[tuple[str, ...]]]:
    """Return what DuckDB lists of the constraints of each table. It lists names as they were typed."""
    listed: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for schema, table, kind, columns, sql, parent, keys in catalogs.rows(connection, catalog, _CONSTRAINTS):
        names, told = " ".join(columns).lower(), " ".join(keys).lower()
        parts = {"UNIQUE": (names,), "CHECK": (names, sql), "FOREIGN KEY": (names, str(parent).lower(), told)}
        listed.setdefault((schema, table), []).append((kind, *parts[kind]))
    return listed


def _shown(constraint: TableConstraint) -> tuple[str, ...]:
    columns = " ".join(constraint.columns).lower()
    match constraint:
        case Unique():
            return "UNIQUE", columns
        case Check(_, sql):
            return "CHECK", columns, sql
        case Reference(_, to, keys):
            return "FOREIGN KEY", columns, to.name.lower(), " ".join(keys).lower()
