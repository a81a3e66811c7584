"""What a replay has to do, decided without doing it: in which steps to go, and what each of them does."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from wlc.clock import format_time
from wlc.digest import touched
from wlc.errors import CorruptError
from wlc.model import Change, Clear, Ddl, Name, Position, SequencePosition, TableFile, Transaction
from wlc.plain import PlainRun, Total, joined, parts_of
from wlr import bounds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from wlc.model import Batch, Digest, Record
    from wlc.plain import Part


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a step may hold.

    A step's net change lies on disk or in memory and is applied in one target transaction; more rows fold better, fewer
    are lost when a step has to be cut in halves.
    """

    rows: int = 5_000_000
    transactions: int = 250_000
    files: int = 256


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Target:
    """Where to stop: after `tick`, or before the first transaction committed later than `until`; else at the end."""

    tick: int | None = None
    until: datetime | None = None

    def includes(self, transaction: Transaction) -> bool:
        """Say whether the replica is to hold the transaction, given that it holds all before it."""
        if self.tick is not None:
            return transaction.tick <= self.tick
        return self.until is None or transaction.committed is None or transaction.committed <= self.until

    def __str__(self) -> str:
        if self.tick is not None:
            return f"tick {self.tick}"
        return "the end" if self.until is None else format_time(self.until)


@dataclass(frozen=True, slots=True)
class Read:
    """Rows of a data file whose tick is from `first` to `last`, both included."""

    file: TableFile
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a run of transactions did to one table.

    Attributes:
        reads: Where the row images lie that count, in commit order.
        added: Number of +1 images in `reads`; `removed`: number of -1 images.
        cleared: Rows the table must have at the start because all of them were removed; None where they stay.
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
    """Transactions after the mark before, up to tick `last`, come from this batch, which may go on to `batch_last`."""

    last: int
    history: str
    batch: int
    chain: str
    batch_last: int


