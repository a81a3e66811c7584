"""Schema changes from the farm: checked, then run as they were recorded.

A statement from the farm is data. It is run only if it is one statement of a kind that changes a schema, and does not
name what belongs to dbfarm or lies outside the database (see `statements`); the connection cannot reach files then (see
`connection.confine`).
"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from wlc.model import Ddl, Name, literal, quote
from wlr.engine import StepError
from wlr.engine.duckdb import guard
from wlr.engine.duckdb.connection import applying
from wlr.engine.duckdb.statements import (
    OWN,
    OutsideError,
    refuse_hostile,
    refuse_hostile_macro,
    short,
    tokens,
    unquote,
)
from wlr.plan import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from wlc.model import SequencePosition
    from wlr.plan import Action

_ALLOWED = {"CREATE", "ALTER", "DROP"}
_IDENTIFIER = r'(?:"(?:[^"]|"")*"|[\w$]+)'
_PATH = rf"{_IDENTIFIER}(?:\s*\.\s*{_IDENTIFIER}){{0,2}}"
_ALTERED = re.compile(rf"\s*ALTER\s+TABLE\s+(?:IF\s+EXISTS\s+)?({_PATH})", re.IGNORECASE)
_CREATED = re.compile(r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\b", re.IGNORECASE)
# What holds no rows, and may need tables that a replica of some does not have.
_DERIVED = re.compile(
    r"\s*(?:CREATE|ALTER|DROP|COMMENT\s+ON)\s+(?:OR\s+REPLACE\s+)?(?:RECURSIVE\s+)?(?:VIEW|MACRO|FUNCTION)\b",
    re.IGNORECASE,
)


def check(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> None:
    """Refuse what no schema change needs.

    Args:
        connection: That will run it.
        catalog: Name of the database there.
        ddl: The schema change.

    Raises:
        OutsideError: It makes a view that reads what lies outside the database.
        StepError: The statement is more than one, of another kind, or about what belongs to dbfarm or others.
    """
    try:
        kinds = [statement.type.name for statement in connection.extract_statements(ddl.statement)]
    except duckdb.Error as error:
        raise StepError(f"statement cannot be parsed: {error}", table=str(ddl.object)) from error
    # DuckDB adds a column with a computed default in several steps, which it calls one statement of type MULTI.
    is_allowed = kinds == ["MULTI"] and _ALTERED.match(ddl.statement) is not None
    is_allowed = is_allowed or (len(kinds) == 1 and kinds[0] in _ALLOWED)
    if not is_allowed or ddl.dialect != "duckdb":
        message = f"not one schema change in DuckDB's dialect: {short(ddl.statement)}"
        raise StepError(message, table=str(ddl.object))
    if ddl.object.schema.lower() in OWN or ddl.search_path.lower() in OWN:
        message = f"schemas wlc and wlr are not the farm's to change: {short(ddl.statement)}"
        raise StepError(message, table=str(ddl.object))
    try:
        with applying(Path(str(ddl.object))):
            refuse_hostile(connection, catalog, ddl.statement)
    except StepError as error:
        error.table = str(ddl.object)
        raise


def without_outside(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> Ddl:
    """Check a statement of a snapshot; a view that reads files or the like is replaced by one that says so.

    Masters may have such views, and later statements may be about them. Raises as `check` does.
    """
    try:
        check(connection, catalog, ddl)
    except OutsideError as error:
        warnings.warn(f"view {ddl.object} is left out: {error.cause}", stacklevel=2)
        said = literal(f"view {ddl.object} was left out of this replica: it reads what lies outside the database")
        path = ddl.object.sql if ddl.object.schema else quote(ddl.object.name)
        return replace(ddl, statement=f"CREATE VIEW {path} AS SELECT error({said}) AS left_out")
    return ddl


def is_trigger(ddl: Ddl) -> bool:
    """Say whether the statement is about a trigger; what triggers did on the master comes as changes."""
    try:
        words = [word.upper() for word in tokens(ddl.statement)[:5]]
    except StepError:
        # It will be refused as what it is.
        return False
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
    refuse_hostile_macro(connection, catalog, ddl.statement)
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
