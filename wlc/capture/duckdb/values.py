"""VALUES lists of a statement, typed as the statement itself types them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.duckdb.lexer import tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPENING = frozenset("([{")
_CLOSING = frozenset(")]}")


def typed(query: str, kinds: Sequence[str]) -> str:
    """Give every value of a VALUES list the type of its column.

    An INSERT casts each value to its column's type. A list by itself has one type for each column, which all rows must
    fit: (0.1), ('nan') fails, and (0.1), ('0.15') is rounded.

    Args:
        query: VALUES list; any other query is returned unchanged.
        kinds: Types of the columns, in the order of the values.
    """
    parts = tokens(query)
    if parts[0].word != "VALUES":
        return query
    pieces, last, depth, column = [], 0, 0, 0
    for token in parts:
        closes, is_next = token.text in _CLOSING, token.text == "," and depth == 1
        depth -= closes
        if (closes and depth == 0) or is_next:
            if column >= len(kinds):
                return query
            pieces.append(f"CAST({query[last : token.start]} AS {kinds[column]})")
            last, column = token.start, column + 1
        if token.text in _OPENING:
            depth += 1
        if (token.text == "(" and depth == 1) or is_next:
            pieces.append(query[last : token.end])
            last, column = token.end, column if is_next else 0
    return "".join(pieces) + query[last:]
