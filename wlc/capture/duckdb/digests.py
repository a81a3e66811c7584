"""Digests of a DuckDB master's tables, computed from the images that it journals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from wlc.capture.duckdb import packed
from wlc.dialect.duckdb import digest_sql
from wlc.dialect.sql import literal, quote
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


class Sums(NamedTuple):
    """The content of a table at the last published tick.

    Attributes:
        rows: Number of rows.
        sum: Of its digest; None if unknown.
        quick: The same by DuckDB's own hash; see `wlc.dialect.duckdb.snapshot.Known`.
    """

    rows: int
    sum: int | None = None
    quick: int | None = None


def read(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, Sums]:
    """Return what the tables held at the last published tick."""
    rows = connection.execute(f"FROM {quote(catalog)}.wlc.counts").fetchall()
    return {Name(schema, table): Sums(*sums) for schema, table, *sums in rows}


def rows_of(held: Mapping[Name, Sums]) -> dict[Name, int]:
    """Return the number of rows of each table."""
    return {name: sums.rows for name, sums in held.items()}


def known(held: Mapping[Name, Sums]) -> dict[Name, Digest]:
    """Return the digests that are known."""
    return {name: Digest(sums.rows, sums.sum) for name, sums in held.items() if sums.sum is not None}


def known_quick(held: Mapping[Name, Sums]) -> dict[Name, int]:
    """Return the quick sums that are known."""
    return {name: sums.quick for name, sums in held.items() if sums.quick is not None}


def write(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    before: Mapping[Name, Sums],
    rows: Mapping[Name, int],
    held: Mapping[Name, Digest],
    quick: Mapping[Name, int],
) -> None:
    """Store what the tables hold at the last published tick, in the caller's transaction.

    Args:
        connection: In a transaction.
        catalog: The master's database.
        before: What is stored.
        rows: Number of rows of each table.
        held: Digests that are known.
        quick: Quick sums that are known.
    """
    sums = {name: found.sum for name, found in held.items()}
    after = {name: Sums(count, sums.get(name), quick.get(name)) for name, count in rows.items()}
    table = f"{quote(catalog)}.wlc.counts"
    if outdated := [_literals(name) for name in before if before[name] != after.get(name)]:
        listed = ", ".join(f"({names})" for names in outdated)
        connection.execute(f"DELETE FROM {table} WHERE (schema_name, table_name) IN ({listed})")
    if new := [(name, found) for name, found in after.items() if found != before.get(name)]:
        listed = ", ".join(f"({_literals(name)}, {', '.join(map(_number, found))})" for name, found in new)
        connection.execute(f"INSERT INTO {table} VALUES {listed}")


def _literals(name: Name) -> str:
    return f"{literal(name.schema)}, {literal(name.name)}"


def _number(value: int | None) -> str:
    return "NULL" if value is None else str(value)


def quick_after(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    layouts: Mapping[int, tuple[Name, Layout]],
    before: Mapping[Name, int],
    batch: Batch,
    extracted: Mapping[str, PackedFile],
) -> dict[Name, int]:
    """The tables' quick sums after a batch whose images are still journalled, by DuckDB's own hash.

    Tables whose schema the batch changes, and cleared ones, are left out: the next snapshot reads them.

    Args:
        connection: The connection to query.
        catalog: The master's database.
        layouts: Layouts of the journal.
        before: The sums before the batch.
        batch: The batch.
        extracted: Files of its packed images.
    """
    found = dict(before)
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
    held: Mapping[Name, Sums],
    extracted: Mapping[str, PackedFile],
) -> Ledger:
    """Follow digests from the last published tick on, by the images of the journal.

    Args:
        connection: The connection to query.
        catalog: The master's database.
        layouts: Layouts of the journal; the number of one is the path of its images.
        held: What the tables held at the last published tick.
        extracted: Files of packed images, by path.
    """

    def total(number: str, first: int, last: int) -> int:
        if number in extracted:
            return extracted[number].sums(connection, layouts[packed.layout_of(number)][1])[0]
        layout = layouts[int(number)][1]
        images = f"{quote(catalog)}.wlc.j{number} WHERE _tick BETWEEN {first} AND {last} AND abs(_weight) = 1"
        return digest_sql.sum_images(connection, layout, images, _journalled(layout))

    return Ledger(known(held), total)


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
