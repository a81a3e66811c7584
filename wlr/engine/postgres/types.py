"""The PostgreSQL types of a DuckDB master's columns, and the SQL that writes values as PostgreSQL reads them.

A value is exact or it is refused: text that PostgreSQL does not take fails the step, by table and column. A type
without a counterpart becomes text in DuckDB's own form. docs/types.md lists all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.types import PostgresText, load_sql, parse
from wlc.farm.model import Column

if TYPE_CHECKING:
    from wlc.dialect.types import ColumnType

_TEXT = "text"
_BC = "' (BC)'"


def postgres_type(type_text: str) -> str:
    """Return the PostgreSQL type for values of a DuckDB type.

    Raises:
        UnsupportedError: DuckDB has no such type.
    """
    return _type(parse(type_text))


def column_type(type_text: str) -> str:
    """Return the declaration of a column of a DuckDB type; raises as `postgres_type` does."""
    found = postgres_type(type_text)
    # DuckDB orders texts by their bytes.
    return f'{found} COLLATE "C"' if found.startswith(_TEXT) else found


def to_text_sql(column: Column, value: str) -> str:
    """Return the DuckDB expression that writes a stored value as PostgreSQL reads it from CSV.

    Args:
        column: The column as declared.
        value: SQL that yields the value in its storage type.
    """
    return _text(parse(column.type), value, 0)


def is_text(column: Column) -> bool:
    """Say whether the value may be an empty text, which COPY must quote so that it differs from NULL."""
    return _type(parse(column.type)).startswith((_TEXT, "bytea", "bit varying", "json"))


def _type(parsed: ColumnType) -> str:
    if parsed.row.postgres is not None:
        return parsed.row.postgres.format(parsed.parameters)
    if _is_array(parsed):
        return _type(parsed.fields[0][1]) + "[]"
    return "json" if _is_exact_in_json(parsed) else _TEXT


def _is_array(parsed: ColumnType) -> bool:
    """Say whether PostgreSQL has the same list: of one dimension, of values without fields."""
    return parsed.kind in ("LIST", "ARRAY") and parsed.fields[0][1].row.postgres is not None


def _is_exact_in_json(parsed: ColumnType) -> bool:
    match parsed.kind:
        case "LIST" | "ARRAY" | "STRUCT":
            return all(_is_exact_in_json(member) for _, member in parsed.fields)
        case "MAP":
            return parsed.fields[0][1].kind in ("VARCHAR", "ENUM") and _is_exact_in_json(parsed.fields[1][1])
        case _:
            return parsed.row.is_exact_in_json


def _text(parsed: ColumnType, value: str, depth: int) -> str:
    if _is_array(parsed):
        return _array_text(parsed.fields[0][1], value, depth)
    if parsed.row.postgres is None:
        return _nested_text(parsed, value)
    match parsed.row.postgres_text:
        case PostgresText.HEX:
            return f"('\\x' || hex({value}))"
        case PostgresText.DATE:
            return f"replace(CAST({value} AS VARCHAR), {_BC}, ' BC')"
        case PostgresText.MOMENT:
            text = f"CAST({value} AS VARCHAR)"
            return f"CASE WHEN contains({text}, {_BC}) THEN replace({text}, {_BC}, '') || ' BC' ELSE {text} END"
        case _:
            return f"CAST({value} AS VARCHAR)" if parsed.row.postgres == _TEXT else value


def _array_text(element: ColumnType, value: str, depth: int) -> str:
    """Write an array literal. Every element is quoted, so that no character of it is a sign of the literal."""
    item = f"_e{depth}"
    text = f"CAST({_text(element, item, depth + 1)} AS VARCHAR)"
    quoted = f"""'"' || replace(replace({text}, '\\', '\\\\'), '"', '\\"') || '"'"""
    items = f"list_transform({value}, lambda {item}: coalesce({quoted}, 'NULL'))"
    return f"('{{' || array_to_string({items}, ',') || '}}')"


def _nested_text(parsed: ColumnType, value: str) -> str:
    loaded = load_sql(Column("value", parsed.text), value)
    if _is_exact_in_json(parsed):
        return f"CASE WHEN {value} IS NOT NULL THEN CAST(to_json({loaded}) AS VARCHAR) END"
    return f"CAST({loaded} AS VARCHAR)"
