"""A decoder of PostgreSQL's logical replication messages, one block at a time.

A block is an Arrow array of messages as `pg_logical_slot_peek_binary_changes` returns them with `pgoutput` and protocol
version 1. Row data are found for all rows at once, with NumPy, and are not copied: values are views into the block.
Rare messages (relations, truncations and dbfarm's own) are read one by one.

Source: PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from wlc.farm.errors import CorruptError, UnsupportedError
from wlc.farm.log_columns import microseconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Positions = NDArray[np.int64]

# The server counts microseconds from here on.
_EPOCH = microseconds(datetime(2000, 1, 1, tzinfo=UTC))
_LAST_TIME = microseconds(datetime.max.replace(tzinfo=UTC))
_BEGIN, _COMMIT, _INSERT, _UPDATE, _DELETE = b"BCIUD"
_IS_ROW = np.isin(np.arange(256), (_INSERT, _UPDATE, _DELETE))
_MESSAGE = ord("M")
_RARE = {ord("R"), ord("T"), _MESSAGE}
_SKIPPED = {ord("O"), ord("Y")}
_OLD, _KEY = b"OK"
_NULL, _UNCHANGED, _TEXT = b"nut"
# Texts up to so many bytes lie in the view itself.
_INLINE_BYTES = 12
# A value begins with its kind and its length.
_HEAD = np.dtype((np.void, 5 + _INLINE_BYTES))
# Which of its first bytes a text of 0, 1, 2 … bytes has.
_KEPT = np.tri(_INLINE_BYTES + 1, _INLINE_BYTES, -1, np.uint8) * np.uint8(255)


def _no_numbers() -> Positions:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Relation:
    """A table with the columns that the following rows have."""

    oid: int
    schema: str
    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables that lost all their rows, by oid."""

    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """A message that a function inside the database wrote with `pg_logical_emit_message`."""

    prefix: str
    content: bytes


@dataclass(slots=True)
class Begun:
    """Transactions that have begun, as columns; the one with number n is at n.

    Attributes:
        lsns: Where the server's log has the commit of each.
        committed: Time of each commit, microseconds since 1970.
        xids: Number that the server gave each.
    """

    lsns: Positions = field(default_factory=_no_numbers)
    committed: Positions = field(default_factory=_no_numbers)
    xids: Positions = field(default_factory=_no_numbers)

    def __len__(self) -> int:
        return len(self.lsns)

    def add(self, lsns: Positions, committed: Positions, xids: Positions) -> None:
        """Add transactions behind the others."""
        self.lsns = np.concatenate([self.lsns, lsns])
        self.committed = np.concatenate([self.committed, committed])
        self.xids = np.concatenate([self.xids, xids])

    def pop(self) -> None:
        """Take the last one away."""
        self.lsns, self.committed, self.xids = self.lsns[:-1], self.committed[:-1], self.xids[:-1]


@dataclass(frozen=True, slots=True)
class Rows:
    """Row images of one relation, in the order in which they were written.

    Attributes:
        transactions: Number of the transaction of every image.
        weights: -1 was there before, 1 is there after.
        columns: One array of texts for each column of the relation.
        text_bytes: How many bytes the texts have.
    """

    relation: Relation
    transactions: Positions
    weights: NDArray[np.int8]
    columns: tuple[pa.Array, ...]
    text_bytes: int

    def without(self, names: set[str]) -> Rows:
        """Return the rows without columns, which they need not have."""
        kept = [at for at, name in enumerate(self.relation.columns) if name not in names]
        if len(kept) == len(self.columns):
            return self
        relation = replace(self.relation, columns=tuple(self.relation.columns[at] for at in kept))
        return replace(self, relation=relation, columns=tuple(self.columns[at] for at in kept))


