"""DuckDB's types and values in Spark: the schema of a table, and the SQL that converts stored values.

A value arrives exactly or not at all: a type that Spark lacks becomes another one that holds its values, mostly text; a
value that no type of Spark can hold is an error. docs/spark.md has the table.

Spark's filters as conditions in DuckDB's SQL, if both mean the same; Spark applies all of them again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as api
from pyspark.sql import types as spark

from wlc.dialect.sql import literal, quote
from wlc.dialect.types import parse, storage_type
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wlc.dialect.types import ColumnType
    from wlc.farm.model import Column, Layout


def spark_schema(columns: list[tuple[str, str]]) -> spark.StructType:
    """Return the schema that columns, given as names and types as declared, have in Spark.

    Raises:
        UnsupportedError: A column has an unknown type; the message names it.
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
    """Return the SQL that converts a column's stored value to Spark's."""
    return _spark_sql(_parsed(column.type), stored, column.name, 0)


def _parsed(declared: str) -> ColumnType:
    return parse(storage_type(declared))


def _spark_type(parsed: ColumnType) -> spark.DataType:
    if not parsed.row.is_nested:
        return _plain_type(parsed)
    fields = [spark.StructField(name, _spark_type(member)) for name, member in parsed.fields]
    if parsed.kind == "LIST":
        return spark.ArrayType(fields[0].dataType)
    if parsed.kind == "STRUCT":
        return spark.StructType(fields)
    if _is_odd_map(parsed):
        # Spark compares keys, and cannot compare maps.
        return spark.ArrayType(spark.StructType(fields))
    return spark.MapType(fields[0].dataType, fields[1].dataType)


def _plain_type(parsed: ColumnType) -> spark.DataType:
    if parsed.row.spark_as is not None:
        return _plain_type(parse(parsed.row.spark_as))
    assert parsed.row.spark is not None
    sizes = map(int, re.findall(r"\d+", parsed.parameters)) if parsed.kind == "DECIMAL" else ()
    made: spark.DataType = getattr(spark, parsed.row.spark)(*sizes)
    return made


def _spark_sql(parsed: ColumnType, value: str, name: str, depth: int) -> str:
    if _is_plain(parsed):
        return value
    if parsed.row.spark_refuses_infinity:
        says = literal(f"column {name} holds a value that Spark cannot represent: ")
        # The value is part of the message, so DuckDB cannot evaluate the error in advance.
        return f"CASE WHEN {value} IS NULL OR isfinite({value}) THEN {value} ELSE error({says} || {value}::VARCHAR) END"
    if parsed.row.spark_as is not None:
        return f"CAST({value} AS {parsed.row.spark_as})"
    item = f"_{depth}"
    if parsed.kind == "LIST":
        return f"list_transform({value}, lambda {item}: {_spark_sql(parsed.fields[0][1], item, name, depth + 1)})"
    if parsed.kind == "MAP":
        packed = _pack([(key, _spark_sql(member, f"{item}.{key}", name, depth + 1)) for key, member in parsed.fields])
        entries = f"list_transform(map_entries({value}), lambda {item}: {packed})"
        return entries if _is_odd_map(parsed) else f"map_from_entries({entries})"
    packed = _pack(
        [
            (field, _spark_sql(member, f"struct_extract({value}, {literal(field)})", name, depth))
            for field, member in parsed.fields
        ]
    )
    return f"CASE WHEN {value} IS NOT NULL THEN {packed} END"


def _is_plain(parsed: ColumnType) -> bool:
    """Return whether Spark accepts stored values unchanged."""
    if _is_odd_map(parsed) or parsed.row.spark_as is not None or parsed.row.spark_refuses_infinity:
        return False
    return all(_is_plain(member) for _, member in parsed.fields)


def _is_odd_map(parsed: ColumnType) -> bool:
    """Return whether it is a map whose keys hold maps."""
    return parsed.kind == "MAP" and parsed.fields[0][1].holds(lambda row: row.name == "MAP")


def _pack(parts: list[tuple[str, str]]) -> str:
    return "struct_pack(" + ", ".join(f"{quote(name)} := {value}" for name, value in parts) + ")"


_COMPARISONS = {
    api.EqualTo: "=",
    api.EqualNullSafe: "IS NOT DISTINCT FROM",
    api.GreaterThan: ">",
    api.GreaterThanOrEqual: ">=",
    api.LessThan: "<",
    api.LessThanOrEqual: "<=",
}
_STRINGS = {api.StringStartsWith: "starts_with", api.StringEndsWith: "ends_with", api.StringContains: "contains"}
_INTEGERS = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)


def conditions(filters: Iterable[api.Filter], schema: spark.StructType) -> tuple[str, ...]:
    """Return the conditions of translatable filters, on Spark's columns."""
    found = (_condition(wanted, schema) for wanted in filters)
    return tuple(condition for condition in found if condition is not None)


def tick_range(filters: Iterable[api.Filter]) -> tuple[int | None, int | None]:
    """Return the first and the last tick that filters on `_tick` allow; None without a limit."""
    firsts, lasts = [], []
    for wanted in filters:
        if getattr(wanted, "attribute", None) != ("_tick",) or type(getattr(wanted, "value", None)) is not int:
            continue
        value = wanted.value
        match wanted:
            case api.EqualTo() | api.EqualNullSafe():
                firsts.append(value)
                lasts.append(value)
            case api.GreaterThan():
                firsts.append(value + 1)
            case api.GreaterThanOrEqual():
                firsts.append(value)
            case api.LessThan():
                lasts.append(value - 1)
            case api.LessThanOrEqual():
                lasts.append(value)
    return max(firsts, default=None), min(lasts, default=None)


def _condition(wanted: api.Filter, schema: spark.StructType) -> str | None:
    if isinstance(wanted, api.Not):
        inner = _condition(wanted.child, schema)
        return None if inner is None else f"NOT ({inner})"
    field = next((f for f in schema.fields if (f.name,) == wanted.attribute), None)
    if field is None:
        return None
    name = quote(field.name)
    if isinstance(wanted, api.IsNull | api.IsNotNull):
        return f"{name} IS {'NOT ' if isinstance(wanted, api.IsNotNull) else ''}NULL"
    if isinstance(wanted, api.In):
        values = [_value(value, field.dataType) for value in wanted.value]
        return f"{name} IN ({', '.join(map(str, values))})" if values and None not in values else None
    value = _value(wanted.value, field.dataType)
    if value is None:
        return None
    if type(wanted) in _STRINGS:
        return f"{_STRINGS[type(wanted)]}({name}, {value})"
    operator = _COMPARISONS.get(type(wanted))
    return f"{name} {operator} {value}" if operator else None


def _value(value: Any, wanted: spark.DataType) -> str | None:
    """Return the SQL of a value if both engines compare it alike; None otherwise."""
    if isinstance(wanted, _INTEGERS) and type(value) is int:
        return str(value)
    if isinstance(wanted, spark.StringType) and isinstance(value, str) and "\0" not in value:
        return literal(value)
    if isinstance(wanted, spark.BooleanType) and isinstance(value, bool):
        return str(value).upper()
    return None
