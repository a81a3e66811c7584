"""How DuckDB values lie in our Parquet files, and the SQL that writes and reads them.

Parquet through DuckDB changes some types and some values: HUGEINT becomes DOUBLE, an INTERVAL loses its microseconds,
a TIME WITH TIME ZONE its zone. Every declared type therefore has a *storage type*; values are converted to it before
they are written and back after they are read. Types that survive as they are keep their own type, so that ordinary
columns cost nothing. docs/types.md lists what was measured.

Type text is DuckDB's canonical form, as `duckdb_columns()` reports it: user types are resolved there already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from wlc.errors import UnsupportedError
from wlc.model import literal, quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from wlc.model import Column

_EXACT = {
    *("BOOLEAN", "BOOL", "TINYINT", "SMALLINT", "INTEGER", "INT", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"),
    *("UBIGINT", "DECIMAL", "NUMERIC", "FLOAT", "REAL", "DOUBLE", "VARCHAR", "TEXT", "STRING", "BLOB", "UUID", "JSON"),
    *("DATE", "TIME", "TIME_NS", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ"),
    *("TIMESTAMPTZ_NS", '"NULL"'),
}
_STORED_AS = {
    **dict.fromkeys(("HUGEINT", "UHUGEINT", "BIGNUM", "BIT", "INTERVAL", "ENUM"), "VARCHAR"),
    **dict.fromkeys(("TIME WITH TIME ZONE", "TIMETZ"), "VARCHAR"),
    **dict.fromkeys(("TIMESTAMP_S", "TIMESTAMP_MS"), "TIMESTAMP"),
    # Parquet's GEOMETRY comes back under another coordinate system; well-known binary does not.
    "GEOMETRY": "BLOB",
    "VARIANT": "STRUCT(metadata BLOB, value BLOB)",
}
_NESTED = {"STRUCT", "UNION", "MAP", "TUPLE"}
# A cast cannot make these; they need an expression that takes the value apart and builds it again.
_REBUILT = {"UNION", "VARIANT", "EMPTY STRUCT"}
_TOKEN = re.compile(r"""\s*('(?:[^']|'')*'|"(?:[^"]|"")*"|[(),\[\]]|[^\s'"(),\[\]]+)""")
_PUNCTUATION = frozenset("(),[]")
# Deeper than anybody nests types; a farm that does wants to exhaust its readers.
_DEPTH_MAX = 100
_SHOWN_MAX = 100
_LITERAL = "'(?:[^']|'')*'"
_PARAMETERS = {
    **dict.fromkeys(("DECIMAL", "NUMERIC"), r"\([0-9]+(?:,[0-9]+)?\)"),
    **dict.fromkeys(("VARCHAR", "TEXT"), r"\([0-9]+\)"),
    "ENUM": rf"\({_LITERAL}(?:, {_LITERAL})*\)",
    "GEOMETRY": rf"\({_LITERAL}\)",
}


@dataclass(frozen=True, slots=True)
class Type:
    """A type taken apart: `text` is canonical, `fields` are members, elements (LIST, ARRAY), or key and value (MAP)."""

    kind: str
    text: str
    fields: tuple[tuple[str, Type], ...] = ()


def storage_type(type_text: str) -> str:
    """Return the type that values of a declared type have in data files.

    Args:
        type_text: Canonical DuckDB type, such as `DECIMAL(10,2)` or `STRUCT(a HUGEINT, b VARCHAR[])`.

    Raises:
        UnsupportedError: DuckDB has no such type, or it is one that cannot be written exactly.
    """
    return _storage(parse(type_text))


def store_sql(column: Column, value: str | None = None) -> str:
    """Return the expression, of type `storage_type(column.type)`, that writes a column.

    Args:
        column: The column as declared.
        value: SQL that yields the column's value; the quoted column name if omitted.

    Raises:
        UnsupportedError: The column's type cannot be written exactly; the message names the column.
    """
    parsed, value = _parse_column(column), value or quote(column.name)
    storage = _storage(parsed)
    if storage == parsed.text:
        return value
    built = _rebuild(parsed, value, _store_leaf, 0) if _needs_rebuild(parsed) else value
    return f"CAST({built} AS {storage})"


