"""What a journal holds reads the same as columns and as objects, and gives the same batch."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import duckdb
import pytest

from tests.unit.masters.test_master_state import FIRST
from wlc.capture.duckdb import journal, unpublished
from wlc.capture.duckdb.journal import CapturedTable, JournalEntry, JournalledImages
from wlc.farm.model import Clear, Column, Ddl, Digest, Layout, Name, Origin, SequencePosition, Taken

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.capture.duckdb.journal import JournalRecord
    from wlc.masters.contract import BatchContent

LAYOUT = Layout((Column("id", "BIGINT"), Column("b", "VARCHAR")), ("id",))
TABLES = [CapturedTable(3 + n, "memory", Name("main", f"t{n}"), LAYOUT) for n in range(3)]
USERS = ["", "ann", 'A "b" \\ \u00fc\U0001f600', '", "started": "', "a\nb\t\u2028 '%_'", "{}", "日本"]
FIRST_TIME, LAST_TIME = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def entry(rng: random.Random, tick: int, *, is_odd: bool) -> JournalEntry:
    """A transaction without records; an odd one was taken from another site."""
    started = rng.choice(
        [FIRST_TIME, LAST_TIME, datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC) + timedelta(microseconds=tick)]
    )
    committed = rng.choice([started, datetime(2026, 11, 20, tzinfo=UTC) + timedelta(microseconds=tick * 7)])
    made = JournalEntry(tick, rng.choice(USERS), started, committed)
    if not is_odd:
        return made
    origin = Origin("b" * 16, tick, rng.choice([None, committed]))
    proof = Taken("there", "b" * 16, tick, 4, "c" * 64, rng.choice(["", "d" * 64]))
    return replace(made, origin=origin, after=rng.choice([None, tick - 1]), proof=rng.choice([None, proof]))


def fill(connection: duckdb.DuckDBPyConnection, count: int, odd: float) -> None:
    """Journal transactions of one table, with their own data in the images; and others, with entries."""
    rng = random.Random(count)
    journal.install(connection, "memory")
    for table in TABLES:
        journal.add_layout(connection, table)
        connection.execute("INSERT INTO wlc.counts VALUES ('main', ?, 1000, 5, 6)", [table.name.name])
    tick, images, entries = 9, [], []
    for _ in range(count):
        tick += rng.choice([1, 1, 1, 5])
        made = entry(rng, tick, is_odd=rng.random() < odd)
        counts = [(table, rng.randint(0, 2), rng.randint(0, 2)) for table in TABLES]
        if rng.random() >= odd:
            table, added, removed = rng.choice(counts)
            counts = [(table, added or 1 - min(removed, 1), removed)]
        else:
            counts = [found for found in counts if found[1] + found[2]]
            records: list[JournalRecord] = [
                JournalledImages(table.name, table.id, added, removed) for table, added, removed in counts
            ]
            others: list[JournalRecord] = [
                Clear(TABLES[1].name, 2),
                SequencePosition(Name("main", "s"), tick),
                ALTER,
            ]
            entries.append(replace(made, records=(*records, *rng.sample(others, rng.randint(0, 2)))))
        # A transaction's own data is with its first image.
        header = None if len(entries) and entries[-1].tick == tick else made.header
        for table, added, removed in counts:
            for weight in [-1] * removed + [1] * added:
                images.append((table.id, tick, weight, header, rng.randrange(9), rng.choice(["x", None])))
                header = None
    journal.add_entries(connection, "memory", entries)
    for table in TABLES:
        its = [row[1:] for row in images if row[0] == table.id]
        connection.executemany(f"INSERT INTO {table.images} VALUES (?, ?, NULL, ?, ?, ?)", its)


ALTER = Ddl("ALTER TABLE", TABLES[2].name, "ALTER TABLE t2 ADD COLUMN c INTEGER", layout=LAYOUT, digest=Digest(3, 4))


@pytest.fixture(
    params=[
        pytest.param((300, 0.0), id="plain"),
        pytest.param((300, 0.01), id="with others", marks=pytest.mark.slow),
        pytest.param((60, 0.5), id="mostly others", marks=pytest.mark.slow),
    ]
)
def filled(request: pytest.FixtureRequest) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        fill(connection, *request.param)
        yield connection


def test_columns_say_what_objects_say(
    filled: duckdb.DuckDBPyConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(waiting: unpublished.Pending) -> BatchContent:
        return unpublished.write_batch(filled, "memory", waiting, tmp_path, FIRST)

    for options in ({}, {"most": 40}, {"most": 250, "after": 77}):
        plain = unpublished.pending(filled, "memory", **options)
        assert list(plain.logged.objects) == list(plain.logged)
        with monkeypatch.context() as patch:
            patch.setattr(unpublished, "_RUN_LEAST", 0)
            columns = unpublished.pending(filled, "memory", **options)
            digests = unpublished.expected_digests(filled, "memory")
        assert columns.transactions == plain.transactions
        ticks = [each.tick for each in plain.transactions]
        assert columns.logged.ticks == plain.logged.ticks == ticks
        assert columns.logged == plain.logged
        ours, theirs = written(columns), written(plain)
        assert list(ours.transactions) == list(theirs.transactions)
        assert replace(ours, transactions=()) == replace(theirs, transactions=())
        assert digests == unpublished.expected_digests(filled, "memory")
        for last in (ticks[0] - 1, ticks[len(ticks) // 2], ticks[-1]):
            before = {table.name: 1000 for table in TABLES}
            expected = unpublished.count_rows(before, (each for each in plain.transactions if each.tick <= last))
            assert unpublished.count_pending_rows(before, columns, last) == expected
        assert columns.logged.is_rising


def test_most_of_a_long_journal_is_read_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpublished, "_RUN_LEAST", 0)
    with duckdb.connect() as connection:
        fill(connection, 300, 0.01)
        waiting = unpublished.pending(connection, "memory")
    objects = list(waiting.logged.objects)
    assert 0 < len(objects) < 50 < 250 < len(waiting.logged)
    assert [each.tick for each in objects] == [each.tick for each in waiting.entries]
    assert {each.user for each in waiting.logged} == set(USERS)
