"""What the text of an UPDATE or DELETE by key says: that it finds few rows, and what it makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect import types
from wlc.dialect.duckdb.lexer import tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wlc.capture.duckdb.effects import TouchEffect
    from wlc.capture.duckdb.journal import CapturedTable

# Up to this number, saved rows are looked up by literal row ids, which DuckDB finds without a scan.
FEW = 64
# In a condition with one of these words, a test of the key may leave many rows.
_WIDE_WORDS = (" or ", " or(", ")or ", ")or(", "not ", "not(", "case ")
# Keywords that are values.
_VALUES = frozenset({"null", "true", "false"})


def is_row_wise(effect: TouchEffect) -> bool:
    """Whether a test of the key in the condition leaves few rows, and all of the statement is simple."""
    if not effect.is_simple or not effect.is_stable:
        return False
    condition = f" {effect.condition or ''}".lower()
    return not any(word in condition for word in _WIDE_WORDS)


def assigned(effect: TouchEffect, table: CapturedTable) -> dict[int, str] | None:
    """SQL of what an UPDATE writes, by the columns' places; None if it is more than plain expressions."""
    places = {column.name.lower(): number for number, column in enumerate(table.layout.stored)}
    found = {}
    for name, value in effect.assignments:
        place = places.get(name.lower())
        if place is None or not _is_plain_value(value, places):
            return None
        column = table.layout.stored[place]
        # DuckDB casts what is assigned in the same way.
        found[place] = types.store_sql(column, f"CAST({value} AS {column.type})")
    return found or None


def _is_plain_value(text: str, columns: Iterable[str]) -> bool:
    """Whether all names in an expression are those of columns (in lower case) and parameters."""
    parts = tokens(text)
    named = (
        token.name.lower()
        for before, token in zip([None, *parts], parts, strict=False)
        if (token.word or token.text[0] == '"') and (before is None or before.text != "$")
    )
    return all(name in columns or name in _VALUES for name in named)
