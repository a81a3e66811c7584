"""Schema changes from the farm: checked, then run as they were recorded.

A statement from the farm is data. It is run only if it is one statement of a kind that changes a schema, and does not
name the schemas that belong to dbfarm; the connection cannot reach files then (see `connection.confine`).
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import duckdb

from wlc.model import Ddl, Name, literal, quote
from wlr.engine import StepError
from wlr.engine.duckdb import guard
from wlr.plan import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from wlc.model import SequencePosition
    from wlr.plan import Action

_ALLOWED = {"CREATE", "ALTER", "DROP"}
_IDENTIFIER = r'(?:"(?:[^"]|"")*"|[\w$]+)'
_PATH = rf"{_IDENTIFIER}(?:\s*\.\s*{_IDENTIFIER}){{0,2}}"
_TOKEN = re.compile(rf"'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?\*/|{_IDENTIFIER}|\S", re.DOTALL)
_OWN = frozenset({"wlc", "wlr"})
_NOT_SCHEMA = re.compile(
    r"\s*(?:CREATE|DROP)\s+(?:OR\s+REPLACE\s+)?(?:PERSISTENT\s+)?(?:TEMP|TEMPORARY|LOCAL|SECRET)\b", re.IGNORECASE
)
_ALTERED = re.compile(rf"\s*ALTER\s+TABLE\s+(?:IF\s+EXISTS\s+)?({_PATH})", re.IGNORECASE)
_CREATED = re.compile(r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\b", re.IGNORECASE)
# What holds no rows, and may need tables that a replica of some does not have.
_DERIVED = re.compile(
    r"\s*(?:CREATE|ALTER|DROP|COMMENT\s+ON)\s+(?:OR\s+REPLACE\s+)?(?:RECURSIVE\s+)?(?:VIEW|MACRO|FUNCTION)\b",
    re.IGNORECASE,
)


def check(connection: duckdb.DuckDBPyConnection, ddl: Ddl) -> None:
    """Refuse what no schema change needs.

    Raises:
        StepError: The statement is more than one, of another kind, or about what belongs to dbfarm.
    """
    try:
        statements = connection.extract_statements(ddl.statement)
    except duckdb.Error as error:
        raise StepError(f"statement cannot be parsed: {error}", table=str(ddl.object)) from error
    kinds = [statement.type.name for statement in statements]
    words = [unquote(token) for token in tokens(ddl.statement)]
    # DuckDB adds a column with a computed default in several steps, which it calls one statement of type MULTI.
    is_allowed = kinds == ["MULTI"] and _ALTERED.match(ddl.statement) is not None
    is_allowed = is_allowed or (len(kinds) == 1 and kinds[0] in _ALLOWED)
    if not is_allowed or ddl.dialect != "duckdb":
        raise StepError(f"not one schema change in DuckDB's dialect: {_short(ddl.statement)}", table=str(ddl.object))
    if _NOT_SCHEMA.match(ddl.statement):
        raise StepError(f"not a change of the database's schema: {_short(ddl.statement)}", table=str(ddl.object))
    names_own = any((a in _OWN and b == ".") or (a == "schema" and b in _OWN) for a, b in _pairs(words))
    if names_own or ddl.object.schema.lower() in _OWN or ddl.search_path.lower() in _OWN:
        message = f"schemas wlc and wlr are not the farm's to change: {_short(ddl.statement)}"
        raise StepError(message, table=str(ddl.object))


def is_trigger(ddl: Ddl) -> bool:
    """Say whether the statement is about a trigger; what triggers did on the master comes as changes."""
    words = [word.upper() for word in tokens(ddl.statement)[:5]]
    return words[:1] in (["CREATE"], ["DROP"]) and "TRIGGER" in words


def run(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl, tables: Collection[Name]) -> None:
    """Run a checked statement; guards that are in its way are taken off.

    After a failure the connection may still look up names in the statement's schema.
    """
    if found := _ALTERED.match(ddl.statement):
        name = unquote(re.findall(_IDENTIFIER, found.group(1))[-1])
        guard.take_off(connection, catalog, [table for table in tables if table.name.lower() == name.lower()])
    connection.execute(f"USE {quote(catalog)}.{quote(ddl.search_path)}")
    connection.execute(ddl.statement)
    connection.execute(f"USE {quote(catalog)}.main")


def set_sequence(connection: duckdb.DuckDBPyConnection, catalog: str, sequence: SequencePosition) -> None:
    """Set the position of a sequence."""
    name = literal(f"{quote(catalog)}.{sequence.sequence.sql}")
    connection.execute(f"SELECT setval({name}, {sequence.value})")


def is_run(ddl: Ddl, patterns: Collection[str]) -> bool:
    """Say whether a DuckDB replica of some tables runs the statement.

    What only PostgreSQL has, such as a function, is told in its dialect alone, and has no place here.
    """
    return ddl.dialect != "postgres" and is_wanted(ddl, patterns)


def is_wanted(ddl: Ddl, patterns: Collection[str]) -> bool:
    """Say whether a replica of some tables runs the statement: not if it creates another table."""
    return not is_trigger(ddl) and (not _CREATED.match(ddl.statement) or matches(ddl.object, patterns))


def may_fail(ddl: Ddl, patterns: Collection[str], tables: Collection[Name]) -> bool:
    """Say whether a failure means nothing to a replica of some tables: it is about a view, or about other tables."""
    if not patterns or _CREATED.match(ddl.statement):
        return False
    if _DERIVED.match(ddl.statement):
        return True
    words = {unquote(token).lower() for token in tokens(ddl.statement)}
    return not any(table.name.lower() in words for table in tables)


def may_be_left_out(
    actions: Sequence[Action], number: int, patterns: Collection[str], tables: Collection[Name]
) -> bool:
    """Say whether the action that failed is a statement whose failure means nothing; see `may_fail`."""
    action = actions[number] if actions else None
    return isinstance(action, Ddl) and may_fail(action, patterns, tables)


def leaving_out(attempt: Callable[[set[int]], int | None]) -> None:
    """Try a step until it is done, without what a replica of some tables cannot do and does not need.

    Args:
        attempt: Tries it without the actions of these numbers; returns the number of one more to leave out, None once
            the step is done.
    """
    skipped: set[int] = set()
    while (failed := attempt(skipped)) is not None:
        skipped.add(failed)


def tokens(statement: str) -> list[str]:
    """Words and signs of a statement, without comments and string literals."""
    found = (match.group(0) for match in _TOKEN.finditer(statement))
    return [
        token
        for token in found
        if not token.startswith(("'", "--", "/*")) and not (token[0] == "$" and token[-1] == "$")
    ]


def unquote(token: str) -> str:
    """A quoted identifier as it is, any other word in lower case."""
    return token[1:-1].replace('""', '"') if token.startswith('"') else token.lower()


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    lowered = [word.lower() for word in words if word.lower() not in ("if", "exists", "not")]
    return list(pairwise(lowered))


def _short(statement: str) -> str:
    text = " ".join(statement.split())
    return text if len(text) <= 100 else text[:97] + "..."
