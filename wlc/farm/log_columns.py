"""Transactions in commit order, with plain ones as columns instead of objects.

A plain transaction only changes rows and is committed.

A batch can hold hundreds of thousands of them, and readers rarely need a single one. The log has such columns, too: see
`wlc.farm.log`. Why: docs/decisions/0011-reading-long-log-files.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain, groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, overload

from wlc.farm.model import Change, FileRecord, Name, Record, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    Numbers = NDArray[Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Rows of one change of a plain transaction. Sums over all changes of a batch stay below 2^63.
MOST_ROWS = 10**10
_MICROSECOND = timedelta(microseconds=1)
# Column pieces with fewer transactions on average cost more than objects.
_PIECE_LEAST = 32


def microseconds(time: datetime) -> int:
    """Return the microseconds of a time since 1970."""
    return (time - EPOCH) // _MICROSECOND


def is_plain(transaction: Transaction) -> bool:
    """Say whether columns can hold a transaction: it is committed, was first committed here, and only changes rows."""
    return (
        transaction.committed is not None
        and transaction.origin is None
        and transaction.after is None
        and all(type(r) is Change and max(r.added, r.removed) < MOST_ROWS for r in transaction.records)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Consecutive plain transactions, the parts of `Transactions`.

    Attributes:
        ticks: One value per transaction, as in `users` (index of a name), the times in microseconds, and `xids` (-1 for
            none).
        ends: Where each transaction's changes end; one more value stands in front.
        files: Per change the index of its table and path, as `added` and `removed` are its rows.
        names: The users that `users` stand for.
        targets: The tables and paths that `files` stand for.

    Ticks rise, and no transaction has two changes in one data file.
    """

    ticks: Numbers
    users: Numbers
    started: Numbers
    committed: Numbers
    xids: Numbers
    ends: Numbers
    files: Numbers
    added: Numbers
    removed: Numbers
    names: tuple[str, ...]
    targets: tuple[tuple[Name, str], ...]

    def __len__(self) -> int:
        return len(self.ticks)

    def __getitem__(self, index: slice) -> Columns:
        columns = {name: getattr(self, name)[index] for name in ("ticks", "users", "started", "committed", "xids")}
        return replace(self, **columns, ends=self.ends[index.start : index.stop + 1])

    def __iter__(self) -> Iterator[Transaction]:
        targets, at = self.targets, self.ends.tolist()
        changes = [
            Change(targets[file][0], targets[file][1], added, removed)
            for file, added, removed in zip(*(column.tolist() for column in self.changes), strict=True)
        ]
        columns = (self.ticks, self.users, self.started, self.committed, self.xids)
        rows = zip(*(column.tolist() for column in columns), at, at[1:], strict=False)
        for tick, user, started, committed, xid, first, end in rows:
            begun = EPOCH + timedelta(microseconds=started)
            ended = begun if committed == started else EPOCH + timedelta(microseconds=committed)
            records = tuple(changes[first - at[0] : end - at[0]])
            yield Transaction(tick, self.names[user], begun, ended, records, None, None if xid < 0 else xid)

    @property
    def changes(self) -> tuple[Numbers, Numbers, Numbers]:
        """For every change: the index of its file, and the numbers of added and removed rows."""
        chosen = slice(int(self.ends[0]), int(self.ends[-1]))
        return self.files[chosen], self.added[chosen], self.removed[chosen]

    @property
    def is_short(self) -> bool:
        """Whether every change has few enough rows for the line of a log file."""
        _, added, removed = self.changes
        return not len(added) or max(int(added.max()), int(removed.max())) < MOST_ROWS

    def sums(self) -> list[tuple[int, int, Change]]:
        """Sum the changes per data file, in the order of first occurrence; see `Transactions.records`."""
        import numpy as np

        files, added, removed = self.changes
        ticks = np.repeat(self.ticks, np.diff(self.ends))
        found = []
        for file in np.flatnonzero(np.bincount(files)).tolist():
            its = np.flatnonzero(files == file)
            table, path = self.targets[file]
            change = Change(table, path, int(added[its].sum()), int(removed[its].sum()))
            found.append((int(its[0]), (int(ticks[its[0]]), int(ticks[its[-1]]), change)))
        return [of_file for _, of_file in sorted(found, key=itemgetter(0))]


