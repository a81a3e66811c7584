"""Which schema statements may run on a DuckDB replica, decided with DuckDB's own tokenizer and parser.

Masters ask the same before they record a statement, so that no replica stops at it.

Whoever can write to the farm can write any text. A statement that runs while the replica is confined cannot reach
files. But a view, a macro or a default runs later, for a reader whose connection is not confined, and some functions
change the machine without opening a file. So the bodies of views and macros and all calls are checked, and every other
query is refused.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb.functions import SYSTEM_VIEWS, hides_called, internal, is_allowed, is_the_engines, refused_call
from wlc.dialect.duckdb.lexer import path_at, tokens
from wlc.farm.errors import FarmError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

    from wlc.dialect.duckdb.lexer import Token

OWN = frozenset({"wlc", "wlr"})
# What the triggers are called that keep others from writing to the tables of a replica.
GUARD = "wlr_guard_"
_KIND = re.compile(
    r"CREATE( OR REPLACE)?( PERSISTENT)?"
    r" (SCHEMA|TABLE|(SECURE )?(RECURSIVE )?VIEW|MACRO|FUNCTION|SEQUENCE|TYPE|(UNIQUE )?INDEX)\b"
    r"|ALTER (TABLE|VIEW|SEQUENCE|SCHEMA|INDEX|TYPE)\b"
    r"|DROP (SCHEMA|TABLE|VIEW|SEQUENCE|TYPE|INDEX|(MACRO|FUNCTION)( TABLE)?)\b"
    r"|COMMENT ON (SCHEMA|TABLE|VIEW|COLUMN|SEQUENCE|TYPE|INDEX|(MACRO|FUNCTION)( TABLE)?)\b"
)
# Databases that are attached beside the replica's.
_BESIDE = frozenset({"memory", "temp", "system", "wlr_scratch"})
# The parser of views uses the stack, and every statement memory. DuckDB itself takes a depth of 1,000 expressions.
LENGTH_MAX = 1 << 20
DEPTH_MAX = 200
# DuckDB writes a generated column out wherever another one names it, again for every statement that inserts rows. The
# generated columns of a table may have as many names and numbers in all, once they are written out.
GENERATED_MAX = 4096
# Names that DuckDB, or an extension that it loads by itself, takes for a file or an address if no such table exists.
_FILE = re.compile(
    r"[/\\*?\[]|:|\.(csv|tsv|txt|parquet|json|jsonl|ndjson|geojson|xlsx?|db|ddb|duckdb|sqlite3?|arrow|arrows|feather|ipc"
    r"|avro|orc|gpkg|shp|fgb|kml|gpx|dbf|osm|pbf|vortex|lance|log|ya?ml|html?|xml)(\.(gz|zst|zstd|bz2|xz))?$",
    re.IGNORECASE,
)


_MAY_HIDE = re.compile(r"\b(MACRO|FUNCTION|TYPE)\b", re.IGNORECASE)


class StatementError(Exception):
    """No replica runs the statement; the text says why."""


class OutsideStatementError(StatementError):
    """A view or macro reads something outside the database."""


def refuse_oversized(statement: str) -> None:
    """Refuse a statement that a parser could take too much memory or stack for; to be called before one sees it.

    Raises:
        StatementError: It is too long, or nested too deeply.
    """
    if len(statement) > LENGTH_MAX:
        raise StatementError(f"the statement has {len(statement)} characters, at most {LENGTH_MAX} are run")
    depth = max((token.depth for token in tokens(statement)), default=0)
    if depth > DEPTH_MAX:
        raise StatementError(f"brackets are nested {depth} deep, at most {DEPTH_MAX}: {short(statement)}")


@contextmanager
def understanding(statement: str) -> Iterator[None]:
    """Turn an error of our own about a statement from the farm into one of the statement.

    Whoever can write to the farm can write any text. Text that our code fails at must not stop the replica for good:
    a recorded failure names the transaction, and it can be accepted.

    Raises:
        StatementError: The body failed.
    """
    try:
        yield
    except (
        RecursionError,
        NotImplementedError,
        MemoryError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        if isinstance(error, FarmError):
            raise
        cause = "nested too deeply" if isinstance(error, RecursionError) else f"{type(error).__name__}: {error}"
        raise StatementError(f"the statement cannot be understood ({cause}): {short(statement)}") from error


def refuse_hostile(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> None:
    """Refuse what no schema change needs; the caller has checked that it is one statement, and its type.

    Args:
        connection: Its functions and macros are those that the statement would call.
        catalog: Name of the database that it is about.
        statement: Its text.

    Raises:
        OutsideStatementError: It makes a view that reads something outside the database.
        StatementError: It is of another kind, or changes what belongs to dbfarm or to another database.
    """
    refuse_hiding(statement)
    listed = tokens(statement)
    found = _KIND.match(" ".join(token.text.upper() for token in listed))
    if not found:
        raise StatementError(f"not a change of the database's schema: {short(statement)}")
    kind, rest = found.group(0), listed[len(found.group(0).split()) :]
    path, rest = _path(rest)
    is_own = path[-1].lower() in OWN and (
        kind.endswith("SCHEMA") or [p.lower() for p in path[:-1]] == [catalog.lower()]
    )
    if _names_own(listed) or is_own:
        raise StatementError(f"schemas wlc and wlr are not the farm's to change: {short(statement)}")
    if _is_beside(path, catalog):
        raise StatementError(f"database {path[0]} is not the farm's to change: {short(statement)}")
    if kind.startswith("CREATE"):
        _refuse_query(kind, rest, statement)
    if kind.startswith("CREATE") and kind.endswith("TABLE"):
        _refuse_multiplied(rest, statement)
    if kind.startswith("CREATE") and kind.endswith("VIEW"):
        _check_body(connection, catalog, _body(rest, statement), statement)
    else:
        _refuse_calls(kind, rest, statement)


def refuse_hiding(statement: str) -> None:
    """Refuse a macro, or a type, whose name would take a meaning from dbfarm's own SQL; to be called before it runs.

    Digests, checks of statements and the capture itself would compute what the macro says.

    Raises:
        StatementError: It creates one, temporary or not, in whatever database.
    """
    if not _MAY_HIDE.search(statement):
        return
    listed = tokens(statement)
    for at, token in enumerate(listed):
        if token.depth or token.word not in ("MACRO", "FUNCTION", "TYPE") or not at:
            continue
        if listed[at - 1].word not in ("CREATE", "REPLACE", "TEMP", "TEMPORARY", "PERSISTENT"):
            continue
        name = _path(listed[at + 1 :])[0][-1]
        if name.lower() == "json" if token.word == "TYPE" else hides_called(name):
            raise StatementError(f"{token.word.lower()} {name} would hide DuckDB's own, which dbfarm itself uses")


def refuse_hostile_macro(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> None:
    """Refuse a macro that was just created, and not called yet, if it reads something outside the database.

    Raises:
        OutsideStatementError: It does.
    """
    for body in _macro_bodies(connection, catalog, statement):
        _check_body(connection, catalog, body, statement)


def relations_read(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> list[tuple[str, ...]]:
    """Names of all relations that a view or macro reads, as it spells them; the statement has just created it."""
    listed = tokens(statement)
    kind = _KIND.match(" ".join(token.text.upper() for token in listed))
    bodies = _macro_bodies(connection, catalog, statement)
    if kind and re.match(r"CREATE.* VIEW$", kind.group(0)):
        _, rest = _path(listed[len(kind.group(0).split()) :])
        bodies.append(_body(rest, statement))
    trees = (_parsed(connection, body, statement) for body in bodies)
    nodes = (node for tree in trees for node, _ in _nodes(tree) if node.get("type") == "BASE_TABLE")
    return [tuple(_named(node)) for node in nodes]


def _macro_bodies(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> list[str]:
    """The queries of a macro that a statement has created; none for other statements."""
    words = tokens(statement)
    kind = _KIND.match(" ".join(token.text.upper() for token in words))
    if not kind or not re.match(r"CREATE.* (MACRO|FUNCTION)$", kind.group(0)):
        return []
    path, _ = _path(words[len(kind.group(0).split()) :])
    rows = connection.execute(
        "SELECT function_type, macro_definition FROM duckdb_functions() WHERE database_name = ? AND NOT internal"
        " AND lower(function_name) = lower(?)",
        [catalog, path[-1]],
    ).fetchall()
    return [definition if made == "table_macro" else f"SELECT ({definition})" for made, definition in rows]


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
    parts, at = path_at(listed, at)
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
        raise StatementError(f"a schema change reads no rows: {short(statement)}")


def _refuse_multiplied(rest: list[Token], statement: str) -> None:
    """Refuse generated columns that name each other so often that inserting a row would take too long."""
    expressions: dict[str, list[str]] = {}
    for column in _columns(rest):
        places = [place for place, token in enumerate(column) if token.depth == 1 and token.word == "AS"]
        if places:
            parts = (token.name.lower() for token in column[places[0] + 1 :])
            expressions[column[0].name.lower()] = [part for part in parts if re.match(r"\w", part)]
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        # DuckDB refuses a circle; it counts as one here.
        sizes.setdefault(name, 1)
        if name in expressions:
            sizes[name] = min(sum(sizes.get(part) or size(part) for part in expressions[name]), GENERATED_MAX + 1)
        return sizes[name]

    if sum(map(size, expressions)) > GENERATED_MAX:
        raise StatementError(f"its generated columns name each other too often: {short(statement)}")


def _columns(rest: list[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each column, or constraint, in the brackets of CREATE TABLE."""
    column: list[Token] = []
    for token in rest:
        if token.depth == 1 and token.text == ",":
            yield column
            column = []
        elif token.depth:
            column.append(token)
    if column:
        yield column


