"""Schema changes, found by comparing the catalog before and after a statement, and recorded as statements.

Effects of a statement on the objects of a database, derived from the catalog before and after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import TYPE_CHECKING, NamedTuple

from wlc.dialect.duckdb import settings
from wlc.dialect.duckdb.constraints import LISTED, UNIQUE_EXPRESSIONS, ListedConstraint, as_constraints, unique_columns
from wlc.dialect.duckdb.lexer import tokens, unquoted, without_comments
from wlc.dialect.duckdb.schema import schema_statements, table_sql
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import AlteredObject, CreatedObject, DbObject, Ddl, DroppedObject, Layout, Name, RenamedObject
from wlc.farm.schema_fold import FoldedTable, SchemaFold, column_names, is_aside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import duckdb

    from wlc.dialect.duckdb.lexer import Token
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
    UNION ALL SELECT 'TRIGGER', schema_name, trigger_name, trigger_oid, sql, comment, NULL, table_name, NULL, NULL
        FROM duckdb_triggers() WHERE NOT temporary AND {_WHERE}
"""
# DuckDB lists its own functions, too, which takes twice as long as all the rest.
_MACROS = """
    UNION ALL SELECT 'MACRO', schema_name, function_name, min(function_oid), list(macro_definition ORDER BY
        macro_definition)::VARCHAR, min(comment), list(parameters::VARCHAR ORDER BY macro_definition)::VARCHAR, NULL,
        NULL, NULL FROM duckdb_functions() WHERE NOT internal AND database_name = $catalog
        AND function_type IN ('macro', 'table_macro') GROUP BY ALL
"""
_COLUMN_COMMENT = "COLUMN COMMENT"


class CatalogEntry(NamedTuple):
    """An object's entry in the catalog: two entries differ if the object was replaced or altered.

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


def objects(connection: duckdb.DuckDBPyConnection, catalog: str, *, macros: bool = True) -> Objects:
    """Every object of a database as the connection's transaction sees it, with or without macros."""
    rows = connection.execute(_OBJECTS + _MACROS if macros else _OBJECTS, {"catalog": catalog}).fetchall()
    return {(kind, schema, name): CatalogEntry(*rest) for kind, schema, name, *rest in rows}


def effects(
    before: Objects, after: Objects, old_layouts: Mapping[Name, Layout], layouts: Mapping[Name, Layout]
) -> tuple[DdlEffect, ...]:
    """Return the effects of one statement on the catalog, in an order in which they can be applied.

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
    """Yield dropped objects; parts of a table are dropped with it, and a schema comes last."""
    gone = [key for key in before if key not in stayed and key[0] != _COLUMN_COMMENT]
    lost = {Name(*key[1:]) for key in gone if key[0] == "TABLE"}
    for key in sorted(gone, key=lambda key: (key[0] == "SCHEMA", key)):
        if key not in after and (of := _of(key, before)) not in lost:
            yield DroppedObject(_object(key), of)


def _created(
    before: Objects, after: Objects, stayed: set[ObjectKey], layouts: Mapping[Name, Layout]
) -> Iterator[CreatedObject]:
    """Yield new and replaced objects; a schema comes first, and parts of tables last."""
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
    """Yield changes of an object that stayed, possibly under another name."""
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
    """Return the changes of a table, given its former name and layout."""
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
    """Yield the changes of a table's columns. DuckDB's ALTER drops, renames or redefines one, or adds one at the end.

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
    """Yield tables and views that changed only in the comment on a column."""
    seen = {effect.object for effect in found}
    seen |= {DbObject(effect.object.kind, effect.to) for effect in found if isinstance(effect, RenamedObject)}
    for key in sorted(before.keys() | after.keys()):
        entry = after.get(key) or before[key]
        if key[0] == _COLUMN_COMMENT and before.get(key) != after.get(key) and entry.of is not None:
            kinds = (kind for kind in ("TABLE", "VIEW") if (kind, key[1], entry.of) in after)
            commented = {DbObject(kind, Name(key[1], entry.of)) for kind in kinds} - seen
            yield from map(AlteredObject, commented)
            seen |= commented


