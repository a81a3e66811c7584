"""The files of a Parquet replica: their format, and their required and optional columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.duckdb.parquet_sql import KEPT, rows_of
from wlc.dialect.sql import literal, quote
from wlc.farm.model import file_column

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import duckdb

    from wlc.farm.model import Layout


def write_file(connection: duckdb.DuckDBPyConnection, layout: Layout, query: str, path: Path, expected: int) -> int:
    """Write stored columns to a file; NOT NULL columns are required, all others optional.

    By itself, DuckDB requires a column if its statistics show no NULL in the query, so files of a table would differ.

    Args:
        connection: From `connect`.
        layout: Layout of the table.
        query: Selects its stored columns.
        path: The file.
        expected: Number of rows. If NOT NULL columns lack values because a transaction was accepted, all columns are
            optional.

    Returns:
        Number of rows.
    """
    columns = {quote(file_column(column.name)): layout.is_required(column) for column in layout.stored}
    required = [name for name, is_required in columns.items() if is_required]
    rows = _copy(connection, columns, required, query, path)
    if not required:
        return rows
    if rows != expected:
        return _copy(connection, columns, [], query, path)
    found = connection.execute(
        f"SELECT name FROM parquet_schema({literal(str(path))}) WHERE repetition_type = 'REQUIRED'"
    )
    if not set(required) <= {quote(name) for (name,) in found.fetchall()}:
        # Statistics miss a UNION with an empty part, and a filter above a window.
        first = path.rename(path.with_suffix(".first"))
        _copy(connection, columns, required, f"FROM {rows_of(first)}", path)
        first.unlink()
    return rows


def _copy(
    connection: duckdb.DuckDBPyConnection,
    columns: Collection[str],
    required: Collection[str],
    query: str,
    path: Path,
) -> int:
    """Write a query's columns to a file; leave out rows without a value in a required column."""
    # TRY makes the statistics allow NULLs, and the filter excludes them.
    selected = ", ".join(name if name in required else f"TRY({name}) AS {name}" for name in columns)
    where = f" WHERE {' AND '.join(f'{name} IS NOT NULL' for name in required)}" if required else ""
    copied = f"COPY (SELECT {selected} FROM ({query}){where}) TO {literal(str(path))} ({KEPT})"
    return int(connection.execute(copied).fetchall()[0][0])
