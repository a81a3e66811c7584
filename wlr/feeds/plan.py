"""Which records of the log a feed is made of, in their order: runs of changed rows, and notes between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.farm.model import Change, Clear, Ddl
from wlc.farm.schema_fold import is_aside, table_names
from wlr.plan.patterns import matches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from wlc.farm.model import Batch, Name, TableFile, Transaction

# More row images, or more files, are sorted in two goes.
RUN_ROWS = 250_000
RUN_FILES = 200


@dataclass(frozen=True, slots=True)
class RowChange:
    """Rows that a transaction changed in one table.

    Attributes:
        place: Number of the change among those of its transaction.
    """

    transaction: Transaction
    history: str
    change: Change
    file: TableFile
    place: int


@dataclass(frozen=True, slots=True)
class Note:
    """A record that is one line: a schema change of a table, or the removal of all of its rows."""

    transaction: Transaction
    history: str
    record: Ddl | Clear
    table: Name


Item = RowChange | Note


def items_of(batch: Batch, after: int, tables: Collection[str]) -> Iterator[Item]:
    """Give what a feed says of a batch, in the order in which it took effect.

    Args:
        batch: The batch.
        after: Tick of the last transaction to leave out.
        tables: Patterns of the feed's tables; all if there are none.
    """
    files = {file.file.path: file for file in batch.files}
    for transaction in batch.transactions:
        if transaction.tick <= after or transaction.committed is None:
            continue
        for place, record in enumerate(transaction.records):
            if isinstance(record, Change):
                if record.rows and matches(record.table, tables):
                    yield RowChange(transaction, batch.history, record, files[record.path], place)
            elif isinstance(record, Clear):
                if record.removed and matches(record.table, tables):
                    yield Note(transaction, batch.history, record, record.table)
            elif isinstance(record, Ddl):
                for table in _concerned(record, tables):
                    yield Note(transaction, batch.history, record, table)


def _concerned(ddl: Ddl, tables: Collection[str]) -> Iterator[Name]:
    """Yield the feed's tables that a statement creates, drops, renames or alters. A comment is none of the feed's."""
    does = tuple(effect for effect in ddl.does if not is_aside(effect))
    for names in table_names(replace(ddl, does=does)):
        yield from [name for name in reversed(names.both) if matches(name, tables)][:1]


@dataclass(frozen=True, slots=True)
class RowsRun:
    """Changes of rows that one query renders; ticks rise, and no other record is between them."""

    changes: Sequence[RowChange]

    @property
    def first(self) -> int:
        """Tick of the first one."""
        return self.changes[0].transaction.tick

    @property
    def last(self) -> int:
        """Tick of the last one."""
        return self.changes[-1].transaction.tick

    @property
    def files(self) -> dict[str, TableFile]:
        """The data files that they are in, by path."""
        return {change.file.file.path: change.file for change in self.changes}


class RunGathering:
    """Gathers changes of rows until a run is worth a query.

    A transaction with anything else in it is rendered record by record, because its numbers go on from one to the next.

    Args:
        has_columns: Records have the table's columns, so that a run has those of one layout.
    """

    def __init__(self, *, has_columns: bool = False) -> None:
        self._has_columns = has_columns
        self._changes: list[RowChange] = []
        self._rows = 0
        self._paths: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """Whether there is no change."""
        return not self._changes

    def add(self, change: RowChange) -> RowsRun | None:
        """Take a change, and return the run before it if that is large enough."""
        last = self._changes[-1] if self._changes else None
        is_whole = last is not None and last.transaction.tick != change.transaction.tick
        is_full = self._rows >= RUN_ROWS or len(self._paths) >= RUN_FILES
        is_other = last is not None and last.history != change.history
        is_unlike = self._has_columns and last is not None and last.file.layout.stored != change.file.layout.stored
        run = self.take() if (is_whole and (is_full or is_other)) or is_unlike else None
        self._changes.append(change)
        self._rows += change.change.rows
        self._paths.add(change.file.file.path)
        return run

    def take(self) -> RowsRun | None:
        """Return the run so far, None if there is none, and begin another."""
        run = RowsRun(tuple(self._changes)) if self._changes else None
        self._changes, self._rows, self._paths = [], 0, set()
        return run
