"""Check that a table's data files have the columns, types and NOT NULL values of its layout.

Only the footers of the files are read.

Parquet files as DuckDB describes them, and errors for unreadable ones.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import load_sql, storage_type
from wlc.farm.errors import CorruptError
from wlc.farm.model import WEIGHT, file_column

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from wlc.farm.model import Layout, SnapshotTable


_OF_IMAGES = (("_tick", "BIGINT"), (WEIGHT, "TINYINT"))
_SHOWN_MAX = 200


def refuse_other_columns(
    connection: duckdb.DuckDBPyConnection, layout: Layout, paths: Mapping[str, str], *, is_images: bool = False
) -> None:
    """Refuse data files whose columns or types are not those of their layout.

    Args:
        connection: A connection that may read the files.
        layout: Of the rows in all of them.
        paths: Path in the farm by local file; not empty.
        is_images: The files hold row images, with ticks and weights, and not the rows of a snapshot.

    Raises:
        CorruptError: A file differs; the message names it.
    """
    listed = ", ".join(map(literal, paths))
    # Files of a table with the same schema bytes are alike, so one of each kind is checked.
    kinds = (
        "SELECT min(file_name) FROM (SELECT file_name, list_sort(list((name, type, type_length, repetition_type,"
        " num_children, converted_type, scale, precision, CAST(logical_type AS VARCHAR)))) AS kind"
        f" FROM parquet_schema([{listed}]) GROUP BY 1) GROUP BY kind"
    )
    with reading(", ".join(sorted(paths.values()))):
        expected = described(connection, _empty(layout, is_images=is_images))
        firsts = list(paths) if len(paths) == 1 else [file for (file,) in connection.execute(kinds).fetchall()]
        for file in firsts:
            found = described(connection, f"FROM {rows_of(file)}")
            if found != expected:
                where = paths.get(file, file)
                raise CorruptError(f"{where}: {_difference(found, expected)}", path=where)


def refuse_other_rows(connection: duckdb.DuckDBPyConnection, table: SnapshotTable, files: Mapping[str, str]) -> None:
    """Refuse files of a snapshot that do not hold a table's rows; arguments and errors as above."""
    if files:
        refuse_other_columns(connection, table.layout, files)
        refuse_missing_values(connection, required(table.layout), files)


def required(layout: Layout) -> set[str]:
    """Return the columns of a table's files in which every row has a value."""
    return {file_column(column.name) for column in layout.stored if layout.is_required(column)}


def refuse_missing_values(
    connection: duckdb.DuckDBPyConnection, columns: Collection[str], paths: Mapping[str, str]
) -> None:
    """Refuse files with missing values in required columns; arguments and errors as above."""
    if not columns:
        return
    query = (
        f"SELECT file_name, path_in_schema, stats_null_count FROM parquet_metadata([{', '.join(map(literal, paths))}])"
        f" WHERE stats_null_count > 0 AND path_in_schema IN ({', '.join(map(literal, sorted(columns)))})"
    )
    # One row per row group; an aggregate in DuckDB takes twice as long, and the result is nearly always empty.
    found = connection.execute(query).fetchall()
    for file, column, _ in found[:1]:
        where, count = paths.get(file, file), sum(nulls for *of, nulls in found if of == [file, column])
        raise CorruptError(f"{where}: {count} rows have no value in column {column}, which is NOT NULL", path=where)


def _empty(layout: Layout, *, is_images: bool) -> str:
    for column in layout.stored:
        # Its error names the column.
        load_sql(column)
    columns = [(file_column(column.name), storage_type(column.type)) for column in layout.stored]
    listed = [*(_OF_IMAGES if is_images else ()), *columns]
    return f"SELECT {', '.join(f'CAST(NULL AS {kind}) AS {quote(name)}' for name, kind in listed)}"


def _difference(found: Sequence[tuple[str, str]], expected: Sequence[tuple[str, str]]) -> str:
    for name, kind in found:
        if name not in dict(expected):
            return f"its column {name[:_SHOWN_MAX]} {kind[:_SHOWN_MAX]} is not one of the table's"
    for name, kind in expected:
        own = dict(found).get(name)
        if own is None:
            return f"it has no column {name[:_SHOWN_MAX]}"
        if own != kind:
            return f"its column {name[:_SHOWN_MAX]} is {own[:_SHOWN_MAX]}, the layout says {kind[:_SHOWN_MAX]}"
    return "its columns are in another order than the layout's"


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
