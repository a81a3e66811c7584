"""The clauses `FOR UPDATE` and `FOR SHARE`, which DuckDB lacks: they are cut off a SELECT and become its kind.

The rows read are known only if the SELECT reads one table by a condition. With GROUP BY, LIMIT and the like, all rows
that meet the condition count as read.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from wlc.capture.duckdb.analysis import LockingReadEffect, TouchEffect, analyse
from wlc.dialect.duckdb.lexer import numbered, tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import duckdb

    from wlc.dialect.duckdb.lexer import Token


FOR_UPDATE, FOR_SHARE = CLAUSES = ("SELECT FOR UPDATE", "SELECT FOR SHARE")
_QUERIES = ("SELECT", "FROM", "WITH", "VALUES", "TABLE")
# Clauses that may follow the condition of a SELECT, or its table.
_TAILS = frozenset("GROUP HAVING WINDOW QUALIFY ORDER LIMIT OFFSET FETCH".split())
_COMBINED = frozenset("UNION INTERSECT EXCEPT".split())


def statements(
    text: str, parse: Callable[[str], Sequence[duckdb.Statement]], kind_of: Callable[[duckdb.Statement], str]
) -> tuple[tuple[str, str], ...] | None:
    """Split a script as DuckDB does, without the clauses; None if it has none.

    Args:
        text: A script that DuckDB cannot parse.
        parse: DuckDB's parser.
        kind_of: Returns the kind of a statement.
    """
    found: list[tuple[str, str]] = []
    has_clause = False
    for piece in _pieces(text):
        bare, clause = _cut(piece)
        has_clause = has_clause or clause is not None
        found += [(part.query, clause or kind_of(part)) for part in parse(bare)]
    return tuple(found) if has_clause else None


def locks(text: str) -> bool:
    """Say whether a statement of a script has one of the clauses."""
    return "for" in text.lower() and any(_cut(piece)[1] for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    start = 0
    for token in tokens(text):
        if token.text == ";" and token.depth == 0:
            yield text[start : token.start]
            start = token.end
    yield text[start:]


def _cut(text: str) -> tuple[str, str | None]:
    """Return a statement without the clause, and which it was."""
    parts = tokens(text)
    if len(parts) < 3 or parts[0].word not in _QUERIES or parts[-2].word != "FOR" or parts[-1].depth:
        return text, None
    clause = {"UPDATE": FOR_UPDATE, "SHARE": FOR_SHARE}.get(parts[-1].word)
    return (text[: parts[-2].start].rstrip(), clause) if clause else (text, None)


def effect(text: str, kind: str) -> LockingReadEffect:
    """Return the effect of a SELECT that had one of the clauses."""
    return LockingReadEffect(rows_read(text), kind == FOR_UPDATE)


@lru_cache(maxsize=2048)
def rows_read(text: str) -> TouchEffect | None:
    """Return the table and condition of the rows that a SELECT reads, None if no single condition determines them."""
    text = numbered(text)
    parts = [token for token in tokens(text) if token.text != ";"]
    if not parts or parts[0].word != "SELECT" or _has_subquery(parts):
        return None
    sources = [
        at
        for at, token in enumerate(parts)
        if token.depth == 0 and token.word == "FROM" and parts[at - 1].word != "DISTINCT"
    ]
    if len(sources) != 1:
        return None
    words = [token.word if token.depth == 0 else "" for token in parts]
    if not _COMBINED.isdisjoint(words[sources[0] :]):
        return None
    end = next((at for at in range(sources[0], len(parts)) if words[at] in _TAILS), len(parts))
    stop = parts[end].start if end < len(parts) else len(text)
    # The SELECT reads the rows that this DELETE would remove.
    found = analyse(f"DELETE {text[parts[sources[0]].start : stop]}", "DELETE")
    if not isinstance(found, TouchEffect) or found.source is not None:
        return None
    behind = parts[sources[0] + 1 : words.index("WHERE") if "WHERE" in words else end]
    return found if _is_name([token.text for token in behind]) else None


def _has_subquery(parts: Sequence[Token]) -> bool:
    opens = (follower.word for token, follower in pairwise(parts) if token.text == "(")
    return any(word in _QUERIES for word in opens) or any(token.word == "SELECT" for token in parts[1:])


def _is_name(texts: list[str]) -> bool:
    """Say whether this is a dotted name, with an alias or without."""
    at = 1
    while at + 1 < len(texts) and texts[at] == ".":
        at += 2
    rest = texts[at:]
    if rest and rest[0].upper() == "AS":
        rest = rest[1:]
        return len(rest) == 1
    return len(rest) <= 1
