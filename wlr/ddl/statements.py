"""Which statements from the farm may run on a DuckDB replica, decided with DuckDB's own tokenizer and parser.

Whoever can write to the farm can write any text. A statement that runs while the replica is confined cannot reach
files. But a view or macro runs later, for a reader whose connection is not confined, and some functions change the
machine without opening a file. So the bodies of views and macros are checked, and every other query is refused.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb.lexer import tokens
from wlr.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

    from wlc.dialect.duckdb.lexer import Token

OWN = frozenset({"wlc", "wlr"})
_KIND = re.compile(
    r"CREATE( OR REPLACE)?( PERSISTENT)?"
    r" (SCHEMA|TABLE|(RECURSIVE )?VIEW|MACRO|FUNCTION|SEQUENCE|TYPE|(UNIQUE )?INDEX)\b"
    r"|ALTER (TABLE|VIEW|SEQUENCE|SCHEMA|INDEX|TYPE)\b"
    r"|DROP (SCHEMA|TABLE|VIEW|SEQUENCE|TYPE|INDEX|(MACRO|FUNCTION)( TABLE)?)\b"
    r"|COMMENT ON (SCHEMA|TABLE|VIEW|COLUMN|SEQUENCE|TYPE|INDEX|(MACRO|FUNCTION)( TABLE)?)\b"
)
# Databases that are attached beside the replica's.
_BESIDE = frozenset({"memory", "temp", "system", "wlr_scratch"})
# Table functions that neither open files nor change anything. Macros of the database are allowed, too.
_HARMLESS = frozenset(
    "range generate_series unnest repeat repeat_row json_each json_tree test_all_types icu_calendar_names"
    " pg_timezone_names pragma_table_info pragma_version duckdb_columns duckdb_constraints duckdb_databases"
    " duckdb_functions duckdb_indexes duckdb_keywords duckdb_schemas duckdb_sequences duckdb_tables duckdb_triggers"
    " duckdb_types duckdb_views".split()
)
_REACHING_SCALARS = frozenset({"getenv", "write_log"})
# A macro may be dropped later. A call of it must not become a call of an extension's function then.
_OUTSIDE = re.compile(r"read|scan|query|glob|attach|http|load|exec|install|copy|write|sniff|open|file", re.IGNORECASE)
# Names that DuckDB, or an extension that it loads by itself, takes for a file or an address if no such table exists.
_FILE = re.compile(
    r"[/\\*?\[]|:|\.(csv|tsv|txt|parquet|json|jsonl|ndjson|geojson|xlsx?|db|ddb|duckdb|sqlite3?|arrow|arrows|feather|ipc"
    r"|avro|orc|gpkg|shp|fgb|kml|gpx|dbf|osm|pbf|vortex|lance|log|ya?ml|html?|xml)(\.(gz|zst|zstd|bz2|xz))?$",
    re.IGNORECASE,
)


class OutsideError(StepError):
    """A view or macro reads something outside the database."""


def refuse_hostile(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> None:
    """Refuse what no schema change needs; the caller has checked that it is one statement, and its type.

    Args:
        connection: Its functions and macros are those that the statement would call.
        catalog: Name of the database that it is about.
        statement: Its text.

    Raises:
        OutsideError: It makes a view that reads something outside the database.
        StepError: It is of another kind, or changes what belongs to dbfarm or to another database.
    """
    listed = tokens(statement)
    found = _KIND.match(" ".join(token.text.upper() for token in listed))
    if not found:
        raise StepError(f"not a change of the database's schema: {short(statement)}")
    kind, rest = found.group(0), listed[len(found.group(0).split()) :]
    path, rest = _path(rest)
    if _names_own(listed) or (kind.endswith("SCHEMA") and path[-1].lower() in OWN):
        raise StepError(f"schemas wlc and wlr are not the farm's to change: {short(statement)}")
    if _is_beside(path, catalog):
        raise StepError(f"database {path[0]} is not the farm's to change: {short(statement)}")
    if kind.startswith("CREATE"):
        _refuse_query(kind, rest, statement)
        if kind.endswith("VIEW"):
            _check_body(connection, catalog, _body(rest, statement), statement)


def refuse_hostile_macro(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> None:
    """Refuse a macro that was just created, and not called yet, if it reads something outside the database.

    Raises:
        OutsideError: It does.
    """
    words = tokens(statement)
    kind = _KIND.match(" ".join(token.text.upper() for token in words))
    if not kind or not re.match(r"CREATE.* (MACRO|FUNCTION)$", kind.group(0)):
        return
    path, _ = _path(words[len(kind.group(0).split()) :])
    rows = connection.execute(
        "SELECT function_type, macro_definition FROM duckdb_functions() WHERE database_name = ? AND NOT internal"
        " AND lower(function_name) = lower(?)",
        [catalog, path[-1]],
    ).fetchall()
    for made, definition in rows:
        body = definition if made == "table_macro" else f"SELECT ({definition})"
        _check_body(connection, catalog, body, statement)


def short(statement: str) -> str:
    """A statement in one line that fits into a message."""
    text = " ".join(statement.split())
    return text if len(text) <= 100 else text[:97] + "..."


# Names ---------------------------------------------------------------------------------------------------------------


def _names_own(listed: list[Token]) -> bool:
    pairs = pairwise(token for token in listed if token.word not in ("IF", "EXISTS", "NOT"))
    return any(
        (one.name.lower() in OWN and other.text == ".") or (one.word == "SCHEMA" and other.name.lower() in OWN)
        for one, other in pairs
    )


def _path(listed: list[Token]) -> tuple[list[str], list[Token]]:
    """Return the name of the object that a statement changes, and the tokens behind it."""
    at = 0
    while at < len(listed) and listed[at].text.upper() in ("IF", "NOT", "EXISTS", "CONCURRENTLY"):
        at += 1
    parts = []
    while at < len(listed):
        parts.append(listed[at].name)
        at += 1
        if at >= len(listed) or listed[at].text != ".":
            break
        at += 1
    return parts or [""], listed[at:]


def _is_beside(path: list[str], catalog: str) -> bool:
    first = path[0].lower()
    return len(path) > 1 and first in _BESIDE and first != catalog.lower()


# Queries -------------------------------------------------------------------------------------------------------------


def _refuse_query(kind: str, rest: list[Token], statement: str) -> None:
    """Refuse a table or a type that a query fills: a master records the rows instead."""
    words = [token.text.upper() for token in rest[:3]]
    is_query = any(token.word == "AS" and token.depth == 0 for token in rest)
    is_filled = kind.endswith("TABLE") and (words[:1] != ["("] or is_query)
    if kind.endswith("TYPE") and words == ["AS", "ENUM", "("]:
        labels = takewhile(lambda token: token.text != ")", rest[3:])
        is_filled = any(not token.is_string and token.text != "," for token in labels)
    if is_filled:
        raise StepError(f"a schema change reads no rows: {short(statement)}")


def _body(rest: list[Token], statement: str) -> str:
    """The query of a view: what follows the first AS that is not in brackets."""
    for token in rest:
        if token.depth == 0 and token.word == "AS":
            return statement[token.end :]
    raise StepError(f"a view without a query: {short(statement)}")


def _check_body(connection: duckdb.DuckDBPyConnection, catalog: str, body: str, statement: str) -> None:
    for problem in _problems(connection, catalog, _parsed(connection, body, statement)):
        raise OutsideError(f"{problem}: {short(statement)}")


def _parsed(connection: duckdb.DuckDBPyConnection, body: str, statement: str) -> Any:
    for query in (body, f"SELECT * FROM ({body.rstrip().rstrip(';')}\n)"):
        found = json.loads(connection.execute("SELECT json_serialize_sql($1)", [query]).fetchall()[0][0])
        if not found["error"] and len(found["statements"]) == 1:
            return found["statements"][0]
    raise OutsideError(f"not one query: {short(statement)}")


def _problems(connection: duckdb.DuckDBPyConnection, catalog: str, tree: Any) -> Iterator[str]:
    for node in _nodes(tree):
        kind = str(node.get("type", ""))
        if kind.endswith("_QUERY_NODE"):
            yield "it writes"
        elif kind == "TABLE_FUNCTION":
            name = str(node["function"].get("function_name", "")).lower()
            if not _is_harmless(connection, catalog, name):
                yield f"function {name} is not the farm's to call"
        elif kind == "BASE_TABLE":
            path = [str(part) for part in node["qualified_name"]["path"]]
            if _FILE.search(".".join(path)) or _is_beside(path, catalog):
                yield f"{'.'.join(path)} lies outside the database"
        elif kind == "FUNCTION" and str(node.get("function_name", "")).lower() in _REACHING_SCALARS:
            yield f"function {node['function_name']} is not the farm's to call"


def _is_harmless(connection: duckdb.DuckDBPyConnection, catalog: str, name: str) -> bool:
    if name in _HARMLESS:
        return True
    query = (
        "SELECT count(*) FROM duckdb_functions() WHERE database_name = ? AND NOT internal"
        " AND function_type = 'table_macro' AND lower(function_name) = ?"
    )
    return not _OUTSIDE.search(name) and connection.execute(query, [catalog, name]).fetchall()[0][0] > 0


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    pending = [tree]
    while pending:
        found = pending.pop()
        if isinstance(found, dict):
            yield found
            pending.extend(found.values())
        elif isinstance(found, list):
            pending.extend(found)