@dataclass(frozen=True, slots=True)
class Step:
    """Transactions that are applied in one target transaction, together with the position behind them.

    Attributes:
        transactions: In commit order; those rolled back or accepted among them do nothing.
        files: Of the batches the transactions come from, by path.
        marks: The batches the transactions come from, in order.
        catalog: Name that DDL text of the step gives the database.
        skipped: Ticks of accepted transactions among `transactions`.
        digests: What tables hold in the master after the last transaction, of those that batches which end in the step
            changed; None where the master does not say.
        repaired: Tables that hold what `digests` says whatever was known of them.
    """

    transactions: Sequence[Transaction]
    files: dict[str, TableFile]
    marks: tuple[Mark, ...]
    catalog: str
    skipped: frozenset[int] = frozenset()
    digests: Mapping[Name, Digest | None] = field(default_factory=dict)
    repaired: frozenset[Name] = frozenset()

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
        """Where the replica stands afterwards."""
        return Position(self.mark.history, self.last, self.mark.batch, self.mark.chain)

    @property
    def clock(self) -> datetime | None:
        """Commit time of the last transaction that was committed, None if none was."""
        return next((t.committed for t in reversed(self.transactions) if t.committed is not None), None)

    @property
    def applied(self) -> Sequence[Transaction]:
        """The transactions that count: committed ones that were not accepted."""
        # An accepted one is a step of its own, and none of a run was rolled back.
        return joined(
            part
            if isinstance(part, PlainRun)
            else tuple(t for t in part if t.committed is not None and t.tick not in self.skipped)
            for part in parts_of(self.transactions)
        )

    @property
    def left_out(self) -> set[Name]:
        """Tables that accepted transactions changed."""
        if not self.skipped:
            return set()
        return touched(t for t in self.transactions if t.tick in self.skipped)

    @property
    def rows(self) -> int:
        """Row images in all of its changes."""
        return sum(map(_rows, parts_of(self.applied)))

    def actions(self) -> tuple[Action, ...]:
        """What to do, in this order: DDL as recorded, everything between two DDL statements folded."""
        return _actions(parts_of(self.applied), self.files)

    def halves(self) -> tuple[Step, Step]:
        """Cut the step of two or more transactions into two that are half as long."""
        middle = len(self.transactions) // 2
        first, second = self.transactions[:middle], self.transactions[middle:]
        return replace(self, transactions=first, digests={}), replace(self, transactions=second)

    def parts(self, parents: Mapping[Name, Collection[Name]]) -> tuple[Step, ...]:
        """Cut a step that breaks a foreign key before every transaction that deletes from a table after its child.

        Engines that still see a child row that was deleted in the same transaction cannot remove both in one step.
        If that gives no cut, the step is cut in halves.

        Args:
            parents: For each table those that its foreign keys refer to.
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
        return (*(replace(part, digests={}) for part in earlier), last)


def matches(name: Name, patterns: Collection[str]) -> bool:
    """Say whether a table is to be replicated: no patterns, or one that fits `schema.table` or `table`."""
    return not patterns or any(fnmatchcase(text, p) for p in patterns for text in (str(name), name.name))


def count_rows(transaction: Transaction) -> int:
    """Count the row images of a transaction."""
    return sum(r.added + r.removed for r in transaction.records if type(r) is Change)


def _rows(part: Part) -> int:
    return part.rows if isinstance(part, PlainRun) else sum(map(count_rows, part))


def _paths(part: Part) -> Iterator[str]:
    if isinstance(part, PlainRun):
        yield from (total.path for total in part.totals())
    else:
        yield from (record.path for t in part for record in t.records if type(record) is Change)


# Steps ---------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Run:
    """Transactions gathered for the next step."""

    catalog: str
    limits: Limits
    parts: list[Part] = field(default_factory=list)
    files: dict[str, TableFile] = field(default_factory=dict)
    marks: dict[int, Mark] = field(default_factory=dict)
    rows: int = 0
    digests: dict[Name, Digest | None] = field(default_factory=dict)
    last_told: int = 0
    count: int = 0

    def is_full(self, more: Part = ()) -> bool:
        most = self.limits
        return (
            self.rows + _rows(more) >= most.rows
            or self.count + len(more) >= most.transactions
            or len(self.files) + len(set(_paths(more)) - self.files.keys()) >= most.files
        )

    def fitting(self, run: PlainRun) -> int:
        """How many transactions of a run there is room for: the last of them may fill it."""
        if not self.is_full(run):
            return len(run)
        return bisect_left(range(1, len(run)), True, key=lambda count: self.is_full(run[:count])) + 1

    def add(self, part: Part, batch: Batch, chain: str, files: dict[str, TableFile]) -> None:
        self.parts.append(part)
        self.marks[batch.number] = Mark(part[-1].tick, batch.history, batch.number, chain, batch.last)
        self.files.update((path, files[path]) for path in _paths(part))
        self.rows += _rows(part)
        self.count += len(part)

    def end(self, batch: Batch) -> None:
        """Note what a batch of which nothing is to come says of its tables."""
        self.digests.update(dict.fromkeys(touched(batch.transactions)))
        self.digests.update(batch.digests)
        self.last_told = batch.last

    def close(self, skipped: frozenset[int]) -> Step:
        transactions = joined(self.parts)
        ticks = range(transactions[0].tick, transactions[-1].tick + 1)
        marks = tuple(self.marks.values())
        # What came after the end of the last batch is known at the end of the next one.
        later = touched(transactions[bisect_right(transactions, self.last_told, key=_tick) :])
        digests = {name: digest for name, digest in self.digests.items() if name not in later}
        chosen = frozenset(tick for tick in skipped if tick in ticks)
        return Step(transactions, self.files, marks, self.catalog, chosen, digests)


def cut(
    batches: Iterable[tuple[Batch, str]],
    position: Position,
    target: Target,
    *,
    limits: Limits = LIMITS,
    skipped: frozenset[int] = frozenset(),
    alone: int | None = None,
) -> Iterator[Step]:
    """Cut the log after a position into steps.

    A transaction with DDL is a step of its own, because engines can do less in one transaction after a schema change;
    so is the one that failed before, so that nothing else is undone with it, and one that is skipped.

    Args:
        batches: Batches and their chain hashes in order, from the one of `position` on.
        position: Where the replica stands.
        target: Where to stop.
        limits: How much a step may hold.
        skipped: Ticks of accepted transactions.
        alone: Tick of the transaction that failed before.

    Raises:
        InvalidError: A batch belongs to a history that grew from elsewhere.
    """
    run = _Run("", limits)
    for batch, chain, transactions, is_last in _wanted(batches, position, target):
        files = {file.file.path: file for file in batch.files}
        for part, is_alone in _pieces(transactions, skipped if alone is None else skipped | {alone}):
            rest = part
            while rest:
                if run.parts and (is_alone or run.is_full() or run.catalog != batch.catalog):
                    yield run.close(skipped)
                    run = _Run(batch.catalog, limits)
                run.catalog = batch.catalog
                count = run.fitting(rest) if isinstance(rest, PlainRun) else len(rest)
                run.add(rest[:count], batch, chain, files)
                if rest[count - 1].tick == batch.last:
                    run.end(batch)
                rest = rest[count:]
            if is_alone:
                yield run.close(skipped)
                run = _Run(batch.catalog, limits)
        if is_last:
            break
    if run.parts:
        yield run.close(skipped)


def _wanted(
    batches: Iterable[tuple[Batch, str]], position: Position, target: Target
) -> Iterator[tuple[Batch, str, Sequence[Transaction], bool]]:
    """Pick from each batch what lies between the position and the target; True at the batch that holds the target."""
    for batch, chain in batches:
        # The batch of the position itself, known by its chain hash, may be the last one of the history before: a new
        # history begins with a snapshot that lies after it.
        is_own = batch.number == position.batch
        after = batch.transactions[bisect_right(batch.transactions, position.tick, key=_tick) :]
        end = _end(after, target)
        if after and end == 0 and not is_own:
            # Nothing of it is wanted, whatever history it belongs to.
            return
        if not is_own:
            bounds.check_history(batch, position)
        is_last = end < len(after) or (target.tick is not None and batch.last >= target.tick)
        yield batch, chain, after[:end], is_last
        history = position.history if is_own and position.history else batch.history
        position = Position(history, max(batch.last, position.tick), batch.number, chain)


def _tick(transaction: Transaction) -> int:
    return transaction.tick


def _end(transactions: Sequence[Transaction], target: Target) -> int:
    """How many transactions are before or at the target."""
    if target.tick is not None:
        return bisect_right(transactions, target.tick, key=_tick)
    if target.until is None:
        return len(transactions)
    return next((n for n, t in enumerate(transactions) if not target.includes(t)), len(transactions))


def _pieces(transactions: Sequence[Transaction], alone: frozenset[int]) -> Iterator[tuple[Part, bool]]:
    """Yield runs, and between them transactions, each with whether it has to be a step of its own."""
    for part in parts_of(transactions):
        if isinstance(part, tuple):
            for transaction in part:
                is_ddl = any(type(record) is Ddl for record in transaction.records)
                yield (transaction,), is_ddl or transaction.tick in alone
            continue
        rest = part
        for tick in sorted(alone):
            place = bisect_left(rest, tick, key=_tick)
            if place < len(rest) and rest[place].tick == tick:
                yield rest[:place], False
                yield (rest[place],), True
                rest = rest[place + 1 :]
        yield rest, False


@dataclass(slots=True)
class _TableRun:
    reads: dict[str, tuple[int, int]] = field(default_factory=dict)
    added: int = 0
    removed: int = 0
    cleared: int | None = None


def _actions(parts: Iterable[Part], files: dict[str, TableFile]) -> tuple[Action, ...]:
    actions: list[Action] = []
    tables: dict[Name, _TableRun] = {}
    sequences: dict[Name, SequencePosition] = {}
    for tick, record in (changed for part in parts for changed in _records(part)):
        match record:
            case Change() | Total():
                _add_change(tables.setdefault(record.table, _TableRun()), tick, record)
            case Clear():
                _add_clear(tables.setdefault(record.table, _TableRun()), record)
            case SequencePosition():
                sequences[record.sequence] = record
            case Ddl():
                actions += [*_fold(tables, sequences, files), record]
                tables, sequences = {}, {}
    return (*actions, *_fold(tables, sequences, files))


def _records(part: Part) -> Iterator[tuple[int, Record | Total]]:
    if isinstance(part, PlainRun):
        yield from ((total.first, total) for total in part.totals())
    else:
        yield from ((transaction.tick, record) for transaction in part for record in transaction.records)


def _add_change(run: _TableRun, tick: int, change: Change | Total) -> None:
    first, _ = run.reads.get(change.path, (tick, tick))
    run.reads[change.path] = (first, change.last if isinstance(change, Total) else tick)
    run.added += change.added
    run.removed += change.removed


def _add_clear(run: _TableRun, clear: Clear) -> None:
    """Everything before a clear is gone; its count, less what came in before it, is what the replica must hold."""
    before = clear.removed - run.added + run.removed
    if run.cleared is None:
        run.cleared = before
    elif run.added - run.removed != clear.removed:
        message = f"table {clear.table} was cleared of {clear.removed} rows, the log had {run.added - run.removed}"
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
