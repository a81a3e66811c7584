"""PostgreSQL's types as the farm holds them: the DuckDB type of a column, and the SQL that reads its text form.

What DuckDB has no exact type for is text as PostgreSQL writes it: numerics without or with a large precision, enums,
ranges, network addresses, composite types and all the rest. Values that a type cannot hold although the types are the
same by name (`NaN` in a `numeric(10,2)`, dates beyond DuckDB's, arrays of several dimensions) make their data file hold
the whole column as text, too. docs/types.md has the table.
"""

from __future__ import annotations

import re
from functools import lru_cache

import duckdb

from wlc.model import literal

_PLAIN = {
    "boolean": "BOOLEAN",
    "smallint": "SMALLINT",
    "integer": "INTEGER",
    "bigint": "BIGINT",
    "oid": "UINTEGER",
    "real": "FLOAT",
    "double precision": "DOUBLE",
    "text": "VARCHAR",
    "bytea": "BLOB",
    "date": "DATE",
    "uuid": "UUID",
    "json": "JSON",
    "jsonb": "JSON",
    "interval": "INTERVAL",
    "time without time zone": "TIME",
    "time with time zone": "TIME WITH TIME ZONE",
    "timestamp without time zone": "TIMESTAMP",
    "timestamp with time zone": "TIMESTAMP WITH TIME ZONE",
}
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
# timestamp(3) with time zone, interval day to second(2)
_PRECISION = re.compile(r"\(\d+\)")
_INTERVAL = re.compile(r"interval( .*)?")
_DECIMAL_DIGITS = 38
# An array's text in parts: quoted elements, and elements that need no quotes.
_ELEMENT = r'"(?:[^"\\]|\\.)*"|[^,]+'
# These take every text that PostgreSQL writes.
_ALWAYS_FIT = frozenset({"BOOLEAN", "SMALLINT", "INTEGER", "BIGINT", "UINTEGER", "FLOAT", "DOUBLE", "VARCHAR", "UUID"})


@lru_cache(maxsize=4096)
def duckdb_type(base: str) -> str:
    """Return the DuckDB type that holds values of a PostgreSQL type exactly.

    Args:
        base: As `format_type` writes it with domains resolved, such as `numeric(10,2)` or `integer[]`.
    """
    if base.endswith("[]"):
        element = duckdb_type(base.removesuffix("[]"))
        # Elements of a box[] are kept apart by semicolons.
        return "VARCHAR" if base == "box[]" or element in ("JSON", "INTERVAL", "BLOB") else element + "[]"
    if found := _NUMERIC.fullmatch(base):
        precision, scale = int(found.group(1)), int(found.group(2))
        return f"DECIMAL({precision},{scale})" if 0 <= scale <= precision <= _DECIMAL_DIGITS else "VARCHAR"
    plain = _PRECISION.sub("", base)
    if _INTERVAL.fullmatch(plain):
        return "INTERVAL"
    return _PLAIN.get(plain, "VARCHAR")


def always_fits(declared: str) -> bool:
    """Say whether every value fits the type that `duckdb_type` gave."""
    return declared in _ALWAYS_FIT


def read_text_sql(declared: str, text: str) -> str:
    """Return the expression that reads PostgreSQL's text form; NULL where the value does not fit.

    Args:
        declared: What `duckdb_type` gave.
        text: SQL that yields the text.
    """
    if declared.endswith("[]"):
        return _read_array(declared.removesuffix("[]"), text)
    match declared:
        case "VARCHAR":
            return text
        case "BLOB":
            return f"unhex(substr({text}, 3))"
        case "DATE" | "TIMESTAMP" | "TIMESTAMP WITH TIME ZONE":
            # Years before Christ: PostgreSQL writes BC at the end, DuckDB reads it behind the date.
            moved = f"regexp_replace({text}, '^(\\S+)(.*) BC$', '\\1 (BC)\\2')"
            return f"TRY_CAST(CASE WHEN ends_with({text}, 'BC') THEN {moved} ELSE {text} END AS {declared})"
        case "INTERVAL":
            return f"TRY_CAST(replace({text}, '+', '') AS INTERVAL)"
        case "JSON":
            # Text that is JSON to PostgreSQL need not be to DuckDB: halves of surrogate pairs.
            return f"TRY_CAST({text} AS JSON)"
        case _:
            return f"TRY_CAST({text} AS {declared})"


def constant_sql(declared: str, value: str) -> str:
    """Return SQL for one value, given its text form; it fails where the value does not fit."""
    read = read_text_sql(declared, literal(value))
    if declared.endswith("[]"):
        # A default may have no lambda in it.
        element = declared.removesuffix("[]")
        with duckdb.connect() as connection:
            ((found,),) = connection.execute(f"SELECT {_read_array('VARCHAR', literal(value))}").fetchall()
        items = ("NULL" if item is None else read_text_sql(element, literal(item)) for item in found or ())
        read = f"CAST({literal(value) if found is None else f'[{chr(44).join(items)}]'} AS {declared})"
    return read.replace("TRY_CAST(", "CAST(")


def _read_array(element: str, text: str) -> str:
    """Read an array of one dimension that starts at 1, as nearly all do."""
    parts = f"regexp_extract_all(substr({text}, 2, length({text}) - 2), {literal(_ELEMENT)})"
    unescaped = "regexp_replace(substr(e, 2, length(e) - 2), '\\\\(.)', '\\1', 'gs')"
    value = f"CASE WHEN e = 'NULL' THEN NULL WHEN starts_with(e, '\"') THEN {unescaped} ELSE e END"
    texts = f"list_transform({parts}, lambda e: {value})"
    read = f"list_transform({texts}, lambda x: {read_text_sql(element, 'x')})"
    fits = f"len(list_filter({texts}, lambda x: x IS NOT NULL)) = len(list_filter({read}, lambda x: x IS NOT NULL))"
    is_flat = f"starts_with({text}, '{{') AND NOT starts_with({text}, '{{{{')"
    return f"CASE WHEN {is_flat} AND {fits} THEN {read} END"