# Objects that may be dropped together with another object.
_DROPPED_WITH = frozenset({"TABLE", "VIEW", "SEQUENCE", "TYPE", "MACRO"})
_KINDS = _DROPPED_WITH | {"SCHEMA", "INDEX", "FUNCTION", "TRIGGER", "COLUMN", "DATABASE"}
# Objects whose bodies name relations that are looked up along the search path.
_WITH_BODY = frozenset({"CREATE VIEW", "CREATE MACRO"})
_PATH = re.compile(r'"[^"]*"|[^".,]+|[.,]')
_ENUM_OF_QUERY = re.compile(r"(\s*CREATE\b.*?\bAS\s+ENUM)\s*\(\s*(?!')", re.IGNORECASE | re.DOTALL)
_CREATE_TABLE = re.compile(r"\s*CREATE\s+TABLE\s+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CatalogDifference:
    """The changes of the catalog by one statement.

    Attributes:
        effects: In an order in which they can be applied.
        created_tables: New tables, including replacing ones.
        replaced_tables: Tables that replaced another one.
        altered_tables: Tables with other columns, constraints or names, each with its former name.
        dropped_tables: Former tables, including replaced and renamed ones.
        objects: Every object that was created, altered or dropped.
        gone: Dropped objects, without those in a dropped schema and without parts of tables.
    """

    effects: tuple[DdlEffect, ...]
    created_tables: tuple[Name, ...]
    replaced_tables: frozenset[Name]
    altered_tables: Mapping[Name, Name]
    dropped_tables: tuple[Name, ...]
    objects: tuple[tuple[str, Name], ...]
    gone: tuple[tuple[str, Name], ...]


def difference(effects: tuple[DdlEffect, ...]) -> CatalogDifference:
    """Return the tables that a statement created, altered and dropped, and all its other changes."""
    tables = [effect for effect in effects if effect.object.kind == "TABLE"]
    created = tuple(effect.object.name for effect in tables if isinstance(effect, CreatedObject))
    replaced = frozenset(e.object.name for e in tables if isinstance(e, CreatedObject) and e.replaces)
    renamed = {effect.to: effect.object.name for effect in tables if isinstance(effect, RenamedObject)}
    altered = (e.object.name for e in tables if isinstance(e, AlteredObject) and not is_aside(e))
    dropped = tuple(effect.object.name for effect in tables if isinstance(effect, DroppedObject))
    touched = {(effect.object.kind, effect.object.name) for effect in effects}
    touched |= {(effect.object.kind, effect.to) for effect in effects if isinstance(effect, RenamedObject)}
    return CatalogDifference(
        effects,
        created,
        replaced,
        {**{name: name for name in altered}, **renamed},
        (*dropped, *renamed.values(), *sorted(replaced)),
        tuple(sorted(touched)),
        tuple(_gone(effects)),
    )


def _gone(effects: Sequence[DdlEffect]) -> Iterator[tuple[str, Name]]:
    dropped = [effect.object for effect in effects if isinstance(effect, DroppedObject)]
    # Names that differ only in case are equal.
    made = {(e.object.kind, e.object.name.folded) for e in effects if isinstance(e, CreatedObject)}
    schemas = {found.name.name for found in dropped if found.kind == "SCHEMA"}
    for found in dropped:
        is_gone = found.name.schema not in schemas and (found.kind, found.name.folded) not in made
        if is_gone and found.kind in _DROPPED_WITH:
            yield found.kind, found.name


def statements(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    text: str,
    change: CatalogDifference,
    layouts: Mapping[Name, Layout],
) -> list[Ddl]:
    """The statements that repeat a schema change on replicas, each with its part of the effects.

    A statement that creates tables is recorded as the catalog shows the tables, because its own text may also read
    rows. Every other statement is recorded as it was written, without comments, with the schemas in which its names are
    looked up and the settings that change its meaning. Without a text, all objects were loaded at once, and the catalog
    shows them.

    The objects that are dropped together with a statement's object depend on settings at its creation, and on whether
    the file was closed since. So separate statements drop them; an owned sequence needs none.

    Raises:
        UnsupportedError: Without the session's other databases, it has another meaning.
    """
    if not text:
        return _loaded(connection, catalog, change)
    if change.created_tables:
        made = [_create_table(connection, catalog, name, change, layouts[name]) for name in change.created_tables]
        return [*_respelled(change), *made, *(_drop(kind, name) for kind, name in change.gone)]
    kind, name = _subject(text, change)
    path = _search_path(connection, catalog, kind, name)
    text = without_comments(text)
    if found := _ENUM_OF_QUERY.match(text):
        text = f"{found.group(1)} ({_labels(connection, catalog, name)})"
    statement = text.strip().rstrip(";").rstrip()
    others = [(gone, other) for gone, other in change.gone if (gone, other) != (kind.removeprefix("DROP "), name)]
    # PostgreSQL keeps tables that DuckDB drops with a sequence. They are dropped first, while they exist in both.
    tables = [_drop(gone, other) for gone, other in others if gone == "TABLE"]
    beside = [_drop(gone, other) for gone, other in others if gone != "TABLE"]
    elsewhere = {effect for ddl in (*tables, *beside) for effect in ddl.does}
    does = tuple(effect for effect in change.effects if effect not in elsewhere)
    session = settings.of_session(connection)
    main = Ddl(kind, name, statement, path, layout=layouts.get(name), settings=session, does=does)
    return [*tables, main, *beside]


def _loaded(connection: duckdb.DuckDBPyConnection, catalog: str, change: CatalogDifference) -> list[Ddl]:
    """The statements that create all objects that one statement loaded, in a valid order.

    Raises:
        UnsupportedError: It also altered or dropped something.
    """
    if change.altered_tables or change.dropped_tables:
        raise UnsupportedError(
            f"the loaded script also alters or drops tables: {(*change.altered_tables, *change.dropped_tables)[0]}",
            hint="run the statements of its schema.sql one by one",
        )
    before, after = schema_statements(connection, catalog)
    names = {name for _, name in change.objects}
    made = {*change.objects, *(("COMMENT", name) for name in names)}
    return [ddl for ddl in before + after if (ddl.kind.removeprefix("CREATE "), ddl.object) in made]


def _respelled(change: CatalogDifference) -> list[Ddl]:
    """The statements that drop tables which are replaced under the same name in another case.

    DuckDB then uses the new spelling. Readers that know tables by their exact names see another table.
    """
    taken = {name.folded for name in change.created_tables} - {name.folded for name in change.replaced_tables}
    return [_drop("TABLE", name) for name in change.dropped_tables if name.folded in taken]


def _labels(connection: duckdb.DuckDBPyConnection, catalog: str, name: Name) -> str:
    """The values of an enum that was created from a query: on a replica, the query may return them in another order."""
    found = connection.execute(
        "SELECT labels FROM duckdb_types() WHERE database_name = ? AND schema_name = ? AND type_name = ?",
        [catalog, name.schema, name.name],
    ).fetchall()[0][0]
    return ", ".join(map(literal, found))


def _drop(kind: str, name: Name) -> Ddl:
    does = (DroppedObject(DbObject(kind, name)),)
    return Ddl(f"DROP {kind}", name, f"DROP {kind} IF EXISTS {name.sql}", (name.schema,), does=does)


def _search_path(connection: duckdb.DuckDBPyConnection, catalog: str, kind: str, subject: Name) -> tuple[str, ...]:
    """The schemas of the database in which names are looked up."""
    set_path, database, schemas, present = connection.execute(
        "SELECT current_setting('search_path'), current_database(), current_schemas(false),"
        " (SELECT list(schema_name) FROM duckdb_schemas() WHERE database_name = ?)",
        [catalog],
    ).fetchall()[0]
    databases = _databases(set_path, database, len(schemas))
    path = tuple(
        schema for name, schema in zip(databases, schemas, strict=True) if name == catalog and schema in present
    )
    if kind in _WITH_BODY and not {catalog}.issuperset(databases):
        other = next(name for name in databases if name != catalog)
        raise UnsupportedError(
            f"{kind} {subject} cannot be captured: its names may mean objects of database {other}, which replicas lack",
            hint=f"USE {quote(catalog)}, and run it again",
        )
    # A statement that runs in another database gives the full name of its object.
    return path or ("main" if kind.endswith("SCHEMA") else subject.schema,)


def _databases(search_path: str, current: str, count: int) -> list[str]:
    """The database of every entry of a search path; an entry without one means the current database."""
    entries: list[list[str]] = [[]]
    for part in _PATH.findall(search_path):
        if part == ",":
            entries.append([])
        elif part != ".":
            entries[-1].append(unquoted(part))
    found = [entry[0] if len(entry) > 1 else current for entry in entries]
    return found if len(found) == count else [current] * count


def _create_table(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    name: Name,
    change: CatalogDifference,
    layout: Layout,
) -> Ddl:
    sql = connection.execute(
        "SELECT sql FROM duckdb_tables() WHERE database_name = ? AND schema_name = ? AND table_name = ?",
        [catalog, name.schema, name.name],
    ).fetchall()[0][0]
    how = "CREATE OR REPLACE TABLE " if name in change.replaced_tables else "CREATE TABLE "
    statement = _CREATE_TABLE.sub(how, table_sql(sql), count=1)
    does = tuple(e for e in change.effects if isinstance(e, CreatedObject) and e.object == DbObject("TABLE", name))
    return Ddl("CREATE TABLE", name, statement, (name.schema,), layout=layout, does=does)


def _subject(text: str, change: CatalogDifference) -> tuple[str, Name]:
    """Kind of the statement and its object: the altered table, or the named one of the changed objects."""
    # DuckDB has run the statement, so the words before the kind of object can only be OR REPLACE and the like.
    parts = tokens(text)
    at = next((index for index, token in enumerate(parts) if index and token.word in _KINDS), 0)
    noun = parts[at].word if at else ""
    noun = "MACRO" if noun == "FUNCTION" else noun
    kind = f"{parts[0].word} {noun}".strip()
    if change.altered_tables:
        return kind, next(iter(change.altered_tables))
    matching = [name for found, name in change.objects if found == noun] or [name for _, name in change.objects]
    path = _path(parts[at + 1 :])
    named = [name for name in matching if [part.lower() for part in (name.schema, name.name)][-len(path) :] == path]
    return kind, (named or matching)[0]


def _path(parts: list[Token]) -> list[str]:
    """Schema and name, or the name alone, at the start of a list of tokens; in lower case."""
    named = list(dropwhile(lambda token: token.word in ("IF", "NOT", "EXISTS", "TABLE"), parts))
    length = next((at for at in range(1, len(named), 2) if named[at].text != "."), len(named))
    return [token.name.lower() for token in named[:length:2]][-2:]
