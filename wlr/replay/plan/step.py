"""A step: the transactions that a replica applies in one own transaction, and the actions for them.

Statistics of the steps of a replication.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.farm.digest import touched
from wlc.farm.errors import CorruptError
from wlc.farm.log_columns import Transactions
from wlc.farm.model import Change, Clear, Ddl, Name, Position, SequencePosition, TableFile
from wlc.farm.schema_fold import table_names
from wlr.replay.plan.common_position import Contained, having_applied

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from wlc.farm.model import Digest, Record, Transaction
    from wlr.replay.plan.row_filters import RowFilters


# Paths of data files that a replication writes for itself, which no other machine can read.
LOCAL = "local/"


@dataclass(frozen=True, slots=True)
class Read:
    """Rows of a data file whose tick is from `first` to `last`, both included."""

    file: TableFile
    first: int
    last: int

    @property
    def is_local(self) -> bool:
        """Whether the file is not in the farm."""
        return self.file.file.path.startswith(LOCAL)


@dataclass(frozen=True, slots=True)
class TableChange:
    """The changes of consecutive transactions to one table.

    Attributes:
        reads: Files and ticks of the row images that count, in commit order.
        added: Number of +1 images in `reads`; `removed`: number of -1 images.
        cleared: Number of rows that the table must have at the start, as all of them were removed; None if they stay.
    """

    table: Name
    reads: tuple[Read, ...]
    added: int
    removed: int
    cleared: int | None = None


@dataclass(frozen=True, slots=True)
class Fold:
    """Changes of many transactions that can be applied as one net change, in any order of the rows."""

    changes: tuple[TableChange, ...]
    sequences: tuple[SequencePosition, ...] = ()


Action = Fold | Ddl


@dataclass(frozen=True, slots=True)
class Mark:
    """The batch of a step's transactions up to tick `last`, from the mark before on; the batch ends at `batch_last`."""

    last: int
    history: str
    batch: int
    chain: str
    batch_last: int


