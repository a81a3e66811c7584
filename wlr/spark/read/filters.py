"""Spark's filters as conditions in DuckDB's SQL, if both mean the same; Spark applies all of them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as api
from pyspark.sql import types as spark

from wlc.dialect.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """Return conditions for those filters that have one, on columns as Spark gets them."""
    found = (_condition(wanted, schema) for wanted in filters)
    return tuple(condition for condition in found if condition is not None)


def tick_range(filters: Iterable[api.Filter]) -> tuple[int | None, int | None]:
    """Return the first and the last tick that filters on `_tick` allow; None where they set no limit."""
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
    """Return the SQL of a value if both engines compare it in the same way; None otherwise."""
    if isinstance(wanted, _INTEGERS) and type(value) is int:
        return str(value)
    if isinstance(wanted, spark.StringType) and isinstance(value, str) and "\0" not in value:
        return literal(value)
    if isinstance(wanted, spark.BooleanType) and isinstance(value, bool):
        return str(value).upper()
    return None
