"""A reader that runs no statements sees what a replica that runs them all would hold, at every tick of random lives."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
from tests.new_master import new_master
from tests.sampling import sampled
from tests.spark.reading import Texts, expected, tasks_rows
from wlc.farm.database import open_database

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 30


class Life:
    """Random statements on a keyed table, a bag, and a bag that becomes keyed or is made anew."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.columns = 0

    def statements(self) -> list[str]:
        number, value = self.random.randrange(40), self.random.choice(["NULL", "'x'", "'y'", "'z'"])
        zero = self.random.choice(["0.0", "-0.0", "'nan'", "1.5"])
        table = self.random.choice(["k", "b", "b"])
        return self.random.choice(
            [
                [f"INSERT OR REPLACE INTO k (id, v, f) VALUES ({number}, {value}, {zero}::DOUBLE)"],
                [f"INSERT INTO b (v, f) SELECT {value}, {zero}::DOUBLE FROM range({number % 4 + 1})"],
                [f"INSERT INTO b (v, f) VALUES ({value}, {zero}::DOUBLE)", f"UPDATE b SET f = -f WHERE v = {value}"],
                [f"UPDATE {table} SET v = {value} WHERE f = 0"],
                [
                    f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} ORDER BY hash(rowid + {number}) LIMIT 2)"
                ],
                [f"DELETE FROM k WHERE id = {number}", f"INSERT OR IGNORE INTO k (id, v) VALUES ({number}, {value})"],
                self.rare(table),
            ]
        )

    def rare(self, table: str) -> list[str]:
        self.columns += 1
        name = f"c{self.columns}"
        return self.random.choice(
            [
                [f"TRUNCATE {table}"],
                [
                    f"ALTER TABLE {table} ADD COLUMN {name} HUGEINT DEFAULT {self.columns}",
                    f"INSERT INTO b (v) VALUES ('{name}')",
                ],
                [f"ALTER TABLE {table} ADD COLUMN {name} VARCHAR", f"ALTER TABLE {table} DROP COLUMN {name}"],
                [
                    f"ALTER TABLE {table} ADD COLUMN {name} VARCHAR",
                    f"ALTER TABLE {table} RENAME COLUMN {name} TO r{name}",
                ],
                [
                    "ALTER TABLE b RENAME TO other",
                    "INSERT INTO other (v) VALUES ('moved')",
                    "ALTER TABLE other RENAME TO b",
                ],
                ["CREATE OR REPLACE TABLE b (v VARCHAR, f DOUBLE)", "INSERT INTO b VALUES ('anew', -0.0)"],
                ["ALTER TABLE b ALTER COLUMN f TYPE FLOAT", "ALTER TABLE b ALTER COLUMN f TYPE DOUBLE"],
            ]
        )


@pytest.mark.parametrize("seed", sampled([1, 2], 1))
def test_every_tick_of_a_random_life(tmp_path: Path, seed: int) -> None:
    path, life = tmp_path / "life.duckdb", Life(seed)
    with new_master(path) as connection:
        connection.execute("CREATE TABLE k (v VARCHAR, id INTEGER PRIMARY KEY, f DOUBLE)")
        connection.execute("CREATE TABLE b (v VARCHAR, f DOUBLE)")
        for round_ in range(ROUNDS):
            connection.begin()
            for statement in life.statements():
                connection.execute(statement)
            connection.commit()
            if round_ % 7 == 3:
                wlc.flush(path)
            if round_ % 15 == 9:
                wlc.snapshot(path)
    url = f"{tmp_path}/farm/life"
    last = open_database(url).config().tick
    # One tick in three, another one for each seed, and the last.
    for tick in [*range(2 + seed, last, 3), last]:
        for table in "kb":
            assert tasks_rows(url, table, tick=str(tick)) == expected(url, f"main.{table}", tick), (table, tick)


def test_a_bag_that_became_keyed_loses_copies_only(tmp_path: Path) -> None:
    path = tmp_path / "bag.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (i INTEGER, s VARCHAR)")
        connection.execute("INSERT INTO t VALUES (1, 'a'), (1, 'b'), (2, 'c'), (2, 'c'), (3, 'd')")
    wlc.master(path, farm=str(tmp_path / "farm"))
    with wlc.connect(path) as connection:
        connection.execute("DELETE FROM t WHERE s = 'b' OR rowid = 3")
        connection.execute("ALTER TABLE t ADD PRIMARY KEY (i)")
    wlc.flush(path)
    before = {("1", "a"): 1, ("1", "b"): 1, ("2", "c"): 2, ("3", "d"): 1}
    assert tasks_rows(f"{tmp_path}/farm/bag", "t", tick="0") == before
    assert tasks_rows(f"{tmp_path}/farm/bag", "t") == {("1", "a"): 1, ("2", "c"): 1, ("3", "d"): 1}


def test_changes_before_and_after_a_snapshot_add_up(tmp_path: Path) -> None:
    path = tmp_path / "sum.duckdb"
    with new_master(path) as connection:
        connection.execute("CREATE TABLE t (i INTEGER)")
        for number in range(3):
            connection.execute(f"INSERT INTO t SELECT i % 3 FROM range({number + 4}) r(i)")
            connection.execute("UPDATE t SET i = i + 1 WHERE i = 2")
            wlc.snapshot(path)
            connection.execute("TRUNCATE t" if number == 1 else "DELETE FROM t WHERE i = 0")
            wlc.flush(path)
    url = f"{tmp_path}/farm/sum"
    for tick in range(1, open_database(url).config().tick + 1):
        total: Texts = Counter()
        for (value, weight), copies in tasks_rows(url, "t", "i", "_weight", changes="true", to_tick=str(tick)).items():
            total[(value,)] += int(weight or 0) * copies
        assert total == expected(url, "main.t", tick), tick
