"""The content of an attached DuckDB database: tables, keys and sequences.

Every function takes an open connection and the catalog's name, reads `duckdb_*()` and changes nothing. Temporary
objects and those of dbfarm itself (schemas `wlc` and `wlr`) are ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb.lexer import unquoted
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Column, Layout, Name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import duckdb

OWNED = "database_name = $catalog AND schema_name NOT IN ('wlc', 'wlr')"
USER = f"{OWNED} AND NOT internal"
# Up to this number of tables, their columns are read table by table; for more, one query is faster after the first
# time.
_FEW = 5
_MOST_UNITED = 200
_NESTED = re.compile(r"\[|\b(STRUCT|MAP|UNION|VARIANT|GEOMETRY)\b", re.IGNORECASE)


def rows(connection: duckdb.DuckDBPyConnection, catalog: str, sql: str) -> list[tuple[Any, ...]]:
    """Run a query with `$catalog` bound to the catalog's name; OWNED and USER are conditions for such queries."""
    return connection.execute(sql, {"catalog": catalog}).fetchall()


def tables(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, Layout]:
    """Return the layout of every persistent user table, ordered by name; may be empty.

    Raises:
        UnsupportedError: A schema lies inside another one.
    """
    refuse_nested_schemas(connection, catalog)
    return layouts_of(connection, catalog, _oids(connection, catalog))


def layouts_of(connection: duckdb.DuckDBPyConnection, catalog: str, tables: Mapping[Name, int]) -> dict[Name, Layout]:
    """Return the layouts of some persistent user tables, given their oids, ordered by name as these."""
    if not tables:
        return {}
    found = columns_of(connection, catalog, tables)
    keys = dict(_constraints(connection, catalog, "PRIMARY KEY", found))
    return {name: Layout(listed, keys.get(name, ())) for name, listed in by_table(found).items()}


def by_table(found: Iterable[tuple[Name, Column]]) -> dict[Name, tuple[Column, ...]]:
    """Group columns by table."""
    columns: dict[Name, list[Column]] = {}
    for name, column in found:
        columns.setdefault(name, []).append(column)
    return {name: tuple(listed) for name, listed in columns.items()}


def table_names(connection: duckdb.DuckDBPyConnection, catalog: str) -> frozenset[Name]:
    """Return the name of every persistent user table."""
    query = f"SELECT schema_name, table_name FROM duckdb_tables() WHERE {USER} AND NOT temporary"
    return frozenset(Name(*row) for row in rows(connection, catalog, query))


