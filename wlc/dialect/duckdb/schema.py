"""Statements that rebuild a DuckDB database's schema, in a tested order.

DuckDB's EXPORT DATABASE cannot be used: it refuses tables with a foreign key to themselves, and writes objects in the
order of their creation, which is wrong after `CREATE OR REPLACE`. The statements run on an empty database in memory
instead. A statement that fails is retried after the others; the order of success is a valid order.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.catalog import OWNED, USER, refuse_nested_schemas, rows, tables
from wlc.dialect.duckdb.constraints import UNIQUE_EXPRESSIONS, constraints, unique_columns
from wlc.dialect.duckdb.lexer import tokens
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnavailableError, UnsupportedError
from wlc.farm.model import AlteredObject, CreatedObject, DbObject, Ddl, Name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import duckdb

    from wlc.dialect.duckdb.lexer import Token
    from wlc.farm.model import DdlEffect, Layout

_IDENTIFIER = r'(?:"(?:[^"]|"")*"|[^\s".(),]+)'
_VIEW = re.compile(
    rf"CREATE (?:SECURE )?VIEW (?:{_IDENTIFIER}\.)?{_IDENTIFIER}(?: \({_IDENTIFIER}(?:, {_IDENTIFIER})*\))?(?= AS )"
)
_DEFERRED = " WITH (DEFER_BINDING = true)"
_NEXT = re.compile(r" START (-?\d+)")


@dataclass(frozen=True, slots=True)
class _Macro:
    """One overload of a macro; `types` holds None for an untyped parameter."""

    parameters: tuple[str, ...]
    types: tuple[str | None, ...]
    definition: str


def schema_statements(connection: duckdb.DuckDBPyConnection, catalog: str) -> tuple[tuple[Ddl, ...], tuple[Ddl, ...]]:
    """Return the statements that build the user's schema on an empty database attached under the same name.

    Triggers are left out: their effects on the master are replicated as rows, and on a replica they would occur twice.

    Args:
        connection: It may be in a transaction; it is only read.
        catalog: Name of the database inside the connection.

    Returns:
        Statements to run before rows are loaded, and after (indexes). Sequences are at their start; see
        `catalog.sequences`.

    Raises:
        UnsupportedError: An object in the catalog cannot be rebuilt; the message names it.
        UnavailableError: Macros changed during the read: try again.
    """
    refuse_nested_schemas(connection, catalog)
    functions = _functions(connection, catalog)
    layouts = tables(connection, catalog)
    before = [
        *_schemas(connection, catalog),
        *_types(connection, catalog),
        *_sequences(connection, catalog),
        *_macros(connection, catalog, functions),
        *_tables(connection, catalog, layouts),
        *_views(connection, catalog),
    ]
    after = list(_indexes(connection, catalog, layouts))
    comments, index_comments = _comments(connection, catalog, functions, layouts)
    with closing(_scratch(connection, catalog)) as scratch:
        tried = [_arranged(scratch, catalog, part) for part in (before, comments, after, index_comments)]
    return tuple(tried[0] + tried[1]), tuple(tried[2] + tried[3])


# Objects of the catalog ----------------------------------------------------------------------------------------------


def _schemas(connection: duckdb.DuckDBPyConnection, catalog: str) -> Iterator[Ddl]:
    for (schema,) in rows(connection, catalog, f"SELECT schema_name FROM duckdb_schemas() WHERE {USER} ORDER BY oid"):
        if schema != "main":
            made = Name(schema, schema)
            yield Ddl("CREATE SCHEMA", made, f"CREATE SCHEMA {quote(schema)}", does=_created("SCHEMA", made))


def _types(connection: duckdb.DuckDBPyConnection, catalog: str) -> Iterator[Ddl]:
    listed = f"SELECT schema_name, type_name, labels FROM duckdb_types() WHERE {USER} ORDER BY type_oid"
    for schema, name, labels in rows(connection, catalog, listed):
        made = Name(schema, name)
        if labels is None:
            query = f"SELECT typeof(CAST(NULL AS {quote(catalog)}.{made.sql}))"
            ((definition,),) = connection.execute(query).fetchall()
        else:
            definition = "ENUM (" + ", ".join(literal(label) for label in labels) + ")"
        statement = f"CREATE TYPE {made.sql} AS {definition}"
        yield Ddl("CREATE TYPE", made, statement, (schema,), does=_created("TYPE", made))


def _sequences(connection: duckdb.DuckDBPyConnection, catalog: str) -> Iterator[Ddl]:
    query = f"""
        SELECT schema_name, sequence_name, increment_by, min_value, max_value, start_value, cycle, last_value, sql
        FROM duckdb_sequences() WHERE {OWNED} AND NOT temporary ORDER BY sequence_oid
    """
    for schema, name, increment, least, greatest, start, cycles, last, sql in rows(connection, catalog, query):
        # The catalog's text starts at the sequence's position, which setval() may have moved before the first value.
        following = _NEXT.search(sql)
        first = start if last is not None or following is None else int(following.group(1))
        made = Name(schema, name)
        text = f"CREATE SEQUENCE {made.sql} INCREMENT BY {increment} MINVALUE {least} MAXVALUE {greatest} START {first}"
        text += f" {'' if cycles else 'NO '}CYCLE"
        yield Ddl("CREATE SEQUENCE", made, text, (schema,), does=_created("SEQUENCE", made))


@dataclass(frozen=True, slots=True)
class _Functions:
    """All overloads of a macro, or of a table macro."""

    name: Name
    gives_table: bool
    overloads: list[_Macro]
    comment: str | None


def _functions(connection: duckdb.DuckDBPyConnection, catalog: str) -> list[_Functions]:
    # The query scans all of DuckDB's own functions, too, so it runs once.
    query = f"""
        SELECT schema_name, function_name, function_type, parameters, parameter_types, macro_definition, comment
        FROM duckdb_functions() WHERE {USER} AND function_type IN ('macro', 'table_macro') ORDER BY function_oid
    """
    found: dict[tuple[Name, bool], _Functions] = {}
    for schema, name, kind, parameters, types, definition, comment in rows(connection, catalog, query):
        made, gives_table = Name(schema, name), kind == "table_macro"
        functions = found.setdefault((made, gives_table), _Functions(made, gives_table, [], comment))
        functions.overloads.append(_Macro(tuple(parameters), tuple(types), definition))
    return list(found.values())


def _macros(connection: duckdb.DuckDBPyConnection, catalog: str, functions: Iterable[_Functions]) -> Iterator[Ddl]:
    for found in functions:
        made, gives_table, overloads = found.name, found.gives_table, found.overloads
        signatures = _signatures(connection, catalog, made, gives_table, overloads)
        body = "AS TABLE (" if gives_table else "AS ("
        parts = (f"({', '.join(s)}) {body}{o.definition})" for s, o in zip(signatures, overloads, strict=True))
        statement = f"CREATE MACRO {made.sql} " + ", ".join(parts)
        yield Ddl("CREATE MACRO", made, statement, (made.schema,), does=_created("MACRO", made))


def _tables(connection: duckdb.DuckDBPyConnection, catalog: str, layouts: Mapping[Name, Layout]) -> Iterator[Ddl]:
    constrained = constraints(connection, catalog, layouts)
    query = f"SELECT schema_name, table_name, sql FROM duckdb_tables() WHERE {USER} AND NOT temporary"
    for schema, name, sql in rows(connection, catalog, f"{query} ORDER BY table_oid"):
        made = Name(schema, name)
        does = (CreatedObject(DbObject("TABLE", made), constraints=constrained.get(made, ())),)
        yield Ddl("CREATE TABLE", made, table_sql(sql), (schema,), layout=layouts[made], does=does)


def _views(connection: duckdb.DuckDBPyConnection, catalog: str) -> Iterator[Ddl]:
    query = f"SELECT schema_name, view_name, sql FROM duckdb_views() WHERE {USER} AND NOT temporary ORDER BY view_oid"
    for schema, name, sql in rows(connection, catalog, query):
        made = Name(schema, name)
        yield Ddl("CREATE VIEW", made, _plain(sql), (schema,), does=_created("VIEW", made))


def _indexes(connection: duckdb.DuckDBPyConnection, catalog: str, layouts: Mapping[Name, Layout]) -> Iterator[Ddl]:
    # Indexes of constraints have no separate statement.
    query = f"""
        SELECT schema_name, index_name, sql, table_name, {UNIQUE_EXPRESSIONS}
        FROM duckdb_indexes() WHERE {OWNED} AND sql <> '' ORDER BY index_oid
    """
    for schema, name, sql, table, unique in rows(connection, catalog, query):
        made, of = DbObject("INDEX", Name(schema, name)), Name(schema, table)
        does = (CreatedObject(made, of=of, unique=unique_columns(unique, layouts.get(of))),)
        yield Ddl("CREATE INDEX", made.name, _plain(sql), (schema,), does=does)


def _comments(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    functions: Iterable[_Functions],
    layouts: Mapping[Name, Layout],
) -> tuple[list[Ddl], list[Ddl]]:
    """Return the comments on everything but indexes, and those on indexes."""
    listed = rows(
        connection,
        catalog,
        f"""
        SELECT 'TABLE', schema_name, table_name, comment, NULL FROM duckdb_tables() WHERE {USER} AND NOT temporary
        UNION ALL SELECT 'VIEW', schema_name, view_name, comment, NULL FROM duckdb_views()
            WHERE {USER} AND NOT temporary
        UNION ALL SELECT 'SEQUENCE', schema_name, sequence_name, comment, NULL FROM duckdb_sequences() WHERE {OWNED}
        UNION ALL SELECT 'TYPE', schema_name, type_name, comment, NULL FROM duckdb_types() WHERE {USER}
        UNION ALL SELECT 'INDEX', schema_name, index_name, comment, table_name FROM duckdb_indexes() WHERE {OWNED}
        """,
    )
    query = f"SELECT schema_name, table_name, column_name, comment FROM duckdb_columns() WHERE {USER}"
    columns = rows(connection, catalog, f"{query} AND comment IS NOT NULL")
    others: list[Ddl] = []
    of_indexes: list[Ddl] = []
    for kind, schema, name, text, table in listed:
        if text is not None:
            commented = DbObject(kind, Name(schema, name))
            if table is None:
                others.append(_comment(kind, AlteredObject(commented), "", text))
            else:
                of_indexes.append(_comment(kind, AlteredObject(commented, Name(schema, table)), "", text))
    for found in functions:
        if found.comment is not None:
            kind = "MACRO TABLE" if found.gives_table else "MACRO"
            others.append(_comment(kind, AlteredObject(DbObject("MACRO", found.name)), "", found.comment))
    for schema, name, column, text in columns:
        kind = "TABLE" if Name(schema, name) in layouts else "VIEW"
        commented = DbObject(kind, Name(schema, name))
        others.append(_comment("COLUMN", AlteredObject(commented), "." + quote(column), text))
    return others, of_indexes


def _created(kind: str, name: Name) -> tuple[DdlEffect, ...]:
    return (CreatedObject(DbObject(kind, name)),)


def _comment(kind: str, effect: AlteredObject, column: str, text: str) -> Ddl:
    name = effect.object.name
    statement = f"COMMENT ON {kind} {name.sql}{column} IS {literal(text)}"
    return Ddl("COMMENT", name, statement, (name.schema,), does=(effect,))


def _plain(sql: str) -> str:
    return sql.removesuffix(";")


def table_sql(sql: str) -> str:
    """Return a table's statement from `duckdb_tables()` in a form that DuckDB accepts.

    DuckDB lists the collation of a generated column but does not accept it. Without a type, the column gets both type
    and collation from its expression.
    """
    if "COLLATE" in sql and "GENERATED" in sql:
        parts = tokens(sql)
        for at in range(len(parts) - 1, 1, -1):
            if parts[at].word == "GENERATED" and (start := _collated_type(parts[:at])):
                sql = sql[: parts[start].start] + sql[parts[at].start :]
    return _plain(sql)


def _collated_type(parts: Sequence[Token]) -> int | None:
    """Return where the type at the end of the tokens begins, if it has a collation."""
    at = len(parts) - 2
    while at > 1 and parts[at].text == ".":
        at -= 2
    return at - 1 if at > 1 and parts[at].word == "COLLATE" else None


# Defaults of macro parameters ----------------------------------------------------------------------------------------


def _signatures(
    connection: duckdb.DuckDBPyConnection, catalog: str, name: Name, gives_table: bool, overloads: list[_Macro]
) -> list[list[str]]:
    """Return each overload's parameters as SQL, defaults included.

    DuckDB shows the defaults only in the error of a call that fits no overload. The call is bound and not executed,
    because an execution error would end the caller's transaction.
    """
    if not any(overload.parameters for overload in overloads):
        return [[] for _ in overloads]
    arguments = ", ".join(["1"] * (1 + max(len(overload.parameters) for overload in overloads)))
    call = f"{quote(catalog)}.{name.sql}({arguments})"
    message = ""
    try:
        connection._bind(f"FROM {call}" if gives_table else f"SELECT {call}")
    except Exception as error:  # noqa: BLE001 - The class depends on DuckDB's version; the text is checked below.
        message = str(error)
    found = re.search(_candidates(overloads), message, re.DOTALL)
    if found is None:
        changed = f"Macro {name} changed while it was read, or DuckDB describes it in an unknown way: {message}"
        raise UnavailableError(changed, hint="try again")
    defaults = iter(found.groups())
    return [[_parameter(p, t, next(defaults)) for p, t in zip(o.parameters, o.types, strict=True)] for o in overloads]


def _candidates(overloads: Iterable[_Macro]) -> str:
    lines = []
    for overload in overloads:
        parts = [
            re.escape(name) + (f" {re.escape(declared)}" if declared else "") + "(?: := (.*?))?"
            for name, declared in zip(overload.parameters, overload.types, strict=True)
        ]
        lines.append(r"\t.*?\(" + ", ".join(parts) + r"\)")
    return "Candidate macros:\n" + "\n".join(lines) + r"(?:\n\n|\n?$)"


def _parameter(name: str, declared: str | None, default: str | None) -> str:
    text = quote(name) + (f" {declared}" if declared else "")
    return text if default is None else f"{text} := {default}"


# Trying --------------------------------------------------------------------------------------------------------------


def _scratch(connection: duckdb.DuckDBPyConnection, catalog: str) -> duckdb.DuckDBPyConnection:
    """Open an empty database in memory under the catalog's name, with the extensions that the master has loaded."""
    from wlc.dialect.duckdb import engine  # Readers of the farm's format import this package without DuckDB.

    scratch = engine.connect(":memory:", config={"threads": 1})
    if catalog != "memory":
        scratch.execute(f"ATTACH ':memory:' AS {quote(catalog)}")
    loaded = "SELECT extension_name FROM duckdb_extensions() WHERE loaded"
    present = {name for (name,) in scratch.execute(loaded).fetchall()}
    # A connection without access to files cannot list extensions, and has loaded none.
    if connection.execute("SELECT current_setting('enable_external_access')").fetchall()[0][0]:
        for (name,) in connection.execute(loaded).fetchall():
            if name not in present:
                _error(scratch, f"LOAD {literal(name)}")
    # Views over files and other servers must not access them from here. They are created without binding their sources.
    scratch.execute("SET enable_external_access = false")
    return scratch


