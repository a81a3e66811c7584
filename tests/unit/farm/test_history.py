"""What the DBA reads of a log that was written by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import duckdb
import pytest

from wlc.dialect.duckdb import row_images
from wlc.farm import history
from wlc.farm.database import describe_file, open_database
from wlc.farm.errors import CorruptError, GapError, InvalidError
from wlc.farm.model import Batch, Change, Clear, Column, Ddl, Layout, Name, SequencePosition, TableFile, Transaction

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
T, U, S = Name("main", "t"), Name("other", "t"), Name("main", "s")
LAYOUT = Layout((Column("id", "INTEGER"), Column("big", "HUGEINT"), Column("at", "TIMESTAMP")))


def parquet(tmp_path, number, rows):
    """Write row images as a batch has them: HUGEINT stored as text."""
    file = tmp_path / f"{number}.parquet"
    values = ", ".join(str(row) for row in rows)
    duckdb.sql(
        f"SELECT a::BIGINT _tick, b::TINYINT _weight, c::INTEGER id, d::VARCHAR big, e::TIMESTAMP AS at "
        f"FROM (VALUES {values}) v(a, b, c, d, e)"
    ).write_parquet(str(file))
    return file


@pytest.fixture
def database(tmp_path):
    return published(tmp_path)


def published(tmp_path):
    """Three ticks in batch 1, two in batch 2; tick 3 was rolled back."""
    database = open_database(str(tmp_path / "farm" / "sales"))
    first = parquet(
        tmp_path, 1, [(1, 1, 1, "9", "2026-01-01"), (2, 1, 1, "8", "2026-01-02"), (2, -1, 1, "9", "2026-01-01")]
    )
    path = "sales_000000000001.d/0.parquet"
    created = Ddl("CREATE TABLE", T, "CREATE TABLE t (id INTEGER)", layout=LAYOUT)
    transactions = (
        Transaction(1, "ann", NOON, NOON, (created, Change(T, path, 1, 0))),
        Transaction(2, "bob", NOON, NOON, (Change(T, path, 1, 1), SequencePosition(S, 12))),
        Transaction(3, "ann", NOON, None),
    )
    file = TableFile(describe_file(first, path, 3), T, LAYOUT)
    batch = Batch("sales", 1, "h1", 1, 3, "", "sales", transactions, (file,), {"h1": 3})
    chain = database.publish(batch, {path: first})
    more = (
        Transaction(4, "ann", NOON, NOON, (Clear(T, 1), Clear(U, 5))),
        Transaction(6, "ann", NOON, NOON),
    )
    second = replace(batch, number=2, first=4, last=6, previous=chain, transactions=more, files=(), vector={})
    database.publish(replace(second, vector={"h1": 6}), {})
    return database


def told(entries):
    return [(e.transaction.tick, e.batch, e.what, e.object, e.added, e.removed, e.statement) for e in entries]


def test_every_record_is_an_entry_and_rolled_back_is_marked(database) -> None:
    assert told(history.entries(database)) == [
        (1, 1, "CREATE TABLE", T, None, None, "CREATE TABLE t (id INTEGER)"),
        (1, 1, "change", T, 1, 0, None),
        (2, 1, "change", T, 1, 1, None),
        (2, 1, "sequence", S, None, None, "last value 12"),
        (3, 1, "rollback", None, None, None, None),
        (4, 2, "clear", T, 0, 1, None),
        (4, 2, "clear", U, 0, 5, None),
        (6, 2, "empty", None, None, None, None),
    ]


@pytest.mark.parametrize(
    "chosen, ticks",
    [
        ({"batch": 2}, [4, 4, 6]),
        ({"first": 2, "last": 3}, [2, 2, 3]),
        ({"first": 4}, [4, 4, 6]),
        ({"last": 1}, [1, 1]),
        ({"first": 5, "last": 5}, []),
        ({"first": 7}, []),
        ({"table": "t"}, [1, 1, 2, 4, 4]),
        ({"table": "other.t"}, [4]),
        ({"table": "T"}, []),
        ({"batch": 1, "table": "main.t", "first": 2}, [2]),
        ({"what": "create"}, [1]),
        ({"what": "CREATE TABLE"}, [1]),
        ({"what": "CREATE T"}, []),
        ({"what": "rollback"}, [3]),
        ({"since": NOON}, [1, 1, 2, 2, 3, 4, 4, 6]),
        ({"since": NOON + timedelta(microseconds=1)}, []),
    ],
)
def test_entries_are_chosen(database, chosen, ticks) -> None:
    assert [entry.transaction.tick for entry in history.entries(database, history.LogChoice(**chosen))] == ticks


@pytest.mark.parametrize(
    "limit, chosen, ticks",
    [(1, {}, [6]), (4, {}, [3, 4, 4, 6]), (99, {}, [1, 1, 2, 2, 3, 4, 4, 6]), (3, {"table": "t"}, [2, 4, 4])]
    + [(2, {"batch": 1}, [2, 3]), (2, {"last": 2}, [2, 2]), (2, {"first": 4}, [4, 6])],
)
def test_the_newest_entries_come_in_commit_order(database, limit, chosen, ticks) -> None:
    found = history.newest_entries(database, limit, history.LogChoice(**chosen))
    assert [entry.transaction.tick for entry in found] == ticks


def test_the_newest_entries_need_no_older_log_file_and_check_the_chain(database) -> None:
    first = database.logs.read("sales_000000000001")
    database.logs.delete("sales_000000000001")
    assert [entry.transaction.tick for entry in history.newest_entries(database, 3)] == [4, 4, 6]
    with pytest.raises(InvalidError, match="no database 'sales-not'"):
        history.newest_entries(open_database(f"{database.url}-not"), 3)
    chain = database.read_batch(2)[1]
    database.logs.create("sales_000000000001", first)
    third = replace(database.read_batch(2)[0], number=3, first=7, last=7, previous=f"0{chain}"[:64], transactions=())
    database.publish(replace(third, transactions=(Transaction(7, "ann", NOON, NOON),), vector={"h1": 7}), {})
    assert [entry.transaction.tick for entry in history.newest_entries(database, 1)] == [7]
    with pytest.raises(CorruptError, match="hash chain is broken"):
        history.newest_entries(database, 2)


def test_missing_batch_is_refused_and_those_there_are_named(database) -> None:
    with pytest.raises(InvalidError, match="no batch 3; it has 1 to 2"):
        list(history.entries(database, history.LogChoice(batch=3)))


def test_a_gap_in_the_log_is_named(database) -> None:
    batch, chain = database.read_batch(2)
    third = replace(batch, number=3, first=7, last=7, previous=chain, vector={"h1": 7})
    database.publish(replace(third, transactions=(Transaction(7, "ann", NOON, NOON),)), {})
    database.logs.delete("sales_000000000002")
    with pytest.raises(GapError, match="batch 2 of sales is missing, batch 3 is there"):
        list(history.entries(database))


def test_rows_have_values_of_the_declared_types_as_numbers_or_text(database) -> None:
    assert [(row.tick, row.weight, dict(row.values)) for row in row_images.rows(database)] == [
        (1, 1, {"id": 1, "big": "9", "at": "2026-01-01 00:00:00"}),
        (2, -1, {"id": 1, "big": "9", "at": "2026-01-01 00:00:00"}),
        (2, 1, {"id": 1, "big": "8", "at": "2026-01-02 00:00:00"}),
    ]


def test_a_folder_that_duckdb_takes_for_a_column_changes_no_value(tmp_path) -> None:
    folder = tmp_path / "id=7"
    folder.mkdir()
    assert [row.values["id"] for row in row_images.rows(published(folder))] == [1, 1, 1]


@pytest.mark.parametrize(
    "chosen, weights",
    [({"first": 2}, [-1, 1]), ({"last": 1}, [1]), ({"batch": 2}, []), ({"table": "other.t"}, [])],
)
def test_rows_are_chosen(database, chosen, weights) -> None:
    found = [row.weight for row in row_images.rows(database, **chosen)]
    assert found == weights
