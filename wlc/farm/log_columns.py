"""Plain transactions, which only change rows and are committed, kept as columns instead of objects.

A batch can hold hundreds of thousands of them, and single ones are rarely looked at. The log has such columns, too: see
`wlc.farm.log`. Why: docs/decisions/0011-reading-long-log-files.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from wlc.farm.model import Change, Name, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    Numbers = NDArray[Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class _Ticked(Protocol):
    @property
    def tick(self) -> int: ...


T = TypeVar("T", bound=_Ticked)
# Pieces of a run of fewer transactions on average cost more than objects.
_PIECE_LEAST = 32


def microseconds(time: datetime) -> int:
    """Return the microseconds of a time since 1970."""
    return (time - EPOCH) // _MICROSECOND


@dataclass(frozen=True, slots=True)
class Total:
    """What consecutive transactions did to one data file: ticks of the first and last that did, and their rows."""

    table: Name
    path: str
    first: int
    last: int
    added: int
    removed: int

    @property
    def rows(self) -> int:
        """Row images in the data file."""
        return self.added + self.removed


@dataclass(frozen=True, slots=True, eq=False)
class PlainRun(Sequence[Transaction]):
    """Consecutive plain transactions; an object of one is made when it is looked at.

    Attributes:
        ticks: A number of each, as are its `users`, index of a name, its times in microseconds and `xids`, -1 for none.
        ends: Where its changes end; there is one more of these, in front.
        files: Of every change the index of its table and path, as are `added` and `removed` rows.
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

    @overload
    def __getitem__(self, index: int) -> Transaction: ...

    @overload
    def __getitem__(self, index: slice) -> PlainRun: ...

    def __getitem__(self, index: int | slice) -> Transaction | PlainRun:
        if isinstance(index, slice):
            first, end, _ = index.indices(len(self))
            chosen = slice(first, max(first, end))
            columns = {name: getattr(self, name)[chosen] for name in ("ticks", "users", "started", "committed", "xids")}
            return replace(self, **columns, ends=self.ends[chosen.start : chosen.stop + 1])
        place = range(len(self))[index]
        return next(iter(self[place : place + 1]))

    def __iter__(self) -> Iterator[Transaction]:
        changes = self._change_objects()
        at = self.ends.tolist()
        columns = (self.ticks, self.users, self.started, self.committed, self.xids)
        rows = zip(*(column.tolist() for column in columns), at, at[1:], strict=False)
        for tick, user, started, committed, xid, first, end in rows:
            begun = EPOCH + timedelta(microseconds=started)
            ended = begun if committed == started else EPOCH + timedelta(microseconds=committed)
            records = tuple(changes[first - at[0] : end - at[0]])
            yield Transaction(tick, self.names[user], begun, ended, records, None, None if xid < 0 else xid)

    @property
    def _chosen(self) -> slice:
        return slice(int(self.ends[0]), int(self.ends[-1]))

    def _change_objects(self) -> list[Change]:
        columns = (column.tolist() for column in self.changes)
        targets = self.targets
        return [
            Change(targets[file][0], targets[file][1], added, removed)
            for file, added, removed in zip(*columns, strict=True)
        ]

    @property
    def is_rising(self) -> bool:
        """Whether each tick is greater than the one before it."""
        return bool((self.ticks[1:] > self.ticks[:-1]).all())

    @property
    def changes(self) -> tuple[Numbers, Numbers, Numbers]:
        """Of every change of its transactions the index of its file, and the added and removed rows."""
        return self.files[self._chosen], self.added[self._chosen], self.removed[self._chosen]

    @property
    def rows(self) -> int:
        """Row images in all changes."""
        return int(self.added[self._chosen].sum() + self.removed[self._chosen].sum())

    @property
    def tables(self) -> set[Name]:
        """The tables that were changed."""
        import numpy as np

        return {self.targets[file][0] for file in np.unique(self.files[self._chosen]).tolist()}

    def totals(self) -> list[Total]:
        """Add up what was done to each data file, in the order in which they come first."""
        import numpy as np

        files, ticks = self.files[self._chosen], np.repeat(self.ticks, np.diff(self.ends))
        found = []
        for file in np.unique(files).tolist():
            its = np.flatnonzero(files == file)
            added, removed = (int(column[self._chosen][its].sum()) for column in (self.added, self.removed))
            first, last = int(its[0]), int(its[-1])
            table, path = self.targets[file]
            found.append((first, Total(table, path, int(ticks[first]), int(ticks[last]), added, removed)))
        return [total for _, total in sorted(found, key=lambda pair: pair[0])]


