"""The messages of PostgreSQL's logical replication, taken apart many at a time."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wlc.capture.postgres.pgoutput import Decoder, Message, Rows, Truncate
from wlc.farm.errors import CorruptError, UnsupportedError
from wlc.farm.log_columns import microseconds

Value = str | None
Row = tuple[Value, ...]


@dataclass(frozen=True)
class Change:
    """A row that was added (no old one), removed (no new one) or changed."""

    table: int
    old: Row | None
    new: Row | None


def begin(xid: int) -> bytes:
    return b"B" + struct.pack(">qqi", 0, 1_000_000 * xid, xid)


def commit(lsn: int) -> bytes:
    return b"C" + struct.pack(">bqqq", 0, lsn - 8, lsn, 0)


def relation(oid: int, columns: int) -> bytes:
    listed = b"".join(b"\0" + f"c{index}".encode() + b"\0" + struct.pack(">ii", 25, -1) for index in range(columns))
    return (
        b"R" + struct.pack(">I", oid) + b"public\0" + f"t{oid}".encode() + b"\0f" + struct.pack(">h", columns) + listed
    )


def values(row: Row, old: Row | None = None) -> bytes:
    """A tuple; values that are as in `old` and long are left out, as PostgreSQL does with those that it stores apart."""
    parts = [struct.pack(">h", len(row))]
    for index, value in enumerate(row):
        if value is None:
            parts.append(b"n")
        elif old is not None and value == old[index] and len(value) > 13:
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack(">i", len(value.encode())) + value.encode())
    return b"".join(parts)


def message(change: Change) -> bytes:
    oid = struct.pack(">I", change.table)
    if change.old is None:
        assert change.new is not None
        return b"I" + oid + b"N" + values(change.new)
    if change.new is None:
        return b"D" + oid + b"O" + values(change.old)
    return b"U" + oid + b"O" + values(change.old) + b"N" + values(change.new, change.old)


def decoded(blocks: list[list[bytes]]) -> tuple[Decoder, list[object]]:
    decoder = Decoder()
    return decoder, [item for block in blocks for item in decoder.read(pa.array(block, pa.binary()))]


def images(items: list[object], table: int) -> list[tuple[int, int, Row]]:
    """What was read of one table: transaction, weight, values."""
    found = []
    for item in items:
        if isinstance(item, Rows) and item.relation.oid == table:
            columns = [column.cast(pa.string()).to_pylist() for column in item.columns]
            rows = zip(*columns, strict=True) if columns else [()] * len(item.weights)
            found += list(zip(item.transactions.tolist(), item.weights.tolist(), rows, strict=True))
    return found


texts = st.one_of(st.none(), st.text(max_size=30), st.sampled_from(["", "x" * 12, "y" * 13, "é" * 6, "z" * 5000]))
COLUMNS = {1: 3, 2: 1}


@st.composite
def changes(draw: st.DrawFn) -> Change:
    table = draw(st.sampled_from([1, 2]))
    rows = st.tuples(*[texts] * COLUMNS[table])
    old, new = draw(st.one_of(st.none(), rows)), draw(st.one_of(st.none(), rows))
    if old is None and new is None:
        new = draw(rows)
    if old is not None and new is not None and draw(st.booleans()):
        new = (old[0], *new[1:])
    return Change(table, old, new)


@pytest.mark.slow
@given(st.lists(st.lists(changes(), max_size=8), min_size=1, max_size=5), st.integers(1, 20))
def test_every_image_is_read_whole_wherever_blocks_end(transactions: list[list[Change]], size: int) -> None:
    stream = [relation(oid, columns) for oid, columns in COLUMNS.items()]
    expected: dict[int, list[tuple[int, int, Row]]] = {1: [], 2: []}
    # Empty ones come from PostgreSQL 14 only; they have no number.
    full = [index for index, rows in enumerate(transactions) if rows]
    for index, rows in enumerate(transactions):
        stream += [begin(index + 1), *map(message, rows), commit(100 * (index + 1))]
        number = full.index(index) if rows else None
        for change in rows:
            pair = ((-1, change.old), (1, change.new))
            expected[change.table] += [(number, weight, row) for weight, row in pair if row is not None]
    decoder, items = decoded([stream[at : at + size] for at in range(0, len(stream), size)])
    for table in COLUMNS:
        assert images(items, table) == expected[table]
    assert decoder.lsn == 100 * len(transactions)
    assert decoder.begun.xids.tolist() == [index + 1 for index in full]
    epoch = datetime(2000, 1, 1, tzinfo=UTC)
    times = [microseconds(epoch + timedelta(seconds=index + 1)) for index in full]
    assert decoder.begun.committed.tolist() == times


def test_truncations_and_messages_come_where_they_stand() -> None:
    said = b"M" + struct.pack(">bq", 1, 0) + b"wlc\0" + struct.pack(">i", 2) + b"{}"
    stream = [
        relation(1, 1),
        begin(5),
        message(Change(1, None, ("before",))),
        b"T" + struct.pack(">ib", 2, 0) + struct.pack(">II", 1, 9),
        message(Change(1, None, ("after",))),
        said,
        message(Change(1, ("after",), None)),
        commit(8),
    ]
    decoder, items = decoded([stream])
    kinds = [type(item) for item in items]
    assert kinds == [Rows, Truncate, Rows, Message, Rows]
    assert items[1] == Truncate((1, 9))
    assert items[3] == Message("wlc", b"{}")
    assert decoder.current == 0


def said(prefix: str, *, lsn: int = 0, is_transactional: bool = True) -> bytes:
    return b"M" + struct.pack(">?Q", is_transactional, lsn) + prefix.encode() + b"\0" + struct.pack(">i", 2) + b"{}"


@pytest.mark.parametrize("foreign", ["w", "wlc.other", "wlc.1x", "", "another program's"])
def test_messages_of_other_programs_do_not_part_rows(foreign: str) -> None:
    rows = [message(Change(1, None, (str(number),))) for number in range(4)]
    block = [begin(1), relation(1, 1), rows[0], said(foreign), rows[1], said("wlc.1"), rows[2], said(foreign), rows[3]]
    decoder = Decoder("wlc.1")
    items: list[object] = list(
        decoder.read(pa.array([*block, commit(100), said(foreign, lsn=700, is_transactional=False)], pa.binary()))
    )
    assert [type(item) for item in items] == [Rows, Message, Rows]
    assert [row for _, _, row in images(items, 1)] == [("0",), ("1",), ("2",), ("3",)]
    assert (decoder.lsn, decoder.read_to) == (100, 701)


def test_a_table_may_get_other_columns() -> None:
    stream = [relation(1, 1), begin(1), message(Change(1, None, ("a",))), relation(1, 2)]
    stream += [message(Change(1, None, ("a", "b"))), commit(8)]
    _, items = decoded([stream])
    assert images(items, 1) == [(0, 1, ("a",)), (0, 1, ("a", "b"))]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (b"I" + struct.pack(">I", 7) + b"N" + values(("a",)), "relation 7"),
        (b"I" + struct.pack(">I", 1) + b"N" + values(("a", "b")), "number of columns"),
        (b"I" + struct.pack(">I", 1) + b"N" + struct.pack(">h", 1) + b"?", "values of a kind"),
        (
            b"I" + struct.pack(">I", 1) + b"N" + struct.pack(">h", 1) + b"t" + struct.pack(">i", -1),
            "less than no bytes",
        ),
        (b"?", "kind '?'"),
    ],
)
def test_what_is_not_understood_is_refused(broken: bytes, said: str) -> None:
    with pytest.raises(CorruptError, match=said.replace("?", r"\?")):
        decoded([[relation(1, 1), begin(1), broken]])


@pytest.mark.parametrize(
    "row",
    [
        b"D" + struct.pack(">I", 1) + b"K" + values(("a",)),
        b"U" + struct.pack(">I", 1) + b"N" + values(("a",)),
    ],
)
def test_changes_without_the_whole_old_row_are_refused(row: bytes) -> None:
    with pytest.raises(UnsupportedError, match=r"public\.t1.*REPLICA IDENTITY FULL"):
        decoded([[relation(1, 1), begin(1), row]])
