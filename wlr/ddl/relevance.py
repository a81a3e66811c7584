"""Which schema statements a replica runs, and which failures do not matter to a replica of some tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.lexer import tokens, without_comments
from wlc.dialect.duckdb.table_statement import about_table, referred
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Ddl, Name
from wlr.plan.patterns import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from wlc.farm.model import Transaction
    from wlr.plan.step import Action

_CREATED = re.compile(r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\b", re.IGNORECASE)
# These hold no rows, and may need tables that a replica of some tables lacks.
_DERIVED = re.compile(
    r"\s*(?:CREATE|ALTER|DROP|COMMENT\s+ON)\s+(?:OR\s+REPLACE\s+)?(?:RECURSIVE\s+)?(?:VIEW|MACRO|FUNCTION)\b",
    re.IGNORECASE,
)


def is_run(ddl: Ddl, patterns: Collection[str]) -> bool:
    """Say whether a DuckDB replica of some tables runs the statement.

    A statement that only PostgreSQL has, such as CREATE FUNCTION, is recorded in its dialect alone and is ignored.
    """
    return ddl.dialect != "postgres" and is_wanted(ddl, patterns)


def is_wanted(ddl: Ddl, patterns: Collection[str]) -> bool:
    """Say whether a replica of some tables runs the statement: it ignores triggers and tables that it does not have."""
    return not is_trigger(ddl) and (not _matches(_CREATED, ddl) or matches(ddl.object, patterns))


def is_created(ddl: Ddl) -> bool:
    """Say whether the statement creates a table."""
    return _matches(_CREATED, ddl)


def created_by(transaction: Transaction) -> Iterator[Name]:
    """Return the names that a transaction gives to tables."""
    for record in transaction.records:
        if isinstance(record, Ddl):
            if is_created(record):
                yield record.object
            elif (found := about_table(record)) and found.renamed:
                yield found.renamed


def may_fail(ddl: Ddl, patterns: Collection[str], tables: Collection[Name]) -> bool:
    """Say whether a replica of some tables may ignore a failure: of a view, or of a statement about other tables."""
    if not patterns or _matches(_CREATED, ddl):
        return False
    if _matches(_DERIVED, ddl):
        return True
    words = {token.name.lower() for token in tokens(ddl.statement) if not token.is_string}
    return not any(table.name.lower() in words for table in tables)


def _matches(kind: re.Pattern[str], ddl: Ddl) -> bool:
    return kind.match(without_comments(ddl.statement)) is not None


def named_in(ddl: Ddl, tables: Collection[Name]) -> list[Name]:
    """Return the tables that a statement may be about: it has a word that is their name or their schema."""
    words = {token.name.lower() for text in (ddl.statement, ddl.original or "") for token in tokens(text)}
    return [table for table in tables if {table.name.lower(), table.schema.lower()} & words]


def may_be_left_out(
    actions: Sequence[Action], number: int, patterns: Collection[str], tables: Collection[Name]
) -> bool:
    """Say whether the action that failed is a statement whose failure may be ignored; see `may_fail`."""
    action = actions[number] if actions else None
    return isinstance(action, Ddl) and may_fail(action, patterns, tables)


def leaving_out(attempt: Callable[[set[int]], int | None]) -> None:
    """Try a step until it is done, without statements that a replica of some tables cannot run and does not need.

    Args:
        attempt: Tries it without the actions of these numbers; returns the number of one more to leave out, None once
            the step is done.
    """
    skipped: set[int] = set()
    while (failed := attempt(skipped)) is not None:
        skipped.add(failed)


def schema_move(ddl: Ddl) -> tuple[Name, Name] | None:
    """Read a PostgreSQL master's `ALTER TABLE … SET SCHEMA …`: the table's old and new name; None for anything else.

    The master writes names in full. A DROP TABLE and a CREATE TABLE follow, for replicas that are no PostgreSQL.
    """
    if ddl.dialect != "postgres" or ddl.kind != "ALTER TABLE":
        return None
    words = [token.name for token in tokens(ddl.statement)]
    if len(words) != 8 or [word.upper() for word in words[:2] + words[5:7]] != ["ALTER", "TABLE", "SET", "SCHEMA"]:
        return None
    return Name(words[2], words[4]), Name(words[7], words[4])


def is_trigger(ddl: Ddl) -> bool:
    """Say whether the statement is about a trigger. The log holds what triggers changed on the master."""
    words = [token.word for token in tokens(ddl.statement)[:5]]
    return words[:1] in (["CREATE"], ["DROP"]) and "TRIGGER" in words


def unmet_reference(ddl: Ddl, patterns: Collection[str]) -> UnsupportedError | None:
    """Return why a table cannot be made in a replica of some tables, if a foreign key wants one that it leaves out."""
    table = ddl.object
    wanted = referred(ddl, table.schema) if is_created(ddl) else ()
    missing = next((parent for parent in wanted if not matches(parent, patterns)), None)
    if missing is None:
        return None
    # A filtered table has no foreign keys.
    hint = f"Replicate it, too: --tables {missing}; or leave the foreign keys out: --where '{table}: true'"
    return UnsupportedError(f"table {table} has a foreign key to {missing}, which is not replicated", hint=hint)
