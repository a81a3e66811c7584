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
from wlc.postgres_text import read_text_sql

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


def constant_sql(declared: str, value: str) -> str:
    """Return SQL for one value, given its text form; it fails where the value does not fit."""
    read = read_text_sql(declared, literal(value))
    if declared.endswith("[]"):
        # A default may have no lambda in it.
        element = declared.removesuffix("[]")
        with duckdb.connect() as connection:
            ((found,),) = connection.execute(f"SELECT {read_text_sql('VARCHAR[]', literal(value))}").fetchall()
        items = ("NULL" if item is None else read_text_sql(element, literal(item)) for item in found or ())
        read = f"CAST({literal(value) if found is None else f'[{chr(44).join(items)}]'} AS {declared})"
    return read.replace("TRY_CAST(", "CAST(")