Part = PlainRun | tuple[Transaction, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Transactions(Sequence[Transaction]):
    """Transactions in commit order, some of them in runs; equal to the tuple of them."""

    parts: tuple[Part, ...]
    _ends: tuple[int, ...]

    @overload
    def __getitem__(self, index: int) -> Transaction: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Transaction]: ...

    def __getitem__(self, index: int | slice) -> Transaction | Sequence[Transaction]:
        if isinstance(index, slice):
            first, end, _ = index.indices(len(self))
            starts = zip(self.parts, (0, *self._ends), strict=False)
            return joined(part[max(first - start, 0) : max(end - start, 0)] for part, start in starts)
        place = range(len(self))[index]
        number = bisect_right(self._ends, place)
        return self.parts[number][place - (0, *self._ends)[number]]

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[Transaction]:
        for part in self.parts:
            yield from part

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transactions | tuple):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


def joined(parts: Iterable[Part]) -> Sequence[Transaction]:
    """Put parts behind each other; a tuple where no run is among them."""
    found: list[Part] = []
    single: list[Transaction] = []
    for part in parts:
        if isinstance(part, tuple):
            single += part
        elif len(part):
            found += [tuple(single), part] if single else [part]
            single = []
    if not found:
        return tuple(single)
    if single:
        found.append(tuple(single))
    return Transactions(tuple(found), tuple(accumulate(map(len, found))))


def parts_of(transactions: Iterable[Transaction]) -> tuple[Part, ...]:
    """The runs, and the others between them."""
    if isinstance(transactions, PlainRun):
        return (transactions,)
    return transactions.parts if isinstance(transactions, Transactions) else (tuple(transactions),)


def columns_of(transactions: Sequence[Transaction]) -> PlainRun:
    """Make a run of plain transactions; see `wlc.farm.log.is_plain`."""
    if isinstance(transactions, PlainRun):
        return transactions
    import numpy as np

    users: dict[str, int] = {}
    targets: dict[tuple[Name, str], int] = {}
    changes: list[Any] = [record for transaction in transactions for record in transaction.records]
    files = [targets.setdefault((change.table, change.path), len(targets)) for change in changes]
    started = [microseconds(t.started) for t in transactions]
    # Where a source knows one time only, both are the same object.
    committed = [
        begun if t.committed is None or t.committed is t.started else microseconds(t.committed)
        for t, begun in zip(transactions, started, strict=True)
    ]

    def column(values: Iterable[int]) -> Numbers:
        return np.fromiter(values, np.int64)

    return PlainRun(
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


def woven(
    run: PlainRun, others: Sequence[T], objects: Callable[[PlainRun], Iterable[T]]
) -> tuple[PlainRun | tuple[T, ...], ...]:
    """Put others between the transactions of a run, by their ticks.

    Args:
        run: May be empty.
        others: Their ticks rise, and none is in the run.
        objects: Makes objects like these of a run, of which nothing is left if there are many others.
    """
    import numpy as np

    if len(others) * _PIECE_LEAST > len(run):
        return (tuple(sorted((*objects(run), *others), key=_tick)),)
    parts: list[PlainRun | tuple[T, ...]] = []
    done = 0
    for other, place in zip(others, np.searchsorted(run.ticks, list(map(_tick, others))).tolist(), strict=True):
        parts += [run[done:place], (other,)]
        done = place
    return tuple(part for part in (*parts, run[done:]) if len(part))


def _tick(transaction: _Ticked) -> int:
    return transaction.tick
