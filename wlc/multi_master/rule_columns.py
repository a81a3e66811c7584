"""Columns of a table that a conflict rule can compare or add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.types import parse
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from wlc.farm.model import Column, Layout, Name
    from wlc.multi_master.circle import Rule


def compared_column(table: Name, layout: Layout, rule: str, column: str, database: str) -> str:
    """Return a compared column's name in the spelling of its table.

    Args:
        table: The table.
        layout: Its columns.
        rule: The rule.
        column: The column's name in any case.
        database: The database, as a command names it.

    Raises:
        InvalidError: The table has no such column, or its values cannot be compared.
    """
    suited = [each.name for each in layout.stored if _is_whole(each) and each.name not in layout.primary_key]
    example = f"wlc site rule {database} {table} {rule} --column {suited[0]}" if suited else ""
    found = _found(table, layout, f"rule {rule} compares", column, example)
    if found.name not in suited:
        raise InvalidError(
            f"column {found.name} of {table} is {found.type}, and rule {rule} compares whole numbers",
            hint=example or _no_column(table),
        )
    return found.name


def added_column(table: Name, layout: Layout, column: str, database: str) -> str:
    """Return an added column's name in the spelling of its table; see `compared_column`.

    Raises:
        InvalidError: The table has no such column, or its values cannot be added exactly.
    """
    suited = [each.name for each in layout.stored if _is_exact(each) and each.name not in layout.primary_key]
    example = f"wlc site rule {database} {table} newest --add {suited[0]}" if suited else ""
    found = _found(table, layout, "--add names", column, example)
    if found.name not in suited:
        raise InvalidError(
            f"column {found.name} of {table} is {found.type}: only whole numbers and DECIMAL have the same sum in any "
            "order",
            hint=example or _no_column(table),
        )
    if not layout.is_required(found):
        raise InvalidError(
            f"column {found.name} of {table} can be NULL, to which no number can be added",
            hint=f"at the site that may change the schema: wlc sql FILE 'ALTER TABLE {table} ALTER {found.name}"
            " SET NOT NULL', then wlc flush FILE",
        )
    return found.name


def refuse_without_columns(table: Name, layout: Layout, rule: Rule, database: str) -> None:
    """Refuse a table without a suitable column that its rule compares or adds.

    Raises:
        InvalidError: A column is missing or unsuitable.
    """
    if rule.column:
        compared_column(table, layout, rule.rule, rule.column, database)
    for column in rule.add:
        added_column(table, layout, column, database)


def _found(table: Name, layout: Layout, who: str, column: str, example: str) -> Column:
    found = next((each for each in layout.stored if each.name.lower() == column.lower()), None)
    if found is None:
        problem = f"{table} has no column {column!r} of its own" if column else f"{who} a column"
        raise InvalidError(problem, hint=example or _no_column(table))
    if found.name in layout.primary_key:
        raise InvalidError(
            f"column {found.name} of {table} is part of the primary key, which never changes",
            hint=example or _no_column(table),
        )
    return found


def _no_column(table: Name) -> str:
    return f"{table} has no suitable column: add one at the site that may change the schema, such as version BIGINT"


def _is_whole(column: Column) -> bool:
    return parse(column.type).row.is_integer


def _is_exact(column: Column) -> bool:
    return _is_whole(column) or parse(column.type).kind == "DECIMAL"
