"""How DuckDB's values look in Spark: the schema of a table, and the SQL that makes Spark's values of stored ones.

A value arrives exactly or not at all: what Spark cannot hold becomes text, what not even text would say is an error.
docs/spark.md has the table.
"""

from __future__ import annotations

from typing import Any

import duckdb
from pyspark.sql import types as spark

from wlc.errors import UnsupportedError
from wlc.model import Column, Layout, literal, quote
from wlc.types import storage_type

# Types that Spark has, too. DuckDB's name for a type: Spark's.
_SAME = {
    "boolean": spark.BooleanType,
    "tinyint": spark.ByteType,
    "smallint": spark.ShortType,
    "integer": spark.IntegerType,
    "bigint": spark.LongType,
    "float": spark.FloatType,
    "double": spark.DoubleType,
    "varchar": spark.StringType,
    "blob": spark.BinaryType,
}
# Types whose infinities Spark does not have: to it, they would be days and moments like any other.
_FINITE = {
    "date": spark.DateType,
    "timestamp": spark.TimestampNTZType,
    "timestamp with time zone": spark.TimestampType,
}
# Types that another one holds exactly. Spark's TIME ends before 24:00:00 and its timestamps at microseconds.
_CAST = {
    "utinyint": ("SMALLINT", spark.ShortType()),
    "usmallint": ("INTEGER", spark.IntegerType()),
    "uinteger": ("BIGINT", spark.LongType()),
    "ubigint": ("DECIMAL(20,0)", spark.DecimalType(20, 0)),
    **dict.fromkeys(
        ("uuid", "time", "time_ns", "timestamp_ns", "timestamptz_ns", "null"), ("VARCHAR", spark.StringType())
    ),
}


def spark_schema(columns: list[tuple[str, str]]) -> spark.StructType:
    """Return the schema that columns, given as names and types as declared, have in Spark.

    Raises:
        UnsupportedError: A column has a type that is not known; the message names it.
    """
    fields = []
    for name, declared in columns:
        try:
            made = _spark_type(_parsed(declared))
        except UnsupportedError as error:
            raise UnsupportedError(f"Column {quote(name)}: {error.message}", hint=error.hint) from error
        fields.append(spark.StructField(name, made, True))
    return spark.StructType(fields)


def table_schema(layout: Layout) -> spark.StructType:
    """Return the schema of a table in Spark: its stored columns in their order, all of them nullable."""
    return spark_schema([(column.name, column.type) for column in layout.stored])


def spark_sql(column: Column, stored: str) -> str:
    """Return the SQL that makes the value for Spark of a column's stored value."""
    return _spark_sql(_parsed(column.type), stored, column.name, 0)


def _parsed(declared: str) -> Any:
    # `storage_type` lets nothing through but types that it knows; this text comes from the farm.
    return duckdb.sqltype(storage_type(declared))


def _spark_type(parsed: Any) -> spark.DataType:
    kind = parsed.id
    if kind in _SAME or kind in _FINITE:
        return (_SAME.get(kind) or _FINITE[kind])()
    if kind in _CAST:
        return _CAST[kind][1]
    if kind == "decimal":
        sizes = dict(parsed.children)
        return spark.DecimalType(sizes["precision"], sizes["scale"])
    members = [(name, _spark_type(member)) for name, member in _members(parsed)]
    if kind == "list":
        return spark.ArrayType(members[0][1])
    if kind == "struct":
        return spark.StructType([spark.StructField(name, member) for name, member in members])
    if _is_odd_map(parsed):
        # Spark compares keys, and cannot compare maps.
        return spark.ArrayType(spark.StructType([spark.StructField(name, member) for name, member in members]))
    return spark.MapType(members[0][1], members[1][1])


def _spark_sql(parsed: Any, value: str, name: str, depth: int) -> str:
    kind = parsed.id
    if kind in _SAME or kind == "decimal":
        return value
    if kind in _FINITE:
        says = literal(f"column {name} holds a value that Spark does not have: ")
        # The value is part of the message so that the error is not raised before there is one.
        return f"CASE WHEN {value} IS NULL OR isfinite({value}) THEN {value} ELSE error({says} || {value}::VARCHAR) END"
    if kind in _CAST:
        return f"CAST({value} AS {_CAST[kind][0]})"
    if _is_plain(parsed):
        return value
    item = f"_{depth}"
    members = _members(parsed)
    if kind == "list":
        return f"list_transform({value}, lambda {item}: {_spark_sql(members[0][1], item, name, depth + 1)})"
    if kind == "map":
        packed = _pack([(key, _spark_sql(member, f"{item}.{key}", name, depth + 1)) for key, member in members])
        entries = f"list_transform(map_entries({value}), lambda {item}: {packed})"
        return entries if _is_odd_map(parsed) else f"map_from_entries({entries})"
    packed = _pack(
        [
            (field, _spark_sql(member, f"struct_extract({value}, {literal(field)})", name, depth))
            for field, member in members
        ]
    )
    return f"CASE WHEN {value} IS NOT NULL THEN {packed} END"


def _members(parsed: Any) -> list[tuple[str, Any]]:
    if parsed.id not in ("list", "struct", "map"):
        raise UnsupportedError(f"type {parsed} has no counterpart in Spark")
    return list(parsed.children)


def _is_plain(parsed: Any) -> bool:
    if parsed.id in ("list", "struct", "map"):
        return not _is_odd_map(parsed) and all(_is_plain(member) for _, member in parsed.children)
    return parsed.id in _SAME or parsed.id == "decimal"


def _is_odd_map(parsed: Any) -> bool:
    return parsed.id == "map" and _holds_map(parsed.children[0][1])


def _holds_map(parsed: Any) -> bool:
    if parsed.id in ("list", "struct", "map"):
        return parsed.id == "map" or any(_holds_map(member) for _, member in parsed.children)
    return False


def _pack(parts: list[tuple[str, str]]) -> str:
    return "struct_pack(" + ", ".join(f"{quote(name)} := {value}" for name, value in parts) + ")"
