"""Parquet files as DuckDB describes them, and errors for unreadable ones."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from wlc.farm.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN_MAX = 200
_OF_FILES = (duckdb.InvalidInputException, duckdb.BinderException, duckdb.ConversionException)


def described(connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[str, str]]:
    """Return the names and types of a query's columns, in order."""
    return [(str(row[0]), str(row[1])) for row in connection.execute(f"DESCRIBE {query}").fetchall()]


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Translate DuckDB's errors about unreadable files.

    Raises:
        CorruptError: They are no Parquet files, or not of one table.
    """
    try:
        yield
    except duckdb.Error as error:
        # Some errors about the bytes of a file have no specific class.
        if type(error) is not duckdb.Error and not isinstance(error, _OF_FILES):
            raise
        message = f"{where[:_SHOWN_MAX]} cannot be read: {str(error).splitlines()[0]}"
        raise CorruptError(message, path=where) from error