@dataclass(frozen=True, slots=True)
class Step:
    """Transactions that the replica applies in one transaction, together with the position after them.

    Attributes:
        transactions: In commit order; those rolled back or accepted among them do nothing.
        files: Of the batches the transactions come from, by path.
        marks: The batches the transactions come from, in order.
        catalog: Name that DDL text of the step gives the database.
        skipped: Ticks of accepted transactions among `transactions`.
        digests: The master's digests after the last transaction, of tables changed by batches that end in the step.
            None for a table whose batch names no digest.
        undigested: Tables whose digest is unknown to the master, by a batch.
        repaired: Repaired tables: their digests are those of `digests`, not those that the replica had.
        retried: Ticks of accepted transactions that the step applies.
        footer: Contents by the footer of the last batch that ends in the step; None if none ends in it.
        is_start: The step goes back to the start of the log, before any commit.
        given: Actions of a replica of chosen rows, instead of the transactions' own; None for their own.
        filters: New filters of the replica; None to keep its own.
    """

    transactions: Sequence[Transaction]
    files: dict[str, TableFile]
    marks: tuple[Mark, ...]
    catalog: str
    skipped: frozenset[int] = frozenset()
    digests: Mapping[Name, Digest | None] = field(default_factory=dict)
    undigested: frozenset[Name] = frozenset()
    repaired: frozenset[Name] = frozenset()
    footer: Contained | None = None
    retried: frozenset[int] = frozenset()
    is_start: bool = False
    given: tuple[Action, ...] | None = None
    filters: RowFilters | None = None

    @property
    def first(self) -> int:
        """Tick of the first transaction."""
        return self.transactions[0].tick

    @property
    def last(self) -> int:
        """Tick of the last transaction."""
        return self.transactions[-1].tick

    @property
    def mark(self) -> Mark:
        """The batch that the last transaction comes from."""
        return next(mark for mark in self.marks if mark.last >= self.last)

    @property
    def position(self) -> Position:
        """The replica's position afterwards."""
        return Position(self.mark.history, self.last, self.mark.batch, self.mark.chain)

    @property
    def clock(self) -> datetime | None:
        """Commit time of the last committed transaction, None without one."""
        return next((t.committed for t in reversed(self.transactions) if t.committed is not None), None)

    def clock_after(self, before: datetime | None) -> datetime | None:
        """Return the commit time of the last transaction that the replica holds afterwards; None before the first."""
        return None if self.is_start else self.clock or before

    @property
    def applied(self) -> Transactions:
        """The transactions that count: committed ones that were not accepted."""
        return Transactions.of(self.transactions).applied(self.skipped)

    @property
    def names_digests(self) -> bool:
        """Whether a batch names any digest."""
        return any(digest for name, digest in self.digests.items() if name not in self.repaired)

    @property
    def left_out(self) -> dict[Name, bool]:
        """Tables that accepted transactions changed, each with whether it exists in the master afterwards."""
        found: dict[Name, bool] = {}
        for transaction in self.transactions if self.skipped else ():
            for record in transaction.records if transaction.tick in self.skipped else ():
                if isinstance(record, Change | Clear):
                    found[record.table] = True
                elif isinstance(record, Ddl):
                    found |= {name: name == table.after for table in table_names(record) for name in table.both}
        return found

    def contained(self, before: Contained) -> Contained:
        """Return the contents of a replica after the step, given those before."""
        known = self.footer or before
        return having_applied(known, Transactions.of(self.transactions).after(known.tick), self.mark.history)

    @property
    def rows(self) -> int:
        """Row images in all of its changes."""
        return sum(change.rows for change in self.applied.changes)

    def actions(self) -> tuple[Action, ...]:
        """Actions in order: DDL as recorded, and all changes between two DDL statements folded."""
        return actions_of(self.applied, self.files) if self.given is None else self.given

    def schema_changes(self) -> Iterator[Ddl]:
        """Schema statements, in order."""
        return (record for t in self.applied.objects for record in t.records if isinstance(record, Ddl))

    def halves(self) -> tuple[Step, Step]:
        """Cut the step of two or more transactions into halves."""
        return self.cut(len(self.transactions) // 2)

    def joined(self, step: Step) -> Step:
        """Return the step and the next one as one."""
        return replace(
            step,
            transactions=Transactions(self.transactions, step.transactions),
            files={**self.files, **step.files},
            marks=tuple({mark.batch: mark for mark in (*self.marks, *step.marks)}.values()),
            skipped=self.skipped | step.skipped,
            digests={name: of for name, of in self.digests.items() if name not in touched(step.transactions)}
            | dict(step.digests),
            undigested=self.undigested | step.undigested,
            footer=step.footer or self.footer,
            retried=self.retried | step.retried,
        )

    def cut(self, count: int) -> tuple[Step, Step]:
        """Cut the step after its first transactions."""
        first, second = self.transactions[:count], self.transactions[count:]
        return replace(self, transactions=first, digests={}, footer=None), replace(self, transactions=second)

    def until(self, tick: int) -> Step:
        """Return the step without the transactions from a tick on."""
        return self.cut(Transactions.of(self.transactions).place(tick))[0]

    def parts(self, parents: Mapping[Name, Collection[Name]]) -> tuple[Step, ...]:
        """Cut a step that breaks a foreign key before each transaction that deletes from a table after its child.

        Some engines still see a child row that the same transaction deleted, so they cannot remove both in one step.
        If that gives no cut, the step is cut in halves.

        Args:
            parents: Tables that each table's foreign keys refer to.
        """
        parts: list[list[Transaction]] = [[]]
        referred: set[Name] = set()
        for transaction in self.transactions:
            changes = [record for record in transaction.records if isinstance(record, Change | Clear)]
            removing = {record.table for record in changes if record.removed > getattr(record, "added", 0)}
            if removing & referred and parts[-1]:
                parts.append([])
                referred = set()
            parts[-1].append(transaction)
            for record in changes:
                if record.removed:
                    referred.update(parents.get(record.table, ()))
        if len(parts) == 1:
            return self.halves()
        *earlier, last = (replace(self, transactions=tuple(part)) for part in parts)
        return (*(replace(part, digests={}, footer=None) for part in earlier), last)


def tables_of(records: Iterable[Record]) -> tuple[Name, ...]:
    """Return the tables with row changes in a transaction."""
    return tuple(dict.fromkeys(record.table for record in records if isinstance(record, Change | Clear)))


@dataclass(slots=True)
class _TableRun:
    reads: dict[str, tuple[int, int]] = field(default_factory=dict)
    added: int = 0
    removed: int = 0
    cleared: int | None = None


def actions_of(transactions: Sequence[Transaction], files: dict[str, TableFile]) -> tuple[Action, ...]:
    """Fold committed transactions to actions, given the files of their batches by path; see `Step.actions`."""
    actions: list[Action] = []
    tables: dict[Name, _TableRun] = {}
    sequences: dict[Name, SequencePosition] = {}
    for first, last, record in Transactions.of(transactions).records():
        match record:
            case Change():
                _add_change(tables.setdefault(record.table, _TableRun()), first, last, record)
            case Clear():
                _add_clear(tables.setdefault(record.table, _TableRun()), record)
            case SequencePosition():
                sequences[record.sequence] = record
            case Ddl():
                actions += [*_fold(tables, sequences, files), record]
                tables, sequences = {}, {}
    return (*actions, *_fold(tables, sequences, files))


def _add_change(run: _TableRun, first: int, last: int, change: Change) -> None:
    begin, _ = run.reads.get(change.path, (first, last))
    run.reads[change.path] = (begin, last)
    run.added += change.added
    run.removed += change.removed


def _add_clear(run: _TableRun, clear: Clear) -> None:
    """Drop all changes before a clear; the replica must hold its count less the rows added before it."""
    before = clear.removed - run.added + run.removed
    if run.cleared is None:
        run.cleared = before
    elif run.added - run.removed != clear.removed:
        message = f"table {clear.table} was cleared of {clear.removed} rows, the log added {run.added - run.removed}"
        raise CorruptError(message)
    run.reads.clear()
    run.added = run.removed = 0


def _fold(
    tables: dict[Name, _TableRun], sequences: dict[Name, SequencePosition], files: dict[str, TableFile]
) -> list[Action]:
    if not tables and not sequences:
        return []
    changes = []
    for name, run in tables.items():
        reads = tuple(Read(files[path], first, last) for path, (first, last) in run.reads.items())
        changes.append(TableChange(name, reads, run.added, run.removed, run.cleared))
    return [Fold(tuple(changes), tuple(sequences.values()))]


@dataclass(slots=True)
class StepTotals:
    """Transactions, row images, bytes of data files, and numbers of batches, of all steps so far."""

    transactions: int = 0
    rows: int = 0
    bytes: int = 0
    batches: set[int] = field(default_factory=set)
    _counted: frozenset[str] = frozenset()

    def add(self, step: Step) -> None:
        """Count a step."""
        self.transactions += len(step.applied)
        self.rows += step.rows
        # A batch that is cut into steps leaves its files to the next one.
        self.bytes += sum(file.file.bytes for path, file in step.files.items() if path not in self._counted)
        self._counted = frozenset(step.files)
        self.batches |= {mark.batch for mark in step.marks}
