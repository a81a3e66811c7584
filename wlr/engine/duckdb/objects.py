"""The objects of a database besides tables, of replication and of the file's owner.

A file with an adopted replica has a table `wlr.objects` of the objects that replication made besides tables, which are
in `wlr.tables`. Objects in neither belong to the owner.

Keys, references and order of a target's tables, for writing to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb.fold import TargetTable
from wlc.dialect.sql import quote
from wlc.farm.model import Name, Reference
from wlc.farm.schema_fold import folded
from wlr.engine.duckdb.replica_file import has_table
from wlr.replay.ddl.claims import shown
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import duckdb

    from wlc.farm.model import Ddl, Layout
    from wlr.replay.ddl.claims import ShownCatalog


OWNERS = "belongs to the replica's owner"
# In the order in which they can be dropped, after all tables.
_DROPS = ("VIEW", "MACRO", "MACRO TABLE", "SEQUENCE", "TYPE", "SCHEMA")
_LISTED = f"""
    SELECT 'VIEW', schema_name, view_name, view_oid FROM duckdb_views() WHERE {catalogs.USER} AND NOT temporary
    UNION ALL SELECT CASE function_type WHEN 'macro' THEN 'MACRO' ELSE 'MACRO TABLE' END, schema_name, function_name,
        max(function_oid) FROM duckdb_functions() WHERE {catalogs.USER} GROUP BY ALL
    UNION ALL SELECT 'SEQUENCE', schema_name, sequence_name, sequence_oid FROM duckdb_sequences()
        WHERE {catalogs.OWNED} AND NOT temporary
    UNION ALL SELECT 'TYPE', schema_name, type_name, max(type_oid) FROM duckdb_types()
        WHERE {catalogs.USER} GROUP BY ALL
    UNION ALL SELECT 'SCHEMA', schema_name, schema_name, oid FROM duckdb_schemas()
        WHERE {catalogs.USER} AND schema_name <> 'main'
"""
_TABLES = f"""
    SELECT 'TABLE', schema_name, table_name FROM duckdb_tables() WHERE {catalogs.USER} AND NOT temporary
    UNION ALL SELECT 'INDEX', schema_name, index_name FROM duckdb_indexes() WHERE {catalogs.OWNED}
"""


@dataclass(frozen=True, slots=True, order=True)
class DatabaseObject:
    """An object of a database other than a table; as in the log, a schema is in the schema of its own name."""

    kind: str
    name: Name

    def __str__(self) -> str:
        return shown_objects(self.kind, self.name)

    @property
    def drop_sql(self) -> str:
        """The statement that drops it, for a connection that uses its database."""
        return f"DROP {self.kind} {quote(self.name.name) if self.kind == 'SCHEMA' else self.name.sql}"


def shown_objects(kind: str, name: Name) -> str:
    """Name an object in a message."""
    return f"{kind.lower()} {name.name if kind == 'SCHEMA' else name}"


def present(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[DatabaseObject, int]:
    """Return the objects of a database besides tables, each with an id that distinguishes it from a later namesake."""
    found = catalogs.rows(connection, catalog, _LISTED)
    return {DatabaseObject(kind, Name(schema, name)): oid for kind, schema, name, oid in found}


def install(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Create the table of replication's objects."""
    connection.execute(
        f"CREATE TABLE {quote(catalog)}.wlr.objects (kind VARCHAR, schema_name VARCHAR, object_name VARCHAR)"
    )


def noted(connection: duckdb.DuckDBPyConnection, catalog: str) -> frozenset[DatabaseObject] | None:
    """Return replication's objects besides tables; None if the file holds only the replica."""
    if not has_table(connection, catalog, "wlr", "objects"):
        return None
    rows = connection.execute(f"SELECT kind, schema_name, object_name FROM {quote(catalog)}.wlr.objects").fetchall()
    return frozenset(DatabaseObject(kind, Name(schema, name)) for kind, schema, name in rows)


def note(connection: duckdb.DuckDBPyConnection, catalog: str, made: Collection[DatabaseObject]) -> None:
    """Replace the list of replication's objects, in the caller's transaction."""
    table, before = f"{quote(catalog)}.wlr.objects", noted(connection, catalog) or frozenset()
    for gone in sorted(before - set(made)):
        condition = "kind = ? AND schema_name = ? AND object_name = ?"
        connection.execute(f"DELETE FROM {table} WHERE {condition}", [gone.kind, gone.name.schema, gone.name.name])
    for new in sorted(set(made) - before):
        connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", [new.kind, new.name.schema, new.name.name])


