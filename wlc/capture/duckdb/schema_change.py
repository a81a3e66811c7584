"""Schema changes, found by comparing the catalog before and after a statement, and recorded as statements."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import dropwhile
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import settings
from wlc.dialect.duckdb.lexer import tokens, unquoted, without_comments
from wlc.dialect.duckdb.schema import schema_statements, table_sql
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import AlteredObject, CreatedObject, DbObject, Ddl, DroppedObject, Name, RenamedObject
from wlc.farm.schema_fold import is_aside

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import duckdb

    from wlc.dialect.duckdb.lexer import Token
    from wlc.farm.model import DdlEffect, Layout

# What may be dropped together with another object.
_DROPPED_WITH = frozenset({"TABLE", "VIEW", "SEQUENCE", "TYPE", "MACRO"})
_KINDS = _DROPPED_WITH | {"SCHEMA", "INDEX", "FUNCTION", "TRIGGER", "COLUMN", "DATABASE"}
# Their bodies name relations that are looked up along the search path.
_WITH_BODY = frozenset({"CREATE VIEW", "CREATE MACRO"})
_PATH = re.compile(r'"[^"]*"|[^".,]+|[.,]')
_ENUM_OF_QUERY = re.compile(r"(\s*CREATE\b.*?\bAS\s+ENUM)\s*\(\s*(?!')", re.IGNORECASE | re.DOTALL)
_CREATE_TABLE = re.compile(r"\s*CREATE\s+TABLE\s+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CatalogDifference:
    """What one statement changed in the catalog.

    Attributes:
        effects: In an order in which they can be followed.
        created_tables: New tables, replaced ones included.
        replaced_tables: Those that took the place of another one.
        altered_tables: Tables with other columns, constraints or names, each with the name that it had.
        dropped_tables: Tables that do not exist any more, replaced and renamed ones included.
        objects: Every object that was created, altered or dropped.
        gone: Objects that were dropped, but not those that were in a dropped schema, and no parts of tables.
    """

    effects: tuple[DdlEffect, ...]
    created_tables: tuple[Name, ...]
    replaced_tables: frozenset[Name]
    altered_tables: Mapping[Name, Name]
    dropped_tables: tuple[Name, ...]
    objects: tuple[tuple[str, Name], ...]
    gone: tuple[tuple[str, Name], ...]


def difference(effects: tuple[DdlEffect, ...]) -> CatalogDifference:
    """Say which tables a statement created, altered and dropped, and everything else it changed."""
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
    # Another spelling is the same name.
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
    """The statements that repeat a schema change elsewhere, each with its part of what the change did.

    A statement that creates tables is recorded as the catalog shows the tables, because its own text may also read
    rows. Every other statement is recorded as it was written, without comments, with the schemas in which its names are
    looked up and the settings that change its meaning. Without a text, all objects were loaded at once, and the catalog
    shows them.

    What is dropped together with a statement's object depends on settings at its creation, and on whether the file was
    closed since. So it is dropped by statements of its own; an owned sequence needs nothing else.

    Raises:
        UnsupportedError: It means something else wherever the session's other databases are missing.
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
    # PostgreSQL keeps tables that DuckDB drops with a sequence. They go while they are there everywhere.
    tables = [_drop(gone, other) for gone, other in others if gone == "TABLE"]
    beside = [_drop(gone, other) for gone, other in others if gone != "TABLE"]
    elsewhere = {effect for ddl in (*tables, *beside) for effect in ddl.does}
    does = tuple(effect for effect in change.effects if effect not in elsewhere)
    session = settings.of_session(connection)
    main = Ddl(kind, name, statement, path, layout=layouts.get(name), settings=session, does=does)
    return [*tables, main, *beside]


def _loaded(connection: duckdb.DuckDBPyConnection, catalog: str, change: CatalogDifference) -> list[Ddl]:
    """The statements that create everything that one statement loaded, in an order that works.

    Raises:
        UnsupportedError: It also altered or dropped something.
    """
    if change.altered_tables or change.dropped_tables:
        raise UnsupportedError(
            f"what was loaded also alters or drops tables: {(*change.altered_tables, *change.dropped_tables)[0]}",
            hint="run the statements of its schema.sql one by one",
        )
    before, after = schema_statements(connection, catalog)
    names = {name for _, name in change.objects}
    made = {*change.objects, *(("COMMENT", name) for name in names)}
    return [ddl for ddl in before + after if (ddl.kind.removeprefix("CREATE "), ddl.object) in made]


def _respelled(change: CatalogDifference) -> list[Ddl]:
    """The statements that drop tables which others replace under the same name in other letters.

    DuckDB has the new spelling from then on. Readers that know tables by their exact names see another table.
    """
    taken = {name.folded for name in change.created_tables} - {name.folded for name in change.replaced_tables}
    return [_drop("TABLE", name) for name in change.dropped_tables if name.folded in taken]


def _labels(connection: duckdb.DuckDBPyConnection, catalog: str, name: Name) -> str:
    """The values of an enum that was created from a query: elsewhere it may return them in another order."""
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
    """Kind of the statement and its object: the table that it altered, or what it names of the objects it changed."""
    # DuckDB has run the statement, so what stands before the kind of object can only be OR REPLACE and the like.
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
    """Schema and name, or the name alone, with which a list of tokens begins; in lower case."""
    named = list(dropwhile(lambda token: token.word in ("IF", "NOT", "EXISTS", "TABLE"), parts))
    length = next((at for at in range(1, len(named), 2) if named[at].text != "."), len(named))
    return [token.name.lower() for token in named[:length:2]][-2:]
