"""What a farm database published, for the eyes of a DBA: transactions, their records, their rows."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.errors import InvalidError
from wlc.model import Change, Clear, Ddl, SequencePosition, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from wlc.farm import FarmDatabase
    from wlc.model import Batch, Column, Name, Record, TableFile, Transaction

FETCH_ROWS = 10_000

# Values of these types go into JSON as they are; all others are shown as the text that SQL would show.
_NATIVE_TYPES = frozenset(
    {"BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}
    | {"FLOAT", "DOUBLE", "VARCHAR"}
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log: a record of a transaction, or a transaction that has none.

    Attributes:
        batch: Number of the log file.
        what: "change", "clear", "sequence", the kind of a schema change, "empty", or "rollback".
        object: Table or other object; None for a transaction without records.
        added: Rows added, None where there is nothing to count.
        removed: Rows removed, None where there is nothing to count.
        statement: SQL text of a schema change.
    """

    batch: int
    transaction: Transaction
    what: str
    object: Name | None = None
    added: int | None = None
    removed: int | None = None
    statement: str | None = None


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """One row image: weight -1 was there before the transaction, 1 is there after it."""

    tick: int
    table: Name
    weight: int
    values: Mapping[str, object]


def entries(
    database: FarmDatabase,
    *,
    batch: int | None = None,
    first: int | None = None,
    last: int | None = None,
    table: str | None = None,
) -> Iterator[Entry]:
    """Walk the log in commit order.

    Args:
        database: The farm database.
        batch: Only this log file.
        first: Only transactions from this tick on.
        last: Only transactions up to this tick, itself included.
        table: Only records of this table, `name` or `schema.name`; transactions without such a record are left out.

    Raises:
        InvalidError: There is no such batch, or no such database in the farm.
        CorruptError: A log file is damaged. Nothing after it is shown.
    """
    for found in _batches(database, batch, first, last):
        for transaction in found.transactions:
            if _is_between(transaction.tick, first, last):
                yield from _entries_of(found.number, transaction, table)


def rows(
    database: FarmDatabase,
    *,
    batch: int | None = None,
    first: int | None = None,
    last: int | None = None,
    table: str | None = None,
) -> Iterator[ChangedRow]:
    """Read the row images that transactions removed and added; arguments as for `entries`.

    Rows come by tick within a data file, the removed ones before the added ones.

    Raises:
        InvalidError: There is no such batch.
        CorruptError: A log file or a data file is damaged.
    """
    for found in _batches(database, batch, first, last):
        for file in found.files:
            if table is None or _is_named(file.table, table):
                local = database.fetch(file)
                try:
                    yield from _rows_of(local, file, first, last)
                finally:
                    database.release(local)


def _batches(database: FarmDatabase, number: int | None, first: int | None, last: int | None) -> Iterator[Batch]:
    numbers = database.batch_numbers()
    if not numbers:
        database.config()  # A database that the farm does not hold is refused, not found to be empty.
    if number is not None:
        if number not in numbers:
            reach = f"it has {numbers[0]} to {numbers[-1]}" if numbers else "it has none yet"
            raise InvalidError(f"{database.name} has no batch {number}; {reach}", hint=f"wlc log {database.name}")
        numbers = [number]
    elif first is not None:
        start = bisect_left(numbers, first, key=lambda candidate: database.read_batch(candidate)[0].last)
        numbers = numbers[start:]
    chain = None
    # Asked for every number, a batch that is missing is named.
    for candidate in range(numbers[0], numbers[-1] + 1) if numbers else ():
        found, chain = database.read_batch(candidate, chain)
        if last is not None and found.first > last:
            return
        yield found


def _entries_of(batch: int, transaction: Transaction, table: str | None) -> Iterator[Entry]:
    if transaction.committed is None or not transaction.records:
        if table is None:
            yield Entry(batch, transaction, "rollback" if transaction.committed is None else "empty")
        return
    for record in transaction.records:
        entry = _entry(batch, transaction, record)
        if table is None or (entry.object is not None and _is_named(entry.object, table)):
            yield entry


def _entry(batch: int, transaction: Transaction, record: Record) -> Entry:
    match record:
        case Ddl():
            return Entry(batch, transaction, record.kind, record.object, statement=record.statement)
        case Change():
            return Entry(batch, transaction, "change", record.table, record.added, record.removed)
        case Clear():
            return Entry(batch, transaction, "clear", record.table, 0, record.removed)
        case SequencePosition():
            return Entry(batch, transaction, "sequence", record.sequence, statement=f"last value {record.value}")


def _rows_of(path: Path, file: TableFile, first: int | None, last: int | None) -> Iterator[ChangedRow]:
    import duckdb

    columns = file.layout.stored
    selected = ", ".join(["_tick", "_weight", *map(_shown, columns)])
    bounds = " AND ".join(
        f"_tick {comparison} {tick}" for comparison, tick in ((">=", first), ("<=", last)) if tick is not None
    )
    where = f" WHERE {bounds}" if bounds else ""
    with duckdb.connect() as connection:
        found = connection.execute(
            f"SELECT {selected} FROM read_parquet({literal(str(path))}){where} ORDER BY _tick, _weight"
        )
        while chunk := found.fetchmany(FETCH_ROWS):
            for tick, weight, *values in chunk:
                named = {column.name: value for column, value in zip(columns, values, strict=True)}
                yield ChangedRow(tick, file.table, weight, named)


def _shown(column: Column) -> str:
    name = quote(column.name)
    return name if column.type.upper() in _NATIVE_TYPES else f"CAST({name} AS VARCHAR)"


def _is_between(tick: int, first: int | None, last: int | None) -> bool:
    return (first is None or tick >= first) and (last is None or tick <= last)


def _is_named(name: Name, text: str) -> bool:
    return text in (name.name, str(name))