def united(connection: duckdb.DuckDBPyConnection, queries: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the rows of all queries, which have the same columns, in any order.

    One query per table takes several times as long, and so does a single query for thousands of tables.
    """
    pieces = [queries[first : first + _MOST_UNITED] for first in range(0, len(queries), _MOST_UNITED)]
    return [row for piece in pieces for row in connection.execute(" UNION ALL ".join(piece)).fetchall()]


def row_counts(connection: duckdb.DuckDBPyConnection, catalog: str, names: Iterable[Name]) -> dict[Name, int]:
    """Return the number of rows of each table."""
    listed = list(names)
    counts = [f"SELECT {place}, count(*) FROM {quote(catalog)}.{name.sql}" for place, name in enumerate(listed)]
    return {listed[place]: count for place, count in united(connection, counts)}


def refuse_nested_schemas(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Refuse a schema inside a schema: a name in the farm has one schema, and DuckDB cannot `USE` a nested one."""
    found = rows(
        connection,
        catalog,
        f"SELECT parent_schema, schema_name FROM duckdb_schemas() WHERE {USER} AND parent_schema IS NOT NULL",
    )
    if found:
        path = ".".join(quote(part) for part in found[0])
        raise UnsupportedError(
            f"Schema {path} lies inside another schema, which cannot be replicated",
            hint=f"move its tables into a schema of its own, then DROP SCHEMA {path}",
        )


def unique_keys(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, tuple[tuple[str, ...], ...]]:
    """Return the columns of every UNIQUE constraint, per user table that has one; unique indexes are not listed."""
    keys: dict[Name, tuple[tuple[str, ...], ...]] = {}
    for name, columns in _constraints(connection, catalog, "UNIQUE"):
        keys[name] = (*keys.get(name, ()), columns)
    return keys


PLAIN_COLUMN = re.compile(r"[\w$]+|\"(?:[^\"]|\"\")*\"")


def index_columns(expressions: Sequence[str]) -> tuple[str, ...] | None:
    """Columns of an index, which DuckDB shows as they were typed; None if one is an expression."""
    if not all(PLAIN_COLUMN.fullmatch(each) for each in expressions):
        return None
    return tuple(map(unquoted, expressions))


def replaced_columns(connection: duckdb.DuckDBPyConnection, catalog: str, name: Name, layout: Layout) -> frozenset[str]:
    """Return the stored columns whose update makes DuckDB remove the row and add a new one.

    These are columns in indexes, constraints and the expressions of indexes, and nested values.
    """
    indexed = _indexed_words(connection, catalog, name)
    return frozenset(
        column.name for column in layout.stored if column.name.lower() in indexed or _NESTED.search(column.type)
    )


def _indexed_words(connection: duckdb.DuckDBPyConnection, catalog: str, name: Name) -> frozenset[str]:
    """Return in lower case a table's columns in indexes and constraints, with all words of expressions there."""
    given = [catalog, name.schema, name.name]
    constraints = connection.execute(
        "SELECT unnest(constraint_column_names) FROM duckdb_constraints() WHERE database_name = ? AND schema_name = ?"
        " AND table_name = ? AND constraint_type IN ('PRIMARY KEY', 'UNIQUE', 'FOREIGN KEY')",
        given,
    ).fetchall()
    indexes = connection.execute(
        "SELECT unnest(CAST(expressions AS VARCHAR[])) FROM duckdb_indexes() WHERE database_name = ?"
        " AND schema_name = ? AND table_name = ?",
        given,
    ).fetchall()
    words = (unquoted(word) for (expression,) in indexes for word in PLAIN_COLUMN.findall(expression))
    return frozenset(column.lower() for column in (*(column for (column,) in constraints), *words))


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key: `columns` of a table refer to `referred` columns of its parent."""

    table: Name
    parent: Name
    columns: tuple[str, ...]
    referred: tuple[str, ...]


def references(connection: duckdb.DuckDBPyConnection, catalog: str) -> list[ForeignKey]:
    """Return the foreign keys of all user tables; each name is spelt as in its table."""
    found = rows(
        connection,
        catalog,
        f"""
        SELECT schema_name, table_name, referenced_table, constraint_column_names, referenced_column_names
        FROM duckdb_constraints() WHERE {OWNED} AND constraint_type = 'FOREIGN KEY' ORDER BY ALL
        """,
    )
    spelling = _spelling(_columns(connection, catalog)) if found else {}
    keys = []
    for schema, table, referenced, columns, referred in found:
        # DuckDB has no foreign keys across schemas.
        name, parent = Name(schema, table), Name(schema, spelling[_folded(schema, referenced)])
        keys.append(ForeignKey(name, parent, _spelt(spelling, name, columns), _spelt(spelling, parent, referred)))
    return keys


def foreign_keys(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, frozenset[Name]]:
    """Return the tables that each user table with foreign keys refers to; a table may refer to itself."""
    return parents_of(references(connection, catalog))


def parents_of(keys: Iterable[ForeignKey]) -> dict[Name, frozenset[Name]]:
    """Return the tables that each table with foreign keys refers to; a table may refer to itself."""
    parents: dict[Name, frozenset[Name]] = {}
    for key in keys:
        parents[key.table] = parents.get(key.table, frozenset()) | {key.parent}
    return parents


def load_order(connection: duckdb.DuckDBPyConnection, catalog: str) -> list[Name]:
    """Return all user tables, see `ordered`."""
    return ordered(tables(connection, catalog), foreign_keys(connection, catalog))


def ordered(names: Iterable[Name], parents: Mapping[Name, frozenset[Name]]) -> list[Name]:
    """Order tables so that every table comes after the tables it refers to; otherwise the order is kept.

    For a table that refers to itself, no order suffices: DuckDB accepts a row only if the referenced row existed before
    the statement.
    """
    order: dict[Name, None] = {}

    def place(name: Name) -> None:
        if name not in order:
            for parent in sorted(parents.get(name, frozenset()) - {name}):
                place(parent)
            order[name] = None

    for name in names:
        place(name)
    return list(order)


def sequences(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, int]:
    """Return the last value of each user sequence; a sequence that has returned no value is left out.

    `setval(name, value)` on a sequence made by `schema.schema_statements` brings it to the same position.
    """
    query = f"SELECT schema_name, sequence_name, last_value FROM duckdb_sequences() WHERE {OWNED} AND NOT temporary"
    found = rows(connection, catalog, f"{query} AND last_value IS NOT NULL ORDER BY ALL")
    return {Name(schema, sequence): value for schema, sequence, value in found}


def sequence_steps(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, int]:
    """Return the increment of each user sequence that does not cycle; it can be negative."""
    query = f"SELECT schema_name, sequence_name, increment_by FROM duckdb_sequences() WHERE {OWNED} AND NOT temporary"
    found = rows(connection, catalog, f"{query} AND NOT cycle")
    return {Name(schema, sequence): step for schema, sequence, step in found}


def _oids(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, int]:
    """Return the oid of every persistent user table, ordered by name."""
    listed = f"SELECT table_oid, schema_name, table_name FROM duckdb_tables() WHERE {USER} AND NOT temporary"
    found = rows(connection, catalog, f"{listed} ORDER BY schema_name, table_name")
    return {Name(*rest): oid for oid, *rest in found}


def _columns(connection: duckdb.DuckDBPyConnection, catalog: str) -> list[tuple[Name, Column]]:
    """Return the columns of every persistent user table, ordered by the table's name and their place in it."""
    return columns_of(connection, catalog, _oids(connection, catalog))


def columns_of(
    connection: duckdb.DuckDBPyConnection, catalog: str, tables: Mapping[Name, int]
) -> list[tuple[Name, Column]]:
    """Return the columns of all persistent user tables, given their oids, ordered by the table's name and their place.

    The tables are ordered by name, too.
    """
    if len(tables) <= _FEW and (plain := _plain_columns(connection, catalog, tables)):
        return plain
    if not tables:
        return []
    # duckdb_columns() lists the columns of views, too. It repeats the expression of a generated column as its default.
    found = rows(
        connection,
        catalog,
        f"""
        SELECT table_oid, schema_name, table_name, column_name, data_type, is_nullable,
            CASE WHEN NOT is_generated THEN column_default END, generation_expression
        FROM duckdb_columns() WHERE {USER} ORDER BY schema_name, table_name, column_index
        """,
    )
    oids = {*tables.values()}
    return [(Name(schema, table), Column(*column)) for oid, schema, table, *column in found if oid in oids]


def _plain_columns(
    connection: duckdb.DuckDBPyConnection, catalog: str, tables: Iterable[Name]
) -> list[tuple[Name, Column]] | None:
    """Return the columns of tables without defaults; None if a column has one, or a table is gone.

    The first duckdb_columns() of a connection creates and binds all of DuckDB's own views, which takes as long as
    connecting. The faster query here cannot distinguish a default from a generated column's expression.
    """
    import duckdb

    found = []
    try:
        for table in tables:
            name = literal(".".join(map(quote, (catalog, table.schema, table.name))))
            query = f'SELECT name, type, NOT "notnull", dflt_value FROM pragma_table_info({name}) ORDER BY cid'
            for column, type_, nullable, default in connection.execute(query).fetchall():
                found.append((table, Column(column, type_, nullable, default)))
    except duckdb.CatalogException:
        # Another connection has dropped the table since the listing.
        return None
    return found if all(column.default is None for _, column in found) else None


def _constraints(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    kind: str,
    columns: Iterable[tuple[Name, Column]] | None = None,
) -> list[tuple[Name, tuple[str, ...]]]:
    found = rows(
        connection,
        catalog,
        f"""
        SELECT schema_name, table_name, constraint_column_names FROM duckdb_constraints()
        WHERE {OWNED} AND constraint_type = '{kind}' ORDER BY schema_name, table_name, constraint_index
        """,
    )
    if not found:
        return []
    spelling = _spelling(_columns(connection, catalog) if columns is None else columns)
    return [
        (Name(schema, table), _spelt(spelling, Name(schema, table), listed))
        for schema, table, listed in found
        if _folded(schema, table) in spelling
    ]


def _spelling(columns: Iterable[tuple[Name, Column]]) -> dict[tuple[bytes, ...], str]:
    """Return the spelling of tables and columns; DuckDB keeps a constraint in the spelling of its statement."""
    spelling = {}
    for name, column in columns:
        spelling[_folded(name.schema, name.name)] = name.name
        spelling[_folded(name.schema, name.name, column.name)] = column.name
    return spelling


def _spelt(spelling: dict[tuple[bytes, ...], str], table: Name, columns: Iterable[str]) -> tuple[str, ...]:
    return tuple(spelling[_folded(table.schema, table.name, column)] for column in columns)


def _folded(*names: str) -> tuple[bytes, ...]:
    # bytes.lower() folds the letters of ASCII only, as DuckDB does with names.
    return tuple(name.encode().lower() for name in names)
