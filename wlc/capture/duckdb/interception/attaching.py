"""ATTACH of a captured database by another connection, whose writes to the database nothing would capture."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.lexer import tokens
from wlc.dialect.sql import literal
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wlc.dialect.duckdb.lexer import Token

_BEFORE_PATH = frozenset({"OR", "REPLACE", "DATABASE", "IF", "NOT", "EXISTS"})
_NO = frozenset({"false", "0", "off", "no"})


def refuse_attaching(text: str, is_captured: Callable[[str], bool]) -> None:
    """Refuse SQL that attaches a captured database for writing.

    A path that DuckDB computes is not known here; what is written to such a database is found afterwards.

    Raises:
        InvalidError: It does; the hint names the ways to read and to write it.
    """
    for path, is_read_only in _attached(tokens(text)):
        if is_captured(path) and not is_read_only:
            raise InvalidError(
                f"{path} is captured, and nothing would capture what is written to it through ATTACH",
                hint=f"to read it: ATTACH {literal(path)} (READ_ONLY); to write to it: duckdb.connect({path!r})",
                path=path,
            )


def _attached(parts: list[Token]) -> Iterator[tuple[str, bool]]:
    """Yield the path of each ATTACH, and whether its database is read-only."""
    for place, token in enumerate(parts):
        if token.word == "ATTACH":
            statement = list(takewhile(lambda each: each.text != ";", parts[place + 1 :]))
            while statement and statement[0].word in _BEFORE_PATH:
                statement.pop(0)
            named = list(takewhile(lambda each: each.word != "AS" and each.text != "(", statement))
            path = named[0].name if len(named) == 1 else "".join(each.text for each in named)
            yield path, _is_read_only(statement)


def _is_read_only(statement: list[Token]) -> bool:
    for place, token in enumerate(statement):
        if token.word == "READ_ONLY":
            value = statement[place + 1].name.lower() if place + 1 < len(statement) else ")"
            return value not in _NO
    return False
