"""A prepared INSERT of one row that journals itself and is a transaction by itself; several run concurrently.

The prepared statement computes nothing and reads no table (see below). If its table has no foreign keys, its effect
does not depend on its order among other INSERT statements of this kind: so the ticks that they take at their
begin need not be in the order of their commits. Every other commit, and every reader of the journal, waits until all of
them have ended. So nothing is published after a tick that is still open. No snapshot is taken during their COMMIT,
because DuckDB 2.0 would show a part of the COMMIT.

The prepared statement for an INSERT of one row that journals itself.

A plan may hold the settings and name resolutions of its preparation. So the statement writes to one table, holds no
constants, and computes nothing with types or defaults that depend on settings. The user's values are cast to the types
that DuckDB would have given to the Python values.

It is a transaction by itself. DuckDB's `RETURNING` is not trusted alone: the statement fails unless it returns a row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import duckdb

from wlc.capture.duckdb.analysis import AppendEffect, Effect
from wlc.capture.duckdb.journal import JournalEntry
from wlc.capture.duckdb.open_transaction import user
from wlc.capture.duckdb.prepared import is_plain_type, is_text, listed
from wlc.dialect.duckdb.lexer import numbered, tokens
from wlc.dialect.sql import literal
from wlc.farm.clock import utc_now

if TYPE_CHECKING:
    from wlc.capture.duckdb.captured_tables import CapturedTables
    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.capture.duckdb.shared import Shared


_LONGEST = 2000
_LONGEST_VALUE = 1000
_OF_CONSTANTS = frozenset({"AS", "CAST", "FALSE", "NULL", "TRUE"})


def types_and_values(values: object) -> tuple[tuple[str, ...], str] | None:
    """Return the types of parameters, and the parameters in a form for EXECUTE; None if it does not support them."""
    if not values or not isinstance(values, (list, tuple)):
        return None
    typed = [_typed(value) for value in values]
    if None in typed:
        return None
    types, given = zip(*typed, strict=True)
    return types, listed(given)


def statement(tables: CapturedTables, table: CapturedTable, text: str, types: tuple[str, ...]) -> str | None:
    """Return the text to prepare; None if the statement must not be prepared.

    The tick and the transaction's own data as JSON follow the user's parameters.

    Args:
        tables: The connection's.
        table: The table that the statement writes to.
        text: An INSERT of one row of a VALUES list.
        types: Types of its parameters.
    """
    head = _head(text, len(types)) if len(text) <= _LONGEST else None
    if head is None or any(rule.table == table.name for rule in tables.rules):
        return None
    if not all(is_plain_type(column.type) and _is_constant(column.default or "") for column in table.layout.stored):
        return None
    *casts, tick = [f"CAST(${number}::VARCHAR AS {type_})" for number, type_ in enumerate((*types, "BIGINT"), start=1)]
    row = ", ".join(f"any_value({column})" for column in table.columns)
    return (
        f'WITH "wlc rows" AS (\n{head} ({", ".join(casts)})\nRETURNING {table.named_values})'
        f" INSERT INTO {table.images} SELECT CASE WHEN count(*) = 1 THEN {tick} ELSE error('rows were lost') END,"
        f' 1, NULL, ${len(types) + 2}::VARCHAR, {row} FROM "wlc rows"'
    )


def _typed(value: object) -> tuple[str, str | None] | None:
    """DuckDB's type for a Python value, and the value as a text; None for values that are not plain."""
    match value:
        case None:
            return "VARCHAR", None
        case bool():
            return "BOOLEAN", str(value)
        case int() if type(value) is int and -(1 << 63) <= value < 1 << 63:
            return "INTEGER" if -(1 << 31) <= value < 1 << 31 else "BIGINT", str(value)
        case str() if type(value) is str and len(value) <= _LONGEST_VALUE and is_text(value):
            return "VARCHAR", value
        case float() if type(value) is float and math.isfinite(value):
            return "DOUBLE", repr(value)
    return None


def _is_constant(default: str) -> bool:
    return all(
        token.word in _OF_CONSTANTS or is_plain_type(token.word)
        for token in tokens(default)
        if token.word or token.text[0] == '"'
    )


def _head(text: str, count: int) -> str | None:
    """The text of an INSERT up to VALUES, if only parameters follow, in order; else None."""
    text = numbered(text)
    parts = [token for token in tokens(text) if token.text != ";"]
    at = next((number for number, token in enumerate(parts) if token.word == "VALUES" and not token.depth), len(parts))
    listed = [token.text for token in parts[at + 1 :]]
    wanted = [part for number in range(1, count + 1) for part in ("$", str(number), ",")]
    return text[: parts[at].end] if listed == ["(", *wanted[:-1], ")"] else None


# After these errors, the outcome of the commit is unknown. All other errors occur before it.
_UNCERTAIN = (
    duckdb.FatalException,
    duckdb.InternalException,
    duckdb.InterruptException,
    duckdb.IOException,
    duckdb.OutOfMemoryException,
)


def run(
    shared: Shared, tables: CapturedTables, table: CapturedTable, effect: Effect, text: str, values: Any
) -> int | None:
    """Run an INSERT, captured.

    Args:
        shared: The master.
        tables: The connection's, which has no open transaction.
        table: The table that the statement writes to, of which `SmallChanges.table` said that it may be a small change.
        effect: What the statement does.
        text: The statement.
        values: Its parameters.

    Returns:
        1, or None if it must run in another way: it is no such INSERT, ran for the first time, or failed, so that
        DuckDB must report the error of the user's own text.

    Raises:
        FencedError: Its changes could not be published.
    """
    if not isinstance(effect, AppendEffect) or effect.values != 1:
        return None
    found = types_and_values(values)
    if found is None:
        return None
    types, listed = found
    key = text, types, table.id
    if tables.prepared.refuses(tables.generation, key):
        return None
    lock = shared.commit_lock
    with lock if tables.has_foreign_keys(table) else lock.shared:
        if tables.generation != shared.generation or shared.site is not None:
            return None
        name = tables.prepared.name(tables.generation, key, lambda: statement(tables, table, text, types))
        if name is None:
            return None
        shared.refuse_writes()
        started = utc_now()
        tick, committed = shared.next_commit()
        meta = literal(JournalEntry(tick, user(), started, committed).header)
        failed = False
        try:
            return tables.prepared.execute(key, name, f"{listed}, '{tick}', {meta}")
        except duckdb.Error as error:
            failed = not isinstance(error, _UNCERTAIN)
            if not failed:
                raise
            return None
        finally:
            if not failed:
                shared.committed(tick, committed, added_to=(table.name,))
