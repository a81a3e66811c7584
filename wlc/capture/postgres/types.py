"""PostgreSQL's types as the farm holds them: the DuckDB type of a column, and the SQL that reads its text form.

If DuckDB has no exact type, the value is text as PostgreSQL writes it: numerics without or with a large precision,
enums, ranges, network addresses, composite types and all other types. Some values do not fit a type of the same name:
`NaN` in a `numeric(10,2)`, dates beyond DuckDB's, arrays of several dimensions. A data file with such a value stores
the whole column as text, too. docs/types.md has the table.
"""

from __future__ import annotations

import re
from functools import lru_cache

from wlc.dialect.duckdb import engine
from wlc.dialect.postgres.text import read_text_sql
from wlc.dialect.sql import literal
from wlc.dialect.types import BY_NAME, TABLE

_PLAIN = {name: row.name for row in TABLE for name in row.from_postgres}
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
# timestamp(3) with time zone, interval day to second(2)
_PRECISION = re.compile(r"\(\d+\)")
_INTERVAL = re.compile(r"interval( .*)?")
_DECIMAL_DIGITS = 38


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
    row = BY_NAME.get(declared)
    return row is not None and row.takes_all_postgres


def constant_sql(declared: str, value: str) -> str:
    """Return SQL for one value, given its text form. The SQL fails if the value does not fit the type."""
    read = read_text_sql(declared, literal(value))
    if declared.endswith("[]"):
        # A default must not contain a lambda.
        element = declared.removesuffix("[]")
        with engine.connect() as connection:
            ((found,),) = connection.execute(f"SELECT {read_text_sql('VARCHAR[]', literal(value))}").fetchall()
        items = ("NULL" if item is None else read_text_sql(element, literal(item)) for item in found or ())
        read = f"CAST({literal(value) if found is None else f'[{chr(44).join(items)}]'} AS {declared})"
    return read.replace("TRY_CAST(", "CAST(")
