"""Schema changes of a PostgreSQL master as statements: for replicas that are PostgreSQL, and for all others.

The event triggers describe a table before and after; what happened is the difference. Columns are told apart by their
numbers, which never change, so that a renamed column is no new one. Every statement stands alone: names are qualified.

Replicas that are no PostgreSQL get columns and primary keys. A partitioned table is a view of its partitions there, and
what only PostgreSQL has (other constraints, indexes, views, functions, types) is in PostgreSQL's dialect alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from wlc.capture.postgres.types import constant_sql, duckdb_type
from wlc.dialect.sql import literal, quote
from wlc.farm.model import Column, Ddl, Layout, Name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Description = dict[str, Any]

POSTGRES = "postgres"
_MOVED = re.compile(r"\b(RENAME\s+TO|SET\s+SCHEMA)\b", re.IGNORECASE)
_ROOT = "p"
_FOREIGN_KEY = "f"


def name_of(table: Description) -> Name:
    """Return the name of a described table."""
    return Name(table["schema"], table["name"])


def layout_of(table: Description) -> Layout:
    """Return the layout of a described table in the farm, which has no generated columns."""
    key = tuple(table["key"])
    columns = (
        Column(column["name"], duckdb_type(column["base"]), nullable=column["name"] not in key)
        for column in table["columns"]
        if column["generated"] is None
    )
    return Layout(tuple(columns), key)


def is_root(table: Description) -> bool:
    """Say whether a described table is partitioned: it has no rows of its own."""
    return bool(table["kind"] == _ROOT)


def create(table: Description, *, is_snapshot: bool = False) -> Iterator[Ddl]:
    """Create a table. In a snapshot, `connect` adds foreign keys and parents later."""
    name = name_of(table)
    if is_root(table):
        yield _only(table, "CREATE TABLE", _create_sql(table, is_snapshot))
    else:
        layout = layout_of(table)
        yield Ddl(
            "CREATE TABLE",
            name,
            _duckdb_table(table, "CREATE TABLE"),
            layout=layout,
            original=_create_sql(table, is_snapshot),
        )
    if not is_snapshot:
        yield from _attach(table, None)


def connect(table: Description) -> Iterator[Ddl]:
    """Add parents and foreign keys to a table of a snapshot, once all tables exist."""
    yield from _attach(table, None)
    for constraint, content in sorted(table["constraints"].items()):
        if content["type"] == _FOREIGN_KEY and not content["is_inherited"]:
            yield _alter(table, f"ADD CONSTRAINT {quote(constraint)} {content['definition']}")


def drop(table: Description) -> Ddl:
    """Drop a table."""
    name, kind = name_of(table), "VIEW" if is_root(table) else "TABLE"
    statement = f"DROP {kind} IF EXISTS {name.sql}"
    return Ddl(f"DROP {kind}", name, statement, original=f"DROP TABLE IF EXISTS {name.sql} CASCADE")


def alter(old: Description, new: Description, *, is_resent: bool) -> Iterator[Ddl]:
    """Bring a table from one description to the next.

    Args:
        old: As it was.
        new: As it is.
        is_resent: All rows follow, and there are none meanwhile, so that columns may be made anew.
    """
    table = {**old, "columns": list(old["columns"])}
    for statement, ddl in _steps(table, old, new, is_resent=is_resent):
        if ddl is None or is_resent or is_root(new):
            if statement:
                yield _only(new, "ALTER TABLE", statement)
        else:
            yield Ddl("ALTER TABLE", name_of(table), ddl, layout=layout_of(table), original=statement)
    if is_resent and not is_root(new):
        if name_of(old) != name_of(new):
            yield Ddl("DROP TABLE", name_of(old), f"DROP TABLE {name_of(old).sql}", original="")
        replaced = _duckdb_table(new, "CREATE OR REPLACE TABLE")
        yield Ddl("CREATE TABLE", name_of(new), replaced, layout=layout_of(new), original="")
    elif is_root(new) and name_of(old) != name_of(new):
        yield Ddl("DROP VIEW", name_of(old), f"DROP VIEW IF EXISTS {name_of(old).sql}", original="")


def partition_view(root: Description, tables: Iterable[Description]) -> Ddl:
    """Create the view that stands for a partitioned table in engines without such tables."""
    columns = layout_of(root).columns
    listed = ", ".join(quote(column.name) for column in columns)
    parts = [
        f"SELECT {listed} FROM {name_of(table).sql}"
        for table in sorted(tables, key=name_of)
        if any(parent[0] == root["oid"] for parent in table["parents"])
    ]
    nothing = ", ".join(f"CAST(NULL AS {column.type}) AS {quote(column.name)}" for column in columns)
    body = " UNION ALL ".join(parts) or f"SELECT {nothing} WHERE false"
    return Ddl("CREATE VIEW", name_of(root), f"CREATE OR REPLACE VIEW {name_of(root).sql} AS {body}", original="")


def depth(table: Description, tables: Mapping[int, Description]) -> int:
    """Count the partitioned tables around a table."""
    count = 0
    while table["parents"] and table["parents"][0][0] in tables:
        table = tables[table["parents"][0][0]]
        count += 1
    return count


def schema(name: str) -> Ddl:
    """Create a schema."""
    statement = f"CREATE SCHEMA IF NOT EXISTS {quote(name)}"
    return Ddl("CREATE SCHEMA", Name(name, name), statement, original=statement)


def sequence(name: Name, definition: str, *, is_identity: bool) -> Ddl:
    """Make a sequence; PostgreSQL makes that of an identity column by itself.

    Args:
        name: Of the sequence.
        definition: PostgreSQL's statement that makes it.
        is_identity: It belongs to an identity column.
    """
    options = definition.partition(" INCREMENT BY ")[2].replace("START WITH", "START")
    statement = f"CREATE SEQUENCE IF NOT EXISTS {name.sql} INCREMENT BY {' '.join(_without_cache(options))}"
    return Ddl("CREATE SEQUENCE", name, statement, original="" if is_identity else definition)


def renamed_sequence(old: Name | None, name: Name, definition: str) -> Iterator[Ddl]:
    """Create a sequence under its present name: PostgreSQL has renamed it already, and other engines cannot."""
    if old is not None:
        yield Ddl("DROP SEQUENCE", old, f"DROP SEQUENCE IF EXISTS {old.sql}", original="")
    yield sequence(name, definition, is_identity=True)


def of_object(message: Mapping[str, Any]) -> Ddl | None:
    """Turn a message of the event triggers about an object that is not a table into a statement; None to ignore it."""
    kind, name = str(message["object"]), _object(message)
    if message["tag"].startswith("REFRESH"):
        # Each server refreshes its materialized views itself.
        return None
    text: str = message["definition"] or _as_typed(message) or ""
    if kind == "schema":
        return schema(message["identity"].strip('"')) if message["tag"] == "CREATE SCHEMA" else _plain(name, message)
    if kind == "sequence" and message["tag"] == "CREATE SEQUENCE":
        return sequence(_parts(message["identity"]), text, is_identity=bool(message.get("is_identity")))
    if kind == "sequence" and (typed := _as_typed(message)) and _MOVED.search(typed):
        text = typed
    if kind in KINDS and text:
        return Ddl(message["tag"], name, text, dialect=POSTGRES)
    return None


def of_dropped(message: Mapping[str, Any]) -> Ddl:
    """Turn a message of the event triggers about a dropped object into a statement."""
    kind = message["dropped"].upper()
    text = f"DROP {kind} IF EXISTS {message['identity']} CASCADE"
    tag, name = f"DROP {kind}", _object(message)
    if kind in ("SCHEMA", "SEQUENCE"):
        return Ddl(tag, name, text, original=text)
    return Ddl(tag, name, text, dialect=POSTGRES)


# What makes sense on another server as it was typed, if it was typed alone.
KINDS = {"index", "view", "materialized view", "sequence", "type", "domain", "function", "procedure", "table column"}


def _object(message: Mapping[str, Any]) -> Name:
    schema_name = message["schema"] or message["identity"]
    return Name(schema_name, message["identity"].removeprefix(f"{schema_name}."))


def _as_typed(message: Mapping[str, Any]) -> str | None:
    import sqlglot

    text = str(message["query"] or "").strip().rstrip(";")
    try:
        tokens = sqlglot.tokenize(text, read="postgres")
    except sqlglot.errors.SqlglotError:
        return None
    is_one = all(token.token_type.name != "SEMICOLON" for token in tokens)
    # Another statement may have created this object, as CREATE TABLE creates indexes.
    words, kind = text.upper().split(), message["tag"].split()
    return text if is_one and words[:1] == kind[:1] and kind[-1] in words[:6] else None


def _plain(name: Name, message: Mapping[str, Any]) -> Ddl | None:
    text = _as_typed(message)
    return Ddl(message["tag"], name, text, dialect=POSTGRES) if text else None


# Differences ---------------------------------------------------------------------------------------------------------


def _steps(
    table: Description, old: Description, new: Description, *, is_resent: bool
) -> Iterator[tuple[str, str | None]]:
    """Yield PostgreSQL's statement and DuckDB's, and keep `table` as it is after them.

    What a table inherits changes with the statement for its parent in PostgreSQL, so that there is none for itself.
    """
    yield from _renamed(table, new)
    yield from _dropped_constraints(table, old, new)
    after = {column["number"]: column for column in new["columns"]}
    for column in old["columns"]:
        if column["number"] not in after:
            table["columns"] = [c for c in table["columns"] if c["number"] != column["number"]]
            drops = f"ALTER TABLE {name_of(table).sql} DROP COLUMN {quote(column['name'])}"
            # A child that was created before its parent keeps a column that the parent drops.
            original = drops.replace("DROP COLUMN", "DROP COLUMN IF EXISTS") if column["is_inherited"] else drops
            yield f"{original} CASCADE", drops if column["generated"] is None else None
    yield from _renamed_columns(table, after)
    for position, column in enumerate(table["columns"]):
        changed = after[column["number"]]
        table["columns"][position] = changed
        for statement in _changed_column(column, changed, is_resent=is_resent):
            only = "ONLY " if "DEFAULT" in statement else ""
            yield f"ALTER TABLE {only}{name_of(table).sql} ALTER COLUMN {quote(changed['name'])} {statement}", None
    before = {column["number"] for column in old["columns"]}
    for column in new["columns"]:
        if column["number"] not in before:
            table["columns"] = [*table["columns"], column]
            yield from _added_column(table, column)
    table["key"] = new["key"]
    yield from _added_constraints(table, old, new)
    for ddl in _attach(new, old):
        yield ddl.statement, None


def _renamed(table: Description, new: Description) -> Iterator[tuple[str, str | None]]:
    if table["schema"] != new["schema"]:
        # DuckDB cannot move a table to another schema: the event triggers have all rows sent again.
        yield f"ALTER TABLE {name_of(table).sql} SET SCHEMA {quote(new['schema'])}", None
        table["schema"] = new["schema"]
    if table["name"] != new["name"]:
        statement = f"ALTER TABLE {name_of(table).sql} RENAME TO {quote(new['name'])}"
        table["name"] = new["name"]
        yield statement, statement


def _renamed_columns(table: Description, after: Mapping[int, Description]) -> Iterator[tuple[str, str | None]]:
    """Rename columns; two that swap their names use a third name in between."""
    waiting = [column for column in table["columns"] if column["name"] != after[column["number"]]["name"]]
    while waiting:
        taken = {column["name"] for column in table["columns"]}
        free = [column for column in waiting if after[column["number"]]["name"] not in taken]
        column = free[0] if free else waiting[0]
        name = after[column["number"]]["name"] if free else f"{column['name']} {column['number']}"
        statement = f"ALTER TABLE {name_of(table).sql} RENAME COLUMN {quote(column['name'])} TO {quote(name)}"
        renamed = {**column, "name": name}
        table["columns"] = [renamed if c["number"] == column["number"] else c for c in table["columns"]]
        table["key"] = [name if key == column["name"] else key for key in table["key"]]
        waiting = [renamed if c["number"] == column["number"] else c for c in waiting]
        waiting = [c for c in waiting if c["name"] != after[c["number"]]["name"]]
        yield "" if column["is_inherited"] else statement, statement if column["generated"] is None else None


def _changed_column(old: Description, new: Description, *, is_resent: bool) -> Iterator[str]:
    """Yield what follows `ALTER COLUMN c` for a column that stays."""
    if (old["type"], old["collation"]) != (new["type"], new["collation"]) and not new["is_inherited"]:
        if old["default"] is not None:
            yield "DROP DEFAULT"
            old = {**old, "default": None}
        collation = f" COLLATE {new['collation']}" if new["collation"] else ""
        using = f" USING NULL::{new['type']}" if is_resent and new["generated"] is None else ""
        yield f"TYPE {new['type']}{collation}{using}"
    if old["generated"] is not None and new["generated"] is None:
        yield "DROP EXPRESSION"
    if old["identity"] != new["identity"]:
        if old["identity"]:
            yield "DROP IDENTITY"
        if new["identity"]:
            yield f"ADD {_identity(new)}"
    if old["default"] != new["default"]:
        yield "DROP DEFAULT" if new["default"] is None else f"SET DEFAULT {new['default']}"
    if old["nullable"] != new["nullable"]:
        yield "DROP NOT NULL" if new["nullable"] else "SET NOT NULL"


def _added_column(table: Description, column: Description) -> Iterator[tuple[str, str | None]]:
    start = f"ALTER TABLE {name_of(table).sql} ADD COLUMN"
    declared, missing = duckdb_type(column["base"]), column["missing"]
    # The description holds the value that existing rows got, so that a default such as now() is the same everywhere.
    default = f" DEFAULT {literal(missing)}::{column['type']}" if missing is not None else ""
    original = f"{start} {_column_sql({**column, 'default': None})}{default}"
    if column["is_inherited"]:
        original = ""
    if column["generated"] is not None:
        yield original, None
        return
    name = quote(column["name"])
    value = f" DEFAULT {constant_sql(declared, missing)}" if missing is not None else ""
    yield original, f"{start} {name} {declared}{value}"
    if column["default"] is not None or missing is not None:
        default = "DROP DEFAULT" if column["default"] is None else f"SET DEFAULT {column['default']}"
        bare = f"ALTER TABLE {name_of(table).sql} ALTER COLUMN {name} DROP DEFAULT"
        yield (
            f"ALTER TABLE ONLY {name_of(table).sql} ALTER COLUMN {name} {default}",
            bare if missing is not None else None,
        )


def _dropped_constraints(table: Description, old: Description, new: Description) -> Iterator[tuple[str, str | None]]:
    for name, constraint in old["constraints"].items():
        if new["constraints"].get(name) != constraint and not constraint["is_inherited"]:
            yield f"ALTER TABLE {name_of(table).sql} DROP CONSTRAINT IF EXISTS {quote(name)} CASCADE", None


def _added_constraints(table: Description, old: Description, new: Description) -> Iterator[tuple[str, str | None]]:
    for name, constraint in new["constraints"].items():
        if old["constraints"].get(name) != constraint and not constraint["is_inherited"]:
            yield f"ALTER TABLE {name_of(table).sql} ADD CONSTRAINT {quote(name)} {constraint['definition']}", None


def _attach(table: Description, old: Description | None) -> Iterator[Ddl]:
    """Connect a table to its present parents, and disconnect it from those it had."""
    parents = old["parents"] if old else []
    name = name_of(table).sql
    present = {parent[0] for parent in table["parents"]}
    for oid, schema_name, parent in parents:
        if oid not in present:
            sql = Name(schema_name, parent).sql
            was_partition = old is not None and old["bound"] is not None
            detach = f"ALTER TABLE {sql} DETACH PARTITION {name}"
            yield _only(table, "ALTER TABLE", detach) if was_partition else _alter(table, f"NO INHERIT {sql}")
    before = {parent[0] for parent in parents}
    for oid, schema_name, parent in table["parents"]:
        if oid in before:
            continue
        sql = Name(schema_name, parent).sql
        if table["bound"] is not None:
            yield _only(table, "ALTER TABLE", f"ALTER TABLE {sql} ATTACH PARTITION {name} {table['bound']}")
        else:
            yield _alter(table, f"INHERIT {sql}")


# Text ----------------------------------------------------------------------------------------------------------------


def _only(table: Description, kind: str, statement: str) -> Ddl:
    return Ddl(kind, name_of(table), statement, dialect=POSTGRES)


def _alter(table: Description, what: str) -> Ddl:
    return _only(table, "ALTER TABLE", f"ALTER TABLE {name_of(table).sql} {what}")


def _duckdb_table(table: Description, verb: str) -> str:
    layout = layout_of(table)
    parts = [f"{quote(column.name)} {column.type}" for column in layout.columns]
    if layout.primary_key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quote, layout.primary_key))})")
    return f"{verb} {name_of(table).sql} ({', '.join(parts)})"


def _create_sql(table: Description, is_snapshot: bool) -> str:
    parts = [_column_sql(column) for column in table["columns"]]
    for name, constraint in sorted(table["constraints"].items(), key=lambda item: (item[1]["type"] != "p", item[0])):
        if not (is_snapshot and constraint["type"] == _FOREIGN_KEY):
            parts.append(f"CONSTRAINT {quote(name)} {constraint['definition']}")
    partitioned = f" PARTITION BY {table['partition_key']}" if is_root(table) else ""
    return f"CREATE TABLE {name_of(table).sql} ({', '.join(parts)}){partitioned}"


def _column_sql(column: Description) -> str:
    text = f"{quote(column['name'])} {column['type']}"
    if column["collation"]:
        text += f" COLLATE {column['collation']}"
    if column["generated"] is not None:
        text += f" GENERATED ALWAYS AS ({column['generated']}) STORED"
    elif column["identity"]:
        text += f" {_identity(column)}"
    elif column["default"] is not None:
        text += f" DEFAULT {column['default']}"
    return text if column["nullable"] else f"{text} NOT NULL"


def _identity(column: Description) -> str:
    always = "ALWAYS" if column["identity"] == "a" else "BY DEFAULT"
    return f"GENERATED {always} AS IDENTITY ({column['identity_options']})"


def _without_cache(options: str) -> Iterator[str]:
    words = iter(options.split())
    for word in words:
        if word == "CACHE":
            next(words)
        else:
            yield word


def _parts(identity: str) -> Name:
    """Split a qualified name as PostgreSQL writes it."""
    import sqlglot

    found = sqlglot.parse_one(identity, into=sqlglot.exp.Table, dialect="postgres")
    return Name(found.db, found.name)
