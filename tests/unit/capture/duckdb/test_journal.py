"""The journal's entries, written and read, and the rows of every table followed through them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import duckdb
import pytest

from wlc.capture.duckdb import journal
from wlc.capture.duckdb.journal import JournalEntry, JournalledImages
from wlc.capture.duckdb.unpublished import count_rows
from wlc.farm.model import (
    Clear,
    Column,
    CreatedObject,
    DbObject,
    Ddl,
    Digest,
    Layout,
    Name,
    Origin,
    RenamedObject,
    SequencePosition,
)

if TYPE_CHECKING:
    from wlc.capture.duckdb.journal import JournalRecord

T, U = Name("main", "t"), Name("main", "u")
TABLE = DbObject("TABLE", T)
DDL = Ddl(
    "CREATE TABLE",
    T,
    "CREATE TABLE t (a INTEGER)",
    ("one", "main"),
    settings=(("TimeZone", "Asia/Tokyo"), ("integer_division", "true")),
    layout=Layout((Column("a", "INTEGER"),)),
    digest=Digest(0, 0),
)


NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def entry(*records: JournalRecord, committed: datetime | None = NOON) -> JournalEntry:
    return JournalEntry(1, "ann", NOON, committed, records)


def images(table: Name, added: int, removed: int) -> JournalledImages:
    return JournalledImages(table, 1, added, removed)


def test_changes_and_clears_add_up() -> None:
    entries = [
        entry(images(T, 5, 2)),
        entry(Clear(T, 13), images(T, 4, 0)),
        entry(committed=None),
    ]
    assert count_rows({T: 10, U: 1}, entries) == {T: 4, U: 1}


def test_schema_changes_move_counts() -> None:
    ddl = replace(DDL, does=(RenamedObject(TABLE, U),))
    again = replace(DDL, does=(CreatedObject(TABLE),))
    assert count_rows({T: 10}, [entry(ddl, again, images(T, 1, 0))]) == {U: 10, T: 1}
    replaced = replace(DDL, does=(CreatedObject(TABLE, replaces=True),))
    assert count_rows({T: 10}, [entry(replaced, images(T, 3, 0))]) == {T: 3}


ENTRIES = [
    entry(images(T, 5, 2)),
    entry(committed=None),
    JournalEntry(
        7,
        'A "b" \u00fc',
        NOON,
        NOON + timedelta(microseconds=1),
        (
            Clear(T, 13),
            images(U, 0, 2**40),
            replace(DDL, does=(RenamedObject(TABLE, U), CreatedObject(TABLE))),
            DDL,
            SequencePosition(T, -5),
        ),
        Origin("0123456789abcdef0123456789abcdef", 3),
    ),
]


@pytest.mark.parametrize("written", ENTRIES)
def test_an_entry_is_read_as_it_was_written(written: JournalEntry) -> None:
    with duckdb.connect() as connection:
        journal.install(connection, "memory")
        journal.add_entry(connection, "memory", written)
        ((tick, text),) = connection.execute("FROM wlc.entries").fetchall()
        assert journal.decode_entry(tick, text) == written
        assert journal.last_commit(connection, "memory", ()) == (written.tick, written.committed)
    header = journal.decode_entry(written.tick, written.header, images(T, 1, 0))
    assert header == replace(written, records=(images(T, 1, 0),))


def test_an_empty_journal_has_no_last_commit() -> None:
    with duckdb.connect() as connection:
        journal.install(connection, "memory")
        assert journal.last_commit(connection, "memory", ()) == (0, None)


def test_a_variable_of_the_caller_is_not_taken_for_the_state() -> None:
    """DuckDB looks for a table that is not there among the Python variables of all callers."""
    with duckdb.connect() as connection:
        state = connection.sql("SELECT 'name' AS key, 'mine' AS value")
        assert journal.read_state(connection, "memory") == {}
        assert state.fetchall() == [("name", "mine")]