@dataclass(slots=True)
class Decoder:
    """Reads blocks one after the other.

    Attributes:
        prefix: Messages with another one are left out, None for all. Programs may write many of their own.
        begun: Transactions that changed something, in commit order.
        lsn: Where the last transaction ends that was read as a whole, 0 before the first.
        read_to: The place before which everything was read: past the last transaction, or past the last message outside
            of transactions, 0 before the first.
        current: Number of the transaction of the truncation or message that was yielded last.
    """

    prefix: str | None = None
    begun: Begun = field(default_factory=Begun)
    lsn: int = 0
    read_to: int = 0
    current: int = -1
    _ends_with_begin: bool = False
    _relations: dict[int, Relation] = field(default_factory=dict)

    def read(self, block: pa.BinaryArray) -> Iterator[Rows | Truncate | Message]:
        """Decode a block.

        Changes of one relation are in order; truncations and messages come after all earlier and before all later
        changes.

        Raises:
            CorruptError: It violates the protocol.
            UnsupportedError: An update or a delete came without the whole row that was there before.
        """
        try:
            yield from self._read(block)
        except (struct.error, ValueError, IndexError, OverflowError) as error:
            raise CorruptError(f"the server sent a message that cannot be read: {error}") from error

    def _read(self, block: pa.BinaryArray) -> Iterator[Rows | Truncate | Message]:
        data, starts, ends = _bytes_of(block)
        if not len(starts):
            return
        if (starts == ends).any():
            raise CorruptError("the server sent an empty message")
        kinds = data[starts]
        is_begin, is_commit = kinds == _BEGIN, kinds == _COMMIT
        is_row = _IS_ROW[kinds]
        others = self._wanted(data, starts, kinds, np.flatnonzero(~(is_row | is_begin | is_commit)))
        # PostgreSQL 14 also sends transactions without published changes. They get no number.
        is_begin[:-1] &= ~is_commit[1:]
        if self._ends_with_begin and is_commit[0]:
            self.begun.pop()
        self._ends_with_begin = bool(is_begin[-1])
        transactions = len(self.begun) - 1 + np.cumsum(is_begin)
        self._begin(data, starts[is_begin] + 1)
        if (commits := starts[is_commit]).size:
            self.lsn = int(_int64(data, commits[-1:] + 10)[0])
            self.read_to = max(self.read_to, self.lsn)
        done = 0
        for index in others.tolist():
            yield from self._rows(data, starts, ends, kinds, transactions, done, index)
            done = index + 1
            self.current = int(transactions[index])
            found = self._rare(bytes(data[starts[index] : ends[index]]))
            if found is not None:
                yield found
        yield from self._rows(data, starts, ends, kinds, transactions, done, len(starts))

    def _wanted(
        self, data: NDArray[np.uint8], starts: Positions, kinds: NDArray[np.uint8], others: Positions
    ) -> Positions:
        """Leave out messages of other prefixes. Outside of transactions, they say how far the log was read."""
        if self.prefix is None:
            return others
        at = starts[others]
        # NumPy drops zeros at the end of such a text, and so the one that ends the prefix.
        wanted = self.prefix.encode()
        found = _at(data, at + 10, np.dtype((np.bytes_, len(wanted) + 1)), len(wanted) + 1)
        is_foreign = (kinds[others] == _MESSAGE) & (found != wanted)
        outside = at[is_foreign & (data[np.minimum(at + 1, len(data) - 1)] == 0)]
        if outside.size:
            self.read_to = max(self.read_to, int(_int64(data, outside + 2).max()) + 1)
        kept: Positions = others[~is_foreign]
        return kept

    def _begin(self, data: NDArray[np.uint8], at: Positions) -> None:
        if not at.size:
            return
        committed = _int64(data, at + 8) + _EPOCH
        if committed.min() < 0 or committed.max() > _LAST_TIME:
            raise ValueError("a commit time before 1970 or after the year 9999")
        self.begun.add(_int64(data, at), committed, _int32(data, at + 16) & 0xFFFFFFFF)

    def _rare(self, message: bytes) -> Truncate | Message | None:
        kind = message[0]
        if kind in _SKIPPED:
            return None
        if kind not in _RARE:
            raise CorruptError(f"the server sent a message of kind {chr(kind)!r}, which is not known")
        if kind == ord("R"):
            relation = _relation(message)
            self._relations[relation.oid] = relation
            return None
        if kind == ord("T"):
            (count,) = struct.unpack_from(">i", message, 1)
            return Truncate(struct.unpack_from(f">{count}I", message, 6))
        is_transactional, lsn = struct.unpack_from(">?Q", message, 1)
        if not is_transactional:
            # This is where the message begins.
            self.read_to = max(self.read_to, lsn + 1)
        prefix, at = _text(message, 10)
        (length,) = struct.unpack_from(">i", message, at)
        return Message(prefix, message[at + 4 : at + 4 + length])

    def _rows(
        self,
        data: NDArray[np.uint8],
        starts: Positions,
        ends: Positions,
        kinds: NDArray[np.uint8],
        transactions: Positions,
        first: int,
        end: int,
    ) -> Iterator[Rows]:
        """Read the rows among messages from `first` up to `end`, a relation at a time."""
        chosen = first + np.flatnonzero(_IS_ROW[kinds[first:end]])
        if not chosen.size:
            return
        oids = _int32(data, starts[chosen] + 1) & 0xFFFFFFFF
        is_one = bool((oids == oids[0]).all())
        for oid in oids[:1].tolist() if is_one else np.unique(oids).tolist():
            mine = chosen if is_one else chosen[oids == oid]
            if oid not in self._relations:
                raise CorruptError(f"the server sent rows of relation {oid} before its description")
            yield _read_rows(self._relations[oid], data, starts[mine] + 5, ends[mine], kinds[mine], transactions[mine])


