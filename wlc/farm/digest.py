"""Digests: a table's row count and an order-independent sum over its rows, maintained from the changes.

Each row has a 64-bit number that any program can compute (docs/format.md); a table's sum is that of its rows' numbers
modulo 2^64. The sum is linear: numbers of added rows are added, numbers of removed rows subtracted, and the table is
not read again. A digest finds errors; signatures find forgeries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wlc.farm.log_columns import Transactions
from wlc.farm.model import (
    AlteredObject,
    Change,
    Clear,
    CreatedObject,
    Ddl,
    Digest,
    DroppedObject,
    Name,
    RenamedObject,
)
from wlc.farm.schema_fold import table_effects, touched_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from wlc.farm.model import Batch, Record, Transaction

EMPTY = Digest(0, 0)
# Results of comparing a table with a digest.
SAME, DIFFERS, UNKNOWN = "same", "differs", "unknown"
MODULUS = 1 << 64


def plus(digest: Digest, rows: int, total: int) -> Digest:
    """Return the digest after rows were added (or removed, if both arguments are negative)."""
    return Digest(digest.rows + rows, (digest.sum + total) % MODULUS)


@dataclass(slots=True)
class _Content:
    """A table's last known digest, and the images since then: first and last tick by path."""

    known: Digest | None
    rows: int = 0
    reads: dict[str, tuple[int, int]] = field(default_factory=dict)


class Ledger:
    """Follows transactions and computes the digest of each changed table afterwards.

    Args:
        known: Digests at the start; the digest of any other table is unknown.
        total: Adds up the images of a data file from one tick to another, both included, modulo 2^64.
    """

    def __init__(self, known: Mapping[Name, Digest], total: Callable[[str, int, int], int]) -> None:
        self._tables = {name: _Content(digest) for name, digest in known.items()}
        self._total = total
        self._changed: set[Name] = set()

    def follow(self, transactions: Iterable[Transaction]) -> None:
        """Add committed transactions, in commit order."""
        for first, last, record in Transactions.of(transactions).records():
            self.take(record, first, last)

    def take(self, record: Record, first: int, last: int) -> None:
        """Add a record of one or more transactions; see `Transactions.records`."""
        if isinstance(record, Change):
            content = self._tables.setdefault(record.table, _Content(None))
            begin, _ = content.reads.get(record.path, (first, last))
            content.reads[record.path] = (begin, last)
            content.rows += record.added - record.removed
            self._changed.add(record.table)
        elif isinstance(record, Clear):
            self.set(record.table, EMPTY)
        elif isinstance(record, Ddl):
            self.alter(record)

    def alter(self, ddl: Ddl) -> None:
        """Follow a schema change."""
        for effect in table_effects(ddl):
            name = effect.object.name
            match effect:
                case CreatedObject() if ddl.layout is not None:
                    self.set(name, EMPTY)
                case DroppedObject():
                    self.drop(name)
                case RenamedObject(_, to):
                    self._tables[to] = self._tables.pop(name, _Content(None))
                    self._changed = self._changed - {name} | {to}
                case AlteredObject(columns=steps) if steps:
                    self.set(name, None)
        if ddl.digest is not None:
            self.set(ddl.object, ddl.digest)

    def set(self, table: Name, digest: Digest | None) -> None:
        """Set a table's digest; None if it is unknown."""
        self._tables[table] = _Content(digest)
        self._changed.add(table)

    def drop(self, table: Name) -> None:
        """Remove a dropped table."""
        self._tables.pop(table, None)
        self._changed.discard(table)

    def digest(self, table: Name) -> Digest | None:
        """Return a table's digest, None if it is unknown."""
        content = self._tables.get(table)
        if content is None or content.known is None:
            return None
        total = sum(self._total(path, first, last) for path, (first, last) in content.reads.items())
        content = self._tables[table] = _Content(plus(content.known, content.rows, total))
        return content.known

    def changed(self) -> dict[Name, Digest]:
        """Return what tables hold that were changed and are known."""
        return {name: digest for name in sorted(self._changed) if (digest := self.digest(name)) is not None}

    def unknown(self) -> frozenset[Name]:
        """Return the tables that were changed and are not known."""
        return frozenset(name for name in self._changed if self.digest(name) is None)

    def all(self) -> dict[Name, Digest]:
        """Return what all known tables hold."""
        return {name: digest for name in sorted(self._tables) if (digest := self.digest(name)) is not None}


def after(known: Mapping[Name, Digest], batch: Batch) -> dict[Name, Digest]:
    """Return the tables' digests after a batch as the batch states them, given the digests before it."""
    found = dict(known)
    for table in touched(batch.transactions):
        found.pop(table, None)
    return {**found, **batch.digests}


def compared(held: Digest | None, expected: Digest | None) -> str:
    """Compare a table's digest with the expected one: SAME, DIFFERS, or UNKNOWN without an expected digest."""
    return UNKNOWN if expected is None else SAME if held == expected else DIFFERS


def differing(held: Mapping[Name, Digest], expected: Mapping[Name, Digest]) -> list[Name]:
    """Return the tables whose digest differs from the expected one."""
    return [name for name, digest in held.items() if compared(digest, expected.get(name)) == DIFFERS]


def touched(transactions: Iterable[Transaction]) -> set[Name]:
    """Return the tables that transactions changed, under all their names."""
    found: set[Name] = set()
    for *_, record in Transactions.of(transactions).records():
        if isinstance(record, Ddl):
            found.update(touched_tables(record))
        elif isinstance(record, Change | Clear):
            found.add(record.table)
    return found
