"""Values that do not fit the type of their column in the farm, which a data file holds as PostgreSQL's text."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from wlc.capture.postgres.types import always_fits
from wlc.dialect.postgres.text import read_text_sql
from wlc.dialect.sql import literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.farm.model import Layout

_FOUND = "a value does not fit the type of its column"


class MisfitError(Exception):
    """A value does not fit the type of its column."""


def checked(layout: Layout) -> list[str]:
    """Return SQL for every column: its value `v0`, `v1`, … that was read from `c0`, `c1`, …; it fails if none was."""
    failing = f"error({literal(_FOUND)})"
    return [
        f"v{index}"
        if always_fits(column.type)
        else f"CASE WHEN v{index} IS NULL AND c{index} IS NOT NULL THEN {failing} ELSE v{index} END"
        for index, column in enumerate(layout.stored)
    ]


@contextmanager
def noticed() -> Iterator[None]:
    """Raise `MisfitError` where what `checked` gave fails."""
    try:
        yield
    except duckdb.InvalidInputException as error:
        if _FOUND in str(error):
            raise MisfitError from error
        raise


def columns(connection: duckdb.DuckDBPyConnection, table: str, layout: Layout) -> list[bool]:
    """Say for every column whether some value does not fit its type.

    Args:
        connection: Where rows are gathered.
        table: That gathers them.
        layout: Of its rows.
    """
    checks = [f"coalesce(bool_or({misfit}), false)" if misfit else "false" for misfit in _checks(layout)]
    if all(check == "false" for check in checks):
        return [False] * len(checks)
    return list(connection.execute(f"SELECT {', '.join(checks)} FROM {table}").fetchall()[0])


def set_apart(connection: duckdb.DuckDBPyConnection, table: str, layout: Layout, other: str) -> list[int]:
    """Move the rows of transactions that have such a value to a new table, so that all others keep their types.

    Returns:
        The numbers of these transactions, in their order.
    """
    misfit = " OR ".join(f"coalesce({check}, false)" for check in _checks(layout) if check)
    numbers = connection.execute(f"SELECT DISTINCT number FROM {table} WHERE {misfit} ORDER BY number").fetchall()
    guilty = f"number IN (SELECT number FROM {table} WHERE {misfit})"
    connection.execute(f"CREATE TABLE {other} AS FROM {table} WHERE {guilty}")
    connection.execute(f"DELETE FROM {table} WHERE number IN (SELECT number FROM {other})")
    return [number for (number,) in numbers]


def _checks(layout: Layout) -> list[str]:
    """Return for every column SQL that is true where a value does not fit; "" where all do."""
    return [
        ""
        if always_fits(column.type)
        else f"c{index} IS NOT NULL AND {read_text_sql(column.type, f'c{index}')} IS NULL"
        for index, column in enumerate(layout.stored)
    ]