def _read_rows(
    relation: Relation,
    data: NDArray[np.uint8],
    at: Positions,
    message_ends: Positions,
    kinds: NDArray[np.uint8],
    transactions: Positions,
) -> Rows:
    """Read the row images of one relation; `at` is the position of the first tuple of each."""
    has_old = kinds != _INSERT
    if (data[at[has_old]] == _KEY).any() or ((kinds == _UPDATE) & (data[at] != _OLD)).any():
        raise UnsupportedError(
            f"table {relation.schema}.{relation.name}: rows were changed while it had no REPLICA IDENTITY FULL",
            hint="ALTER TABLE … REPLICA IDENTITY FULL; then wlc stop and wlc master, which starts a new history",
        )
    has_new = kinds != _DELETE
    # An update's old image comes right before its new one.
    images_each = has_old.astype(np.int64) + has_new
    first = np.cumsum(images_each) - images_each
    old, new = first[has_old], first[has_new] + has_old[has_new]
    images = _Images(len(relation.columns), len(old) + len(new))
    end = at.copy()
    end[has_old] = images.fill(old, data, at[has_old] + 1)
    end[has_new] = images.fill(new, data, end[has_new] + 1)
    if (end != message_ends).any():
        raise CorruptError("the server sent rows that do not end where their messages end")
    images.fill_unchanged(new[has_old[has_new]])
    weights = np.ones(len(old) + len(new), np.int8)
    weights[old] = -1
    return Rows(relation, np.repeat(transactions, images_each), weights, images.columns(data), images.text_bytes())


class _Images:
    """Row images while their values are found: of each value what kind it is and, if it is a text, its view.

    Args:
        columns: How many every image has.
        count: How many images there are.
    """

    def __init__(self, columns: int, count: int) -> None:
        self._views = np.empty((columns, count, 4), np.int32)
        self._kinds = np.empty((columns, count), np.uint8)

    def fill(self, places: Positions, data: NDArray[np.uint8], at: Positions) -> Positions:
        """Find every value of tuples, which are the images at `places`, and return where each tuple ends."""
        if not at.size:
            return at
        if (_int16(data, at) != len(self._kinds)).any():
            raise CorruptError("the server sent rows with a wrong number of columns")
        at = at + 2
        whole = slice(None) if len(at) == self._kinds.shape[1] else places
        for views, kinds in zip(self._views, self._kinds, strict=True):
            # All fields at a value's beginning are fetched at once: memory is slower than arithmetic.
            heads = _at(data, at, _HEAD, _HEAD.itemsize)
            parts = heads.view(np.uint8).reshape(len(at), _HEAD.itemsize)
            kind = parts[:, 0]
            is_text = kind == _TEXT
            length = np.ndarray(len(at), ">i4", heads, 1, (_HEAD.itemsize,)).astype(np.int32)
            if not is_text.all():
                if not (is_text | (kind == _NULL) | (kind == _UNCHANGED)).all():
                    raise CorruptError("the server sent values of a kind that is not known")
                # A value without text has no length; the bytes there belong to something else and are ignored.
                length[~is_text] = 0
            if (length < 0).any():
                raise CorruptError("the server sent a value of less than no bytes")
            kinds[whole] = kind
            views[whole] = _views(parts[:, 5:], length, at + 5)
            at = at + np.where(is_text, length.astype(np.int64) + 5, 1)
        return at

    def fill_unchanged(self, updated: Positions) -> None:
        """Take values that are stored apart and did not change from the old images: new ones leave them out.

        Args:
            updated: Places of the new images of updates.
        """
        columns, places = np.nonzero(self._kinds == _UNCHANGED)
        if not places.size:
            return
        if not np.isin(places, updated).all():
            raise CorruptError("the server left out a value that no other image has")
        self._views[columns, places] = self._views[columns, places - 1]
        self._kinds[columns, places] = self._kinds[columns, places - 1]

    def text_bytes(self) -> int:
        """Return how many bytes all texts have."""
        return int(self._views[:, :, 0].sum(dtype=np.int64))

    def columns(self, data: NDArray[np.uint8]) -> tuple[pa.Array, ...]:
        """Return arrays of texts that are views into the block."""
        buffer = pa.py_buffer(data)
        return tuple(
            pa.Array.from_buffers(pa.string_view(), len(kinds), [_validity(kinds), pa.py_buffer(views), buffer])
            for views, kinds in zip(self._views, self._kinds, strict=True)
        )


