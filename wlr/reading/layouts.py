"""Maps rows of one layout of a table to another one, by the names of the columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.sql import literal
from wlc.dialect.types import load_sql, store_sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wlc.farm.model import Column, Layout


def mapped_values(layout: Layout, old: Layout, values: Sequence[str]) -> tuple[str, ...]:
    """Map stored values of another layout by name: what it lacks is NULL, another type is cast exactly, or fails."""
    there = {column.name.lower(): (column, value) for column, value in zip(old.stored, values, strict=True)}
    return tuple(_mapped(column, *there.get(column.name.lower(), (None, ""))) for column in layout.stored)


def _mapped(column: Column, old: Column | None, stored: str) -> str:
    if old is None:
        return store_sql(column, f"CAST(NULL AS {column.type})")
    if old.type == column.type:
        return stored
    value = load_sql(old, stored)
    cast = f"TRY_CAST({value} AS {column.type})"
    says = literal(f"column {column.name} was {old.type}, and has a value that {column.type} cannot hold: ")
    is_same = f"CAST({cast} AS {old.type}) IS NOT DISTINCT FROM {value}"
    return store_sql(column, f"CASE WHEN {is_same} THEN {cast} ELSE error({says} || CAST({value} AS VARCHAR)) END")
