"""Rewrite a file after ALTER TABLE changed its table's columns: DuckDB does it to the rows themselves.

The rows are loaded into a separate table with only the old columns, the statement is run on it, and the result is
written. So DuckDB itself applies defaults, dropped fields of structs and new names.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import load_sql, store_sql
from wlc.farm.model import file_column
from wlr.engine.calculator import applying, open_scratch
from wlr.replay.ddl import running
from wlr.replay.fold.file_rewrite import Piece
from wlr.replay.fold.parquet_file import write_file
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from wlc.farm.model import Ddl, Layout, Name
    from wlr.replay.fold.files import Alteration


# Kinds that need no table, so that a table can be altered without the rest of the schema.
_SURROUNDINGS = ("CREATE SCHEMA", "CREATE TYPE", "CREATE SEQUENCE", "CREATE MACRO")


def alter(alteration: Alteration, base: Piece, folder: Path) -> Piece:
    """Rewrite the rows of a file as of after a statement.

    Args:
        alteration: The statement's effect.
        base: The file.
        folder: Existing, empty folder for the new file.

    Raises:
        StepError: The statement cannot be applied to the rows.
    """
    statement, catalog = alteration.statement, alteration.catalog
    connection = open_scratch(catalog, folder / "rows.duckdb")
    try:
        with applying(folder):
            for needed in _surroundings(alteration.schema):
                # A macro that reads tables cannot be created here, and a column cannot depend on it.
                unbound = (duckdb.BinderException, duckdb.CatalogException) if needed.kind == "CREATE MACRO" else ()
                with suppress(*unbound):
                    running.run(connection, catalog, needed)
            _load(connection, base.path, alteration.table, alteration.before)
            # The statement comes from the farm: it must only reach the loaded rows.
            connection.execute(f"SET allowed_directories = [{literal(str(folder.resolve()))}]")
            connection.execute("SET enable_external_access = false")
            running.check(connection, catalog, statement)
            running.run(connection, catalog, statement)
            path = folder.resolve() / "0.parquet"
            columns = ", ".join(f"{store_sql(c)} AS {quote(file_column(c.name))}" for c in alteration.after.stored)
            query = f"SELECT {columns} FROM {quote(catalog)}.{alteration.name.sql}"
            rows = write_file(connection, alteration.after, query, path, base.rows)
    finally:
        connection.close()
    if rows != base.rows:
        raise StepError(f"{statement.kind} left {rows} of {base.rows} rows of a file", table=str(alteration.table))
    return Piece(path, base.rows, base.low, base.high)


def _load(connection: duckdb.DuckDBPyConnection, file: Path, table: Name, layout: Layout) -> None:
    if table.schema != "main":
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(table.schema)}")
    columns = ", ".join(f"{load_sql(c, quote(file_column(c.name)))} AS {quote(c.name)}" for c in layout.stored)
    # Create an empty table first: rows must get the declared types, not those of their values.
    declared = ", ".join(f"{quote(column.name)} {column.type}" for column in layout.stored)
    connection.execute(f"CREATE TABLE {table.sql} ({declared})")
    connection.execute(f"INSERT INTO {table.sql} SELECT {columns} FROM {rows_of(file)}")


def _surroundings(statements: Iterable[Ddl]) -> tuple[Ddl, ...]:
    """Select the statements that a table's columns may depend on."""
    return tuple(statement for statement in statements if statement.kind in _SURROUNDINGS)