def _refuse_calls(kind: str, rest: list[Token], statement: str) -> None:
    """Refuse calls in defaults, checks, generated columns, keys of indexes, USING, and defaults of parameters.

    A name before a bracket is a call, a type, a table or a list of columns. Only a name of the engine's own functions
    matters, and the engine itself refuses one that it does not know.
    """
    is_macro = kind.endswith(("MACRO", "FUNCTION"))
    before = ""
    for one, after in pairwise(rest):
        name = one.name.lower()
        is_table = before in ("REFERENCES", "ON")
        if one.text != "." and after.text != ".":
            before = one.word
        if after.text != "(" or one.is_string or is_table or is_allowed(name, in_from=False):
            continue
        is_call = name in internal(in_from=False) if is_macro else is_the_engines(name, in_from=False)
        if is_call or (is_macro and name in internal(in_from=True) and not is_allowed(name, in_from=True)):
            raise StatementError(f"function {name} is not the farm's to call: {short(statement)}")


def _body(rest: list[Token], statement: str) -> str:
    """The query of a view: what follows the first AS that is not in brackets."""
    for token in rest:
        if token.depth == 0 and token.word == "AS":
            return statement[token.end :]
    raise StatementError(f"a view without a query: {short(statement)}")


def _check_body(connection: duckdb.DuckDBPyConnection, catalog: str, body: str, statement: str) -> None:
    for problem in _problems(connection, catalog, _parsed(connection, body, statement)):
        raise OutsideStatementError(f"{problem}: {short(statement)}")