def load_sql(column: Column, value: str | None = None) -> str:
    """Return the expression that turns a column of a data file back into its declared type.

    Args:
        column: The column as declared.
        value: SQL that yields the stored value; the quoted column name if omitted.

    Raises:
        UnsupportedError: The column's type is unknown; the message names the column.
    """
    parsed, value = _parse_column(column), value or quote(column.name)
    if _storage(parsed) == parsed.text:
        return value
    built = _rebuild(parsed, value, _load_leaf, 0) if _needs_rebuild(parsed) else value
    return f"CAST({built} AS {parsed.text})"


def _parse_column(column: Column) -> Type:
    try:
        return parse(column.type)
    except UnsupportedError as error:
        message = f"Column {quote(column.name)} has type {column.type[:_SHOWN_MAX]}, which cannot be replicated exactly"
        raise UnsupportedError(message, hint="change the column's type, or store its values as text") from error


# Storage -------------------------------------------------------------------------------------------------------------


def _storage(parsed: Type) -> str:
    members = [(name, _storage(member)) for name, member in parsed.fields]
    match parsed.kind:
        case "LIST" | "ARRAY":
            return members[0][1] + "[]"
        case "MAP":
            return f"MAP({members[0][1]}, {members[1][1]})"
        case "UNION":
            return _struct([(_tag(parsed), "UTINYINT"), *members])
        case "TUPLE":
            return _struct(members)
        case "EMPTY STRUCT":
            return "BOOLEAN"
        case "STRUCT":
            as_declared = members == [(name, member.text) for name, member in parsed.fields]
            return parsed.text if as_declared else _struct(members)
        case _:
            return _STORED_AS.get(parsed.kind, parsed.text)


def _struct(members: list[tuple[str, str]]) -> str:
    return "STRUCT(" + ", ".join(f"{quote(name)} {text}" for name, text in members) + ")"


def _tag(union: Type) -> str:
    """Name the field that says which member a UNION value has; no member may have the same name."""
    taken, tag = {name.casefold() for name, _ in union.fields}, "tag"
    while tag in taken:
        tag = "_" + tag
    return tag


# Expressions that take a value apart and build it again -------------------------------------------------------------


def _needs_rebuild(parsed: Type) -> bool:
    return parsed.kind in _REBUILT or any(_needs_rebuild(member) for _, member in parsed.fields)


def _rebuild(parsed: Type, value: str, leaf: Callable[[Type, str, int], str], depth: int) -> str:
    if not _needs_rebuild(parsed):
        return leaf(parsed, value, depth)
    if parsed.kind in _REBUILT:
        return f"CASE WHEN {value} IS NOT NULL THEN {leaf(parsed, value, depth)} END"
    item = f"_{depth}"
    if parsed.kind in {"LIST", "ARRAY"}:
        element = parsed.fields[0][1]
        # Lambdas take lists only. A load reads a list anyway, and an array's elements keep their type in the cast.
        source = value if leaf is _load_leaf or parsed.kind == "LIST" else f"CAST({value} AS {element.text}[])"
        return f"list_transform({source}, lambda {item}: {_rebuild(element, item, leaf, depth + 1)})"
    if parsed.kind == "MAP":
        parts = [(name, _rebuild(member, f"{item}.{name}", leaf, depth + 1)) for name, member in parsed.fields]
        return f"map_from_entries(list_transform(map_entries({value}), lambda {item}: {_pack(parts)}))"
    by_position = parsed.kind == "TUPLE" and leaf is _store_leaf
    parts = [
        (name, _rebuild(member, _extract(value, number if by_position else literal(name)), leaf, depth))
        for number, (name, member) in enumerate(parsed.fields, start=1)
    ]
    return f"CASE WHEN {value} IS NOT NULL THEN {_pack(parts)} END"


def _store_leaf(parsed: Type, value: str, depth: int) -> str:
    match parsed.kind:
        case "UNION":
            members = [
                (name, _rebuild(member, f"union_extract({value}, {literal(name)})", _store_leaf, depth))
                for name, member in parsed.fields
            ]
            return _pack([(_tag(parsed), f"enum_code(union_tag({value}))"), *members])
        case "VARIANT":
            return f"CAST(variant_to_parquet_variant({value}) AS {_STORED_AS['VARIANT']})"
        case "EMPTY STRUCT":
            return "true"
        case _:
            return value if _storage(parsed) == parsed.text else f"CAST({value} AS {_storage(parsed)})"


