"""What a statement did to the objects of a database, told from the catalog before and after it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from wlc.dialect.duckdb.constraints import LISTED, UNIQUE_EXPRESSIONS, ListedConstraint, as_constraints, unique_columns
from wlc.farm.model import AlteredObject, CreatedObject, DbObject, Ddl, DroppedObject, Layout, Name, RenamedObject
from wlc.farm.schema_fold import FoldedTable, SchemaFold, column_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import duckdb

    from wlc.farm.model import ColumnStep, DdlEffect

_WHERE = "database_name = $catalog AND schema_name NOT IN ('wlc', 'wlr')"
_OBJECTS = f"""
    SELECT 'SCHEMA', schema_name, schema_name, oid, sql, comment, NULL, NULL, NULL, NULL
        FROM duckdb_schemas() WHERE NOT internal AND {_WHERE}
    UNION ALL SELECT 'TABLE', t.schema_name, t.table_name, t.table_oid, sql, comment, NULL, NULL, c.listed, NULL
        FROM (FROM duckdb_tables() WHERE NOT internal AND {_WHERE}) t LEFT JOIN ({LISTED}) c USING (table_oid)
    UNION ALL SELECT 'COLUMN COMMENT', schema_name, table_name || '.' || column_name, NULL, comment, NULL, NULL,
        table_name, NULL, NULL FROM duckdb_columns() WHERE NOT internal AND comment IS NOT NULL AND {_WHERE}
    UNION ALL SELECT 'VIEW', schema_name, view_name, view_oid, sql, comment, NULL, NULL, NULL, NULL
        FROM duckdb_views() WHERE NOT internal AND {_WHERE}
    UNION ALL SELECT 'INDEX', schema_name, index_name, index_oid, sql, comment, NULL, table_name, NULL,
        {UNIQUE_EXPRESSIONS} FROM duckdb_indexes() WHERE {_WHERE}
    UNION ALL SELECT 'SEQUENCE', schema_name, sequence_name, sequence_oid,
        concat_ws(' ', start_value, min_value, max_value, increment_by, cycle), comment, NULL, NULL, NULL, NULL
        FROM duckdb_sequences() WHERE {_WHERE}
    UNION ALL SELECT 'TYPE', schema_name, type_name, type_oid, logical_type, comment, labels::VARCHAR, NULL, NULL, NULL
        FROM duckdb_types() WHERE NOT internal AND {_WHERE}
    UNION ALL SELECT 'MACRO', schema_name, function_name, min(function_oid), list(macro_definition ORDER BY
        macro_definition)::VARCHAR, min(comment), list(parameters::VARCHAR ORDER BY macro_definition)::VARCHAR, NULL,
        NULL, NULL FROM duckdb_functions() WHERE NOT internal AND database_name = $catalog
        AND function_type IN ('macro', 'table_macro') GROUP BY ALL
    UNION ALL SELECT 'TRIGGER', schema_name, trigger_name, trigger_oid, sql, comment, NULL, table_name, NULL, NULL
        FROM duckdb_triggers() WHERE NOT temporary AND {_WHERE}
"""
_COLUMN_COMMENT = "COLUMN COMMENT"


class CatalogEntry(NamedTuple):
    """What the catalog says of an object: two entries differ if the object was replaced or altered.

    Attributes:
        oid: Stays when the object is altered or renamed; None for the comment on a column.
        of: Table that an index, a trigger or the comment on a column belongs to.
        constraints: Of a table, see `constraints.as_constraints`.
        unique: Expressions of a unique index.
    """

    oid: int | None
    sql: str | None
    comment: str | None
    more: str | None
    of: str | None
    constraints: list[ListedConstraint] | None
    unique: list[str] | None


# By kind, schema and name.
ObjectKey = tuple[str, str, str]
Objects = dict[ObjectKey, CatalogEntry]


def objects(connection: duckdb.DuckDBPyConnection, catalog: str) -> Objects:
    """Every object of a database as the connection's transaction sees it."""
    rows = connection.execute(_OBJECTS, {"catalog": catalog}).fetchall()
    return {(kind, schema, name): CatalogEntry(*rest) for kind, schema, name, *rest in rows}


def effects(
    before: Objects, after: Objects, old_layouts: Mapping[Name, Layout], layouts: Mapping[Name, Layout]
) -> tuple[DdlEffect, ...]:
    """Return what one statement did to the catalog, in an order in which it can be followed.

    Args:
        before: The objects before it.
        after: The objects after it.
        old_layouts: All tables before it.
        layouts: All tables after it.
    """
    there = {_identity(key, entry): key for key, entry in after.items() if entry.oid is not None}
    stayed = {key: new for key, entry in before.items() if (new := there.get(_identity(key, entry))) is not None}
    moved = {old: new for old, new in sorted(stayed.items()) if old != new}
    found: list[DdlEffect] = [*_dropped(before, after, stayed)]
    found += [RenamedObject(_object(old), Name(*new[1:]), _of(old, before)) for old, new in moved.items()]
    found += _created(before, after, {*stayed.values()}, layouts)
    for old, new in sorted(stayed.items()):
        found += _altered(old, new, before[old], after[new], old_layouts, layouts)
    return (*found, *_commented(before, after, found))


