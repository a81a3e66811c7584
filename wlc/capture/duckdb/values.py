"""Rows written out in a statement, read as the statement itself would read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.capture.duckdb.tokens import tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPENING = frozenset("([{")
_CLOSING = frozenset(")]}")


def typed(query: str, kinds: Sequence[str]) -> str:
    """Give every value of a VALUES list the type of its column.

    An INSERT takes each value for its column's type. By itself the list has one type for each column that all rows have
    to fit, so that (0.1), ('nan') fails and (0.1), ('0.15') is rounded.

    Args:
        query: VALUES list, or another query, which is returned as it is.
        kinds: Types of the columns, in the order of the values.
    """
    parts = tokens(query)
    if parts[0].word != "VALUES":
        return query
    encoded = query.encode()
    pieces, last, depth, column = [], 0, 0, 0
    for token in parts:
        closes, is_next = token.text in _CLOSING, token.text == "," and depth == 1
        depth -= closes
        if (closes and depth == 0) or is_next:
            if column >= len(kinds):
                return query
            pieces.append(b"CAST(" + encoded[last : token.start] + f" AS {kinds[column]})".encode())
            last, column = token.start, column + 1
        if token.text in _OPENING:
            depth += 1
        if (token.text == "(" and depth == 1) or is_next:
            pieces.append(encoded[last : token.start + 1])
            last, column = token.start + 1, column if is_next else 0
    return (b"".join(pieces) + encoded[last:]).decode()
