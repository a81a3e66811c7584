"""Schema changes from the farm: checked, then run as they were recorded.

A statement from the farm is data. It runs only if it is a single statement of a kind that changes a schema, and names
nothing that belongs to dbfarm or is outside the database (see `statements`). The connection cannot reach files
meanwhile (see `wlr.engine.calculator.Scratch`).
"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.duckdb import settings
from wlc.dialect.duckdb.lexer import without_comments
from wlc.dialect.sql import literal, quote
from wlr.ddl.memory_limit import bounded
from wlr.ddl.rebuild import blocked_columns, without_columns
from wlr.ddl.statements import (
    OWN,
    OutsideError,
    refuse_hostile,
    refuse_hostile_macro,
    refuse_oversized,
    short,
    understanding,
)
from wlr.ddl.time_limit import limited
from wlr.plan.failure import StepError

if TYPE_CHECKING:
    from wlc.farm.model import Ddl, Name, SequencePosition

_ALLOWED = {"CREATE", "ALTER", "DROP"}
_ALTERS_TABLE = re.compile(r"\s*ALTER\s+TABLE\b", re.IGNORECASE)


def check(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> None:
    """Refuse what no schema change needs.

    Args:
        connection: That will run it.
        catalog: Name of the database there.
        ddl: The schema change.

    Raises:
        OutsideError: It makes a view that reads something outside the database.
        StepError: The statement is more than one, of another kind, or about what belongs to dbfarm or others.
    """
    with understanding(ddl.statement), limited(connection, ddl.statement), bounded(connection):
        _check(connection, catalog, ddl)


def _check(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> None:
    refuse_oversized(ddl.statement)
    try:
        kinds = [statement.type.name for statement in connection.extract_statements(ddl.statement)]
    except duckdb.Error as error:
        raise StepError(f"statement cannot be parsed: {error}", table=str(ddl.object)) from error
    # DuckDB adds a column with a computed default in several steps, which it calls one statement of type MULTI.
    is_allowed = kinds == ["MULTI"] and _ALTERS_TABLE.match(without_comments(ddl.statement)) is not None
    is_allowed = is_allowed or (len(kinds) == 1 and kinds[0] in _ALLOWED)
    if not is_allowed or ddl.dialect != "duckdb":
        message = f"not one schema change in DuckDB's dialect: {short(ddl.statement)}"
        raise StepError(message, table=str(ddl.object))
    if any(schema.lower() in OWN for schema in (ddl.object.schema, *ddl.search_path)):
        message = f"schemas wlc and wlr are not the farm's to change: {short(ddl.statement)}"
        raise StepError(message, table=str(ddl.object))
    if not settings.is_allowed(ddl.settings):
        message = f"settings that change no statement's meaning: {dict(ddl.settings)} of {short(ddl.statement)}"
        raise StepError(message, table=str(ddl.object))
    try:
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


def run(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> Name | None:
    """Run a checked statement.

    After a failure the connection may still look up names in the statement's schema.

    Returns:
        The table that was made anew for it, although it is the same table to the master; None if there is none.

    Raises:
        StepError: The statement took too long, or made a macro that reads something outside the database.
    """
    dropped = blocked_columns(connection, catalog, ddl)
    connection.execute(settings.search_path_sql(catalog, ddl.search_path))
    if dropped is not None:
        without_columns(connection, catalog, dropped)
    else:
        with understanding(ddl.statement), limited(connection, ddl.statement), bounded(connection):
            with settings.applied(connection, ddl.settings):
                connection.execute(ddl.statement)
            refuse_hostile_macro(connection, catalog, ddl.statement)
    connection.execute(f"USE {quote(catalog)}.main")
    return dropped.table if dropped else None


def set_sequence(connection: duckdb.DuckDBPyConnection, catalog: str, sequence: SequencePosition) -> None:
    """Set the position of a sequence."""
    name = literal(f"{quote(catalog)}.{sequence.sequence.sql}")
    connection.execute(f"SELECT setval({name}, {sequence.value})")