def _arranged(scratch: duckdb.DuckDBPyConnection, catalog: str, pending: list[Ddl]) -> list[Ddl]:
    done: list[Ddl] = []
    while pending:
        failed: list[tuple[Ddl, str]] = []
        for ddl in pending:
            made, error = _attempt(scratch, catalog, ddl)
            if error is None:
                done.append(made)
            else:
                failed.append((ddl, error))
        stuck = len(failed) == len(pending)
        pending = _without_binding(failed) if stuck else [ddl for ddl, _ in failed]
    return done


def _attempt(scratch: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> tuple[Ddl, str | None]:
    """Run a statement; a name without a schema may mean `main` or the object's own schema."""
    error: str | None = None
    for search_path in dict.fromkeys(("main", *ddl.search_path)):
        # An object in main is written without its schema.
        if ddl.object.schema == "main" and search_path != "main":
            continue
        error = _error(scratch, f"USE {quote(catalog)}.{quote(search_path)}") or _error(scratch, ddl.statement)
        if error is None:
            return replace(ddl, search_path=(search_path,)), None
    return ddl, error


def _without_binding(failed: list[tuple[Ddl, str]]) -> list[Ddl]:
    """Create views whose sources do not exist here: they were dropped, or are files or other databases."""
    pending = [_deferred(ddl) if ddl.kind == "CREATE VIEW" else ddl for ddl, _ in failed]
    if pending == [ddl for ddl, _ in failed]:
        ddl, error = failed[0]
        raise UnsupportedError(
            f"{ddl.kind} {ddl.object} cannot be repeated on an empty database: {error}",
            hint="drop it, or change it so that it depends on nothing outside this database",
        )
    return pending


def _deferred(view: Ddl) -> Ddl:
    if _DEFERRED in view.statement:
        return view
    return replace(view, statement=_VIEW.sub(lambda found: found.group() + _DEFERRED, view.statement, count=1))


def _error(scratch: duckdb.DuckDBPyConnection, sql: str) -> str | None:
    try:
        scratch.execute(sql)
    except Exception as error:  # noqa: BLE001 - Whatever DuckDB says is passed on as the reason.
        return str(error).partition("\n")[0]
    return None
