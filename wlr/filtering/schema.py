"""Schema statements of a replica of chosen rows: its filtered tables have columns and a key, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.duckdb.lexer import tokens
from wlc.dialect.duckdb.table_statement import about_table, named_at, referred
from wlc.dialect.sql import quote
from wlc.farm.errors import InvalidError
from wlc.farm.model import CreatedObject, DbObject, Ddl, DroppedObject, Name
from wlr.ddl.relevance import is_created, is_run

if TYPE_CHECKING:
    from wlc.farm.model import Layout
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


def is_replacing(ddl: Ddl) -> bool:
    """Say whether the statement that creates a table may replace one."""
    return [token.word for token in tokens(ddl.statement)[:3]] == ["CREATE", "OR", "REPLACE"]


def filtered_subject(ddl: Ddl, filters: RowFilters) -> TableFilter | None:
    """Return the filter of the table that an index, a comment or the like is about; None for other statements."""
    listed = tokens(ddl.statement)
    words = [token.word for token in listed]
    if ddl.kind == "COMMENT" and words[2:3] in (["TABLE"], ["COLUMN"]):
        return filters.of(ddl.object)
    if words[:1] == ["CREATE"] and "INDEX" in words[1:3] and "ON" in words:
        return filters.of(named_at(listed, words.index("ON") + 1, ddl.object.schema))
    # What one engine alone has, such as a policy.
    return filters.of(ddl.object) if not is_run(ddl, ()) and about_table(ddl) is None else None


def altered(ddl: Ddl) -> tuple[Name, Name] | None:
    """Return the names, before and after, of the table that ALTER TABLE is about; None for other statements."""
    about = about_table(ddl)
    if about is None or about.is_drop:
        return None
    if about.renamed is not None:
        return about.table, about.renamed
    # PostgreSQL's statements can have more words before the name, such as ONLY.
    table = ddl.object if ddl.kind == "ALTER TABLE" and not is_run(ddl, ()) else about.table
    return table, table


def concerns(ddl: Ddl, chosen: TableFilter) -> bool:
    """Say whether ALTER TABLE may change what a filter lets pass: all that names no column of it does not."""
    if not chosen.columns:
        return True
    listed = tokens(ddl.statement)
    if {token.word for token in listed} & {"CONSTRAINT", "KEY"}:
        return True
    own = {*chosen.columns, *(mask.column for mask in chosen.masks), *(token.name for token in tokens(chosen.where))}
    return not {name.lower() for name in own}.isdisjoint(token.name.lower() for token in listed)


def refuse_references(ddl: Ddl, filters: RowFilters) -> None:
    """Refuse a table that the replica has whole, with a foreign key to one that it does not have whole.

    Raises:
        InvalidError: The rows that it refers to may be left out.
    """
    names = altered(ddl)
    if not is_created(ddl) and names is None:
        return
    table = names[0] if names else ddl.object
    if filters.of(table) is not None:
        return
    for parent in referred(ddl, table.schema):
        if filters.of(parent) is not None:
            raise InvalidError(
                f"table {table} has a foreign key to {parent}, of which not all is replicated",
                hint=f"Leave it out: --ignore {table}; or its foreign keys: --where '{table}: true'",
            )
