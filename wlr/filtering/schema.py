"""Schema statements of a replica of chosen rows: its filtered tables have columns and a key, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.duckdb.lexer import tokens
from wlc.dialect.sql import quote
from wlc.farm.errors import InvalidError
from wlc.farm.model import AlteredObject, CreatedObject, DbObject, Ddl, DroppedObject
from wlc.farm.schema_fold import is_aside, table_effects, table_names
from wlr.ddl.relevance import references

if TYPE_CHECKING:
    from wlc.farm.model import Layout, Name
    from wlr.plan.row_filters import RowFilters, TableFilter


def created(table: Name, layout: Layout, *, replaces: bool = False) -> Ddl:
    """Return the statement that creates a table of a layout."""
    items = [f"{quote(c.name)} {c.type}{'' if c.nullable else ' NOT NULL'}" for c in layout.columns]
    if layout.primary_key:
        items.append(f"PRIMARY KEY ({', '.join(map(quote, layout.primary_key))})")
    how = "CREATE OR REPLACE TABLE" if replaces else "CREATE TABLE"
    statement = f"{how} {table.sql} ({', '.join(items)})"
    does = (CreatedObject(DbObject("TABLE", table), replaces=replaces),)
    return Ddl("CREATE TABLE", table, statement, (table.schema,), layout=layout, does=does)


def dropped(table: Name) -> Ddl:
    """Return the statement that drops a table."""
    does = (DroppedObject(DbObject("TABLE", table)),)
    return Ddl("DROP TABLE", table, f"DROP TABLE {table.sql}", (table.schema,), does=does)


def filtered_subject(ddl: Ddl, filters: RowFilters) -> TableFilter | None:
    """Return the filter of the table that an index, a comment or the like is about; None for other statements."""
    if any(not is_aside(effect) for effect in table_effects(ddl)):
        return None
    about = (effect.of or effect.object.name for effect in ddl.does if effect.of or effect.object.kind == "TABLE")
    return next((found for table in about if (found := filters.of(table))), None)


def altered(ddl: Ddl) -> tuple[Name, Name] | None:
    """Return the names, before and after, of the table that a statement alters; None for other statements."""
    if all(map(is_aside, table_effects(ddl))):
        return None
    table = table_names(ddl)[0]
    return None if table.is_created or table.before is None or table.after is None else (table.before, table.after)


def concerns(ddl: Ddl, chosen: TableFilter) -> bool:
    """Say whether ALTER TABLE may change what a filter lets pass: what is about none of its columns does not."""
    if not chosen.columns:
        return True
    own = {*chosen.columns, *(mask.column for mask in chosen.masks), *(token.name for token in tokens(chosen.where))}
    folded = {name.lower() for name in own}
    changes = [effect for effect in table_effects(ddl) if isinstance(effect, AlteredObject)]
    names = {name.lower() for effect in changes for step in effect.columns for name in step if name}
    return any(effect.key is not None for effect in changes) or not folded.isdisjoint(names)


def refuse_references(ddl: Ddl, filters: RowFilters) -> None:
    """Refuse a table that the replica has whole, with a foreign key to one that it does not have whole.

    Raises:
        InvalidError: The rows that it refers to may be left out.
    """
    for table, parent in references(ddl):
        if filters.of(table) is None and filters.of(parent) is not None:
            raise InvalidError(
                f"table {table} has a foreign key to {parent}, of which not all is replicated",
                hint=f"Leave it out: --ignore {table}; or its foreign keys: --where '{table}: true'",
            )
