"""What a PostgreSQL slot gives becomes the transactions of a batch, wherever blocks end: compared with a simple model."""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.capture.postgres.test_pgoutput import Change as RowChange
from tests.unit.capture.postgres.test_pgoutput import begin, commit, message, relation
from wlc.capture.postgres.described import DescribedColumn, DescribedTable
from wlc.capture.postgres.gathering import Gathering, PublishedTable
from wlc.capture.postgres.row_store import RowDatabase
from wlc.farm.errors import CorruptError
from wlc.farm.log_columns import Transactions
from wlc.farm.model import Change, Clear, Name, SequencePosition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wlc.farm.model import TableFile, Transaction

EXAMPLES = int(os.environ.get("DBFARM_EXAMPLES", "500" if os.environ.get("DBFARM_DEEP") else "25"))
LAST_TICK = 40
OIDS = (1, 2)
HELD = 3
# A value that a DECIMAL cannot hold, which gives the transaction a file of its own.
FITS, MISFIT = "1.25", "NaN"


@dataclass(frozen=True)
class Rows:
    """Rows of a table: added, removed or both, of one value."""

    oid: int
    value: str
    removed: bool
    added: bool

    def messages(self) -> list[bytes]:
        return [
            message(RowChange(self.oid, (self.value,) if self.removed else None, (self.value,) if self.added else None))
        ]


@dataclass(frozen=True)
class Emptied:
    """A TRUNCATE."""

    oid: int

    def messages(self) -> list[bytes]:
        return [b"T" + struct.pack(">ib", 1, 0) + struct.pack(">I", self.oid)]


@dataclass(frozen=True)
class Redescribed:
    """An alteration that changes nothing: rows after it are another change."""

    oid: int

    def messages(self) -> list[bytes]:
        table = asdict(described(self.oid))
        return [said(json.dumps({"table": self.oid, "old": table, "new": table})), relation(self.oid, 1)]


Event = Rows | Emptied | Redescribed
# A change: table, whether a value does not fit, rows added and removed. Or a clear: table and rows.
Shown = tuple[int, bool, int, int] | tuple[int, int]


def said(text: str) -> bytes:
    return b"M" + struct.pack(">?Q", True, 0) + b"wlc\0" + struct.pack(">i", len(text.encode())) + text.encode()


def described(oid: int) -> DescribedTable:
    column = DescribedColumn(
        1,
        "c0",
        "numeric(10,2)",
        (1700, 1),
        "numeric(10,2)",
        None,
        True,
        None,
        None,
        None,
        False,
        None,
        None,
        None,
        None,
    )
    return DescribedTable(oid, "public", f"t{oid}", "r", (column,), (), {}, None, None, ())


@dataclass
class Model:
    """Follows transactions one by one."""

    held: dict[int, int] = field(default_factory=lambda: dict.fromkeys(OIDS, HELD))
    versions: Counter[int] = field(default_factory=Counter)

    def transaction(self, events: Sequence[Event]) -> Counter[Shown] | None:
        """Return what a transaction does; None for one that does nothing."""
        found: list[Shown] = []
        is_altered = False
        changed: dict[tuple[int, int], list[int]] = {}
        misfits = set()
        for event in events:
            key = event.oid, self.versions[event.oid]
            match event:
                case Rows():
                    counts = changed.setdefault(key, [0, 0])
                    counts[0] += event.added
                    counts[1] += event.removed
                    self.held[event.oid] += event.added - event.removed
                    if event.value == MISFIT:
                        misfits.add(key)
                case Emptied():
                    added, removed = changed.pop(key, [0, 0])
                    misfits.discard(key)
                    if before := self.held[event.oid] - added + removed:
                        found.append((event.oid, before))
                    self.held[event.oid] = 0
                case Redescribed():
                    self.versions[event.oid] += 1
                    is_altered = True
        found += [(key[0], key in misfits, added, removed) for key, (added, removed) in changed.items()]
        return Counter(found) if found or is_altered else None


@dataclass(frozen=True)
class Batch:
    """What was gathered and written; `rows` are counted in the data files, by path, tick and weight."""

    gathering: Gathering
    transactions: Sequence[Transaction]
    files: dict[str, TableFile]
    rows: dict[tuple[str, int, int], int]


