"""What a DuckDB catalog shows, to compare it with what statements say that they did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb.catalog import OWNED, USER
from wlc.dialect.duckdb.constraints import (
    UNIQUE_EXPRESSIONS,
    as_constraints,
    layout_of,
    listed_constraints,
    unique_columns,
)
from wlc.farm.model import DbObject, Name
from wlc.farm.schema_fold import FoldedIndex, FoldedTable, SchemaFold, column_names
from wlr.ddl.claims import ShownCatalog

if TYPE_CHECKING:
    import duckdb

# Macros are missing: DuckDB lists its own functions with them, which takes longer than all the rest.
_KINDS = frozenset({"SCHEMA", "VIEW", "SEQUENCE", "TYPE"})
_SHOWN = f"""
    SELECT 'TABLE', schema_name, table_name, table_oid, sql, NULL AS above, NULL AS parts
        FROM duckdb_tables() WHERE {USER} AND NOT temporary
    UNION ALL SELECT 'INDEX', schema_name, index_name, NULL, NULL, table_name, {UNIQUE_EXPRESSIONS}
        FROM duckdb_indexes() WHERE {OWNED}
    UNION ALL SELECT 'SCHEMA', schema_name, schema_name, NULL, NULL, parent_schema, NULL FROM duckdb_schemas()
        WHERE {USER} AND (schema_name <> 'main' OR parent_schema IS NOT NULL)
    UNION ALL SELECT 'VIEW', schema_name, view_name, NULL, NULL, NULL, NULL FROM duckdb_views()
        WHERE {USER} AND NOT temporary
    UNION ALL SELECT 'SEQUENCE', schema_name, sequence_name, NULL, NULL, NULL, NULL FROM duckdb_sequences()
        WHERE {OWNED} AND NOT temporary
    UNION ALL SELECT 'TYPE', schema_name, type_name, NULL, NULL, NULL, labels FROM duckdb_types() WHERE {USER}
"""


def shown(connection: duckdb.DuckDBPyConnection, catalog: str) -> ShownCatalog:
    """Return what a database contains, but for macros and triggers; tables are ordered by name.

    Raises:
        UnsupportedError: A schema lies inside another one.
    """
    found = catalogs.rows(connection, catalog, _SHOWN)
    if any(kind == "SCHEMA" and parent is not None for kind, _, _, _, _, parent, _ in found):
        catalogs.refuse_nested_schemas(connection, catalog)
    ids = {Name(schema, own): oid for kind, schema, own, oid, *_ in found if kind == "TABLE"}
    ids = {name: ids[name] for name in sorted(ids)}
    columns = catalogs.by_table(catalogs.columns_of(connection, catalog, ids))
    listed = listed_constraints(connection, catalog)
    layouts = {name: layout_of(columns[name], listed.get(name, ())) for name in ids}
    fold, values = SchemaFold(), {}
    for name, layout in layouts.items():
        constraints = as_constraints(listed.get(name), name, layouts)
        fold.tables[name] = FoldedTable(name, column_names(layout), layout.primary_key, constraints, layout=layout)
    for kind, schema, own, _, _, table, parts in found:
        name = Name(schema, own)
        if kind == "INDEX":
            of = Name(schema, table)
            fold.indexes[name] = FoldedIndex(of, unique_columns(parts, layouts.get(of)))
        elif kind != "TABLE":
            fold.others.add((DbObject(kind, name), None))
            if parts is not None:
                values[name] = frozenset(parts)
    definitions = {Name(schema, own): sql for kind, schema, own, _, sql, _, _ in found if kind == "TABLE"}
    return ShownCatalog(fold, ids, definitions, _KINDS, values)
