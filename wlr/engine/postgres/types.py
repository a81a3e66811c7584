"""Types of a DuckDB master in PostgreSQL, and its values as the text that PostgreSQL reads.

A value is exact or it is refused: text that PostgreSQL does not take fails the step, by table and column. What has no
counterpart becomes text in DuckDB's own form. docs/types.md lists all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.types import load_sql, parse

if TYPE_CHECKING:
    from wlc.model import Column
    from wlc.types import Type

_TEXT = "text"
_SCALARS = {
    **dict.fromkeys(("BOOLEAN", "BOOL"), "boolean"),
    **dict.fromkeys(("TINYINT", "UTINYINT", "SMALLINT"), "smallint"),
    **dict.fromkeys(("USMALLINT", "INTEGER", "INT"), "integer"),
    **dict.fromkeys(("UINTEGER", "BIGINT"), "bigint"),
    "UBIGINT": "numeric(20,0)",
    **dict.fromkeys(("HUGEINT", "UHUGEINT"), "numeric(39,0)"),
    "BIGNUM": "numeric",
    **dict.fromkeys(("FLOAT", "REAL"), "real"),
    "DOUBLE": "double precision",
    **dict.fromkeys(("VARCHAR", "TEXT", "STRING", "ENUM", '"NULL"'), _TEXT),
    # Nanoseconds do not fit into PostgreSQL's times.
    **dict.fromkeys(("TIMESTAMP_NS", "TIMESTAMPTZ_NS", "TIME_NS"), _TEXT),
    **dict.fromkeys(("BLOB", "GEOMETRY"), "bytea"),
    "UUID": "uuid",
    "JSON": "json",
    "DATE": "date",
    "TIME": "time",
    **dict.fromkeys(("TIME WITH TIME ZONE", "TIMETZ"), "time with time zone"),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"), "timestamp"),
    **dict.fromkeys(("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ"), "timestamp with time zone"),
    "INTERVAL": "interval",
    "BIT": "bit varying",
}
# Members that JSON holds exactly, told by the struct's declared type. JSON itself is not among them: its null could not
# be told from none.
_IN_JSON = frozenset(
    "BOOLEAN BOOL TINYINT UTINYINT SMALLINT USMALLINT INTEGER INT UINTEGER BIGINT UBIGINT HUGEINT UHUGEINT VARCHAR TEXT"
    " STRING ENUM UUID DATE TIME TIMESTAMP TIMESTAMP_S TIMESTAMP_MS".split()
)
_BC = "' (BC)'"


def postgres_type(type_text: str) -> str:
    """Return the PostgreSQL type for values of a DuckDB type.

    Raises:
        UnsupportedError: DuckDB has no such type.
    """
    return _type(parse(type_text))


def column_type(type_text: str) -> str:
    """Return what a column of a DuckDB type is declared as; raises as `postgres_type` does."""
    found = postgres_type(type_text)
    # Bytes decide in DuckDB which of two texts is the lesser one.
    return f'{found} COLLATE "C"' if found.startswith(_TEXT) else found


def to_text_sql(column: Column, value: str) -> str:
    """Return the DuckDB expression that makes a stored value what PostgreSQL reads from CSV as the same value.

    Args:
        column: The column as declared.
        value: SQL that yields the value in its storage type.
    """
    return _text(parse(column.type), value, 0)


def is_text(column: Column) -> bool:
    """Say whether the value is any text, so that it has to be quoted: if it is empty, it is to be told from NULL."""
    return _type(parse(column.type)).startswith((_TEXT, "bytea", "bit varying", "json"))


def _type(parsed: Type) -> str:
    if parsed.kind in ("DECIMAL", "NUMERIC"):
        return "numeric" + (parsed.text.removeprefix(parsed.kind) or "(18,3)")
    if parsed.kind in _SCALARS:
        return _SCALARS[parsed.kind]
    if _is_array(parsed):
        return _type(parsed.fields[0][1]) + "[]"
    return "json" if _is_exact_in_json(parsed) else _TEXT


def _is_array(parsed: Type) -> bool:
    """Say whether it is a list that PostgreSQL has, too: of one dimension, of values without fields."""
    if parsed.kind not in ("LIST", "ARRAY"):
        return False
    element = parsed.fields[0][1]
    return element.kind in _SCALARS or element.kind in ("DECIMAL", "NUMERIC")


def _is_exact_in_json(parsed: Type) -> bool:
    match parsed.kind:
        case "LIST" | "ARRAY" | "STRUCT":
            return bool(parsed.fields) and all(_is_exact_in_json(member) for _, member in parsed.fields)
        case "MAP":
            return parsed.fields[0][1].kind in ("VARCHAR", "ENUM") and _is_exact_in_json(parsed.fields[1][1])
        case kind:
            return kind in _IN_JSON


def _text(parsed: Type, value: str, depth: int) -> str:
    match parsed.kind:
        case "BLOB" | "GEOMETRY":
            return f"('\\x' || hex({value}))"
        case "DATE":
            return f"replace(CAST({value} AS VARCHAR), {_BC}, ' BC')"
        case "TIMESTAMP" | "TIMESTAMP_S" | "TIMESTAMP_MS" | "TIMESTAMP WITH TIME ZONE" | "TIMESTAMPTZ":
            text = f"CAST({value} AS VARCHAR)"
            return f"CASE WHEN contains({text}, {_BC}) THEN replace({text}, {_BC}, '') || ' BC' ELSE {text} END"
        case "DECIMAL" | "NUMERIC":
            return value
        case kind if kind in _SCALARS:
            return value if _SCALARS[kind] != _TEXT else f"CAST({value} AS VARCHAR)"
        case _ if _is_array(parsed):
            return _array_text(parsed.fields[0][1], value, depth)
        case _:
            return _nested_text(parsed, value)


def _array_text(element: Type, value: str, depth: int) -> str:
    """An array literal, every element of it in quotes, so that nothing in it means anything."""
    item = f"_e{depth}"
    text = f"CAST({_text(element, item, depth + 1)} AS VARCHAR)"
    quoted = f"""'"' || replace(replace({text}, '\\', '\\\\'), '"', '\\"') || '"'"""
    items = f"list_transform({value}, lambda {item}: coalesce({quoted}, 'NULL'))"
    return f"('{{' || array_to_string({items}, ',') || '}}')"


def _nested_text(parsed: Type, value: str) -> str:
    from wlc.model import Column

    loaded = load_sql(Column("value", parsed.text), value)
    if _is_exact_in_json(parsed):
        return f"CASE WHEN {value} IS NOT NULL THEN CAST(to_json({loaded}) AS VARCHAR) END"
    return f"CAST({loaded} AS VARCHAR)"
