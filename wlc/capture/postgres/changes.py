"""What transactions did to the rows of the tables of a PostgreSQL master."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from wlc.farm.log_columns import PlainRun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from wlc.capture.postgres.pgoutput import Begun, Positions
    from wlc.farm.model import Clear, Layout, Name


@dataclass(slots=True)
class Segment:
    """Rows of one table in one layout; those of transactions with values that do not fit it are apart."""

    number: int
    oid: int
    name: Name
    layout: Layout
    rows: int = 0
    has_misfits: bool = False

    @property
    def table(self) -> str:
        """Name of the table that gathers them."""
        return f"segment_{self.number}"


@dataclass(slots=True)
class Changed:
    """A transaction changed rows of a segment.

    Attributes:
        is_resend: The event triggers sent all rows of its table, and nothing else changed them.
    """

    segment: Segment
    added: int = 0
    removed: int = 0
    is_resend: bool = False

    @property
    def oid(self) -> int:
        """The table."""
        return self.segment.oid


@dataclass(slots=True)
class Cleared:
    """A transaction removed all rows of a table; `is_resend`: they follow again."""

    oid: int
    clear: Clear
    is_resend: bool


@dataclass(slots=True)
class _Part:
    """Transactions that changed rows of a segment, by rising number, and how many rows each added and removed."""

    segment: Segment
    numbers: Positions
    added: Positions
    removed: Positions

    def where(self, chosen: NDArray[np.bool_]) -> _Part:
        return _Part(self.segment, self.numbers[chosen], self.added[chosen], self.removed[chosen])


@dataclass(slots=True)
class PlainChanges:
    """What transactions did that only change rows: columns, since there can be a hundred thousand of them.

    Parts come in the order in which rows were read, and within a transaction its changes are in this order, too.
    """

    _parts: list[_Part] = field(default_factory=list)
    # The parts in which the greatest number of all is the last one.
    _newest: list[_Part] = field(default_factory=list)

    def add(self, segment: Segment, numbers: Positions, added: Positions, removed: Positions) -> None:
        """Add changed rows of a segment: rising numbers of transactions, none of which was taken out."""
        if not len(numbers):
            return
        part = _Part(segment, numbers, added, removed)
        self._parts.append(part)
        newest = self._newest[0].numbers[-1] if self._newest else -1
        if numbers[-1] > newest:
            self._newest = [part]
        elif numbers[-1] == newest:
            self._newest.append(part)

    def take_out(self, number: int) -> list[Changed]:
        """Remove what the transaction did whose rows were read last, and return it as objects."""
        if not self._newest or self._newest[0].numbers[-1] != number:
            return []
        found: dict[int, Changed] = {}
        for part in self._newest:
            change = found.setdefault(part.segment.number, Changed(part.segment))
            change.added += int(part.added[-1])
            change.removed += int(part.removed[-1])
            part.numbers, part.added, part.removed = part.numbers[:-1], part.added[:-1], part.removed[:-1]
        self._newest.clear()
        return list(found.values())

    def move(self, numbers: Positions, segment: Segment, other: Segment) -> int:
        """Let rows of transactions in a segment be in another one, and return how many rows that are."""
        parts, self._parts, moved = self._parts, [], 0
        for part in parts:
            chosen = np.isin(part.numbers, numbers) & (part.segment is segment)
            if not chosen.any():
                self._parts.append(part)
                continue
            its = part.where(chosen)
            its.segment = other
            self._parts += [part.where(~chosen), its]
            moved += int(its.added.sum() + its.removed.sum())
        return moved

    def numbers(self) -> Positions:
        """Return the transactions, each once or several times, in any order."""
        return np.concatenate([np.zeros(0, np.int64), *(part.numbers for part in self._parts)])

    def run(self, begun: Begun, last_tick: int, segments: Sequence[Segment], where: Mapping[int, str]) -> PlainRun:
        """Return the transactions as the log has them.

        Args:
            begun: Of all transactions.
            last_tick: Tick before that of transaction 0.
            segments: All, in the order of their numbers.
            where: Paths of data files, by number of the segment.
        """
        numbers = self.numbers()
        sizes = np.array([len(part.numbers) for part in self._parts], np.int64)
        files = np.repeat(np.array([part.segment.number for part in self._parts], np.int64), sizes)
        added, removed = (
            np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in self._parts)])
            for name in ("added", "removed")
        )
        order = np.argsort(numbers, kind="stable")
        numbers, files, added, removed = (column[order] for column in (numbers, files, added, removed))
        # Rows of a transaction that came in several parts are one change of it.
        _, first, places = np.unique(numbers * len(segments) + files, return_index=True, return_inverse=True)
        if len(first) < len(numbers):
            added, removed = (_summed(column, places, len(first)) for column in (added, removed))
            kept = np.sort(first)
            numbers, files, added, removed = numbers[kept], files[kept], added[places[kept]], removed[places[kept]]
        own, starts = np.unique(numbers, return_index=True)
        return PlainRun(
            ticks=own + (last_tick + 1),
            users=np.zeros(len(own), np.int64),
            started=begun.committed[own],
            committed=begun.committed[own],
            xids=begun.xids[own],
            ends=np.append(starts, len(numbers)),
            files=files,
            added=added,
            removed=removed,
            names=("",),
            targets=tuple((segment.name, where.get(segment.number, "")) for segment in segments),
        )


def _summed(column: Positions, places: Positions, count: int) -> Positions:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, places, column)
    return sums
