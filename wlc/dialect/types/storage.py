"""The SQL that writes values of every type to Parquet and reads them back exactly.

Parquet through DuckDB changes some types and some values: HUGEINT becomes DOUBLE, an INTERVAL loses its microseconds, a
TIME WITH TIME ZONE its zone. Every declared type therefore has a *storage type*. Values are converted to it before they
are written, and back after they are read. A type that survives Parquet is its own storage type, so ordinary columns
cost nothing. docs/types.md lists the measurements.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from wlc.dialect.sql import literal, quote
from wlc.dialect.types.syntax import parse
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wlc.dialect.types.syntax import ColumnType
    from wlc.farm.model import Column

_SHOWN_MAX = 100


@lru_cache(maxsize=4096)
def storage_type(type_text: str) -> str:
    """Return the type that values of a declared type have in data files.

    Args:
        type_text: Canonical DuckDB type, such as `DECIMAL(10,2)` or `STRUCT(a HUGEINT, b VARCHAR[])`.

    Raises:
        UnsupportedError: DuckDB has no such type, or its values cannot be written exactly.
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


def _parse_column(column: Column) -> ColumnType:
    try:
        return parse(column.type)
    except UnsupportedError as error:
        message = f"Column {quote(column.name)} has type {column.type[:_SHOWN_MAX]}, which cannot be replicated exactly"
        raise UnsupportedError(message, hint="change the column's type, or store its values as text") from error


# Storage -------------------------------------------------------------------------------------------------------------


def _storage(parsed: ColumnType) -> str:
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
        case "STRUCT":
            as_declared = members == [(name, member.text) for name, member in parsed.fields]
            return parsed.text if as_declared else _struct(members)
        case _:
            return parsed.row.stored_as or parsed.text


def _struct(members: list[tuple[str, str]]) -> str:
    return "STRUCT(" + ", ".join(f"{quote(name)} {text}" for name, text in members) + ")"


def _tag(union: ColumnType) -> str:
    """Name the field for the member of a UNION value; no member may have the same name."""
    taken, tag = {name.casefold() for name, _ in union.fields}, "tag"
    while tag in taken:
        tag = "_" + tag
    return tag


# Expressions that take a value apart and build it again -------------------------------------------------------------


def _needs_rebuild(parsed: ColumnType) -> bool:
    return parsed.holds(lambda row: row.is_rebuilt)


def _rebuild(parsed: ColumnType, value: str, leaf: Callable[[ColumnType, str, int], str], depth: int) -> str:
    if not _needs_rebuild(parsed):
        return leaf(parsed, value, depth)
    if parsed.row.is_rebuilt:
        return f"CASE WHEN {value} IS NOT NULL THEN {leaf(parsed, value, depth)} END"
    item = f"_{depth}"
    if parsed.kind in {"LIST", "ARRAY"}:
        element = parsed.fields[0][1]
        # Lambdas take only lists. A load reads a list anyway, and an array's elements keep their type in the cast.
        source = value if leaf is _load_leaf or parsed.kind == "LIST" else f"CAST({value} AS {element.text}[])"
        return f"list_transform({source}, lambda {item}: {_rebuild(element, item, leaf, depth + 1)})"
    if parsed.kind == "MAP":
        parts = [
            (name, _rebuild(member, _extract(item, literal(name)), leaf, depth + 1)) for name, member in parsed.fields
        ]
        return f"map_from_entries(list_transform(map_entries({value}), lambda {item}: {_pack(parts)}))"
    by_position = parsed.kind == "TUPLE" and leaf is _store_leaf
    parts = [
        (name, _rebuild(member, _extract(value, number if by_position else literal(name)), leaf, depth))
        for number, (name, member) in enumerate(parsed.fields, start=1)
    ]
    return f"CASE WHEN {value} IS NOT NULL THEN {_pack(parts)} END"


def _store_leaf(parsed: ColumnType, value: str, depth: int) -> str:
    match parsed.kind:
        case "UNION":
            members = [
                (name, _rebuild(member, f"union_extract({value}, {literal(name)})", _store_leaf, depth))
                for name, member in parsed.fields
            ]
            return _pack([(_tag(parsed), f"enum_code(union_tag({value}))"), *members])
        case "VARIANT":
            # The order of the encoded keys depends on how the value was built. Reading it back puts them in one order.
            return _variant_bytes(parsed, _load_leaf(parsed, _variant_bytes(parsed, value), depth))
        case "EMPTY STRUCT":
            return "true"
        case _:
            return value if _storage(parsed) == parsed.text else f"CAST({value} AS {_storage(parsed)})"


def _load_leaf(parsed: ColumnType, value: str, depth: int) -> str:
    match parsed.kind:
        case "UNION":
            # The cast uses the number in the first field, and requires members of the right types.
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


def _variant_bytes(parsed: ColumnType, value: str) -> str:
    return f"CAST(variant_to_parquet_variant({value}) AS {parsed.row.stored_as})"


def _pack(parts: list[tuple[str, str]]) -> str:
    return "struct_pack(" + ", ".join(f"{quote(name)} := {value}" for name, value in parts) + ")"


def _extract(value: str, field: str | int) -> str:
    return f"struct_extract({value}, {field})"
