"""Tables with all column types and their extremes, and what readers of their files must find."""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb

from tests.readers import Condition
from tests.unit.dialect.test_types import EXPRESSIONS, VALUES
from wlc.dialect.sql import literal
from wlc.dialect.types import storage_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.readers import Reader

# DuckDB writes version 2 in blocks of 2,048 values, and some readers fail at the second one.
ROWS = 3000
_BITS = {
    f"{sign}{name}": bits
    for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64))
    for sign in ("", "U")
}
_EXTREMES = {
    **{name: [str(-(2 ** (bits - 1))), str(2 ** (bits - 1) - 1)] for name, bits in _BITS.items() if name[0] != "U"},
    **{name: ["0", str(2**bits - 1)] for name, bits in _BITS.items() if name[0] == "U"},
    "BOOLEAN": ["true", "false"],
    **VALUES,
}
# Expressions with a value for each row number `i`, far from that of its neighbour.
_RANDOM = {
    **{
        name: f"hash(i)::HUGEINT % {2**bits} - {0 if name[0] == 'U' else 2 ** (bits - 1)}"
        for name, bits in _BITS.items()
    },
    "DECIMAL(9,9)": "(hash(i) % 999999999)::BIGINT / 1000000000",
    "DECIMAL(18,3)": "(hash(i) % 999999999999)::BIGINT",
    "DECIMAL(38,0)": "hash(i)::HUGEINT * 1000000007",
    "FLOAT": "hash(i)::DOUBLE / 7 - 1e18",
    "DOUBLE": "hash(i)::DOUBLE / 7 - 1e18",
    "VARCHAR": "hash(i)",
    "BLOB": "hash(i)::VARCHAR::BLOB",
    "UUID": "md5(i::VARCHAR)",
    "DATE": "DATE '2000-01-01' + (hash(i) % 100000)::INTEGER",
    "TIME": "TIME '00:00:00' + to_microseconds((hash(i) % 86400000000)::BIGINT)",
    "TIMESTAMP": "make_timestamp((hash(i) % 4000000000000000)::BIGINT)",
    "TIMESTAMP_NS": "make_timestamp_ns((hash(i) % 4000000000000000000)::BIGINT)",
    "TIMESTAMP WITH TIME ZONE": "make_timestamp((hash(i) % 4000000000000000)::BIGINT)",
}
# An ordinary value of a type, for Python and for SQL.
_ORDINARY: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(_BITS.keys() - {"UBIGINT"}, (7, "")),
    "BOOLEAN": (True, "true"),
    "DECIMAL(4,1)": (Decimal("7.5"), "CAST('7.5' AS DECIMAL(4,1))"),
    "DECIMAL(18,3)": (Decimal("7.5"), "CAST('7.5' AS DECIMAL(18,3))"),
    "DECIMAL(38,0)": (Decimal(7), "CAST('7' AS DECIMAL(38,0))"),
    "FLOAT": (7.5, "CAST(7.5 AS FLOAT)"),
    "DOUBLE": (7.5, "CAST(7.5 AS DOUBLE)"),
    "VARCHAR": ("7", "'7'"),
    "DATE": (date(2026, 7, 7), "DATE '2026-07-07'"),
    "TIMESTAMP": (datetime(2026, 7, 7), "TIMESTAMP '2026-07-07 00:00:00'"),
}
# Tables of types at which some reader fails or has another value; main.t holds all others.
_APART = {
    "maps": r"MAP\(UNION",
    "big": r"UBIGINT",
    "json": r"JSON",
    "ids": r"UUID",
    "times": r"\bTIME\b|_NS\b",
    "variants": r"VARIANT",
    "names": "A b",
}
TABLES = ("t", *_APART)


def _table_of(declared: str) -> str:
    stored = storage_type(declared)
    return next((name for name, pattern in _APART.items() if re.search(pattern, f"{declared} {stored}")), "t")


def _cycled(declared: str, values: list[str]) -> str:
    return " ".join(
        [
            "CASE",
            *(f"WHEN i % {len(values) + 1} = {n} THEN {value}" for n, value in enumerate(values)),
            f"END::{declared}",
        ]
    )