def _views(first: NDArray[np.uint8], lengths: NDArray[np.int32], starts: Positions) -> NDArray[np.int32]:
    """Make views of texts.

    Args:
        first: The first bytes of each, and of a short one others behind them.
        lengths: Of the texts.
        starts: Where each text begins in the block.
    """
    views = np.empty((len(lengths), 4), np.int32)
    views[:, 0] = lengths
    # The view holds the first bytes: all of a short text, four of a long one.
    views[:, 1:] = (first & _KEPT.take(np.minimum(lengths, _INLINE_BYTES), axis=0)).view(np.int32)
    is_long = np.flatnonzero(lengths > _INLINE_BYTES)
    views[is_long, 2] = 0
    views[is_long, 3] = starts[is_long]
    return views


def _validity(kinds: NDArray[np.uint8]) -> pa.Buffer | None:
    is_there = kinds == _TEXT
    return None if is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little"))


# Bytes ---------------------------------------------------------------------------------------------------------------


def _bytes_of(block: pa.BinaryArray) -> tuple[NDArray[np.uint8], Positions, Positions]:
    """Return all bytes of an array of messages, and where each message starts and ends."""
    _, offsets_buffer, data_buffer = block.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(block) + 1, block.offset * 4).astype(np.int64)
    if not data_buffer:
        return np.zeros(0, np.uint8), offsets[:0], offsets[:0]
    return np.frombuffer(data_buffer, np.uint8, int(offsets[-1])), offsets[:-1], offsets[1:]


def _at(data: NDArray[np.uint8], at: Positions, kind: Any, width: int) -> Any:
    """Read a value of `width` bytes at each position; bytes beyond the end count as zeros."""
    if len(data) < width:
        data = np.concatenate([data, np.zeros(width, np.uint8)])
    last = len(data) - width
    # Values that overlap, one at every byte.
    everywhere: Any = np.ndarray((last + 1,), kind, data.data, strides=(1,))
    if not at.size or int(at.max()) <= last:
        return everywhere[at]
    found = everywhere[np.minimum(at, last)]
    beyond = np.flatnonzero(at > last)
    tail = np.concatenate([data[last:], np.zeros(width, np.uint8)])
    found[beyond] = _at(tail, np.minimum(at[beyond] - last, width), kind, width)
    return found


def _int16(data: NDArray[np.uint8], at: Positions) -> Any:
    return _at(data, at, ">i2", 2).astype(np.int64)


def _int32(data: NDArray[np.uint8], at: Positions) -> Any:
    return _at(data, at, ">i4", 4).astype(np.int64)


def _int64(data: NDArray[np.uint8], at: Positions) -> Any:
    return _at(data, at, ">i8", 8).astype(np.int64)


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1


def _relation(message: bytes) -> Relation:
    (oid,) = struct.unpack_from(">I", message, 1)
    schema, at = _text(message, 5)
    name, at = _text(message, at)
    (count,) = struct.unpack_from(">h", message, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        column, at = _text(message, at + 1)
        columns.append(column)
        at += 8
    # The server leaves out the name of its own schema.
    return Relation(oid, schema or "pg_catalog", name, tuple(columns))


def counted(transactions: Positions, weights: NDArray[np.int8]) -> tuple[Positions, Positions, Positions]:
    """Return the transactions that images, in commit order, belong to, and for each how many it added and removed."""
    if not len(transactions):
        return transactions, transactions, transactions
    starts = np.append(0, np.flatnonzero(np.diff(transactions)) + 1)
    numbers = transactions[starts]
    added = np.add.reduceat((weights > 0).astype(np.int64), starts)
    removed = np.add.reduceat((weights < 0).astype(np.int64), starts)
    return numbers, added, removed
