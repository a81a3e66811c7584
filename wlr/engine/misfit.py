"""Finds the value of a PostgreSQL master that does not fit DuckDB's type of its column in a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.duckdb import engine
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.postgres.text import read_text_sql
from wlc.dialect.sql import quote
from wlc.farm.model import file_column

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wlc.farm.model import Layout, TableFile
    from wlr.replay.plan.step import TableChange


def misfit(change: TableChange, layout: Layout, fetch: Callable[[TableFile], Path]) -> str | None:
    """Name a value that does not fit its column; None if there is none.

    A PostgreSQL master stores a column as text if a value does not fit its type.

    Args:
        change: The change, with its files.
        layout: Layout of the table.
        fetch: Returns a local copy of a file.
    """
    types = dict(layout.shape)
    for read in change.reads:
        for column, stored in read.file.layout.shape:
            if stored == "VARCHAR" != types.get(column, stored):
                rows, text = rows_of(fetch(read.file)), quote(file_column(column))
                query = f"""SELECT {text} FROM {rows}
                    WHERE _tick BETWEEN {read.first} AND {read.last} AND {text} IS NOT NULL
                    AND {read_text_sql(types[column], text)} IS NULL LIMIT 1"""
                with engine.connect() as connection:
                    found = connection.execute(query).fetchall()
                shown = f": {found[0][0]}" if found else ""
                return f"column {column} has a value that does not fit {types[column]}{shown[:100]}"
    return None
