"""Runs of plain transactions say what the transactions one by one would say, and take nothing that these would not."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from wlc.farm.errors import CorruptError
from wlc.farm.log import decode_batch, encode_batch
from wlc.farm.log_columns import PlainRun, Transactions, joined, parts_of
from wlc.farm.model import (
    Batch,
    Change,
    Clear,
    Column,
    DataFile,
    Ddl,
    Layout,
    Name,
    Origin,
    Position,
    TableFile,
    Transaction,
)
from wlc.farm.seal.checksum import checksum
from wlr.plan.cut import Limits, cut
from wlr.plan.stop import Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from wlr.plan.step import Step

LAYOUT = Layout((Column("id", "BIGINT"),))
TABLES = [Name("main", "orders_1"), Name("main", "orders_2"), Name("main", "ünïcode"), Name("a b", "t")]
PATHS = [f"sales_000000000007.d/{number}.parquet" for number in range(len(TABLES))]
COUNT = 1_500
START = Position("h", 0)


def plain(count: int = COUNT, first: int = 5, seed: int = 1) -> list[Transaction]:
    """Transactions with gaps in their ticks, of several users, with none to three changes; seconds and years go by."""
    rng = random.Random(seed)
    made, tick, time = [], first, datetime(2025, 12, 31, 23, 59, 50, tzinfo=UTC)
    for number in range(count):
        files = rng.sample(range(len(TABLES)), rng.choice([0, 1, 1, 1, 2, 3]))
        changes = tuple(Change(TABLES[f], PATHS[f], rng.randrange(120), rng.choice([0, 0, 7, 1000])) for f in files)
        ended = time + timedelta(microseconds=rng.choice([0, 0, 1, 2_000_000]))
        user, xid = rng.choice(["", "ann", "bøb", "role 12"]), rng.choice([None, number, 4_294_967_295])
        made.append(Transaction(tick, user, time, ended, changes, None, xid))
        tick += rng.choice([1, 1, 1, 90])
        time += timedelta(microseconds=rng.randrange(5_000))
    return made


def batch_of(transactions: list[Transaction]) -> Batch:
    rows = dict.fromkeys(PATHS, 0)
    for transaction in transactions:
        for record in transaction.records:
            if isinstance(record, Change):
                rows[record.path] += record.added + record.removed
    files = tuple(
        TableFile(DataFile(path, rows[path], 1, "a" * 64), table, LAYOUT)
        for path, table in zip(PATHS, TABLES, strict=True)
    )
    first, last = transactions[0].tick, transactions[-1].tick
    return Batch("sales", 7, "h", first, last, "", "sales", tuple(transactions), files, {"h": last})


def resealed(data: bytes) -> bytes:
    body = data[: data.rindex(b'{"sha256"')]
    return body + b'{"sha256":"' + checksum(body).encode() + b'"}\n'


def odd_ones(transactions: list[Transaction]) -> list[Transaction]:
    """The same with some that are not plain: in the middle, at both ends, next to each other."""
    odd = list(transactions)
    for place in (0, 1200, 1201, 2600, len(odd) - 1):
        odd[place] = replace(odd[place], committed=None, records=())
    odd[2400] = replace(odd[2400], records=(Clear(TABLES[1], 5), *odd[2400].records), origin=Origin("there", 3))
    odd[2640] = replace(odd[2640], records=(Ddl("CREATE TABLE", TABLES[0], "CREATE TABLE x (i INTEGER)"),))
    return odd


@pytest.mark.parametrize("make", [list, odd_ones])
def test_a_long_log_is_read_as_written(make: Callable[[list[Transaction]], list[Transaction]]) -> None:
    batch = batch_of(make(plain(4_000)))
    read = decode_batch(encode_batch(batch), "x")
    assert read == batch
    assert batch == read
    assert encode_batch(read) == encode_batch(batch)
    runs = [part for part in parts_of(read.transactions) if isinstance(part, PlainRun)]
    assert sum(map(len, runs)) > 3_000, "it was not read as columns"
    assert replace(read, transactions=read.transactions[:-1]) != batch


def test_parts_are_those_of_the_list() -> None:
    expected = odd_ones(plain(4_000))
    found = decode_batch(encode_batch(batch_of(expected)), "x").transactions
    assert isinstance(found, Transactions)
    assert list(found) == expected
    assert list(reversed(found)) == expected[::-1]
    rng = random.Random(3)
    for _ in range(200):
        place, first, end = (rng.randrange(-4_400, 4_400) for _ in range(3))
        if -4_000 <= place < 4_000:
            assert found[place] == expected[place]
        assert list(found[first:end]) == expected[first:end]
        assert list(found[first:][:end]) == expected[first:][:end]
    for beyond in (4_000, -4_001):
        with pytest.raises(IndexError):
            found[beyond]


def steps_of(batch: Batch, transactions: object, **options: object) -> list[Step]:
    return list(cut([(replace(batch, transactions=transactions), "c")], START, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"stop": Stop()},
        {"stop": Stop(tick=9_000)},
        {"stop": Stop(until=datetime(2025, 12, 31, 23, 59, 55, tzinfo=UTC))},
        {"stop": Stop(), "limits": Limits(rows=4_000)},
        {"stop": Stop(), "limits": Limits(transactions=333)},
        {"stop": Stop(), "limits": Limits(files=2)},
        {"stop": Stop(), "limits": Limits(rows=900)},
        {"stop": Stop(), "skipped": frozenset({5, 5000, 2**40}), "alone": 7000},
    ],
)
def test_steps_are_the_same(options: dict[str, Any]) -> None:
    ticks = [transaction.tick for transaction in plain(4_000)]
    if skipped := options.get("skipped"):
        options = options | {"skipped": skipped | {ticks[800], ticks[801], ticks[2400]}, "alone": ticks[3321]}
    written = batch_of(odd_ones(plain(4_000)))
    if "limits" in options:
        written = replace(written, transactions=written.transactions[:2480])
    read = decode_batch(encode_batch(batch_of(odd_ones(plain(4_000)))), "x")
    ours = steps_of(read, read.transactions[: len(written.transactions)], **options)
    theirs = steps_of(written, written.transactions, **options)
    assert len(ours) == len(theirs) >= 1
    for one, other in zip(ours, theirs, strict=True):
        assert (one.first, one.last, one.position, one.clock) == (other.first, other.last, other.position, other.clock)
        assert (one.marks, one.files, one.catalog, one.skipped) == (
            other.marks,
            other.files,
            other.catalog,
            other.skipped,
        )
        assert (one.rows, len(one.applied)) == (other.rows, len(other.applied))
        assert one.actions() == other.actions()
        assert list(one.transactions) == list(other.transactions)
    if len(ours[0].transactions) > 1:
        for one, other in zip(ours[0].halves(), theirs[0].halves(), strict=True):
            assert (one.first, one.last, one.actions()) == (other.first, other.last, other.actions())


def test_joining_drops_what_is_empty() -> None:
    run = parts_of(decode_batch(encode_batch(batch_of(plain())), "x").transactions)[0]
    assert isinstance(run, PlainRun)
    one = Transaction(1, "", run[0].started, None)
    assert joined([(), (one,), run[:0], (one,)]) == (one, one)
    whole = joined([(one,), (), (one,), run, run[:0]])
    assert [len(part) for part in parts_of(whole)] == [2, len(run)]
    assert run[:0].totals() == []
    assert run[:0].rows == 0


# Whatever is wrong in the middle of a long run: what is replaced there, by what, and what is said.
WRONG = {
    "time": (b'"started":"2025-12-31T23:59:59', b'"started":"2025-12-32T23:59:59', "not a time"),
    "digits": (b'"started":"2025-12-31T23:59:59.', b'"started":"2025-12-31T23:59:59,', "not a time"),
    "tick of the commit": (b'{"commit":{"tick":9', b'{"commit":{"tick":8', "was expected"),
    "leading zero": (b'"added":1', b'"added":01', "line"),
    "negative": (b'"added":1', b'"added":-1', "not a count"),
    "no number": (b'"added":1', b'"added":true', "line"),
    "too large": (b'"added":1', b'"added":99999999999999999991', "not a count"),
    "large": (b'"added":1', b'"added":99999999999', "rows, its transactions have"),
    "one more row": (b'"removed":7}', b'"removed":8}', "rows, its transactions have"),
    "other table": (b'["main","orders_1"]', b'["main","orders_3"]', "cannot have a change of main.orders_3"),
    "path": (b"/0.parquet", b"/1.parquet", "cannot have a change of main.orders_1"),
    "no origin": (b',"origin":null,"xid":4', b',"xid":4', "no 'origin'"),
    "two objects": (b'}}\n{"commit"', b'}}{"commit"', "line"),
    "blank": (b'}}\n{"commit"', b'}} \n{"commit"', "line"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_in_a_run_is_refused_as_it_is_elsewhere(wrong: str) -> None:
    old, new, said = WRONG[wrong]
    data = encode_batch(batch_of(plain(4_000)))
    assert decode_batch(data, "x").transactions
    place = data.index(old, len(data) // 3)
    broken = resealed(data[:place] + new + data[place + len(old) :])
    with pytest.raises(CorruptError, match=said):
        decode_batch(broken, "x")


def test_a_change_twice_and_a_tick_twice_are_refused() -> None:
    lines = encode_batch(batch_of(plain(4_000))).split(b"\n")
    change = next(n for n in range(6000, len(lines)) if lines[n].startswith(b'{"change"'))
    twice = resealed(b"\n".join([*lines[:change], lines[change], *lines[change:]]))
    with pytest.raises(CorruptError, match="cannot have a change"):
        decode_batch(twice, "x")
    begin = next(n for n in range(6000, len(lines)) if lines[n].startswith(b'{"begin"'))
    end = next(n for n in range(begin, len(lines)) if lines[n].startswith(b'{"commit"')) + 1
    again = b"\n".join([*lines[:end], *lines[begin:]]).replace(b'"transactions":4000', b'"transactions":4001')
    with pytest.raises(CorruptError, match="ticks do not rise"):
        decode_batch(resealed(again), "x")


@pytest.mark.parametrize("is_odd", [False, True])
def test_runs_of_unusual_lines_are_read_one_by_one(is_odd: bool) -> None:
    named = [replace(t, user="".join(chr(97 + (n >> s) % 16) for s in (0, 4, 8))) for n, t in enumerate(plain(4_000))]
    foreign = [replace(t, origin=Origin("there", 3)) if n == 2000 else t for n, t in enumerate(plain(4_000))]
    batch = batch_of(foreign if is_odd else named)
    read = decode_batch(encode_batch(batch), "x")
    assert read == batch
    assert isinstance(read.transactions, tuple)


def test_changes_without_transactions_are_refused() -> None:
    lines = encode_batch(batch_of(plain(4_000))).split(b"\n")
    changes = [line for line in lines if line.startswith(b'{"change"')]
    with pytest.raises(CorruptError, match="line 2: 'change' where a transaction"):
        decode_batch(resealed(b"\n".join([lines[0], *changes, *lines[-3:]])), "x")
    with pytest.raises(CorruptError, match="'end' where a record"):
        decode_batch(resealed(b"\n".join([*lines[:-4], *lines[-3:]])), "x")