def _identity(key: ObjectKey, entry: CatalogEntry) -> tuple[str, int | None]:
    return key[0], entry.oid


def _object(key: ObjectKey) -> DbObject:
    return DbObject(key[0], Name(*key[1:]))


def _of(key: ObjectKey, entries: Objects) -> Name | None:
    table = entries[key].of
    return None if table is None else Name(key[1], table)


def _dropped(before: Objects, after: Objects, stayed: Mapping[ObjectKey, ObjectKey]) -> Iterator[DroppedObject]:
    """Yield what is gone; what belongs to a table goes with it, and a schema goes last."""
    gone = [key for key in before if key not in stayed and key[0] != _COLUMN_COMMENT]
    lost = {Name(*key[1:]) for key in gone if key[0] == "TABLE"}
    for key in sorted(gone, key=lambda key: (key[0] == "SCHEMA", key)):
        if key not in after and (of := _of(key, before)) not in lost:
            yield DroppedObject(_object(key), of)


def _created(
    before: Objects, after: Objects, stayed: set[ObjectKey], layouts: Mapping[Name, Layout]
) -> Iterator[CreatedObject]:
    """Yield what is new or was replaced; a schema comes first, and what belongs to a table last."""
    made = [key for key in after if key not in stayed and key[0] != _COLUMN_COMMENT]
    for key in sorted(made, key=lambda key: (key[0] != "SCHEMA", after[key].of is not None, key)):
        entry, of = after[key], _of(key, after)
        yield CreatedObject(
            _object(key),
            replaces=key in before,
            of=of,
            unique=unique_columns(entry.unique, layouts.get(of) if of else None),
            constraints=as_constraints(entry.constraints, Name(*key[1:]), layouts),
        )


def _altered(
    old: ObjectKey,
    new: ObjectKey,
    before: CatalogEntry,
    after: CatalogEntry,
    old_layouts: Mapping[Name, Layout],
    layouts: Mapping[Name, Layout],
) -> Iterator[AlteredObject]:
    """Yield what changed in an object that stayed, perhaps under another name."""
    if before == after:
        return
    found = _object(new)
    if found.kind == "TABLE":
        was, layout = Name(*old[1:]), layouts[found.name]
        effect = _altered_table(was, found, before, after, old_layouts.get(was, layout), layouts)
    else:
        effect = AlteredObject(found, _of(new, {new: after}))
    if old == new or effect != AlteredObject(found, effect.of):
        yield effect


def _altered_table(
    old: Name,
    table: DbObject,
    before: CatalogEntry,
    after: CatalogEntry,
    old_layout: Layout,
    layouts: Mapping[Name, Layout],
) -> AlteredObject:
    """Return what changed in a table, given its former name and layout."""
    layout, new = layouts[table.name], table.name
    constraints = as_constraints(before.constraints, old, {**layouts, old: old_layout})
    fold = SchemaFold({old: FoldedTable(old, column_names(old_layout), old_layout.primary_key, constraints)})
    effect = AlteredObject(table, columns=tuple(_column_steps(old_layout, layout)))
    renamed = () if old == new else (RenamedObject(replace(table, name=old), new),)
    fold.apply(Ddl("ALTER TABLE", new, "", does=(*renamed, effect)))
    carried, listed = fold.tables[new], as_constraints(after.constraints, new, layouts)
    return replace(
        effect,
        key=None if carried.key == layout.primary_key else layout.primary_key,
        constraints=None if carried.constraints == listed else listed,
    )


def _column_steps(old: Layout, new: Layout) -> Iterator[ColumnStep]:
    """Yield how the columns of a table changed. DuckDB's ALTER drops, renames or redefines one, or adds one at the end.

    Generated columns may be dropped with one, and their expressions change with the name of a column in it.
    """
    before, after = list(old.columns), new.columns
    if len(before) > len(after):
        left = column_names(new)
        yield from ((column.name, None) for column in before if column.name not in left)
        before = [column for column in before if column.name in left]
    yield from ((was.name, now.name) for was, now in zip(before, after, strict=False) if was != now)
    yield from ((None, column.name) for column in after[len(before) :])


def _commented(before: Objects, after: Objects, found: Iterable[DdlEffect]) -> Iterator[AlteredObject]:
    """Yield tables and views with another comment on a column, if nothing else happened to them."""
    seen = {effect.object for effect in found}
    seen |= {DbObject(effect.object.kind, effect.to) for effect in found if isinstance(effect, RenamedObject)}
    for key in sorted(before.keys() | after.keys()):
        entry = after.get(key) or before[key]
        if key[0] == _COLUMN_COMMENT and before.get(key) != after.get(key) and entry.of is not None:
            kinds = (kind for kind in ("TABLE", "VIEW") if (kind, key[1], entry.of) in after)
            commented = {DbObject(kind, Name(key[1], entry.of)) for kind in kinds} - seen
            yield from map(AlteredObject, commented)
            seen |= commented
