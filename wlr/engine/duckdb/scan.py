"""The rows of a DuckDB replica, as images in storage types."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb.opening import alone
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import store_sql
from wlc.farm.model import file_column
from wlr.engine.calculator import using
from wlr.engine.contract import Scan
from wlr.engine.duckdb import wlr_schema as states
from wlr.engine.duckdb.changes import parked_rows
from wlr.engine.duckdb.replica_file import attach

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.farm.model import Name


@contextmanager
def scanned(path: Path, catalog: str, work: Path) -> Iterator[Scan]:
    """Open a replica for reading; see `wlr.engine.contract.Target.scanned`."""
    connection = attach(path, catalog, read_only=True)
    try:
        with using(path):
            connection.execute(f"SET temp_directory = {literal(str(work))}")
            state = states.read(connection, catalog, str(path))
            parked_rows(connection, catalog).refuse(str(path), f"wlr replicate --into {shlex.quote(str(path))}")
            replicated = states.read_tables(connection, state.catalog)
            found = catalogs.tables(connection, state.catalog)
            layouts = {name: layout for name, layout in found.items() if name in replicated}

        @contextmanager
        def images(name: Name) -> Iterator[str]:
            columns = ", ".join(f"{store_sql(c)} AS {quote(file_column(c.name))}" for c in layouts[name].stored)
            with using(path):
                yield f"SELECT {columns} FROM {quote(state.catalog)}.{name.sql}"

        yield Scan(connection, state, layouts, images)
    finally:
        with alone(path):
            connection.close()
