"""SQL text as tokens, split by DuckDB's own tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its text, upper-cased word if it can be a keyword, where it starts and how deep in parentheses."""

    text: str
    word: str
    start: int
    depth: int
    kind: str


def tokens(text: str) -> list[Token]:
    """Split SQL text with DuckDB's own tokenizer; comments are left out."""
    raw = duckdb.tokenize(text)
    ends = [start for start, _ in raw[1:]] + [len(text.encode())]
    encoded = text.encode()
    found, depth = [], 0
    for (start, kind), end in zip(raw, ends, strict=True):
        if kind == duckdb.token_type.comment:
            continue
        piece = encoded[start:end].decode().strip()
        if piece == ")":
            depth -= 1
        is_word = kind in (duckdb.token_type.keyword, duckdb.token_type.identifier) and not piece.startswith('"')
        found.append(Token(piece, piece.upper() if is_word else "", start, depth, kind.name))
        if piece == "(":
            depth += 1
    return found


def words(text: str) -> frozenset[str]:
    """Lower-cased names and keywords in SQL text, without quotes; DuckDB takes a string for a table's name, too."""
    found = set()
    for token in tokens(text):
        if token.text[:1] in ('"', "'"):
            found.add(unquoted(token.text).lower())
        elif token.word:
            found.add(token.text.lower())
    return frozenset(found)


def unquoted(identifier: str) -> str:
    """The name that an identifier, or a string in the place of one, stands for."""
    quotes = identifier[:1]
    if quotes in ('"', "'") and identifier.endswith(quotes) and len(identifier) > 1:
        return identifier[1:-1].replace(quotes * 2, quotes)
    return identifier


def numbered(text: str) -> str:
    """Rename the markers `?` of a statement to `$1`, `$2` … in their order."""
    if "?" not in text:
        return text
    encoded = text.encode()
    pieces, last, count = [], 0, 0
    for start, _ in duckdb.tokenize(text):
        if encoded[start : start + 1] == b"?" and not encoded[start + 1 : start + 2].isdigit():
            count += 1
            pieces.append(encoded[last:start] + f"${count}".encode())
            last = start + 1
    return (b"".join(pieces) + encoded[last:]).decode()