def gathered(
    transactions: Sequence[Sequence[Event]], size: int, *sequences: SequencePosition, held_bytes_max: int = 1 << 20
) -> Batch:
    stream = [relation(oid, 1) for oid in OIDS]
    for number, its in enumerate(transactions):
        messages = (found for event in its for found in event.messages())
        stream += [begin(number + 1), *messages, commit(100 * number + 1)]
    blocks = (pa.array(stream[at : at + size], pa.binary()) for at in range(0, len(stream), size))
    tables = {oid: PublishedTable(described(oid), HELD) for oid in OIDS}
    with TemporaryDirectory() as folder, closing(RowDatabase()) as database, duckdb.connect() as connection:
        gathering = Gathering(Path(folder), tables, "wlc", database)
        gathering.rows.held_bytes_max = held_bytes_max
        gathering.read(pa.record_batch([block], ["data"]) for block in blocks)
        found, files, local = gathering.write("db", 7, LAST_TICK, sequences)
        rows = {}
        for path, place in local.items():
            query = f"SELECT _tick, _weight, count(*) FROM read_parquet('{place}') GROUP BY ALL"
            counted = connection.execute(query).fetchall()
            rows.update({(path, tick, weight): count for tick, weight, count in counted})
    return Batch(gathering, found, {file.file.path: file for file in files}, rows)


def shown(transaction: Transaction, batch: Batch) -> Counter[Shown]:
    """What a transaction does, of which the data files have exactly the rows."""
    found: list[Shown] = []
    for record in transaction.records:
        match record:
            case Change(table, path, added, removed):
                of_file = batch.files[path]
                assert of_file.table == table
                for weight, count in ((1, added), (-1, removed)):
                    assert batch.rows.pop((path, transaction.tick, weight), 0) == count
                found.append((int(table.name[1:]), of_file.layout.columns[0].type == "VARCHAR", added, removed))
            case Clear(table, removed):
                found.append((int(table.name[1:]), removed))
    return Counter(found)


events = st.one_of(
    st.builds(Rows, st.sampled_from(OIDS), st.just(FITS), st.booleans(), st.just(True)),
    st.builds(Rows, st.sampled_from(OIDS), st.sampled_from([FITS, FITS, MISFIT]), st.just(True), st.booleans()),
)
rare = st.one_of(events, st.builds(Emptied, st.sampled_from(OIDS)), st.builds(Redescribed, st.sampled_from(OIDS)))
plain = st.lists(events, min_size=1, max_size=4)
mixed = st.lists(rare, min_size=1, max_size=6)
SOME: list[Event] = [Rows(1, FITS, False, True), Rows(2, FITS, False, True), Rows(1, FITS, True, True)]


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.one_of(plain, plain, plain, mixed), min_size=1, max_size=8),
    st.integers(1, 40),
    st.sampled_from([0, 200, 1 << 20]),
)
@example([SOME, [*SOME, Emptied(1), *SOME, Redescribed(2), *SOME], SOME, [Emptied(2), Emptied(1)]], 3, 1 << 20)
@example([[*SOME, Rows(1, MISFIT, False, True)], [Rows(1, FITS, False, True)], SOME], 2, 500)
@example([SOME] * 70 + [[*SOME, Redescribed(1)]] + [SOME] * 70, 1000, 1 << 20)
def test_transactions_are_those_of_the_model(transactions: list[list[Event]], size: int, held_bytes_max: int) -> None:
    model = Model()
    expected = {LAST_TICK + 1 + number: model.transaction(its) for number, its in enumerate(transactions)}
    batch = gathered(transactions, size, held_bytes_max=held_bytes_max)
    found = {transaction.tick: shown(transaction, batch) for transaction in batch.transactions}
    assert found == {tick: its for tick, its in expected.items() if its is not None}
    assert list(found) == sorted(found)
    assert not batch.rows, "a data file has rows that no transaction has"
    for transaction in batch.transactions:
        number = transaction.tick - LAST_TICK
        time = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
        assert (transaction.started, transaction.committed, transaction.xid) == (time, time, number)
    assert {oid: table.rows for oid, table in batch.gathering.round.tables.items()} == model.held


def test_transactions_that_only_change_rows_are_columns() -> None:
    many = [SOME] * 100
    batch = gathered([*many, [*SOME, Redescribed(1)], *many], 1_000_000)
    gathering = batch.gathering
    assert isinstance(batch.transactions, Transactions)
    assert list(batch.transactions.objects) == [batch.transactions[100]]
    assert gathering.first_end() == 1
    moved = SequencePosition(Name("public", "s"), 7)
    again = gathered([*many, [*SOME, Redescribed(1)], *many], 1_000_000, moved).transactions
    assert list(again[:-1]) == list(batch.transactions[:-1])
    assert again[-1] == replace(batch.transactions[-1], records=(*batch.transactions[-1].records, moved))
    assert gathered([SOME], 9, moved).transactions[0].records[-1] == moved
    assert gathering.round.numbers().tolist() == list(range(201))


def test_times_that_no_log_can_hold_are_refused(tmp_path: Path) -> None:
    late = b"B" + struct.pack(">qqi", 0, 2**62, 1)
    gathering = Gathering(tmp_path, {1: PublishedTable(described(1), 0)}, "wlc", RowDatabase())
    with pytest.raises(CorruptError, match="after the year 9999"):
        gathering.read(
            [pa.record_batch([pa.array([relation(1, 1), late, *SOME[0].messages()], pa.binary())], ["data"])]
        )
