"""A farm database's published transactions and their records, for a DBA to read.

Their rows are shown by `wlc.dialect.duckdb.row_images`, which needs an engine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.farm import paths
from wlc.farm.errors import InvalidError
from wlc.farm.log import refuse_other_past
from wlc.farm.model import Change, Clear, Ddl, RowRejected, RowsRead, RowsRefreshed, SequencePosition
from wlc.farm.typed_names import is_meant

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Name, Record, Transaction


@dataclass(frozen=True, slots=True)
class LogEntry:
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
class LogChoice:
    """Selection of log entries; None in an attribute selects all.

    Attributes:
        batch: Only this log file.
        first: Only transactions from this tick on.
        last: Only transactions up to this tick, itself included.
        since: Only transactions committed (or begun, if rolled back) at this time or later.
        table: Only records of this table, `name` or `schema.name`; transactions without such a record are left out.
        what: Only records of this kind, or whose kind begins with this word, such as `DROP`, in any case.
    """

    batch: int | None = None
    first: int | None = None
    last: int | None = None
    since: datetime | None = None
    table: str | None = None
    what: str | None = None

    def of(self, batch: Batch) -> Iterator[LogEntry]:
        """Yield the selected entries of a batch."""
        for transaction in batch.transactions:
            if _is_between(transaction.tick, self.first, self.last) and self._is_recent(transaction):
                for entry in _entries_of(batch.number, transaction, self.table):
                    if self.what is None or f"{entry.what} ".upper().startswith(f"{self.what} ".upper()):
                        yield entry

    def _is_recent(self, transaction: Transaction) -> bool:
        return self.since is None or (transaction.committed or transaction.started) >= self.since


ALL = LogChoice()


def entries(database: FarmDatabase, choice: LogChoice = ALL) -> Iterator[LogEntry]:
    """Walk the log in commit order.

    Raises:
        InvalidError: There is no such batch, or no such database in the farm.
        CorruptError: A log file is damaged. Nothing after it is shown.
    """
    for found in batches_between(database, choice.batch, choice.first, choice.last):
        yield from choice.of(found)


def newest_entries(database: FarmDatabase, limit: int, choice: LogChoice = ALL) -> list[LogEntry]:
    """Return the newest selected entries in commit order; reads only the log files that hold them.

    Args:
        database: The farm database.
        limit: Most entries.
        choice: Selects entries.

    Raises:
        InvalidError: There is no such batch, or no such database in the farm.
        CorruptError: A log file that was read is damaged.
    """
    if choice.batch is not None:
        return list(deque(entries(database, choice), maxlen=limit))
    numbers = database.batch_numbers() or _none_of(database)
    found: list[LogEntry] = []
    later: Batch | None = None
    for number in range(numbers[-1], numbers[0] - 1, -1) if numbers else ():
        batch, chain = database.read_batch(number)
        if later is not None:
            refuse_other_past(later, chain, f"{database.logs.url}/{paths.log_path(database.name, later.number)}")
        later = batch
        found = [*choice.of(batch), *found]
        if len(found) >= limit or (choice.first is not None and batch.first <= choice.first):
            break
    return found[-limit:]


def _none_of(database: FarmDatabase) -> list[int]:
    """Return no batches of a database without any; refuse a database that the farm does not hold."""
    database.config()
    return []


def batches_between(database: FarmDatabase, number: int | None, first: int | None, last: int | None) -> Iterator[Batch]:
    """Read one log file, or those that can hold transactions from tick `first` to tick `last`, verifying the chain."""
    numbers = database.batch_numbers() or _none_of(database)
    if number is not None:
        if number not in numbers:
            reach = f"it has {numbers[0]} to {numbers[-1]}" if numbers else "it has none yet"
            raise InvalidError(f"{database.name} has no batch {number}; {reach}", hint=f"wlc log {database.name}")
        numbers = [number]
    elif first is not None:
        start = bisect_left(numbers, first, key=lambda candidate: database.read_batch(candidate)[0].last)
        numbers = numbers[start:]
    chain = None
    # Reading every number reports a missing batch.
    for candidate in range(numbers[0], numbers[-1] + 1) if numbers else ():
        found, chain = database.read_batch(candidate, chain)
        if last is not None and found.first > last:
            return
        yield found


def _entries_of(batch: int, transaction: Transaction, table: str | None) -> Iterator[LogEntry]:
    if transaction.committed is None or not transaction.records:
        if table is None:
            yield LogEntry(batch, transaction, "rollback" if transaction.committed is None else "empty")
        return
    for record in transaction.records:
        entry = _entry(batch, transaction, record)
        if table is None or (entry.object is not None and is_meant(entry.object, table)):
            yield entry


def _entry(batch: int, transaction: Transaction, record: Record) -> LogEntry:
    match record:
        case Ddl():
            return LogEntry(batch, transaction, record.kind, record.object, statement=record.statement)
        case Change():
            return LogEntry(batch, transaction, "change", record.table, record.added, record.removed)
        case Clear():
            return LogEntry(batch, transaction, "clear", record.table, 0, record.removed)
        case SequencePosition():
            return LogEntry(batch, transaction, "sequence", record.sequence, statement=f"last value {record.value}")
        case RowsRead():
            return LogEntry(batch, transaction, "read", record.table)
        case RowsRefreshed():
            return LogEntry(batch, transaction, "refresh", record.table)
        case RowRejected():
            return LogEntry(batch, transaction, "rejected", record.table, statement=f"{record.op_type}: {record.cause}")


def _is_between(tick: int, first: int | None, last: int | None) -> bool:
    return (first is None or tick >= first) and (last is None or tick <= last)
