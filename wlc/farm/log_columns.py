"""Plain transactions, which only change rows and are committed, kept as columns instead of objects.

A batch can hold hundreds of thousands of them, and single ones are rarely looked at. Most lines differ in their digits
only, so lines of equal length and equal text are read together: their numbers are at the same places. Why this is kept
beside a typed decoder: docs/decisions/0011-reading-long-log-files.md.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any, overload

from wlc.farm import json_fields as fields
from wlc.farm.model import Change, Name, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Numbers = NDArray[Any]

# Lines as `wlc.farm.log` writes them: no escapes, numbers that need no second look.
_TEXT = r'[^"\\\x00-\x1f]'
_NUMBER = "(?:0|[1-9][0-9]{0,17})"
BEGIN = re.compile(
    rf'\{{"begin":\{{"tick":(?P<tick>{_NUMBER}),"user":"(?P<user>{_TEXT}*)","started":"(?P<started>{_TEXT}*)",'
    rf'"origin":null(?:,"xid":(?P<xid>{_NUMBER}))?\}}\}}\n'.encode()
)
CHANGE = re.compile(
    rf'\{{"change":\{{"table":\["(?P<schema>{_TEXT}+)","(?P<table>{_TEXT}+)"\],"path":"(?P<path>{_TEXT}*)",'
    rf'"added":(?P<added>{_NUMBER}),"removed":(?P<removed>{_NUMBER})\}}\}}\n'.encode()
)
COMMIT = re.compile(
    rf'\{{"commit":\{{"tick":(?P<tick>{_NUMBER}),"committed":"(?P<committed>{_TEXT}*)"\}}\}}\n'.encode()
)
_OTHER = re.compile(rb'\n(?!\{"(?:begin|change|commit)")')
# Shorter runs are read faster one by one.
_LEAST_BYTES = 1 << 18
# Kinds of lines of one length; looking for more costs more than it saves.
_MOST_FORMS = 64
# Sums of this many digits do not overflow.
_DIGITS = 10
_TIMES = {"started", "committed"}
_TEXTS = {"user", "schema", "table", "path"}
_SECOND_BYTES = len("2026-11-20T10:00:00")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


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
        changes = self._changes()
        at = self.ends.tolist()
        columns = (self.ticks, self.users, self.started, self.committed, self.xids)
        rows = zip(*(column.tolist() for column in columns), at, at[1:], strict=False)
        for tick, user, started, committed, xid, first, end in rows:
            begun = _EPOCH + timedelta(microseconds=started)
            ended = begun if committed == started else _EPOCH + timedelta(microseconds=committed)
            records = tuple(changes[first - at[0] : end - at[0]])
            yield Transaction(tick, self.names[user], begun, ended, records, None, None if xid < 0 else xid)

    @property
    def _chosen(self) -> slice:
        return slice(int(self.ends[0]), int(self.ends[-1]))

    def _changes(self) -> list[Change]:
        columns = (column[self._chosen].tolist() for column in (self.files, self.added, self.removed))
        targets = self.targets
        return [
            Change(targets[file][0], targets[file][1], added, removed)
            for file, added, removed in zip(*columns, strict=True)
        ]

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


# Reading -------------------------------------------------------------------------------------------------------------


class _UnusualError(ValueError):
    """Lines are not as they nearly always are, and have to be read one by one."""


def read_run(data: bytes, start: int) -> tuple[PlainRun | None, int]:
    """Read the plain transactions from a line of a log file on.

    Returns:
        The run, None where it would be short or its lines are unusual, perhaps invalid; and the place where it ends, or
        the place before which it is useless to try again.
    """
    other = _OTHER.search(data, start - 1)
    stop = len(data) if other is None else other.start() + 1
    if stop < len(data) and not data.startswith(b'{"end"', stop):
        # The run ends before the first line of a transaction that is not plain.
        stop = data.rfind(b'\n{"begin"', start, stop) + 1 or start
    if stop - start < _LEAST_BYTES:
        return None, max(stop, start + 1)
    try:
        return _run(data, start, stop), stop
    except (_UnusualError, fields.FieldError):
        return None, stop


def _run(data: bytes, start: int, stop: int) -> PlainRun:
    import numpy as np

    block = np.frombuffer(data, np.uint8, stop - start, start)
    ends = np.flatnonzero(block == ord("\n")) + 1
    starts = np.concatenate([[0], ends[:-1]])
    # The fourth characters of {"begin", {"change" and {"commit" tell them apart.
    kinds = block[starts + 3]
    begins, changes, commits = (np.flatnonzero(kinds == ord(letter)) for letter in "eho")
    is_whole = 0 < len(begins) == len(commits) and begins[0] == 0 and commits[-1] == len(starts) - 1
    if not is_whole or (begins >= commits).any() or (begins[1:] != commits[:-1] + 1).any():
        raise _UnusualError
    begun = _columns(block, starts[begins], ends[begins], BEGIN)
    changed = _columns(block, starts[changes], ends[changes], CHANGE)
    committed = _columns(block, starts[commits], ends[commits], COMMIT)
    if (begun.numbers["tick"] != committed.numbers["tick"]).any():
        raise _UnusualError
    for tick in (begun.numbers["tick"][0], begun.numbers["tick"][-1]):
        fields.as_tick(int(tick))
    run = PlainRun(
        ticks=begun.numbers["tick"],
        users=begun.forms,
        started=begun.numbers["started"],
        committed=committed.numbers["committed"],
        xids=begun.numbers["xid"],
        ends=np.concatenate([[0], commits - 2 * np.arange(len(commits)) - 1]),
        files=changed.forms,
        added=changed.numbers["added"],
        removed=changed.numbers["removed"],
        names=tuple(user for (user,) in begun.texts),
        targets=tuple((Name(schema, table), path) for schema, table, path in changed.texts),
    )
    if not _is_consistent(run):
        raise _UnusualError
    return run


def _is_consistent(run: PlainRun) -> bool:
    """Whether ticks rise, and no transaction has two changes in one data file."""
    import numpy as np

    if (np.diff(run.ticks) <= 0).any():
        return False
    counts = np.diff(run.ends)
    changed = np.repeat(np.arange(len(run)), counts) * len(run.targets) + run.files
    return bool(counts.max() < 2 or len(np.unique(changed)) == len(changed))


@dataclass(frozen=True, slots=True)
class _Columns:
    """Lines of one kind.

    Attributes:
        forms: Of every line the index of its texts.
        numbers: By the name of a group, of every line the number, time in microseconds, or -1 where it has none.
    """

    forms: Numbers
    texts: list[tuple[str, ...]]
    numbers: dict[str, Numbers]


def _columns(block: Numbers, starts: Numbers, ends: Numbers, kind: re.Pattern[bytes]) -> _Columns:
    import numpy as np

    forms = np.zeros(len(starts), np.int64)
    numbers = {name: np.full(len(starts), -1, np.int64) for name in kind.groupindex if name not in _TEXTS}
    texts: dict[tuple[str, ...], int] = {}
    lengths = ends - starts
    for length in np.unique(lengths).tolist():
        places = np.flatnonzero(lengths == length)
        everywhere = np.lib.stride_tricks.sliding_window_view(block, length)
        for its, lines, form in _alike(places, everywhere[starts[places]], kind):
            found = tuple(form[name].decode() for name in kind.groupindex if name in _TEXTS)
            forms[its] = texts.setdefault(found, len(texts))
            for name in numbers:
                if form[name] is not None:
                    read = _times if name in _TIMES else _integers
                    numbers[name][its] = read(lines[:, slice(*form.span(name))])
    return _Columns(forms, list(texts), numbers)


def _alike(
    places: Numbers, lines: Numbers, kind: re.Pattern[bytes]
) -> Iterator[tuple[Numbers, Numbers, re.Match[bytes]]]:
    """Part lines of one length, one row each, into those that differ in the digits of numbers and times only."""
    import numpy as np

    for _ in range(_MOST_FORMS):
        first = lines[0]
        form = kind.fullmatch(first.tobytes())
        if form is None:
            raise _UnusualError
        is_digit = np.zeros(len(first), np.bool_)
        for name in kind.groupindex:
            if name not in _TEXTS and form[name] is not None:
                is_digit[slice(*form.span(name))] = True
        is_digit &= (first >= ord("0")) & (first <= ord("9"))
        fixed = np.where(is_digit, 0, 255).astype(np.uint8)
        same = (lines & fixed).view(f"S{len(first)}").ravel() == (first & fixed).tobytes()
        same &= (lines[:, is_digit] - ord("0") <= 9).all(axis=1)
        if same.all():
            yield places, lines, form
            return
        yield places[same], lines[same], form
        places, lines = places[~same], lines[~same]
    raise _UnusualError


def _integers(digits: Numbers) -> Numbers:
    count = digits.shape[1]
    if count > _DIGITS or (count > 1 and (digits[:, 0] == ord("0")).any()):
        raise _UnusualError
    return _added_up(digits)


def _times(texts: Numbers) -> Numbers:
    """Microseconds since 1970; the seconds of times that follow each other are mostly the same."""
    import numpy as np

    fields.as_time(texts[0].tobytes().decode())
    seconds, fractions = texts[:, :_SECOND_BYTES], texts[:, _SECOND_BYTES + 1 : -1]
    starts = np.flatnonzero(np.concatenate([[True], (seconds[1:] != seconds[:-1]).any(axis=1)]))
    known = [fields.as_time(f"{seconds[at].tobytes().decode()}.000000Z") for at in starts.tolist()]
    micros = np.array([(time - _EPOCH) // _MICROSECOND for time in known], np.int64)
    return np.repeat(micros, np.diff(np.append(starts, len(texts)))) + _added_up(fractions)


def _added_up(digits: Numbers) -> Numbers:
    import numpy as np

    places = 10 ** np.arange(digits.shape[1] - 1, -1, -1, dtype=np.int64)
    numbers: Numbers = (digits - ord("0")).astype(np.int64) @ places
    return numbers
