"""The text of DuckDB's schema changes, taken apart into words, strings and signs."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<string>[eE]?'(?:[^']|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)|(?P<comment>--[^\n]*|/\*.*?\*/)"""
    r"""|(?P<name>"(?:[^"]|"")*")|(?P<word>[^\W\d][\w$]*)|(?P<number>\d[\w.]*)|(?P<sign>\S)""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a statement: a string, name (in quotes), word, number or sign; `start` and `end` in the text."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def upper(self) -> str:
        """A word that may be one of SQL's; "" for what is in quotes."""
        return "" if self.kind in ("name", "string") else self.text.upper()

    @property
    def plain(self) -> str:
        """An identifier without quotes."""
        return self.text[1:-1].replace('""', '"') if self.kind == "name" else self.text


def tokens(text: str) -> list[Token]:
    """Take a statement apart; comments are left out."""
    found = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "sign"
        kind = "string" if kind == "tag" else kind
        if kind != "comment":
            found.append(Token(kind, match.group(0), match.start(), match.end()))
    return found


@dataclass
class Reader:
    """Goes through a statement from left to right."""

    text: str

    def __post_init__(self) -> None:
        self.tokens = tokens(self.text)
        while self.tokens and self.tokens[-1].text == ";":
            self.tokens.pop()
        self.at = 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self.at >= len(self.tokens)

    def peek(self, ahead: int = 0) -> str:
        """The next word in capitals, "" at the end."""
        at = self.at + ahead
        return self.tokens[at].upper if at < len(self.tokens) else ""

    def take(self, *words: str) -> bool:
        """Pass these words if they come next."""
        if any(self.peek(number) != word for number, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def path(self) -> tuple[str, ...]:
        """Pass a name of one or more parts.

        Raises:
            ValueError: There is none.
        """
        parts = [self.name()]
        while self.take("."):
            parts.append(self.name())
        return tuple(parts)

    def name(self) -> str:
        """Pass one identifier.

        Raises:
            ValueError: There is none.
        """
        if self.is_done or self.tokens[self.at].kind not in ("name", "word"):
            raise ValueError(f"no name at {self.rest()[:40]!r}")
        self.at += 1
        return self.tokens[self.at - 1].plain

    def names_in_brackets(self) -> list[str]:
        """Pass a list of identifiers in brackets."""
        return [Reader(item).name() for item in self.items()]

    def items(self) -> list[str]:
        """Pass what is in brackets, and return what lies between the commas.

        Raises:
            ValueError: No bracket opens here, or it does not close.
        """
        if not self.take("("):
            raise ValueError(f"no list at {self.rest()[:40]!r}")
        depth, start, found = 1, self.tokens[self.at - 1].end, []
        while not self.is_done:
            token = self.tokens[self.at]
            self.at += 1
            if token.kind == "sign":
                depth += (token.text in "([{") - (token.text in ")]}")
                if depth == 0 or (depth == 1 and token.text == ","):
                    found.append(self.text[start : token.start].strip())
                    start = token.end
                if depth == 0:
                    return [item for item in found if item]
        raise ValueError("a bracket does not close")

    def rest(self) -> str:
        """The text that is left."""
        if self.is_done:
            return ""
        return self.text[self.tokens[self.at].start : self.tokens[-1].end]
