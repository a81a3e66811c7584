"""Digests of a DuckDB master's tables, computed from the images that it journals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.capture.duckdb import packed
from wlc.dialect.duckdb import digest_sql
from wlc.dialect.sql import quote
from wlc.dialect.types import store_sql
from wlc.farm import digest
from wlc.farm.digest import Ledger
from wlc.farm.log_columns import Transactions
from wlc.farm.model import Clear, Ddl, Digest, Name
from wlc.farm.schema_fold import touched_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import duckdb

    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.capture.duckdb.packed import PackedFile
    from wlc.farm.model import Batch, Column, Layout


def read(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, Digest]:
    """The tables' digests at the last published tick, without unknown ones."""
    columns = "schema_name, table_name, rows, sum"
    rows = connection.execute(f"SELECT {columns} FROM {quote(catalog)}.wlc.counts WHERE sum IS NOT NULL").fetchall()
    return {Name(schema, table): Digest(count, total) for schema, table, count, total in rows}


def read_quick(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, int]:
    """The same by DuckDB's own hash; see `wlc.dialect.duckdb.snapshot.Known`."""
    columns = "schema_name, table_name, quick"
    rows = connection.execute(f"SELECT {columns} FROM {quote(catalog)}.wlc.counts WHERE quick IS NOT NULL").fetchall()
    return {Name(schema, table): total for schema, table, total in rows}


def quick_after(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    layouts: Mapping[int, tuple[Name, Layout]],
    batch: Batch,
    extracted: Mapping[str, PackedFile],
) -> dict[Name, int]:
    """The tables' quick sums after a batch whose images are still journalled, by DuckDB's own hash.

    Tables whose schema the batch changes, and cleared ones, are left out: the next snapshot reads them.

    Args:
        connection: The connection to query.
        catalog: The master's database.
        layouts: Layouts of the journal.
        batch: The batch.
        extracted: Files of its packed images.
    """
    found = read_quick(connection, catalog)
    for *_, record in Transactions.of(batch.transactions).records():
        if isinstance(record, Ddl):
            altered = touched_tables(record)
            found = {name: total for name, total in found.items() if name not in altered}
        elif isinstance(record, Clear):
            found.pop(record.table, None)
    changed = {file.table for file in batch.files}
    for number, (name, layout) in layouts.items():
        if name in found and name in changed:
            images = f"{quote(catalog)}.wlc.j{number} WHERE _tick <= {batch.last} AND abs(_weight) = 1"
            _, total = digest_sql.sum_quickly(connection, layout, images, _journalled(layout), is_weighted=True)
            found[name] = (found[name] + total) % digest.MODULUS
    for path, file in extracted.items():
        name, layout = layouts[packed.layout_of(path)]
        if name in found:
            found[name] = (found[name] + file.sums(connection, layout)[1]) % digest.MODULUS
    return found


def _journalled(layout: Layout) -> Callable[[Column], str]:
    """Return the function from a column to its name in the image table."""
    names = {column.name: f"c{index}" for index, column in enumerate(layout.stored)}
    return lambda column: names[column.name]


def ledger(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    layouts: Mapping[int, tuple[Name, Layout]],
    extracted: Mapping[str, PackedFile],
) -> Ledger:
    """Follow digests from the last published tick on, by the images of the journal.

    Args:
        connection: The connection to query.
        catalog: The master's database.
        layouts: Layouts of the journal; the number of one is the path of its images.
        extracted: Files of packed images, by path.
    """

    def total(number: str, first: int, last: int) -> int:
        if number in extracted:
            return extracted[number].sums(connection, layouts[packed.layout_of(number)][1])[0]
        layout = layouts[int(number)][1]
        images = f"{quote(catalog)}.wlc.j{number} WHERE _tick BETWEEN {first} AND {last} AND abs(_weight) = 1"
        return digest_sql.sum_images(connection, layout, images, _journalled(layout))

    return Ledger(read(connection, catalog), total)


def after_altering(
    connection: duckdb.DuckDBPyConnection, ddl: Ddl, old: Layout | None, table: CapturedTable | None
) -> Ddl:
    """Return the schema change with a digest of the table, if its rows have changed.

    Args:
        connection: In the transaction that altered the table.
        ddl: The change.
        old: Layout of the table before it; None if all rows are published again, or no table is altered.
        table: The table.
    """
    if old is None or table is None or digest_sql.keeps_rows(old, table.layout):
        return ddl
    return replace(ddl, digest=digest_sql.sum_rows(connection, table.layout, table.sql, store_sql))