class Transactions(Sequence[Transaction]):
    """Transactions in commit order, equal to the tuple of them.

    Access to a plain transaction creates its object. Methods about all transactions are fast.

    Args:
        parts: Pieces, concatenated in this order.
    """

    __slots__ = ("_ends", "_pieces")
    _pieces: tuple[Columns | tuple[Transaction, ...], ...]

    def __init__(self, *parts: Columns | Iterable[Transaction]) -> None:
        pieces: list[Columns | tuple[Transaction, ...]] = []
        single: list[Transaction] = []
        for part in parts:
            for piece in part._pieces if isinstance(part, Transactions) else (part,):
                if not isinstance(piece, Columns):
                    single += piece
                elif len(piece):
                    pieces += [tuple(single), piece] if single else [piece]
                    single = []
        if single:
            pieces.append(tuple(single))
        self._pieces = tuple(pieces)
        self._ends = tuple(accumulate(map(len, self._pieces), initial=0))

    @classmethod
    def of(cls, transactions: Iterable[Transaction]) -> Transactions:
        """Return transactions as such a sequence."""
        return transactions if isinstance(transactions, Transactions) else cls(transactions)

    # As a sequence

    @overload
    def __getitem__(self, index: int) -> Transaction: ...

    @overload
    def __getitem__(self, index: slice) -> Transactions: ...

    def __getitem__(self, index: int | slice) -> Transaction | Transactions:
        if isinstance(index, slice):
            first, end, _ = index.indices(len(self))
            if end - first == len(self):
                return self
            starts = zip(self._pieces, self._ends, strict=False)
            return Transactions(*(piece[max(first - at, 0) : max(end - at, 0)] for piece, at in starts))
        place = range(len(self))[index]
        number = bisect_right(self._ends, place) - 1
        place -= self._ends[number]
        return next(iter(self._pieces[number][place : place + 1]))

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[Transaction]:
        return chain.from_iterable(self._pieces)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transactions | tuple):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Transactions({tuple(self)!r})"

    # By ticks

    @property
    def ticks(self) -> list[int]:
        """The tick of each."""
        listed = (p.ticks.tolist() if isinstance(p, Columns) else [t.tick for t in p] for p in self._pieces)
        return list(chain.from_iterable(listed))

    @property
    def is_rising(self) -> bool:
        """Whether each tick is greater than the one before it."""
        borders = self._ends[1:-1]
        return all(map(_rises, self._pieces)) and all(self[end - 1].tick < self[end].tick for end in borders)

    def place(self, tick: int) -> int:
        """Return the number of transactions before a tick; ticks must rise."""
        return bisect_left(self, tick, key=_tick)

    def after(self, tick: int) -> Transactions:
        """Return the transactions after a tick."""
        return self[self.place(tick + 1) :]

    def parted(self, ticks: Iterable[int]) -> Iterator[tuple[Transactions, bool]]:
        """Yield each transaction at a given tick alone with True, and the runs between with False; no run is empty."""
        done = 0
        for tick in sorted(ticks):
            first, end = self.place(tick), self.place(tick + 1)
            yield from ((part, is_it) for part, is_it in ((self[done:first], False), (self[first:end], True)) if part)
            done = end
        if rest := self[done:]:
            yield rest, False

    def woven(self, others: Sequence[Transaction]) -> Transactions:
        """Merge in other transactions by tick; their ticks rise and occur only once."""
        if len(others) * _PIECE_LEAST > len(self):
            return Transactions(sorted((*self, *others), key=_tick))
        parts: list[Iterable[Transaction]] = []
        done, ticks = 0, self.ticks if others else []
        for other in others:
            place = bisect_left(ticks, other.tick, done)
            parts += [self[done:place], (other,)]
            done = place
        return Transactions(*parts, self[done:])

    # By content

    @property
    def objects(self) -> Iterator[Transaction]:
        """The transactions that are not stored as columns."""
        return chain.from_iterable(piece for piece in self._pieces if not isinstance(piece, Columns))

    def applied(self, skipped: Collection[int]) -> Transactions:
        """Return the committed transactions without those at the given ticks."""
        committed = Transactions(
            *(p if isinstance(p, Columns) else [t for t in p if t.committed is not None] for p in self._pieces)
        )
        return Transactions(*(p for p, is_it in committed.parted(skipped) if not is_it)) if skipped else committed

    def records(self) -> Iterator[tuple[int, int, Record]]:
        """Yield the records in order, each with the ticks of its first and last transaction.

        Changes of consecutive plain transactions are summed per data file.
        """
        for piece in self._pieces:
            if isinstance(piece, Columns):
                yield from piece.sums()
            else:
                yield from ((t.tick, t.tick, record) for t in piece for record in t.records)

    @property
    def changes(self) -> list[Change]:
        """The changes among the records."""
        return [record for *_, record in self.records() if isinstance(record, Change)]

    def with_records(self, made: Callable[[Record, int, int], Record]) -> Transactions:
        """Return the transactions with each record replaced by a function, in order; see `records` for its arguments.

        The function must return changes unmodified.
        """
        parts: list[Columns | Iterable[Transaction]] = []
        for piece in self._pieces:
            if isinstance(piece, Columns):
                for first, last, change in piece.sums():
                    made(change, first, last)
                parts.append(piece)
            else:
                parts.append([replace(t, records=tuple(made(r, t.tick, t.tick) for r in t.records)) for t in piece])
        return Transactions(*parts)

    def with_paths(self, renamed: Mapping[str, str]) -> Transactions:
        """Return the transactions with data file paths replaced by a mapping."""

        def moved(record: Record) -> Record:
            return replace(record, path=renamed[record.path]) if isinstance(record, FileRecord) else record

        return Transactions(
            *(
                replace(piece, targets=tuple((table, renamed.get(path, "")) for table, path in piece.targets))
                if isinstance(piece, Columns)
                else [replace(t, records=tuple(map(moved, t.records))) for t in piece]
                for piece in self._pieces
            )
        )

    def groups(self) -> Iterator[tuple[bool, Transactions]]:
        """Yield runs of plain transactions with True, and the transactions between them with False."""

        def pieces() -> Iterator[tuple[bool, Columns | Iterable[Transaction]]]:
            for piece in self._pieces:
                if isinstance(piece, Columns) and piece.is_short:
                    yield True, piece
                else:
                    yield from ((are_plain, tuple(group)) for are_plain, group in groupby(piece, is_plain))

        for are_plain, found in groupby(pieces(), itemgetter(0)):
            yield are_plain, Transactions(*(group for _, group in found))

    def columns(self) -> Columns:
        """Return plain transactions as columns."""
        if len(self._pieces) == 1 and isinstance(self._pieces[0], Columns):
            return self._pieces[0]
        return _columns(tuple(self))