def _load_leaf(parsed: Type, value: str, depth: int) -> str:
    match parsed.kind:
        case "UNION":
            # The cast goes by the number in the first field, and asks that the members have their own types already.
            members = [
                (name, _rebuild(member, _extract(value, literal(name)), _load_leaf, depth))
                for name, member in parsed.fields
            ]
            return f"CAST({_pack([(_tag(parsed), _extract(value, literal(_tag(parsed)))), *members])} AS {parsed.text})"
        case "VARIANT":
            parts = (_extract(value, literal(part)) for part in ("metadata", "value"))
            return f"variant_bytes_to_variant({' || '.join(parts)})"
        case "EMPTY STRUCT":
            return "struct_pack()"
        case _:
            return value if _storage(parsed) == parsed.text else f"CAST({value} AS {parsed.text})"


def _pack(parts: list[tuple[str, str]]) -> str:
    return "struct_pack(" + ", ".join(f"{quote(name)} := {value}" for name, value in parts) + ")"


def _extract(value: str, field: str | int) -> str:
    return f"struct_extract({value}, {field})"


# Parsing -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def parse(type_text: str) -> Type:
    """Take the text of a type apart.

    Raises:
        UnsupportedError: It cannot be understood, or is not known.
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
    # The next one is the last one, where it costs nothing to take it away.
    tokens.reverse()
    try:
        parsed = _parse_type(tokens, 0)
    except (IndexError, ValueError) as error:
        raise UnsupportedError(f"Type {shown} cannot be understood") from error
    if tokens:
        raise UnsupportedError(f"Type {shown} cannot be understood at {tokens[-1][:_SHOWN_MAX]}")
    return parsed


def _parse_type(tokens: list[str], depth: int) -> Type:
    words = []
    while tokens and tokens[-1] not in _PUNCTUATION:
        words.append(tokens.pop())
    kind = " ".join(words).upper()
    if kind in _NESTED:
        parsed = _parse_members(kind, tokens, depth)
    elif kind in _EXACT or kind in _STORED_AS:
        arguments = _parse_arguments(kind, tokens)
        # Type text comes from the farm, too, and goes into SQL: nothing but parameters may pass.
        if arguments and not re.fullmatch(_PARAMETERS.get(kind, "(?!)"), arguments):
            raise ValueError(arguments)
        parsed = Type(kind, kind + arguments)
    else:
        raise UnsupportedError(f"Type {kind[:_SHOWN_MAX] or 'without a name'} is not known")
    return _parse_dimensions(parsed, tokens, depth)


def _parse_arguments(kind: str, tokens: list[str]) -> str:
    if tokens[-1:] != ["("]:
        return ""
    found: list[str] = []
    while not found or found[-1] != ")":
        found.append(tokens.pop())
    return "".join(", " if token == "," and kind == "ENUM" else token for token in found)


def _parse_members(kind: str, tokens: list[str], depth: int) -> Type:
    if tokens[-1:] != ["("]:
        if kind != "STRUCT":
            raise ValueError(kind)
        return Type("EMPTY STRUCT", "STRUCT")
    if depth == _DEPTH_MAX:
        raise ValueError(kind)
    fields: list[tuple[str, Type]] = []
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
    return Type(kind, f"{kind}({inside})", tuple(fields))


def _parse_dimensions(parsed: Type, tokens: list[str], depth: int) -> Type:
    while tokens[-1:] == ["["]:
        depth += 1
        if depth > _DEPTH_MAX:
            raise ValueError(depth)
        tokens.pop()
        size = tokens.pop()
        if size == "]":
            parsed = Type("LIST", parsed.text + "[]", (("element", parsed),))
        else:
            if not (size.isascii() and size.isdecimal()):
                raise ValueError(size)
            _take(tokens, "]")
            parsed = Type("ARRAY", f"{parsed.text}[{size}]", (("element", parsed),))
    return parsed


def _take(tokens: list[str], expected: str) -> None:
    if tokens.pop() != expected:
        raise ValueError(expected)


def _unquote(token: str) -> str:
    if token in _PUNCTUATION or token.startswith("'"):
        raise ValueError(token)
    return token[1:-1].replace('""', '"') if token.startswith('"') else token
