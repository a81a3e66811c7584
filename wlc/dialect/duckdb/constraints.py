"""Constraints of tables as DuckDB's catalog lists them; primary keys are in `catalog.tables`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.catalog import OWNED, PLAIN_COLUMN, rows
from wlc.dialect.duckdb.lexer import unquoted
from wlc.farm.model import Check, Layout, Name, Reference, Unique
from wlc.farm.schema_fold import ordered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import duckdb

    from wlc.farm.model import Column, TableConstraint

# Kind, columns, expression, and, for a foreign key, the other table and its columns.
ListedConstraint = tuple[str, list[str], str, str | None, list[str]]
_KEY = "PRIMARY KEY"
_COLUMNS = "constraint_type, constraint_column_names, expression, referenced_table, referenced_column_names"
_KINDS = f"{OWNED} AND constraint_type IN ('UNIQUE', 'CHECK', 'FOREIGN KEY')"
# A row for each table with constraints; `as_constraints` reads `listed`.
LISTED = f"""
    SELECT table_oid, schema_name, table_name, list(row({_COLUMNS}) ORDER BY constraint_index) AS listed
    FROM duckdb_constraints() WHERE {_KINDS} GROUP BY ALL
"""
# Column of duckdb_indexes() that `unique_columns` reads.
UNIQUE_EXPRESSIONS = "CASE WHEN is_unique THEN CAST(expressions AS VARCHAR[]) END"


def constraints(
    connection: duckdb.DuckDBPyConnection, catalog: str, layouts: Mapping[Name, Layout]
) -> dict[Name, tuple[TableConstraint, ...]]:
    """Return the constraints of every table, without primary keys and NOT NULL; other tables are left out.

    Args:
        connection: The connection to query.
        catalog: The database.
        layouts: All its tables.
    """
    listed = listed_constraints(connection, catalog)
    found = {name: as_constraints(listed[name], name, layouts) for name in listed}
    return {name: constraints for name, constraints in found.items() if constraints}


def listed_constraints(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, list[ListedConstraint]]:
    """Return all constraints of tables but NOT NULL, as DuckDB lists them."""
    listed: dict[Name, list[ListedConstraint]] = {}
    # DuckDB takes longer to aggregate them into lists.
    query = f"SELECT schema_name, table_name, {_COLUMNS} FROM duckdb_constraints() WHERE {OWNED}"
    for schema, table, kind, columns, sql, other, keys in rows(
        connection, catalog, f"{query} AND constraint_type <> 'NOT NULL'"
    ):
        listed.setdefault(Name(schema, table), []).append((kind, columns, sql, other, keys))
    return listed


def layout_of(columns: tuple[Column, ...], listed: Iterable[ListedConstraint]) -> Layout:
    """Return the layout of a table, given its columns and constraints."""
    layout = Layout(columns)
    return replace(layout, primary_key=next((_spelt(c[1], layout) for c in listed if c[0] == _KEY), ()))


def as_constraints(
    listed: Iterable[ListedConstraint] | None, table: Name, layouts: Mapping[Name, Layout]
) -> tuple[TableConstraint, ...]:
    """Return a table's constraints with names spelt as in their tables; DuckDB lists them as they were typed."""
    return ordered(_constraint(found, table, layouts) for found in listed or () if found[0] != _KEY)


def unique_columns(expressions: Iterable[str] | None, layout: Layout | None) -> tuple[str | None, ...]:
    """Return the columns of a unique index, None for an expression; `expressions` is None for other indexes."""
    listed = [unquoted(each) if PLAIN_COLUMN.fullmatch(each) else None for each in expressions or ()]
    return tuple(None if column is None else _spelt([column], layout)[0] for column in listed)


def _constraint(found: ListedConstraint, table: Name, layouts: Mapping[Name, Layout]) -> TableConstraint:
    kind, typed, sql, other, keys = found
    columns = _spelt(typed, layouts.get(table))
    if kind == "UNIQUE":
        return Unique(columns)
    if other is None:
        return Check(columns, sql)
    # DuckDB has no foreign keys across schemas. A table that refers to itself keeps its former name there.
    said = Name(table.schema, other)
    parent = next((name for name in layouts if name.folded == said.folded), said)
    return Reference(columns, parent, _spelt(keys, layouts.get(parent)))


def _spelt(columns: Iterable[str], layout: Layout | None) -> tuple[str, ...]:
    # DuckDB folds the letters of ASCII only.
    spelling = {column.name.encode().lower(): column.name for column in layout.columns} if layout else {}
    return tuple(spelling.get(column.encode().lower(), column) for column in columns)
