"""SQL text that every engine reads alike: names and strings in quotes."""

from __future__ import annotations


def quote(identifier: str) -> str:
    """Quote one SQL identifier, for any name DuckDB or PostgreSQL accepts."""
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote one SQL string literal."""
    return "'" + text.replace("'", "''") + "'"
