"""What a PostgreSQL database contains, as far as schema changes need to know it.

The replica's names for objects of the master, and the description of its tables for folding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb.fold import TargetTable
from wlc.dialect.sql import literal
from wlc.farm.errors import InvalidError
from wlc.farm.model import Ddl, Layout, Name
from wlr.engine.postgres.replica_connection import fetch

if TYPE_CHECKING:
    from collections.abc import Collection

    from wlc.dialect.postgres.server_connection import Connection


MAIN = "main"
_OWN = frozenset({"wlc", "wlr", "information_schema"})


@dataclass(frozen=True, slots=True)
class Names:
    """Maps names of the master to names of the replica.

    Attributes:
        main: Schema that stands for DuckDB's `main`; `main` itself if the master is PostgreSQL. Other schemas keep
            their names.
    """

    main: str = "public"

    def place(self, name: Name) -> Name:
        """Return the replica's name for an object of the master."""
        return Name(self.schema(name.schema), name.name)

    def schema(self, schema: str) -> str:
        """Return the replica's schema for one of the master."""
        return self.main if schema.lower() == MAIN else schema

    def describe(self, name: Name, layout: Layout) -> TargetTable:
        """Describe a table whose rows have a layout."""
        # Foreign keys are off while a step is applied, so no other table refers to it.
        return TargetTable(name, self.place(name).sql, layout)


def is_own(schema: str) -> bool:
    """Say whether a schema is dbfarm's or PostgreSQL's."""
    return schema.lower() in _OWN or schema.lower().startswith("pg_")


def refuse_own(schema: str, shown: str) -> None:
    """Refuse to put tables into a schema that is dbfarm's or PostgreSQL's.

    Raises:
        InvalidError: The schema is one of these.
    """
    if is_own(schema):
        raise InvalidError(f"schema {schema} takes no tables", hint="Give another ?schema=.", path=shown)


def refuse_schema(ddl: Ddl, shown: str) -> None:
    """Refuse `?schema=` for a master that is PostgreSQL: its statements name their schemas.

    Raises:
        InvalidError: Always.
    """
    message = f"{shown}: the master is PostgreSQL, whose tables keep their schemas ({ddl.object})"
    raise InvalidError(message, hint="Leave ?schema= out.", path=shown)


USER = "n.nspname NOT IN ('wlr', 'wlc', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%'"
_RELATIONS = f"""
    SELECT n.nspname, c.relname, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'i') AND {USER}
"""
_COLUMNS = f"""
    SELECT n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attnum)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relkind IN ('r', 'p', 'v', 'm') AND a.attnum > 0 AND NOT a.attisdropped AND {USER} GROUP BY 1, 2
"""
_UNIQUE = """
    SELECT array_agg(a.attname::text ORDER BY k.place)
    FROM pg_constraint c, unnest(c.conkey) WITH ORDINALITY k (number, place), pg_attribute a
    WHERE a.attrelid = c.conrelid AND a.attnum = k.number AND c.contype = 'u' AND c.conrelid = to_regclass(%s)
    GROUP BY c.oid
"""
_TOLD_APART = f"""
    SELECT n.nspname, c.relname, c.oid::bigint, c.relowner::bigint, c.relhassubclass, c.relrowsecurity,
        (SELECT array_agg(inhparent::bigint ORDER BY 1) FROM pg_inherits WHERE inhrelid = c.oid),
        (SELECT array_agg(oid::bigint ORDER BY 1) FROM pg_constraint WHERE conrelid = c.oid),
        (SELECT array_agg(oid::bigint ORDER BY 1) FROM pg_attrdef WHERE adrelid = c.oid),
        (SELECT array_agg(indexrelid::bigint ORDER BY 1) FROM pg_index WHERE indrelid = c.oid),
        (SELECT string_agg(concat_ws(' ', a.attname, a.atttypid, a.atttypmod, a.attnotnull), ',' ORDER BY a.attnum)
            FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND {USER}
"""
# Views over a table and views over those; a view comes before the views that read it.
_VIEWS_OVER = """
    WITH RECURSIVE over (view, depth) AS (
        SELECT DISTINCT r.ev_class, 1 FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
        WHERE d.classid = 'pg_rewrite'::regclass AND d.refobjid = to_regclass({name}) AND r.ev_class <> d.refobjid
        UNION
        SELECT r.ev_class, o.depth + 1 FROM over o JOIN pg_depend d ON d.refobjid = o.view
        JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass AND r.ev_class <> d.refobjid
        WHERE o.depth < 100
    )
    SELECT n.nspname, c.relname, c.relkind::text, pg_get_viewdef(c.oid) FROM (
        SELECT view, max(depth) AS depth FROM over GROUP BY view
    ) v JOIN pg_class c ON c.oid = v.view JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY v.depth
"""


class PostgresCatalog:
    """What the database contains when it is first asked."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @cached_property
    def kinds(self) -> dict[Name, str]:
        """Tables (r, p), views (v, m), sequences (S) and indexes (i), by name."""
        return {Name(schema, name): kind for schema, name, kind in fetch(self._connection, _RELATIONS)}

    @cached_property
    def columns(self) -> dict[Name, list[str]]:
        """The columns of tables and views."""
        return {Name(schema, name): listed for schema, name, listed in fetch(self._connection, _COLUMNS)}

    def unique_keys(self, table: Name) -> set[tuple[str, ...]]:
        """Return the columns of each UNIQUE constraint of a table."""
        return {tuple(columns) for (columns,) in fetch(self._connection, _UNIQUE, [table.sql])}

    @property
    def tables(self) -> set[Name]:
        """All tables."""
        return {name for name, kind in self.kinds.items() if kind in "rp"}

    def find(self, name: Name) -> Name | None:
        """Return the relation of a name. Case does not matter, as in DuckDB."""
        if name in self.kinds:
            return name
        wanted = (name.schema.lower(), name.name.lower())
        return next((n for n in self.kinds if (n.schema.lower(), n.name.lower()) == wanted), None)

    def column(self, table: Name, column: str) -> str:
        """Return a column of a table as the table writes it."""
        listed = self.columns.get(table, [])
        return next((name for name in listed if name.lower() == column.lower()), column)


def distinguishing(connection: Connection, replicated: Collection[Name]) -> dict[Name, tuple[Any, ...]]:
    """Return what tells tables that are not replicated from changed ones: they belong to the owner."""
    rows = fetch(connection, _TOLD_APART)
    return {Name(*row[:2]): row[2:] for row in rows if Name(*row[:2]) not in replicated}


def views_over(connection: Connection, name: Name) -> list[tuple[Name, str, str]]:
    """Return name, kind and definition of the views that read a relation, directly or not, in the order of creation."""
    found = fetch(connection, _VIEWS_OVER.format(name=literal(name.sql)))
    return [(Name(schema, view), kind, definition) for schema, view, kind, definition in found]