def _parsed(connection: duckdb.DuckDBPyConnection, body: str, statement: str) -> Any:
    for query in (body, f"SELECT * FROM ({body.rstrip().rstrip(';')}\n)"):
        found = json.loads(connection.execute("SELECT json_serialize_sql($1)", [query]).fetchall()[0][0])
        if not found["error"] and len(found["statements"]) == 1:
            return found["statements"][0]
    raise OutsideStatementError(f"not one query: {short(statement)}")


def _problems(connection: duckdb.DuckDBPyConnection, catalog: str, tree: Any) -> Iterator[str]:
    for node, in_from in _nodes(tree):
        kind = str(node.get("type", ""))
        if kind.endswith("_QUERY_NODE"):
            yield "it writes"
        elif kind == "BASE_TABLE" or (kind == "SHOW_REF" and node["query"] is None):
            # SHOW of a table has its name here, SHOW VARIABLES and the like a word in quotes.
            path = [part.strip('"') for part in _named(node)]
            is_outside = _FILE.search(".".join(path)) or path[-1].lower() in SYSTEM_VIEWS or _is_beside(path, catalog)
            is_outside = is_outside or (kind == "SHOW_REF" and path == ["variables"])
            # Nothing binds a view whose binding is deferred: a reader may attach the database later.
            is_outside = is_outside or (len(path) > 2 and path[0].lower() != catalog.lower())
            if is_outside or OWN.intersection(part.lower() for part in path[:-1]):
                yield f"{'.'.join(path)} lies outside the database"
        elif "function_name" in node:
            problem = refused_call(connection, catalog, str(node["function_name"]), in_from=in_from)
            if problem:
                yield problem


def _named(node: dict[str, Any]) -> list[str]:
    """The name of a table in a tree; an older `storage_compatibility_version` writes its parts one by one."""
    if "qualified_name" in node:
        return [str(part) for part in node["qualified_name"]["path"]]
    parts = (str(node.get(part, "")) for part in ("catalog_name", "schema_name", "table_name"))
    return [part for part in parts if part]


def _nodes(tree: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield every node, and whether it is the call of a table function."""
    pending = [(tree, False)]
    while pending:
        found, in_from = pending.pop()
        if isinstance(found, dict):
            yield found, in_from
            is_from = found.get("type") == "TABLE_FUNCTION"
            pending.extend((value, is_from and key == "function") for key, value in found.items())
        elif isinstance(found, list):
            pending.extend((value, False) for value in found)
