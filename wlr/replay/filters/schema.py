"""Schema statements of a replica of chosen rows: its filtered tables have only columns and a key.

Finds the tables that filters name, in a snapshot and in the log after it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.lexer import tokens
from wlc.dialect.sql import quote
from wlc.farm.errors import InvalidError
from wlc.farm.model import AlteredObject, CreatedObject, DbObject, Ddl, DroppedObject
from wlc.farm.schema_fold import is_aside, table_effects, table_names
from wlr.replay.ddl.left_out import created_by, references
from wlr.replay.filters.images import masking, refuse_unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from wlc.farm.model import Layout, Manifest, Name
    from wlr.replay.plan.row_filters import RowFilters, TableFilter
    from wlr.replay.plan.step import Step


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
    """Return the filter of the table of an index, a comment or the like; None for other statements."""
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
    """Return whether ALTER TABLE may change the filtered rows; a change to no filtered column does not."""
    if not chosen.columns:
        return True
    own = {*chosen.columns, *(mask.column for mask in chosen.masks), *(token.name for token in tokens(chosen.where))}
    folded = {name.lower() for name in own}
    changes = [effect for effect in table_effects(ddl) if isinstance(effect, AlteredObject)]
    names = {name.lower() for effect in changes for step in effect.columns for name in step if name}
    return any(effect.key is not None for effect in changes) or not folded.isdisjoint(names)


def refuse_references(ddl: Ddl, filters: RowFilters) -> None:
    """Refuse a whole table with a foreign key to a partly replicated one.

    Raises:
        InvalidError: The filter may leave out rows that the table refers to.
    """
    for table, parent in references(ddl):
        if filters.of(table) is None and filters.of(parent) is not None:
            raise InvalidError(
                f"table {table} has a foreign key to {parent}, which is replicated in part",
                hint=f"Leave it out: --ignore {table}; or its foreign keys: --where '{table}: true'",
            )


def named_tables(filters: RowFilters, manifest: Manifest | None, steps: Iterable[Step]) -> RowFilters:
    """Return filters with full names of tables, each checked against the first columns of its table.

    Raises:
        InvalidError: There is no such table, a filter does not fit it, or another table refers to it.
    """
    wanted = {each.table.folded for each in filters.tables}

    def is_enough(names: set[Name]) -> bool:
        return wanted <= {name.folded for name in names}

    layouts, names = known_tables(manifest, steps, is_enough, lambda ddl: refuse_references(ddl, filters))
    named = filters.named_as(names)
    refuse_all_unfit(named, layouts)
    return named


def known_tables(
    manifest: Manifest | None,
    steps: Iterable[Step],
    is_enough: Callable[[set[Name]], bool],
    look: Callable[[Ddl], None] = lambda _: None,
) -> tuple[dict[Name, Layout], set[Name]]:
    """Return the first columns of tables, and the names of all tables, of a snapshot and of the log after it.

    Args:
        manifest: The snapshot, None for an empty database.
        steps: The log after it, which is only read if the snapshot's tables are not enough.
        is_enough: Returns whether these names suffice.
        look: Called with every schema change that is read.
    """
    layouts: dict[Name, Layout] = {table.table: table.layout for table in manifest.tables} if manifest else {}
    names = set(layouts)
    if not is_enough(names):
        # Only in this case the whole log is read twice.
        for transaction in (t for step in steps for t in step.transactions):
            names.update(created_by(transaction))
            for record in transaction.records:
                if isinstance(record, Ddl):
                    look(record)
                    if record.layout is not None:
                        layouts.setdefault(record.object, record.layout)
    return layouts, names


def refuse_all_unfit(filters: RowFilters, layouts: Mapping[Name, Layout]) -> None:
    """Refuse a filter that does not fit the columns of its table; raises as `refuse_unfit` does."""
    with tempfile.TemporaryDirectory(prefix="wlr-filter-") as work, masking(b"", Path(work)) as connection:
        for each in filters.tables:
            if each.table in layouts:
                refuse_unfit(connection, each, layouts[each.table])
