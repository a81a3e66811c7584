"""Schema changes that a PostgreSQL master recorded in its own words: checked, since texts from the farm are data."""

from __future__ import annotations

import re

from wlr.engine import StepError
from wlr.engine.postgres.names import is_own

_VERBS = r"(?:CREATE (?:OR REPLACE )?|ALTER |DROP |COMMENT ON |REFRESH )"
_HOLD_ROWS = r"(?:(?:UNLOGGED )?TABLE|SCHEMA|SEQUENCE|TYPE|DOMAIN)"
_HOLD_NONE = r"(?:(?:UNIQUE )?INDEX|(?:RECURSIVE )?VIEW|MATERIALIZED VIEW|FUNCTION|PROCEDURE|ROUTINE|COLUMN|CONSTRAINT)"
_ALLOWED = re.compile(rf"{_VERBS}(?:{_HOLD_ROWS}|{_HOLD_NONE})\b(?: (?:IF|NOT|EXISTS|ONLY|CONCURRENTLY)\b)*")
_MAY_BE_LEFT_OUT = re.compile(rf"(?:COMMENT ON \w+|{_VERBS}{_HOLD_NONE})\b")
_ROUTINE = re.compile(rf"{_VERBS}(?:FUNCTION|PROCEDURE|ROUTINE)\b")
_OURS = frozenset({"wlc", "wlr"})
_PIECE = re.compile(
    r"""(?P<string>\b[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)"""
    r"""|(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<name>"(?:[^"]|"")*")|(?P<word>[^\W\d][\w$]*)|(?P<number>\d[\w.]*)"""
    r"""|(?P<sign>\S)""",
    re.DOTALL,
)


def check(statement: str, table: str) -> None:
    """Refuse what no schema change needs.

    Args:
        statement: In PostgreSQL's dialect. That it is one statement the protocol makes sure of.
        table: The object it is about, for errors.

    Raises:
        StepError: The statement is of another kind, or about what belongs to dbfarm or PostgreSQL.
    """
    pieces = _pieces(statement)
    found = _ALLOWED.match(_words(statement))
    if not found:
        raise StepError(f"not a change of the database's schema: {_short(statement)}", table=table)
    plain = [_plain(piece) for piece in pieces]
    following = [*plain[1:], ""]
    first = len(found.group(0).split())
    schemas = {name for name, after in zip(plain, following, strict=True) if after == "." and name.lower() in _OURS}
    if first < len(plain) and (following[first] == "." or " SCHEMA" in found.group(0)):
        schemas.add(plain[first])
    schemas |= {after for name, after in zip(plain, following, strict=True) if name.upper() == "SCHEMA"}
    if own := sorted(filter(is_own, schemas)):
        raise StepError(f"schema {own[0]} is not the farm's to change: {_short(statement)}", table=table)


def left_out(statement: str) -> str | None:
    """Say why a checked statement is not run: it makes a routine that could do more than its caller may."""
    words = _words(statement)
    if not _ROUTINE.match(words):
        return None
    languages = set(re.findall(r"\bLANGUAGE (\w+|\?)", words))
    if not words.startswith(("DROP", "COMMENT", "ALTER")) and not (languages and languages <= {"SQL", "PLPGSQL"}):
        return "only routines in SQL and PL/pgSQL are made in a replica"
    return "it would run with the rights of its owner" if "SECURITY DEFINER" in words else None


def may_be_left_out(statement: str) -> bool:
    """Say whether the statement is about what holds no rows, so that a replica can do without it."""
    return _MAY_BE_LEFT_OUT.match(_words(statement)) is not None


def _words(statement: str) -> str:
    """The statement's words in capitals, with a sign for all else."""
    return " ".join(m.group(0).upper() if m.lastgroup == "word" else "?" for m in _pieces(statement))


def _pieces(statement: str) -> list[re.Match[str]]:
    return [match for match in _PIECE.finditer(statement) if match.lastgroup != "comment"]


def _plain(piece: re.Match[str]) -> str:
    return piece.group(0)[1:-1].replace('""', '"') if piece.lastgroup == "name" else piece.group(0)


def _short(statement: str) -> str:
    text = " ".join(statement.split())
    return text if len(text) <= 100 else text[:97] + "..."