def _columns() -> Iterator[tuple[str, str]]:
    """Yield types, and expressions over the row's number `i`."""
    for declared, extremes in _EXTREMES.items():
        few = [f"{literal(value)}::{declared}" for value in extremes if len(value) < 5000]
        if declared in _ORDINARY:
            few.append(_ORDINARY[declared][1] or str(_ORDINARY[declared][0]))
        yield declared, _cycled(declared, few)
        if declared in _RANDOM:
            random = f"CASE WHEN i % 7 <> 0 THEN ({_RANDOM[declared]})::{declared} END"
            yield declared, random
            if _table_of(declared) == "t":
                yield f"{declared}[]", f"CASE i % 5 WHEN 0 THEN NULL WHEN 1 THEN [] ELSE [{random}, NULL, {random}] END"
    # The next one to a STRUCT that DuckDB takes for a VARIANT in Delta tables.
    alike = "STRUCT(metadata BLOB, value BLOB, x INTEGER)"
    for declared, values in {**EXPRESSIONS, alike: ["{'metadata': 'a', 'value': 'b', 'x': 1}"]}.items():
        yield declared, _cycled(declared, [f"({value})::{declared}" for value in values])


_COLUMNS = [(f"c{number}", *column) for number, column in enumerate(_columns())]


def statements() -> list[str]:
    """SQL that makes and fills the tables."""
    made = []
    for table in TABLES:
        own = [column for column in _COLUMNS if _table_of(column[1]) == table]
        declared = "".join(f", {name} {declared}" for name, declared, _ in own)
        values = "".join(f", {value}" for _, _, value in own)
        made.append(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, s VARCHAR{declared})")
        made.append(f"INSERT INTO {table} SELECT i, 'v' || i % 11{values} FROM range({ROWS}) AS r(i)")
    return made


def queries(table: str) -> list[Condition | None]:
    """All rows; few of them, side by side and scattered; those with an ordinary value in a column."""
    found = [None, Condition("id", "=", 7), Condition("id", ">", ROWS - 9), Condition("s", "=", "v5", "'v5'")]
    for name, declared, _ in _COLUMNS:
        if _table_of(declared) == table and declared in _ORDINARY:
            found.append(Condition(name, "=", *_ORDINARY[declared]))
    return found


# What is known of a reader and a table: words of its error, or the type of which some values differ.
LIMITS = {
    ("DuckDB 1.4", "times"): "TIME_NS",
    ("DuckDB 1.5", "times"): "TIMESTAMPTZ_NS",
    ("Polars", "json"): "JSON",
    ("Polars", "times"): "TIME",
    ("Polars, Delta", "json"): "incoming: Binary != target: String",
    ("Polars, Delta", "big"): "incoming: UInt64",
    ("Polars, Delta", "maps"): "Map key types are not castable",
    ("Spark", "ids"): "FIXED_LEN_BYTE_ARRAY (UUID)",
    ("Spark", "times"): "Illegal Parquet type: INT64 (TIMESTAMP(NANOS",
}


def check(name: str, reader: Reader, place: str, file: str, table: str) -> None:
    """A reader finds in a file, or a folder with a Delta table of it, what DuckDB finds in the file, or has a known limit."""
    limit = LIMITS.get((name, table))
    try:
        differing = _differing(reader, place, file, table)
    except Exception as error:
        if limit is None or limit not in str(error):
            raise
        return
    if limit is None:
        assert differing == [], (name, table)
    else:
        assert limit in str(differing), f"{name} reads {table} now: LIMITS and docs/parquet.md say that it does not"


def _differing(reader: Reader, place: str, file: str, table: str) -> list[object]:
    columns = [(column, declared) for column, declared, _ in _COLUMNS if _table_of(declared) == table]
    texts = f"[{', '.join(_text(column, declared) for column, declared in columns)}] AS texts"
    found: list[object] = []
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"CREATE TABLE expected AS FROM read_parquet({literal(file)})")
        connection.execute(f"CREATE TABLE wanted AS SELECT id, {texts} FROM expected")
        for query, answer in zip(asked := queries(table), reader(place, asked), strict=True):
            connection.register("answer", answer)
            connection.execute(f"CREATE OR REPLACE TABLE given AS SELECT id, {texts} FROM answer")
            connection.unregister("answer")
            ids = f"SELECT id FROM expected WHERE {query.sql}" if query else "SELECT id FROM expected"
            differing = connection.execute(
                f"SELECT w.id, g.id, w.texts, g.texts FROM (FROM wanted WHERE id IN ({ids})) AS w"
                " FULL JOIN given AS g ON w.id = g.id WHERE w.texts IS DISTINCT FROM g.texts LIMIT 3"
            ).fetchall()
            for one, other, right, got in differing:
                pairs = zip(columns, right or (), got or (), strict=False)
                values = [(declared, a, b) for (_, declared), a, b in pairs if a != b]
                found.append((query and query.sql, one, other, values))
    return found


def _text(value: str, declared: str) -> str:
    """SQL for a text that does not tell how a reader represents a value."""
    plain = storage_type(declared).replace("UUID", "BLOB").replace("JSON", "VARCHAR")
    return f"CAST(CAST({value} AS {plain}) AS VARCHAR)"
