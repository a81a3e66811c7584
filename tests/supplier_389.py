"""How 389 Directory Server chooses what it sends, as a model to compare with: a log of changes and a consumer's vector.

A change is named by the replica id that made it and a CSN of that id; here these are a history and a tick. CSNs of all ids
have one order, which is that of the log.

Source: 389-ds-base, ldap/servers/plugins/replication/cl5_clcache.c.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The name of a change: its history and its tick.
Change = tuple[str, int]
# A CSN is a second and a sequence number in it: this many ticks share a second.
TICKS_PER_SECOND = 3


def vector(changes: Iterable[Change]) -> dict[str, int]:
    """Return the last tick of each history."""
    found: dict[str, int] = {}
    for history, tick in changes:
        found[history] = max(found.get(history, 0), tick)
    return found


def is_direct_successor(tick: int, last: int) -> bool:
    """Say whether nothing can be between two ticks: they share a second, and their sequence numbers follow."""
    return tick == last + 1 and tick // TICKS_PER_SECOND == last // TICKS_PER_SECOND


@dataclass
class Supplier389:
    """A supplier that sends in sessions, and in each of them by loads of a buffer.

    Attributes:
        log: All changes, also those that appear later.
        consumer: The consumer's vector; what is sent raises it.
        ignored: Replica id of the consumer whose own changes are not sent back (`ignoreConsumerRID`); "" sends them.
    """

    log: list[Change]
    consumer: dict[str, int]
    ignored: str = ""
    _local: dict[str, int] = field(default_factory=dict)
    _previous: dict[str, int] = field(default_factory=dict)
    # Place of the last change that was in the buffer (csnBuffer); None at the beginning of a session.
    _buffer: int | None = None

    def load(self, known: int, there: int, size: int = 1_000_000) -> list[Change] | None:
        """Load the buffer once (`clcache_load_buffer`), and send what it has for the consumer.

        Args:
            known: How many changes the supplier's vector covers, which is read before the buffer.
            there: How many there are when the buffer is read.
            size: How many changes fit into the buffer.

        Returns:
            What is sent; None if there is nothing to load, which ends the session.
        """
        self._refresh(known)
        start = self.anchor()
        if start is None:
            self._local, self._previous, self._buffer = {}, {}, None
            return None
        up_to_date = {history for history, last in self._local.items() if self.consumer.get(history, 0) >= last}
        beyond, sent = set[str](), list[Change]()
        for place in range(start, min(there, start + size)):
            self._buffer = place
            history, tick = self.log[place]
            if history not in up_to_date and self._sends(history, tick, beyond):
                sent.append((history, tick))
        return sent

    def start(self, known: int) -> int | None:
        """Return the place in the log where a first load begins; None if there is nothing to load."""
        self._refresh(known)
        return self.anchor()

    def anchor(self) -> int | None:
        """Return the least start of all replica ids (`clcache_initial_anchorcsn`, `clcache_adjust_anchorcsn`)."""
        starts = []
        for history, last in self._local.items():
            if self.consumer.get(history, 0) >= last:
                continue
            before = self._previous.get(history, 0)
            if self._buffer is not None and (last == before or self._place(history, before) > self._buffer):
                # Cases 1 and 2 of a reload: the buffer did not reach what was known, or nothing new is known.
                starts.append(self._buffer + 1)
            else:
                # Case 3 of a reload, or the first load.
                starts.append(self._first_missing_or_before(history))
        return min(starts, default=None)

    def _first_missing_or_before(self, history: str) -> int:
        """Begin with the first change of an id that the consumer does not know (3.1), or after its last one (3.2)."""
        if not self.consumer.get(history, 0):
            return next(place for place, change in enumerate(self.log) if change[0] == history)
        return self._place(history, self.consumer[history]) + 1

    def _place(self, history: str, tick: int) -> int:
        """Return the place of the last change of a history up to a tick; -1 if there is none."""
        return max((n for n, change in enumerate(self.log) if change[0] == history and change[1] <= tick), default=-1)

    def _refresh(self, known: int) -> None:
        self._previous.update(self._local)
        self._local = {history: t for history, t in vector(self.log[:known]).items() if history != self.ignored}

    def _sends(self, history: str, tick: int, beyond: set[str]) -> bool:
        """Say whether a change is sent, and raise what the consumer has (`clcache_skip_change`).

        Args:
            history: Its replica id.
            tick: Its CSN.
            beyond: Replica ids of which a change was beyond the vector in this load.
        """
        if history not in self._local or history in beyond or tick <= self.consumer.get(history, 0):
            # A replica id that is new since the vector was read, one that is beyond it, or what the consumer has.
            return False
        if tick > self._local[history]:
            if not is_direct_successor(tick, self._local[history]):
                beyond.add(history)
                return False
            self._local[history] = tick
        self.consumer[history] = tick
        return True


def first_start(log: list[Change], mine: Mapping[str, int]) -> int | None:
    """Return the place in a log where 389 begins for a consumer."""
    return Supplier389(log, dict(mine)).start(len(log))
