"""Which columns of a table a rule between sites can compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.types import parse
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from wlc.farm.model import Column, Layout, Name


def compared_column(table: Name, layout: Layout, rule: str, column: str, database: str) -> str:
    """Return the name of a column as its table has it.

    Args:
        table: The table.
        layout: Its columns.
        rule: The rule that compares the column.
        column: Its name, however written.
        database: The database, as a command names it.

    Raises:
        InvalidError: The table has no such column, or its values cannot be compared so.
    """
    suited = [each.name for each in layout.stored if _is_suited(layout, each)]
    found = next((each for each in layout.stored if each.name.lower() == column.lower()), None)
    if found is not None and found.name in suited:
        return found.name
    if found is None:
        problem = f"{table} has no column {column!r} of its own" if column else f"rule {rule} compares a column"
    elif found.name in layout.primary_key:
        problem = f"column {found.name} of {table} is part of the primary key, which never changes"
    else:
        problem = f"column {found.name} of {table} is {found.type}, and rule {rule} compares whole numbers"
    if suited:
        hint = f"wlc rule {database} {table} {rule} --column {suited[0]}"
    else:
        hint = f"{table} has no suitable column: add one at the site that may change the schema, such as version BIGINT"
    raise InvalidError(problem, hint=hint)


def _is_suited(layout: Layout, column: Column) -> bool:
    return parse(column.type).row.is_integer and column.name not in layout.primary_key
