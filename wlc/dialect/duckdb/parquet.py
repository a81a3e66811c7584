"""Parquet files as DuckDB describes them, and its errors for those that it cannot read.

How SQL text names the rows of Parquet files, and how it writes them.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.sql import literal
from wlc.farm.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike


# COPY's options for a file that is kept, and that readers other than DuckDB may read. Version 2 has encodings at which
# some of them fail, docs/decisions/0006-parquet-replicas.md.
KEPT = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v1"
# COPY's options for a file that only dbfarm reads.
PASSING = "FORMAT parquet, COMPRESSION snappy, PARQUET_VERSION v2"


def rows_of(*files: str | PathLike[str], options: str = "") -> str:
    """Return what stands behind FROM for the rows of local files, as one relation.

    DuckDB would take a folder such as `id=7` on the way to a file for a column, and prefer it to the file's own.

    Args:
        files: At least one.
        options: More options of `read_parquet`, as in "file_row_number = true".
    """
    listed = ", ".join(literal(os.fspath(file)) for file in files)
    return f"read_parquet([{listed}], hive_partitioning = false{', ' if options else ''}{options})"


_SHOWN_MAX = 200
_OF_FILES = (duckdb.InvalidInputException, duckdb.BinderException, duckdb.ConversionException)


def described(connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[str, str]]:
    """Return the names and types of a query's columns, in order."""
    return [(str(row[0]), str(row[1])) for row in connection.execute(f"DESCRIBE {query}").fetchall()]


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Say which files cannot be read.

    Raises:
        CorruptError: They are no Parquet files, or not of one table.
    """
    try:
        yield
    except duckdb.Error as error:
        # Some errors about the bytes of a file have no class of their own.
        if type(error) is not duckdb.Error and not isinstance(error, _OF_FILES):
            raise
        message = f"{where[:_SHOWN_MAX]} cannot be read: {str(error).splitlines()[0]}"
        raise CorruptError(message, path=where) from error
