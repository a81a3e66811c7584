"""Digests of a DuckDB master's tables, kept from the images that it journals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc import digest
from wlc.digest import Ledger
from wlc.model import Digest, Name, quote
from wlc.types import store_sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb

    from wlc.capture.duckdb.journal import Table
    from wlc.model import Ddl, Layout


def read(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, Digest]:
    """What the tables held at the last published tick; tables of which that is not known are left out."""
    rows = connection.execute(f"SELECT * FROM {quote(catalog)}.wlc.counts WHERE sum IS NOT NULL").fetchall()
    return {Name(schema, table): Digest(count, total) for schema, table, count, total in rows}


def ledger(connection: duckdb.DuckDBPyConnection, catalog: str, layouts: Mapping[int, tuple[Name, Layout]]) -> Ledger:
    """Follow digests from the last published tick on; images are those of the journal, by the number of their table."""

    def total(number: str, first: int, last: int) -> int:
        layout = layouts[int(number)][1]
        names = {column.name: f"c{index}" for index, column in enumerate(layout.stored)}
        images = f"{quote(catalog)}.wlc.j{number} WHERE _tick BETWEEN {first} AND {last}"
        return digest.sum_images(connection, layout, images, lambda column: names[column.name])

    return Ledger(read(connection, catalog), total)


def after_altering(connection: duckdb.DuckDBPyConnection, ddl: Ddl, old: Layout | None, table: Table | None) -> Ddl:
    """Return a schema change that says what the table holds, where its rows are not what they were.

    Args:
        connection: In the transaction that altered the table.
        ddl: The change.
        old: Layout of the table before it; None if all rows are published again, or it is about no table.
        table: The table.
    """
    if old is None or table is None or digest.keeps_rows(old, table.layout):
        return ddl
    return replace(ddl, digest=digest.sum_rows(connection, table.layout, table.sql, store_sql))
