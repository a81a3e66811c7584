"""The SQL that writes row images as text: JSON objects, or cells of CSV.

Integers up to 64 bits and floats are numbers of JSON. What readers of JSON would round (decimals, larger integers) and
what JSON lacks (dates, NaN, intervals) is text as DuckDB writes it, and bytes are base64. docs/feeds.md has the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.sql import literal, quote
from wlc.dialect.types import load_sql, parse, storage_type
from wlc.farm.model import file_column

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wlc.dialect.types import ColumnType
    from wlc.farm.model import Column, Layout


def object_sql(columns: Iterable[Column]) -> str:
    """Return the SQL that makes the JSON object of a row image, as text, of the stored values of some columns."""
    fields = ", ".join(f"{quote(column.name)} := {_json_value(column)}" for column in columns)
    return f"CAST(to_json(struct_pack({fields})) AS VARCHAR)"


def cells_sql(columns: Iterable[Column]) -> str:
    """Return the SQL that makes the CSV cells of a row image, separated by commas."""
    return " || ',' || ".join(_cell(column) for column in columns)


def quoted_cell_sql(text: str) -> str:
    """Return the SQL that makes a CSV cell of a text: NULL is an empty cell, and an empty text is `""`."""
    must_quote = f"{text} = '' OR regexp_matches({text}, '[\",\\n\\r]')"
    quoted = f"'\"' || replace({text}, '\"', '\"\"') || '\"'"
    return f"CASE WHEN {text} IS NULL THEN '' WHEN {must_quote} THEN {quoted} ELSE {text} END"


def told_apart_sql(columns: Iterable[Column]) -> str:
    """Return the SQL of what a row image holds besides its text: values that differ can have the same text."""
    stored = (
        f"{quote(column.name)} := {_json(parse(storage_type(column.type)), quote(file_column(column.name)), 0)}"
        for column in columns
        if _is_rebuilt(column)
    )
    fields = ", ".join(stored)
    return f"CAST(to_json(struct_pack({fields})) AS VARCHAR)" if fields else "CAST(NULL AS VARCHAR)"


def key_columns(layout: Layout) -> list[Column]:
    """Return the columns of the primary key, in the key's order."""
    by_name = {column.name: column for column in layout.stored}
    return [by_name[name] for name in layout.primary_key]


def _json_value(column: Column) -> str:
    stored = quote(file_column(column.name))
    if _is_rebuilt(column):
        # Which member a UNION has, or what a VARIANT holds, only DuckDB's own text says.
        return f"CAST({load_sql(column, stored)} AS VARCHAR)"
    return _json(parse(storage_type(column.type)), stored, 0)


def _is_rebuilt(column: Column) -> bool:
    return parse(column.type).holds(lambda row: row.is_rebuilt)


def _json(parsed: ColumnType, value: str, depth: int) -> str:
    """Return SQL of a value that `to_json` writes exactly."""
    row, item = parsed.row, f"_{depth}"
    if row.is_float:
        finite = f"CASE WHEN isfinite({value}) THEN to_json({value}) ELSE to_json(CAST({value} AS VARCHAR)) END"
        return f"CASE WHEN {value} IS NOT NULL THEN {finite} END"
    if row.name == "BLOB":
        return f"base64({value})"
    if not row.is_nested:
        is_own = row.is_integer or row.name in ("BOOLEAN", "VARCHAR")
        return value if is_own else f"CAST({value} AS VARCHAR)"
    if row.name == "LIST":
        return f"list_transform({value}, lambda {item}: {_json(parsed.fields[0][1], item, depth + 1)})"
    if row.name == "MAP":
        packed = _packed(
            (name, _json(member, f"struct_extract({item}, {literal(name)})", depth + 1))
            for name, member in parsed.fields
        )
        return f"list_transform(map_entries({value}), lambda {item}: {packed})"
    members = (
        (name, _json(member, f"struct_extract({value}, {literal(name)})", depth)) for name, member in parsed.fields
    )
    return f"CASE WHEN {value} IS NOT NULL THEN {_packed(members)} END"


def _packed(members: Iterable[tuple[str, str]]) -> str:
    return "struct_pack(" + ", ".join(f"{quote(name)} := {value}" for name, value in members) + ")"


def _cell(column: Column) -> str:
    value = _json_value(column)
    row = parse(storage_type(column.type)).row
    if row.is_integer or row.name == "BOOLEAN":
        return f"coalesce(CAST({value} AS VARCHAR), '')"
    if row.is_float:
        return f"coalesce(CAST({quote(file_column(column.name))} AS VARCHAR), '')"
    if parse(storage_type(column.type)).row.is_nested and not _is_rebuilt(column):
        whole = f"CASE WHEN {value} IS NOT NULL THEN CAST(to_json({value}) AS VARCHAR) END"
        return f"({quoted_cell_sql(f'({whole})')})"
    return f"({quoted_cell_sql(value)})"
