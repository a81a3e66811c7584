"""The text of DuckDB's schema changes, read from left to right."""

from __future__ import annotations

from dataclasses import dataclass

from wlc.dialect.duckdb.lexer import tokens


@dataclass
class StatementReader:
    """Reads a statement token by token; every method that reads something passes it."""

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
        """Return the next word in capitals or sign without passing it; "" at the end, for strings and quoted names."""
        at = self.at + ahead
        if at >= len(self.tokens):
            return ""
        token = self.tokens[at]
        return token.word or (token.text if token.kind in ("operator", "numeric_const") else "")

    def word(self) -> str:
        """Read the next word in capitals; "" if it is no word."""
        found = self.peek()
        self.at += 1
        return found

    def take(self, *words: str) -> bool:
        """Read these words if they come next, and say whether they do."""
        if any(self.peek(number) != word for number, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def path(self) -> tuple[str, ...]:
        """Read a name of one or more parts.

        Raises:
            ValueError: The next token is no name.
        """
        parts = [self.name()]
        while self.take("."):
            parts.append(self.name())
        return tuple(parts)

    def name(self) -> str:
        """Read one identifier.

        Raises:
            ValueError: The next token is no name.
        """
        if self.is_done or self.tokens[self.at].kind not in ("identifier", "keyword"):
            raise ValueError(f"no name at {self.rest()[:40]!r}")
        self.at += 1
        return self.tokens[self.at - 1].name

    def items(self) -> list[str]:
        """Read what is in brackets, and return the texts between the commas.

        Raises:
            ValueError: The next token is no opening bracket, or it is not closed.
        """
        if not self.take("("):
            raise ValueError(f"no list at {self.rest()[:40]!r}")
        depth, start, found = 1, self.tokens[self.at - 1].end, []
        while not self.is_done:
            token = self.tokens[self.at]
            self.at += 1
            if token.kind == "operator":
                depth += (token.text in "([{") - (token.text in ")]}")
                if depth == 0 or (depth == 1 and token.text == ","):
                    found.append(self.text[start : token.start].strip())
                    start = token.end
                if depth == 0:
                    return [item for item in found if item]
        raise ValueError("a bracket is not closed")

    def rest(self) -> str:
        """Return the text that is left without passing it."""
        if self.is_done:
            return ""
        return self.text[self.tokens[self.at].start : self.tokens[-1].end]
