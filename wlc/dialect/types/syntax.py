"""A parser of type texts.

A type text is DuckDB's canonical form, as `duckdb_columns()` reports it: user types are already resolved there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from wlc.dialect.sql import quote
from wlc.dialect.types.column_types import BY_NAME, TypeRow
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKEN = re.compile(r"""\s*('(?:[^']|'')*'|"(?:[^"]|"")*"|[(),\[\]]|[^\s'"(),\[\]]+)""")
_PUNCTUATION = frozenset("(),[]")
_EMPTY = "EMPTY STRUCT"
_WITH_MEMBERS = frozenset({"STRUCT", "UNION", "MAP", "TUPLE"})
# Deeper than any real type is nested; a deeper type is an attempt to exhaust readers.
_DEPTH_MAX = 100
_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A parsed type.

    Attributes:
        row: The properties of the type itself.
        text: The whole type in canonical form.
        fields: Members, elements (LIST, ARRAY), or key and value (MAP).
    """

    row: TypeRow
    text: str
    fields: tuple[tuple[str, ColumnType], ...] = ()

    @property
    def kind(self) -> str:
        """The name of the type without its parameters."""
        return self.row.name

    @property
    def parameters(self) -> str:
        """The parameters of a type without members, such as `(10,2)`."""
        return self.text.removeprefix(self.kind)

    def holds(self, is_such: Callable[[TypeRow], bool]) -> bool:
        """Say whether a condition holds for the type or one of its members, at any depth."""
        return is_such(self.row) or any(member.holds(is_such) for _, member in self.fields)


@lru_cache(maxsize=4096)
def parse(type_text: str) -> ColumnType:
    """Parse the text of a type.

    Raises:
        UnsupportedError: It is malformed or unknown.
    """
    tokens, position = [], 0
    text = type_text.strip()
    shown = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnsupportedError(f"Type {shown} cannot be understood")
        tokens.append(match.group(1))
        position = match.end()
    # The next token is the last one of the list, where removal is cheap.
    tokens.reverse()
    try:
        parsed = _parse_type(tokens, 0)
    except (IndexError, ValueError) as error:
        raise UnsupportedError(f"Type {shown} cannot be understood") from error
    if tokens:
        raise UnsupportedError(f"Type {shown} cannot be understood at {tokens[-1][:_SHOWN_MAX]}")
    return parsed


def _parse_type(tokens: list[str], depth: int) -> ColumnType:
    words = []
    while tokens and tokens[-1] not in _PUNCTUATION:
        words.append(tokens.pop())
    name = " ".join(words).upper()
    row = BY_NAME.get(name)
    if name in _WITH_MEMBERS:
        parsed = _parse_members(name, tokens, depth)
    elif row is None or row.is_nested or row.name == _EMPTY:
        raise UnsupportedError(f"Type {name[:_SHOWN_MAX] or 'without a name'} is not known")
    else:
        parameters = _parse_parameters(row, tokens)
        # Type text can come from the farm and is inserted into SQL: only parameters may pass.
        if parameters and not re.fullmatch(row.parameters or "(?!)", parameters):
            raise ValueError(parameters)
        parsed = ColumnType(row, row.name + (parameters or row.parameters_default))
    return _parse_dimensions(parsed, tokens, depth)


def _parse_parameters(row: TypeRow, tokens: list[str]) -> str:
    if tokens[-1:] != ["("]:
        return ""
    found: list[str] = []
    while not found or found[-1] != ")":
        found.append(tokens.pop())
    return "".join(", " if token == "," and row.name == "ENUM" else token for token in found)


def _parse_members(kind: str, tokens: list[str], depth: int) -> ColumnType:
    if tokens[-1:] != ["("]:
        if kind != "STRUCT":
            raise ValueError(kind)
        return ColumnType(BY_NAME[_EMPTY], kind)
    if depth == _DEPTH_MAX:
        raise ValueError(kind)
    fields: list[tuple[str, ColumnType]] = []
    while tokens[-1] != ")":
        _take(tokens, "," if fields else "(")
        number = len(fields) + 1
        if kind == "MAP":
            name = ("key", "value")[number - 1]
        elif kind == "TUPLE":
            name = f"element{number}"
        else:
            name = _unquote(tokens.pop())
        fields.append((name, _parse_type(tokens, depth + 1)))
    tokens.pop()
    if not fields or (kind == "MAP" and len(fields) != 2):
        raise ValueError(kind)
    named = kind in {"STRUCT", "UNION"}
    inside = ", ".join((quote(name) + " " if named else "") + member.text for name, member in fields)
    return ColumnType(BY_NAME[kind], f"{kind}({inside})", tuple(fields))


def _parse_dimensions(parsed: ColumnType, tokens: list[str], depth: int) -> ColumnType:
    while tokens[-1:] == ["["]:
        depth += 1
        if depth > _DEPTH_MAX:
            raise ValueError(depth)
        tokens.pop()
        size = tokens.pop()
        if size == "]":
            parsed = ColumnType(BY_NAME["LIST"], parsed.text + "[]", (("element", parsed),))
        else:
            if not (size.isascii() and size.isdecimal()):
                raise ValueError(size)
            _take(tokens, "]")
            parsed = ColumnType(BY_NAME["ARRAY"], f"{parsed.text}[{size}]", (("element", parsed),))
    return parsed


def _take(tokens: list[str], expected: str) -> None:
    if tokens.pop() != expected:
        raise ValueError(expected)


def _unquote(token: str) -> str:
    if token in _PUNCTUATION or token.startswith("'"):
        raise ValueError(token)
    return token[1:-1].replace('""', '"') if token.startswith('"') else token