def _columns(transactions: Sequence[Transaction]) -> Columns:
    import numpy as np

    users: dict[str, int] = {}
    targets: dict[tuple[Name, str], int] = {}
    changes: list[Any] = [record for transaction in transactions for record in transaction.records]
    files = [targets.setdefault((change.table, change.path), len(targets)) for change in changes]
    started = [microseconds(t.started) for t in transactions]
    # A source with one time only uses one object for both.
    committed = [
        begun if t.committed is None or t.committed is t.started else microseconds(t.committed)
        for t, begun in zip(transactions, started, strict=True)
    ]

    def column(values: Iterable[int]) -> Numbers:
        return np.fromiter(values, np.int64)

    return Columns(
        ticks=column(t.tick for t in transactions),
        users=column(users.setdefault(t.user, len(users)) for t in transactions),
        started=column(started),
        committed=column(committed),
        xids=column(-1 if t.xid is None else t.xid for t in transactions),
        ends=column(accumulate((len(t.records) for t in transactions), initial=0)),
        files=column(files),
        added=column(change.added for change in changes),
        removed=column(change.removed for change in changes),
        names=tuple(users),
        targets=tuple(targets),
    )


def _rises(piece: Columns | tuple[Transaction, ...]) -> bool:
    if isinstance(piece, Columns):
        return bool((piece.ticks[1:] > piece.ticks[:-1]).all())
    return all(one.tick < next_one.tick for one, next_one in pairwise(piece))


def _tick(transaction: Transaction) -> int:
    return transaction.tick