def taken(connection: duckdb.DuckDBPyConnection, catalog: str, statements: Iterable[Ddl]) -> list[str]:
    """Return the objects of a database whose names the statements would reuse, for a message."""
    listed = [*((kind, Name(schema, name)) for kind, schema, name in catalogs.rows(connection, catalog, _TABLES))]
    listed += [(each.kind, each.name) for each in present(connection, catalog)]
    there = {_place(kind, name): shown_objects(kind, name) for kind, name in listed}
    wanted = {_place(ddl.kind, ddl.object) for ddl in statements if ddl.kind.startswith("CREATE")}
    return sorted(text for place, text in there.items() if place in wanted)


def owned(
    connection: duckdb.DuckDBPyConnection, catalog: str, replicated: Collection[Name], statements: Iterable[Ddl]
) -> list[str]:
    """Return the objects of a replica's database that belong to its owner, for a message.

    Args:
        connection: It stands in the database.
        catalog: The database's name.
        replicated: Tables that are replicated.
        statements: Those that have made what else is replicated.
    """
    made = folded(statements)
    known = {_place("TABLE", name) for name in replicated} | {_place("INDEX", name) for name in made.indexes}
    known |= {_place(each.kind, each.name) for each, _ in made.others}
    found = [(kind, Name(schema, name)) for kind, schema, name in catalogs.rows(connection, catalog, _TABLES)]
    found += [(each.kind, each.name) for each in present(connection, catalog)]
    return sorted(shown_objects(kind, name) for kind, name in found if _place(kind, name) not in known)


def _place(kind: str, name: Name) -> tuple[str, bytes, bytes]:
    """Return the unique name of an object; kinds such as tables and views share one namespace."""
    last = "MACRO" if "MACRO" in kind else kind.split()[-1]
    schema, own = name.folded
    return {"VIEW": "TABLE", "FUNCTION": "MACRO"}.get(last, last), b"" if last == "SCHEMA" else schema, own


def refuse_change_of_own(
    made: Collection[DatabaseObject],
    before: Mapping[DatabaseObject, int],
    now: Mapping[DatabaseObject, int],
    statement: str,
) -> None:
    """Refuse a statement from the farm that changed an object of the owner.

    Raises:
        StepError: It changed such an object.
    """
    if touched := sorted(each for each, oid in before.items() if each not in made and now.get(each) != oid):
        message = f"{touched[0]} {OWNERS}, and the farm must not change it: {statement}"
        raise StepError(message)


def made_since(
    made: Collection[DatabaseObject], before: Mapping[DatabaseObject, int], now: Mapping[DatabaseObject, int]
) -> frozenset[DatabaseObject]:
    """Return replication's objects after one of its statements."""
    return frozenset(each for each in now if each in made or each not in before)


def drop_all(connection: duckdb.DuckDBPyConnection, made: Collection[DatabaseObject]) -> None:
    """Drop objects, in the caller's transaction, once the tables that use them are gone."""
    for each in sorted(made, key=lambda each: _DROPS.index(each.kind)):
        connection.execute(each.drop_sql)


@dataclass(frozen=True, slots=True)
class TargetTables:
    """A target's tables as its catalog describes them at one moment.

    Attributes:
        order: All user tables, each after those that it refers to.
        parents: Tables that each table's foreign keys refer to.
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
    """The contents of a replica's file besides rows; only a schema change alters them.

    Attributes:
        replicated: Replicated tables.
        tables: All tables.
        made: Replication's objects besides tables; None unless the file also has objects of an owner.
        is_guarded: Every replicated table is known to have its guard.
    """

    replicated: set[Name]
    tables: TargetTables
    made: frozenset[DatabaseObject] | None
    is_guarded: bool


def read_tables(connection: duckdb.DuckDBPyConnection, catalog: str) -> TargetTables:
    """Read the current catalog."""
    return shown_tables(catalog, shown(connection, catalog))


def shown_tables(catalog: str, shown: ShownCatalog) -> TargetTables:
    """Describe the tables of a catalog."""
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
