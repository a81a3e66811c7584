"""A stream ends at a schema change after which one of its columns would be NULL, and goes on at all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.handmade import HandmadeFarm, Rows
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Clear, Name
from wlr.reading.trace import plan_feed, refuse_other_columns
from wlr.replay import log_reader

if TYPE_CHECKING:
    from pathlib import Path

# SQL of one transaction → what a stream of the columns i and v does.
CHANGES = {
    "ALTER TABLE {t} ADD COLUMN n INTEGER": "goes on",
    "ALTER TABLE {t} ADD COLUMN n INTEGER DEFAULT 7": "goes on",
    "ALTER TABLE {t} DROP COLUMN s": "goes on",
    "ALTER TABLE {t} RENAME COLUMN s TO r": "goes on",
    "ALTER TABLE {t} ALTER COLUMN v SET NOT NULL": "goes on",
    "ALTER TABLE {t} ALTER COLUMN v SET DEFAULT 'x'": "goes on",
    "ALTER TABLE {t} ADD PRIMARY KEY (i)": "goes on",
    "ALTER TABLE {t} ALTER COLUMN i TYPE BIGINT": "goes on",
    "COMMENT ON COLUMN {t}.v IS 'c'": "goes on",
    "CREATE INDEX of_{t} ON {t} (v)": "goes on",
    "DROP TABLE {t}; CREATE TABLE {t} (v VARCHAR, i INTEGER)": "goes on",
    "CREATE TABLE other (v INTEGER); ALTER TABLE other RENAME COLUMN v TO y": "goes on",
    "ALTER TABLE {t} RENAME COLUMN v TO w": "ends",
    "ALTER TABLE {t} DROP COLUMN v": "ends",
    "ALTER TABLE {t} DROP COLUMN v; ALTER TABLE {t} ADD COLUMN v VARCHAR": "ends",
    "ALTER TABLE {t} RENAME i TO j; ALTER TABLE {t} RENAME v TO i; ALTER TABLE {t} RENAME j TO v": "ends",
    "DROP TABLE {t}; CREATE TABLE {t} (i INTEGER)": "ends",
    "CREATE OR REPLACE TABLE {t} (i INTEGER, w VARCHAR)": "ends",
}
# The same for a stream that is started again on its checkpoint, and then has the columns i and w.
NEW_COLUMN = {
    "ALTER TABLE {t} ADD COLUMN w INTEGER": "goes on",
    "ALTER TABLE {t} ADD COLUMN w INTEGER DEFAULT 7": "ends",
    "ALTER TABLE {t} RENAME COLUMN v TO w": "ends",
}
CASES = [(change, ("i", "v"), end) for change, end in CHANGES.items()]
CASES += [(change, ("i", "w"), end) for change, end in NEW_COLUMN.items()]


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> HandmadeFarm:
    """A table for each case: the first log file makes it, the second one changes it."""
    made = HandmadeFarm(tmp_path_factory.mktemp("streams"))
    tables = [f"t{number}" for number in range(len(CASES))]
    create = "CREATE TABLE {} (i INTEGER, v VARCHAR, s STRUCT(a INTEGER))"
    made.publish(*[[create.format(table), Rows(table, ("1, 'a', {'a': 1}",))] for table in tables])
    made.publish(*[case[0].format(t=table).split("; ") for table, case in zip(tables, CASES, strict=True)])
    return made


def read(farm: HandmadeFarm, table: Name, wanted: tuple[str, ...], after: int, *, has_begun: bool) -> None:
    chain = farm.db.read_batch(after)[1] if after else ""
    batches = log_reader.batches_between(farm.db, after + 1, farm.batch, chain, after=1)
    plan = plan_feed(farm.db, batches, table, (1, None))
    refuse_other_columns(farm.db, plan, table, wanted, batches[0][0].first, has_begun=has_begun)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{change} {wanted[1]}" for change, wanted, _ in CASES])
def test_a_stream_goes_on_or_ends(farm: HandmadeFarm, case: int) -> None:
    _, wanted, end = CASES[case]
    table, tick = Name("main", f"t{case}"), len(CASES) + 1 + case
    # The rows before the change are in the same micro-batch, or were given by an earlier one.
    for after, first in ((0, 1), (1, len(CASES) + 1)):
        if end == "goes on":
            read(farm, table, wanted, after, has_begun=after > 0)
            continue
        with pytest.raises(
            UnsupportedError, match=rf"transaction {tick} dropped or renamed column .* of table {table}"
        ) as e:
            read(farm, table, wanted, after, has_begun=after > 0)
        before = f"Read the changes from_tick {first} to_tick {tick - 1}, then begin" if first < tick else "Begin"
        assert e.value.hint == f"{before} a new stream with from_tick {tick} and a new checkpoint."
    # The new stream that the error asks for begins with that log file.
    if wanted[1] == "w":
        read(farm, table, wanted, 1, has_begun=False)


def test_a_transaction_that_also_changes_rows_is_behind_the_new_stream(tmp_path: Path) -> None:
    """A stream that began with the transaction would end again: its rows from before have the former columns."""
    made = HandmadeFarm(tmp_path)
    changes = ["RENAME COLUMN v TO w", "DROP COLUMN v", "ADD COLUMN w INTEGER DEFAULT 7"]
    tables = [f"t{number}" for number in range(2 * len(changes))]
    made.publish(*[[f"CREATE TABLE {table} (i INTEGER, v VARCHAR)", Rows(table, ("1, 'a'",))] for table in tables])
    images = [Rows, Clear] * len(changes)
    own = [
        Rows(table, ("2, 'b'",)) if kind is Rows else Clear(Name("main", table), 1)
        for table, kind in zip(tables, images, strict=True)
    ]
    made.publish(
        *[
            [rows, f"ALTER TABLE {table} {changes[n // 2]}"]
            for n, (table, rows) in enumerate(zip(tables, own, strict=True))
        ]
    )
    for number, name in enumerate(tables):
        column, tick = "w" if "ADD" in changes[number // 2] else "v", len(tables) + 1 + number
        for has_begun in (True, False):
            with pytest.raises(
                UnsupportedError, match=f"transaction {tick} dropped or renamed column {column}"
            ) as ended:
                read(made, Name("main", name), ("i", column), 1, has_begun=has_begun)
            assert ended.value.hint is not None
            assert ended.value.hint.startswith(f"Read the whole table at tick {tick}, in place of")
            assert ended.value.hint.endswith(f"begin a new stream with from_tick {tick + 1} and a new checkpoint.")
