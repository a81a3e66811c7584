"""Checks of schema changes in PostgreSQL's own words: texts from the farm are data, so only known kinds are run."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from wlc.farm.model import Name
from wlr.engine.postgres.names import is_own
from wlr.engine.postgres.reachable_functions import (
    ReachingError,
    depths,
    does,
    pieces,
    plain,
    refuse_reaching,
    routines,
    short,
)
from wlr.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wlc.dialect.postgres.connection import Connection

_VERBS = r"(?:CREATE (?:OR REPLACE )?|ALTER |DROP |COMMENT ON |REFRESH )"
_HOLD_ROWS = r"(?:(?:UNLOGGED )?TABLE|SCHEMA|SEQUENCE|TYPE|DOMAIN)"
_HOLD_NONE = r"(?:(?:UNIQUE )?INDEX|(?:RECURSIVE )?VIEW|MATERIALIZED VIEW|FUNCTION|PROCEDURE|ROUTINE|COLUMN|CONSTRAINT)"
_ALLOWED = re.compile(rf"{_VERBS}(?:{_HOLD_ROWS}|{_HOLD_NONE})\b(?: (?:IF|NOT|EXISTS|ONLY|CONCURRENTLY)\b)*")
_MAY_BE_LEFT_OUT = re.compile(rf"(?:COMMENT ON \w+|{_VERBS}{_HOLD_NONE})\b")
_ROUTINE = re.compile(rf"{_VERBS}(?:FUNCTION|PROCEDURE|ROUTINE)\b")
_OURS = frozenset({"wlc", "wlr"})
# What may follow the name of a table that is altered. Masters record no other changes of tables.
_ALTERED = (
    "RENAME",
    "SET SCHEMA",
    "ADD",
    "DROP",
    "ALTER",
    "ATTACH PARTITION",
    "DETACH PARTITION",
    "INHERIT",
    "NO INHERIT",
)


def check(connection: Connection, statement: str, table: str) -> None:
    """Refuse a statement that no schema change needs.

    Args:
        connection: To the replica.
        statement: In PostgreSQL's dialect. The protocol makes sure that it is a single statement.
        table: The object of the statement, for errors.

    Raises:
        StepError: The statement is of another kind, or changes what belongs to dbfarm or PostgreSQL.
    """
    listed, words = pieces(statement), _words(statement)
    found = _ALLOWED.match(words)
    if not found or _does_more(found.group(0), listed, words.split()):
        raise StepError(f"not a change of the database's schema: {short(statement)}", table=table)
    refuse_own(statement, table)
    names = [plain(piece) for piece in listed]
    following = [*names[1:], ""]
    first = len(found.group(0).split())
    schemas = set()
    if first < len(names) and (following[first] == "." or " SCHEMA" in found.group(0)):
        schemas.add(names[first])
    schemas |= {after for name, after in zip(names, following, strict=True) if name.upper() == "SCHEMA"}
    _refuse(filter(is_own, schemas), statement, table)
    refuse_reaching(connection, statement, table)


def refuse_own(statement: str, table: str) -> None:
    """Refuse a statement that names something in the schemas of dbfarm; arguments and errors as of `check`."""
    names = [plain(piece) for piece in pieces(statement)]
    _refuse((name for name, after in pairwise(names) if after == "." and name.lower() in _OURS), statement, table)


def _refuse(schemas: Iterable[str], statement: str, table: str) -> None:
    if own := sorted(schemas):
        raise StepError(f"schema {own[0]} is not the farm's to change: {short(statement)}", table=table)


def _does_more(kind: str, listed: list[re.Match[str]], words: list[str]) -> bool:
    """Say whether a statement of an allowed kind does something that masters never record."""
    at = len(kind.split()) + 1
    while at + 1 < len(listed) and listed[at].group(0) == ".":
        at += 2
    rest = words[at:]
    if kind.startswith("CREATE SCHEMA"):
        return bool(rest)
    levels = depths(listed[at:])
    if re.match(r"CREATE.* TABLE\b", kind):
        # Only columns in brackets and PARTITION BY may follow: no query, and no other table's columns.
        outside = [word for word, depth in zip(rest, levels, strict=True) if depth == 0][1:]
        return not listed[at:] or listed[at].group(0) != "(" or outside[:2] not in ([], ["PARTITION", "BY"])
    if kind.startswith("ALTER TABLE"):
        starts = [0, *(n + 1 for n, p in enumerate(listed[at:]) if p.group(0) == "," and levels[n] == 0)]
        actions = (" ".join(rest[start : start + 2]) for start in starts)
        return not all(action.startswith(_ALTERED) for action in actions)
    return False


def cause_to_leave_out(connection: Connection, statement: str, table: str) -> str | None:
    """Check a statement; arguments as of `check`.

    Returns:
        Why a statement about an object without rows is not run; None if the statement is run.

    Raises:
        StepError: The statement is not run, and rows may depend on it.
    """
    try:
        check(connection, statement, table)
        if (cause := left_out(statement)) or _words(statement).startswith("DROP "):
            return cause
        refuse_owners(connection, statement, table)
    except StepError as error:
        if not may_be_left_out(statement):
            raise
        return error.cause
    return None


def left_out(statement: str) -> str | None:
    """Say why a checked statement is not run: its routine could do more than a caller may. None if it is run."""
    words = _words(statement)
    if words.startswith("ALTER") and " OWNER TO " in words:
        return "each server decides who owns an object"
    if not _ROUTINE.match(words):
        return None
    languages = set(re.findall(r"\bLANGUAGE (\w+|\?)", words))
    if not words.startswith(("DROP", "COMMENT", "ALTER")) and not (languages and languages <= {"SQL", "PLPGSQL"}):
        return "a replica has only routines in SQL and PL/pgSQL"
    if "SECURITY DEFINER" in words:
        return "it would run with the privileges of its owner"
    cause = does(statement) if words.startswith("CREATE") else None
    return f"its body {cause}, and it could be called for every row" if cause else None


def refuse_owners(connection: Connection, statement: str, table: str) -> None:
    """Refuse a checked statement that calls a routine that the farm could not have made a statement of.

    Raises:
        ReachingError: It does.
    """
    open_, seen = [statement], set[str]()
    while open_:
        for name, definition, is_quiet in routines(connection, open_.pop()):
            if is_quiet or definition in seen:
                continue
            if not definition or left_out(definition):
                cause = f"routine {name} belongs to the replica's owner, and is not the farm's to call"
                raise ReachingError(f"{cause}: {short(statement)}", table=table)
            seen.add(definition)
            open_.append(definition)


def view_of(statement: str) -> Name | None:
    """Return the view, materialized or not, that a checked statement creates or replaces; None if it does not."""
    found = _ALLOWED.match(_words(statement))
    if not found or not re.match(r"CREATE .*\bVIEW\b", found.group(0)):
        return None
    listed = pieces(statement)[len(found.group(0).split()) :]
    parts = [piece for piece in listed[:3] if piece.group(0) != "."] if listed[1].group(0) == "." else listed[:1]
    names = [plain(piece) if piece.lastgroup == "name" else piece.group(0).lower() for piece in parts]
    # The search path of statements from the farm.
    return Name(names[0] if len(names) == 2 else "public", names[-1])


def may_be_left_out(statement: str) -> bool:
    """Say whether the statement is about an object without rows, which a replica does not need."""
    return _MAY_BE_LEFT_OUT.match(_words(statement)) is not None


def _words(statement: str) -> str:
    """Return the statement's words in capitals, with `?` for all other pieces."""
    return " ".join(m.group(0).upper() if m.lastgroup == "word" else "?" for m in pieces(statement))
