"""What the primary reports, refreshes and takes when it rejects a part of another site's step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from wlc.capture.duckdb import journal
from wlc.capture.duckdb.journal import CapturedTable, JournalledRefresh
from wlc.dialect.sql import quote
from wlc.dialect.types import storage_type
from wlc.farm.model import Column, Layout, Name, Origin
from wlc.multi_master.duckdb import conflict_window, judging, rejected_rows
from wlc.multi_master.duckdb.rejected_rows import Detection
from wlc.multi_master.duckdb.verdicts import Seen
from wlc.multi_master.site_step import RejectedRow

if TYPE_CHECKING:
    from collections.abc import Iterator

P, S = "p" * 32, "s" * 32
NOW = datetime(2026, 5, 4, 3, 2, 1, 123456, tzinfo=UTC)
T, LOG = Name("main", "t"), Name("main", "log")
KEYED = Layout((Column("k", "INTEGER", nullable=False), Column("v", "VARCHAR")), ("k",))
WHERE = Detection("memory", "oslo", "rome", NOW)


@dataclass(frozen=True)
class HandmadeTable:
    table: CapturedTable
    lines: str
    reads: str | None = None


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        journal.install(opened, "memory")
        conflict_window.create(opened)
        yield opened


def made(connection: duckdb.DuckDBPyConnection, number: int, name: Name, layout: Layout) -> HandmadeTable:
    """A table of the primary that the step touches."""
    key = f", PRIMARY KEY ({', '.join(layout.primary_key)})" if layout.primary_key else ""
    columns = ", ".join(f"{column.name} {column.type}" for column in layout.stored)
    connection.execute(f"CREATE TABLE {name.sql} ({columns}{key})")
    table = CapturedTable(number, "memory", name, layout)
    journal.add_layout(connection, table)
    stored = ", ".join(f"c{place} {storage_type(column.type)}" for place, column in enumerate(layout.stored))
    connection.execute(f'CREATE TEMP TABLE "lines {number}" (_line BIGINT, _weight TINYINT, {stored})')
    return HandmadeTable(table, f'temp."lines {number}"')


def change(connection: duckdb.DuckDBPyConnection, table: HandmadeTable, line: int, weight: int, values: str) -> None:
    connection.execute(f"INSERT INTO {table.lines} SELECT {line}, {weight}, {values}")


def seen(count: int) -> list[Seen]:
    return [Seen(line, Origin(S, 100 + line), {P: 10}) for line in range(1, count + 1)]


def window_line(connection: duckdb.DuckDBPyConnection, table: HandmadeTable, key: str) -> None:
    layout = table.table.layout
    number = conflict_window.key_sql(table.table.name, conflict_window.key_columns(layout), [key])
    connection.execute(
        f"INSERT INTO {conflict_window.WINDOW} BY NAME SELECT {number} AS key, '{P}' AS history, 20 AS tick"
    )


def rows(connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    return connection.execute(query).fetchall()


def test_a_rejected_row_is_reported_with_all_images_and_its_refresh_journalled(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    table = made(connection, 1, T, KEYED)
    connection.execute("INSERT INTO t VALUES (1, 'here')")
    window_line(connection, table, "1::INTEGER")
    change(connection, table, 1, -1, "1, 'before'")
    change(connection, table, 1, 1, "1, 'after'")
    change(connection, table, 1, 1, "2, 'new'")
    judged = judging.judge(connection, WHERE, seen(1), [table], {T: "epoch"})
    (row,) = rejected_rows.read(connection, "memory")
    assert row == RejectedRow(
        "oslo", "rome", 101, row.count, T, {"k": 1}, "UPDATE_ROW", "DATA_IN_CONFLICT", "update_origin_differs",
        {"k": 1, "v": "before"}, {"k": 1, "v": "after"}, {"k": 1, "v": "here"}, S, 101, NOW, dependent=False,
    )  # fmt: skip
    assert judged.refresh == (JournalledRefresh(T, 1, 1, absent=False),)
    assert rows(connection, f"SELECT _tick, _weight, c0, c1 FROM {table.table.images}") == [
        (judging.REFRESH_TICK, journal.REFRESHED, 1, "here")
    ]
    assert rows(connection, f"SELECT * FROM {table.lines}") == [(1, 1, 2, "new")]
    assert judged.lines == frozenset()


def test_a_row_that_the_primary_deleted_is_refreshed_as_absent(connection: duckdb.DuckDBPyConnection) -> None:
    table = made(connection, 1, T, KEYED)
    window_line(connection, table, "1::INTEGER")
    change(connection, table, 1, -1, "1, 'before'")
    change(connection, table, 1, 1, "1, 'after'")
    judged = judging.judge(connection, WHERE, seen(1), [table], {T: "epoch"})
    assert judged.refresh == (JournalledRefresh(T, 1, 1, absent=True),)
    assert rows(connection, f"SELECT _tick, _weight, c0, c1 FROM {table.table.images}") == [
        (judging.REFRESH_TICK, journal.ABSENT, 1, None)
    ]
    (row,) = rejected_rows.read(connection, "memory")
    assert (row.local, row.pg_type) == (None, "update_deleted")


def test_rows_deleted_on_both_sides_are_reported_and_not_refreshed(connection: duckdb.DuckDBPyConnection) -> None:
    table = made(connection, 1, T, KEYED)
    window_line(connection, table, "1::INTEGER")
    change(connection, table, 1, -1, "1, 'before'")
    judged = judging.judge(connection, WHERE, seen(1), [table], {T: "epoch"})
    assert (judged.lines, judged.refresh, judged.has_conflicts) == (frozenset(), (), True)
    # The author is told all the same.
    assert [(row.key, row.old, row.local) for row in judged.rejected] == [({"k": 1}, {"k": 1, "v": "before"}, None)]
    assert [row.cause for row in rejected_rows.read(connection, "memory")] == ["ROW_DOES_NOT_EXIST"]


def test_the_log_lists_only_so_many_rejected_rows_and_says_how_many_more_there_are(
    connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejected_rows, "LISTED_MOST", 2)
    table = made(connection, 1, T, KEYED)
    for key in (1, 2, 3):
        window_line(connection, table, f"{key}::INTEGER")
        change(connection, table, 1, -1, f"{key}, 'before'")
    judged = judging.judge(connection, WHERE, seen(1), [table], {T: "epoch"})
    found = rejected_rows.read(connection, "memory")
    assert [(row.tick, row.count, row.key, row.more) for row in judged.rejected] == [
        (row.source_tick, row.count, row.key, more) for row, more in zip(found[:2], (0, 1), strict=True)
    ]
    assert len(found) == 3


def test_the_refresh_is_what_the_row_is_after_the_step(connection: duckdb.DuckDBPyConnection) -> None:
    table = made(connection, 1, T, KEYED)
    other = made(connection, 2, LOG, KEYED)
    connection.execute("INSERT INTO t VALUES (1, 'here'), (2, 'old'); INSERT INTO log VALUES (1, 'old')")
    window_line(connection, table, "1::INTEGER")
    # The first transaction is accepted, the second is rejected for row 1, and the third changes what has no rule.
    for line, before, after in ((1, "old", "first"), (2, "first", "second")):
        change(connection, table, line, -1, f"2, '{before}'")
        change(connection, table, line, 1, f"2, '{after}'")
    change(connection, table, 2, -1, "1, 'x'")
    for line, before, after in ((2, "old", "second"), (3, "second", "third")):
        change(connection, other, line, -1, f"1, '{before}'")
        change(connection, other, line, 1, f"1, '{after}'")
    judged = judging.judge(connection, WHERE, seen(3), [table, other], {T: "epoch_trans"})
    assert judged.lines == {2}
    assert rows(connection, f"SELECT c0, c1 FROM {table.table.images} ORDER BY 1") == [(1, "here"), (2, "first")]
    assert rows(connection, f"SELECT c0, c1 FROM {other.table.images} ORDER BY 1") == [(1, "third")]
    assert rows(connection, f"SELECT DISTINCT _line FROM {other.lines}") == [(3,)]
    local = {(row.table, row.key["k"]): row.local for row in rejected_rows.read(connection, "memory")}
    assert local == {(T, 1): {"k": 1, "v": "here"}, (T, 2): {"k": 2, "v": "first"}, (LOG, 1): {"k": 1, "v": "old"}}


def test_rows_of_tables_without_a_key_go_with_their_transaction(connection: duckdb.DuckDBPyConnection) -> None:
    table, bag = made(connection, 1, T, KEYED), made(connection, 2, LOG, replace(KEYED, primary_key=()))
    window_line(connection, table, "1::INTEGER")
    for line in (1, 2):
        change(connection, table, line, 1, f"{line}, 'x'")
        change(connection, bag, line, 1, f"{line}, 'x'")
    judging.judge(connection, WHERE, seen(2), [table, bag], {T: "epoch_trans"})
    assert rows(connection, f"SELECT _line FROM {bag.lines}") == [(2,)]


def test_what_cannot_be_applied_is_rejected_with_its_cause_and_what_depends_on_it(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    table = made(connection, 1, T, KEYED)
    change(connection, table, 1, 1, "1, 'x'")
    change(connection, table, 2, -1, "1, 'x'")
    change(connection, table, 3, 1, "3, 'x'")
    judged = judging.judge(connection, WHERE, seen(3), [table], {T: "epoch"}, {1: "constraint"})
    assert judged.lines == {1}
    assert [row.cause for row in rejected_rows.read(connection, "memory")] == ["constraint", "ROW_DOES_NOT_EXIST"]
    assert rows(connection, f"SELECT _line FROM {table.lines}") == [(3,)]
    counts = {(c.rule, c.name): c.value for c in rejected_rows.counters(connection, "memory")}
    assert counts == {
        ("", "delete_delete"): 1,
        ("", "refreshed"): 1,
        ("", "refused"): 1,
        ("epoch", "epoch"): 1,
    }


def test_counters_add_up(connection: duckdb.DuckDBPyConnection) -> None:
    table = made(connection, 1, T, KEYED)
    window_line(connection, table, "1::INTEGER")
    for _ in range(2):
        change(connection, table, 1, 1, "1, 'x'")
        judging.judge(connection, WHERE, seen(1), [table], {T: "epoch"})
        # Whoever takes the step gives the refresh its tick.
        connection.execute(f"UPDATE {table.table.images} SET _tick = 1")
    counts = {(c.site, c.rule, c.name): c.value for c in rejected_rows.counters(connection, "memory")}
    assert counts == {("rome", "epoch", "epoch"): 2, ("rome", "", "refreshed"): 2}


def test_a_typed_view_has_every_value_as_it_was(connection: duckdb.DuckDBPyConnection) -> None:
    values = {
        "HUGEINT": "170141183460469231731687303715884105727",
        "DOUBLE": "'nan'::DOUBLE",
        "DECIMAL(10,2)": "12.30",
        "BLOB": "'\\x00\\xFF'::BLOB",
        "INTERVAL": "INTERVAL '3 months 2 days 1 microsecond'",
        "DATE": "DATE '2026-02-03'",
        "TIMESTAMP WITH TIME ZONE": "TIMESTAMPTZ '2026-02-03 04:05:06.789+00'",
        "VARCHAR[]": "['a,b', NULL, '\"']",
        "STRUCT(a INTEGER, b VARCHAR)": "{'a': 1, 'b': 'it''s'}",
        "BOOLEAN": "true",
        "UUID": "uuid()",
        "VARCHAR": "'null'",
    }
    columns = tuple(Column(f"v{place}", kind) for place, kind in enumerate(values))
    layout = Layout((Column('odd "k$.', "INTEGER", nullable=False), *columns), ('odd "k$.',))
    listed = ", ".join(f"{quote(column.name)} {column.type}" for column in layout.stored)
    connection.execute(f'CREATE TABLE made ({listed}, PRIMARY KEY ("odd ""k$."))')
    table = CapturedTable(1, "memory", Name("main", "made"), layout)
    journal.add_layout(connection, table)
    connection.execute(f"INSERT INTO made SELECT 1, {', '.join(values.values())}")
    image = f"SELECT 1::BIGINT AS _line, 1::TINYINT AS _weight, {table.named_values} FROM made"
    connection.execute(f'CREATE TEMP TABLE "lines" AS {image}')
    judging.judge(connection, WHERE, seen(1), [HandmadeTable(table, 'temp."lines"')], {table.name: "epoch"})
    same = " AND ".join(
        f"x.{quote(column.name + '$NEW')} IS NOT DISTINCT FROM m.{quote(column.name)}" for column in layout.stored
    )
    assert rows(connection, f'SELECT {same} FROM wlc."made$EX" AS x, made AS m') == [(True,)]
    named = 'server_id, master_server_id, master_epoch, "count", "odd ""k$.", op_type, cft_cause'
    assert rows(connection, f'SELECT {named} FROM wlc."made$EX"') == [
        ("oslo", "rome", 101, 1, 1, "WRITE_ROW", "ROW_ALREADY_EXISTS")
    ]


def test_exceptions_are_chosen_by_time(connection: duckdb.DuckDBPyConnection) -> None:
    table = made(connection, 1, T, KEYED)
    assert rejected_rows.read(connection, "memory") == []
    assert rejected_rows.counters(connection, "memory") == []
    window_line(connection, table, "1::INTEGER")
    change(connection, table, 1, 1, "1, 'x'")
    judging.judge(connection, WHERE, seen(1), [table], {T: "epoch"})
    assert len(rejected_rows.read(connection, "memory", NOW)) == 1
    assert rejected_rows.read(connection, "memory", NOW.replace(year=2027)) == []
