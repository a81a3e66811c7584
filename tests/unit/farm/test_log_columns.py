"""Runs of plain transactions say what the transactions one by one would say, and take nothing that these would not."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.json_fields import FieldError
from wlc.farm.log import as_run, decode_batch, encode_batch, run_json
from wlc.farm.log_columns import Transactions
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
    Record,
    TableFile,
    Transaction,
)
from wlc.farm.seal.checksum import checksum

if TYPE_CHECKING:
    from collections.abc import Callable


LAYOUT = Layout((Column("id", "BIGINT"),))
TABLES = [Name("main", "orders_1"), Name("main", "orders_2"), Name("main", "ünïcode"), Name("a b", "t")]
PATHS = [f"sales_000000000007.d/{number}.parquet" for number in range(len(TABLES))]
COUNT = 1_500


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
    assert len(list(Transactions.of(read.transactions).objects)) < 1_000, "it was not read as columns"
    assert replace(read, transactions=read.transactions[:-1]) != batch


def several(count: int = 400) -> list[Transaction]:
    """Plain ones, others at both ends, in the middle and next to each other, and one that does several things."""
    made = plain(count)
    for place in (0, 120, 121, 122, count - 1):
        made[place] = replace(made[place], origin=Origin("there", place + 1))
    made[200] = replace(made[200], committed=None, records=())
    made[121] = replace(made[121], records=(Clear(TABLES[1], 5), *made[121].records, Clear(TABLES[2], 6)))
    made[250] = replace(made[250], records=(Ddl("CREATE TABLE", TABLES[0], "CREATE TABLE x (i INTEGER)"),))
    return made


def in_columns(transactions: list[Transaction]) -> Transactions:
    """The same, as many of them in columns as can be."""
    groups = Transactions(transactions).groups()
    return Transactions(*(group.columns() if are_plain else group for are_plain, group in groups))


def halved(transactions: list[Transaction]) -> Transactions:
    """The same, with pieces of all kinds behind each other, some of them empty."""
    middle = len(transactions) // 3
    first, rest = in_columns(transactions[:middle]), transactions[middle:]
    return Transactions(first, (), first[:0], rest[:7], in_columns(rest[7:40]), in_columns(rest[40:]))


def summed(transactions: list[Transaction]) -> list[object]:
    """What was done, one by one: changes of plain transactions are added up between the others."""
    found: dict[object, Any] = {}
    apart = 0
    for each in transactions:
        is_plain = each.committed is not None and each.origin is None and {Change}.issuperset(map(type, each.records))
        apart += not is_plain
        for number, record in enumerate(each.records):
            if is_plain and isinstance(record, Change):
                key = apart, record.path
                first, _, before = found.get(key, (each.tick, 0, replace(record, added=0, removed=0)))
                added, removed = before.added + record.added, before.removed + record.removed
                found[key] = first, each.tick, replace(record, added=added, removed=removed)
            else:
                found[each.tick, number] = each.tick, each.tick, record
        apart += not is_plain
    return list(found.values())


FORMS: list[Callable[[list[Transaction]], Transactions]] = [Transactions, in_columns, halved]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("expected", [several(), plain(60), plain(1), []], ids=len)
def test_it_is_the_list_whatever_form_it_has(
    form: Callable[[list[Transaction]], Transactions], expected: list[Transaction]
) -> None:
    found, ticks = form(expected), [each.tick for each in expected]
    assert (list(found), len(found), bool(found)) == (expected, len(expected), bool(expected))
    assert found == Transactions(expected) == tuple(expected)
    assert list(reversed(found)) == expected[::-1]
    assert (found.ticks, found.is_rising) == (ticks, True)
    for place in range(1, len(expected), 17):
        one, other = expected[place - 1 : place + 1]
        assert not form([*expected[:place], replace(other, tick=one.tick), *expected[place + 1 :]]).is_rising
    rng = random.Random(3)
    for _ in range(60):
        place, first, end = (rng.randrange(-len(ticks) - 40, len(ticks) + 40) for _ in range(3))
        if -len(ticks) <= place < len(ticks):
            assert found[place] == expected[place]
        else:
            with pytest.raises(IndexError):
                found[place]
        assert list(found[first:end]) == expected[first:end]
        assert list(found[first:][:end]) == expected[first:][:end]
        tick = rng.choice([*ticks, 0, 10**6]) + rng.randrange(2)
        assert found.place(tick) == sum(each < tick for each in ticks)
        assert list(found.after(tick)) == [each for each in expected if each.tick > tick]
    skipped = {*ticks[5:7], *ticks[121:123], *ticks[-1:], 10**6}
    assert list(found.applied(skipped)) == [t for t in expected if t.committed and t.tick not in skipped]
    assert list(found.applied(())) == [each for each in expected if each.committed]
    parts = list(found.parted(skipped))
    assert list(Transactions(*(part for part, _ in parts))) == expected
    assert [part[0].tick for part, is_it in parts if is_it] == sorted(skipped & {*ticks})
    assert all(len(part) == 1 if is_it else part for part, is_it in parts)
    renamed = found.with_paths({path: f"new {path}" for path in PATHS})
    assert [r.path for t in renamed for r in t.records if isinstance(r, Change)] == [
        f"new {r.path}" for t in expected for r in t.records if isinstance(r, Change)
    ]


@pytest.mark.parametrize("make", [several, plain])
def test_records_of_columns_are_sums(make: Callable[[], list[Transaction]]) -> None:
    expected = make()
    found = in_columns(expected)
    assert list(found.records()) == summed(expected)
    assert len(found.changes) < sum(len(each.records) for each in expected) / 10
    assert list(Transactions(expected).records()) == [(t.tick, t.tick, r) for t in expected for r in t.records]


def test_a_function_sees_each_record_in_order_and_may_replace_those_of_objects() -> None:
    found, seen = in_columns(several()), list[object]()

    def made(record: Record, first: int, last: int) -> Record:
        seen.append((first, last, record))
        return replace(record, statement="other") if isinstance(record, Ddl) else record

    expected = several()
    expected[250] = replace(expected[250], records=(made(expected[250].records[0], 0, 0),))
    seen.clear()
    assert list(found.with_records(made)) == expected
    assert seen == list(found.records())


@pytest.mark.parametrize("share", [0, 1, 40, 2])
def test_others_are_woven_in_by_their_ticks(share: int) -> None:
    everything = plain(400)
    others = everything[::share] if share else []
    rest = [each for each in everything if each not in others]
    assert list(Transactions(Transactions(rest).columns()).woven(others)) == everything


def run_of(**changed: Any) -> dict[str, Any]:
    """The fields of a line `run`, some of them others."""
    return {**run_json(plain(20)), **changed}


# What is wrong with a run's fields, and what is said.
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no transaction": ({"transactions": 0}, "not a tick or number"),
    "time": ({"started": "2025-12-32T23:59:59.000000Z"}, "not a time"),
    "time before year 1": ({"starts": [0] * 19 + [-(10**17)]}, "is not a time in microseconds"),
    "committed after year 9999": ({"lasted": 3 * 10**17}, "is not a time in microseconds"),
    "more than 64 bits": ({"starts": [0] * 19 + [2**63]}, "above"),
    "sum of more than 64 bits": ({"starts": [2**62] * 20}, "is not a number from"),
    "ticks that stay": ({"ticks": 0}, "is not a number from 1 to"),
    "ticks that fall": ({"ticks": [1] * 19 + [-1]}, "is not a number from 1 to"),
    "ticks too high": ({"ticks": 10**11}, "is not a tick from 1 to"),
    "tick": ({"tick": -1}, "not a tick or number"),
    "column too short": ({"starts": [0] * 19}, "has 19 values instead of 20"),
    "column too long": ({"user": [0] * 21}, "has 21 values instead of 20"),
    "a column that has to be written out": ({"starts": 1}, "is not a list"),
    "added as one number": ({"added": 1}, "is not a list"),
    "neither number nor list": ({"user": "0"}, "is not a list"),
    "one number that is true": ({"user": True}, "is not a list"),
    "fraction": ({"user": [0.0] * 20}, "not an integer"),
    "true": ({"user": [True] * 20}, "not an integer"),
    "null": ({"xids": [None] * 20}, "not an integer"),
    "user": ({"user": 9}, "is not a number from 0 to"),
    "no user": ({"users": [], "user": 0}, "is not a number from 0 to -1"),
    "user's name": ({"users": [1] * 4}, "not a text"),
    "xid": ({"xids": -2}, "is not a number from -1 to"),
    "negative": ({"removed": -1}, "is not a number from 0 to"),
    "too many rows": ({"removed": 10**10}, "is not a number from 0 to"),
    "more changes than files": ({"changes": 5}, "is not a number from 0 to 4"),
    "fewer changes": ({"changes": 0}, "values instead of 0"),
    "a file twice in one transaction": ({"file": 0}, "transaction [0-9]+ cannot have a change of .* twice"),
    "a file listed twice": ({"files": [{"table": ["m", "t"], "path": "p"}] * 4}, "a file of the run is there twice"),
    "key of a file": ({"files": [{"table": ["m", "t"], "path": "p", "info": 1}]}, "key 'info' is unknown"),
    "unknown key": ({"origin": None}, "key 'origin' is unknown"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_in_a_run_is_refused(wrong: str) -> None:
    changed, said = WRONG[wrong]
    assert list(as_run(run_of(info="ignored"))) == plain(20)
    with pytest.raises(FieldError, match=said):
        as_run(run_of(**changed))
    for key in run_of().keys() - {"xids"}:
        with pytest.raises(KeyError, match=key):
            as_run({k: value for k, value in run_of().items() if k != key})


def replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return resealed(data.replace(old, new, 1))


@pytest.mark.parametrize(
    "old, new, said",
    [
        (b'"removed":[', b'"removed":[1', "rows, its transactions have"),
        (b'"table":["main","orders_1"]', b'"table":["main","orders_3"]', "cannot have a change of main.orders_3"),
        (b'"path":"sales_000000000007.d/0.', b'"path":"sales_000000000007.d/9.', "cannot have a change of"),
        (b'"transactions":4000', b'"transactions":4001', "line 2: a column of the run has 4000 values instead of 4001"),
        (b'"tick":4', b'"tick":5', "ticks do not rise from the header's first"),
    ],
)
def test_a_run_that_does_not_fit_its_batch_is_refused(old: bytes, new: bytes, said: str) -> None:
    with pytest.raises(CorruptError, match=said):
        decode_batch(replaced(encode_batch(batch_of(plain(4_000))), old, new), "x")


@pytest.mark.parametrize("count", [1, 2, 12])
def test_a_run_of_few_is_written_as_lines_and_read(count: int) -> None:
    batch = batch_of(plain(count))
    run = Transactions(Transactions(batch.transactions).columns())
    assert list(run) == list(batch.transactions)
    assert encode_batch(replace(batch, transactions=run)) == encode_batch(batch)
    lines = encode_batch(batch).splitlines()
    line = json.dumps({"run": run_json(run)}).encode()
    assert decode_batch(resealed(b"\n".join([lines[0], line, *lines[-2:], b""])), "x") == batch


def test_ticks_of_a_run_that_do_not_rise_are_not_published() -> None:
    batch = batch_of(plain(12))
    run = Transactions(Transactions(batch.transactions).columns())
    columns = run.columns()
    columns.ticks[5] = columns.ticks[4]
    with pytest.raises(InvalidError, match="ticks do not rise"):
        encode_batch(replace(batch, transactions=run))


def test_columns_with_more_rows_than_the_line_can_hold_are_written_in_lines() -> None:
    columns = Transactions(plain(30)).columns()
    columns.removed[7] = 10**10
    batch = batch_of(list(Transactions(columns)))
    assert "run" in kinds(batch_of(plain(30)), runs_from=0)
    assert kinds(replace(batch, transactions=Transactions(columns)), runs_from=0) == kinds(batch, runs_from=0)
    assert "begin" in kinds(batch, runs_from=0)


def test_a_part_of_a_run_names_only_what_it_has() -> None:
    transactions = plain(200)
    run = Transactions(Transactions(transactions).columns())
    for part in (slice(3, 4), slice(50, 61), slice(199, 200)):
        assert run_json(run[part]) == run_json(transactions[part])


def test_a_run_behind_a_run_must_go_on() -> None:
    lines = encode_batch(batch_of(plain(4_000))).split(b"\n")
    again = b"\n".join([*lines[:2], *lines[1:]]).replace(b'{"end":{"transactions":4000', b'{"end":{"transactions":8000')
    with pytest.raises(CorruptError, match="ticks do not rise"):
        decode_batch(resealed(again), "x")


def kinds(batch: Batch, **options: int) -> list[str]:
    lines = encode_batch(batch, **options).splitlines()
    return [kind for line in lines for kind in json.loads(line) if kind in ("begin", "run")]


def test_runs_are_written_where_many_plain_transactions_follow_each_other() -> None:
    assert kinds(batch_of(plain(999))) == ["begin"] * 999
    assert kinds(batch_of(plain(1_000))) == ["run"]
    # A transaction that is not plain parts two runs; seven plain ones are none.
    unlike = plain(1_000)
    for place in (0, 8, 9, 990, 998):
        unlike[place] = replace(unlike[place], after=1)
    made = ["begin", *["begin"] * 7, *["begin"] * 2, "run", "begin", *["begin"] * 7, "begin", "begin"]
    assert kinds(batch_of(unlike)) == made
    assert kinds(batch_of(plain(10)), runs_from=0) == ["run"]


@pytest.mark.parametrize(
    "other",
    [
        {"origin": Origin("there", 3)},
        {"after": 4},
        {"committed": None, "records": ()},
        {"records": (Clear(TABLES[0], 1),)},
        {"records": (Change(TABLES[0], PATHS[0], 10**10, 0),)},
    ],
)
def test_what_is_not_plain_is_written_in_lines_of_its_own(other: dict[str, Any]) -> None:
    transactions = plain(30)
    transactions[15] = replace(transactions[15], **other)
    batch = batch_of(transactions)
    assert kinds(batch, runs_from=0) == ["run", "begin", "run"]
    assert decode_batch(encode_batch(batch, runs_from=0), "x") == batch


def test_the_specification_shows_a_run_as_it_is() -> None:
    text = (Path(__file__).parents[3] / "docs" / "format.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith('{"run":')]
    shown = json.loads(line)["run"]
    assert run_json(list(as_run(shown))) == shown
    assert all(f"`{key}`" in text for key in shown)


def test_columns_of_one_value_and_odd_times_are_read_as_written() -> None:
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    change = Change(TABLES[0], PATHS[0], 1, 0)
    odd = [
        Transaction(1, "a", last, first, (change,)),
        Transaction(2, "a", first, last, (change,), None, 2**63 - 1),
        Transaction(10**12 - 1, "a", first, first, (), None, 0),
    ]
    for transactions in (odd, [odd[0]], [replace(t, records=()) for t in odd]):
        assert list(as_run(json.loads(json.dumps(run_json(transactions))))) == transactions
