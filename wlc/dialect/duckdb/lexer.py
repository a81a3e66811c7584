"""SQL text as tokens by DuckDB's own tokenizer, which needs no connection and accepts any text."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

_COMMENT = "comment"
_WORDS = frozenset({"keyword", "identifier"})
_DIGITS = frozenset("0123456789")
# DuckDB ends a token only at these: other Unicode spaces are letters of a name.
_SPACES = " \t\n\r\v\f"


class Token(NamedTuple):
    """One token of SQL text. Creating a frozen dataclass would take three times as long.

    Attributes:
        kind: DuckDB's name for it: keyword, identifier, string_const, numeric_const or operator.
        text: The token as it is written.
        word: The text in upper case if it can be a keyword; "" for strings, numbers, signs and names in quotes.
        start: Its place in the text, in characters.
        depth: Number of parentheses around it.
    """

    kind: str
    text: str
    word: str
    start: int
    depth: int

    @property
    def end(self) -> int:
        """Place behind its last character."""
        return self.start + len(self.text)

    @property
    def is_string(self) -> bool:
        """Whether it is a string literal."""
        return self.kind == "string_const"

    @property
    def name(self) -> str:
        """The name that the token denotes, if it is an identifier or a string in the place of one."""
        return unquoted(self.text)


def tokens(text: str) -> list[Token]:
    """Split SQL text; comments are left out."""
    raw = _tokenized(text)
    starts = [start for start, _ in raw]
    if not text.isascii():
        starts = _places(text, starts)
    found, depth = [], 0
    for (_, kind), start, end in zip(raw, starts, [*starts[1:], len(text)], strict=False):
        name = kind.name
        if name == _COMMENT:
            continue
        piece = text[start:end].rstrip(_SPACES)
        if piece == ")":
            depth -= 1
        word = piece.upper() if name in _WORDS and piece[0] != '"' else ""
        found.append(Token(name, piece, word, start, depth))
        if piece == "(":
            depth += 1
    return found


def without_comments(text: str) -> str:
    """The text with every comment replaced by a space."""
    raw = _tokenized(text)
    if all(kind.name != _COMMENT for _, kind in raw):
        return text
    starts = [start for start, _ in raw]
    if not text.isascii():
        starts = _places(text, starts)
    ends = [*starts[1:], len(text)]
    pieces = [
        " " if kind.name == _COMMENT else text[start:end]
        for (_, kind), start, end in zip(raw, starts, ends, strict=True)
    ]
    return "".join(pieces)


def words(text: str) -> frozenset[str]:
    """Lower-cased names and keywords in SQL text, without quotes; DuckDB takes a string for a table's name, too."""
    found = (token for token in tokens(text) if token.word or token.text[0] in "\"'")
    return frozenset(token.name.lower() for token in found)


def unquoted(identifier: str) -> str:
    """The name that an identifier, or a string in the place of one, denotes."""
    quotes = identifier[:1]
    if quotes in ('"', "'") and identifier.endswith(quotes) and len(identifier) > 1:
        return identifier[1:-1].replace(quotes * 2, quotes)
    return identifier


def path_at(listed: Sequence[Token], at: int) -> tuple[list[str], int]:
    """Return the parts of the dotted name at a place, and the place behind it."""
    path: list[str] = []
    while at < len(listed):
        path.append(listed[at].name)
        at += 1
        if at >= len(listed) or listed[at].text != ".":
            break
        at += 1
    return path, at


def numbered(text: str) -> str:
    """Rename the markers `?` of a statement to `$1`, `$2` … in their order, and `?2` to `$2`."""
    if "?" not in text:
        return text
    pieces, last, count = [], 0, 0
    for token in tokens(text):
        if token.text[0] == "?":
            is_numbered = text[token.start + 1 : token.start + 2] in _DIGITS
            count += not is_numbered
            pieces.append(text[last : token.start] + ("$" if is_numbered else f"${count}"))
            last = token.start + 1
    return "".join(pieces) + text[last:]


def _tokenized(text: str) -> list[tuple[int, duckdb.token_type]]:
    # Its import takes long, and most replications split no text.
    import duckdb

    return duckdb.tokenize(text)


def _places(text: str, starts: list[int]) -> list[int]:
    """Convert rising offsets in a text's UTF-8 bytes to offsets in its characters."""
    encoded = text.encode()
    found, byte, character = [], 0, 0
    for start in starts:
        character += len(encoded[byte:start].decode())
        byte = start
        found.append(character)
    return found
