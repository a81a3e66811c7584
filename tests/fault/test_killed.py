"""Masters, publishers, replicas, derivations and feeds are killed with kill -9 under load: nothing is lost and nothing twice."""

from __future__ import annotations

import hashlib
import hmac
import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import wlc
import wlr
from tests.fault import kill
from tests.fault.processes import Program, rounds, seed
from tests.feed_oracle import flat, projection
from tests.mock_kafka import messages, mock_cluster
from tests.scenario.test_feed import as_records as records_of_lines
from tests.scenario.test_feed import lines
from tests.scenario.test_feed_kafka import as_records, once
from tests.soak import run
from wlc.farm.database import open_database

if TYPE_CHECKING:
    from pathlib import Path

# Derived databases: each tick holds what passes, and nothing else ------------------------------------------------------


KEY = b"a key of more than sixteen bytes"
FILTERS = (["t: id % 3 > 0"], None, ["t: v = hash"])
DERIVER = f"""
import sys, wlr
chosen = wlr.row_filters(*{FILTERS!r}, sys.argv[2])
while True:
    wlr.derive("shop", "part", farm=sys.argv[1], filters=chosen, tables=["b"])
    print("ready", flush=True)
"""

Bag = Counter[tuple[Any, ...]]


def derive(farm: str, key: str) -> wlr.Derived:
    return wlr.derive("shop", "part", farm=farm, filters=wlr.row_filters(*FILTERS, key), tables=["b"])


def passing(rows: Bag) -> Bag:
    found: Bag = Counter()
    for (key, value), copies in rows.items():
        if key % 3 > 0:
            masked = None if value is None else hmac.new(KEY, value.encode(), hashlib.sha256).hexdigest()
            found[key, masked] += copies
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.deep)])
def test_a_derivation_that_is_killed_again_and_again(tmp_path: Path, kills: int) -> None:
    source, farm, key = tmp_path / "shop.duckdb", str(tmp_path / "farm"), tmp_path / "mask.key"
    key.write_bytes(KEY)
    wlc.master(source, farm=farm, beat_s=0, create=True)
    draw = random.Random(seed())
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)")
        connection.execute("CREATE TABLE b (n INTEGER, v VARCHAR)")
        begin = wlc.tick(source)
        for number in range(rounds(kills)):
            # What came since the last kill is still to be derived when it starts.
            write(connection, draw, number)
            deriver = Program(farm, key, text=DERIVER)
            if draw.random() < 0.5:
                deriver.wait_for("ready")
                write(connection, draw, number)
            time.sleep(draw.random())
            deriver.kill()
            assert not deriver.errors
        write(connection, draw, kills)
    done = derive(farm, str(key))
    first, part = f"{farm}/shop", f"{farm}/part"
    assert done.tick == wlc.tick("shop", farm)
    for tick in [*sorted(draw.sample(range(begin, done.tick), min(kills, 6))), done.tick]:
        for table, chosen in (("t", passing), ("b", Counter)):
            there, here = (Counter(wlr.read(place, table, tick=tick).fetchall()) for place in (first, part))
            assert here == chosen(there), (table, tick)
    assert not wlr.verify_farm(part, full=True).problems
    wlr.replicate(part, into=tmp_path / "copy.duckdb", register=False)
    assert {table.outcome for table in wlr.verify(tmp_path / "copy.duckdb").tables} == {"same"}


def write(connection: Any, draw: random.Random, number: int) -> None:
    for _ in range(draw.randrange(2, 6)):
        first, value = draw.randrange(60), f"'r{number}'" if draw.random() < 0.8 else "NULL"
        connection.begin()
        connection.execute(f"INSERT OR REPLACE INTO t SELECT i, {value} FROM range({first}, {first} + 20) r(i)")
        connection.execute(f"DELETE FROM t WHERE id % 7 = {draw.randrange(7)} AND id < {first + 10}")
        connection.execute(f"INSERT INTO b SELECT i % 3, {value} FROM range({draw.randrange(1, 8)}) r(i)")
        connection.execute(f"DELETE FROM b WHERE n = {draw.randrange(3)}" if draw.random() < 0.3 else "SELECT 1")
        connection.commit()


# Masters, publishers and replicas --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_whoever_is_killed_under_load_nothing_is_lost_and_nothing_twice(tmp_path: Path):
    report = kill.run(tmp_path, rounds(1), seed())
    assert report.mismatches == []
    assert report.transactions > 0
    assert report.kills["masters"] == report.rounds


# Feeds: the output has every change, once in a file and under equal headers in Kafka -----------------------------------


# Small parts, so that there are many moments between two positions.
FEEDER = """
import sys
import wlr
print("ready", flush=True)
while True:
    wlr.feed("shop", farm=sys.argv[1], to=sys.argv[2], name=sys.argv[3], max_bytes=2000)
"""


@pytest.mark.deep
@pytest.mark.parametrize("output", ["file", "topic"])
def test_a_feed_that_is_killed_again_and_again(tmp_path: Path, output: str):
    source, farm = tmp_path / "shop.duckdb", str(tmp_path / "farm")
    wlc.master(source, farm=farm, beat_s=0, create=True)
    chance = random.Random(seed())
    with mock_cluster() as servers, wlc.connect(source) as connection:
        to = str(tmp_path / "out.jsonl") if output == "file" else f"kafka://{servers}/killed"
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)")
        for number in range(rounds(10)):
            feeder = Program(farm, to, "killed", text=FEEDER)
            feeder.wait_for("ready")
            for _ in range(chance.randrange(1, 6)):
                first = chance.randrange(1000)
                connection.execute(
                    f"INSERT OR REPLACE INTO t SELECT i, 'r{number}' FROM range({first}, {first} + 80) r(i)"
                )
                connection.execute(f"DELETE FROM t WHERE id % 7 = {chance.randrange(7)} AND id < {first + 40}")
            time.sleep(chance.random())
            feeder.kill()
        wlr.feed("shop", farm=farm, to=to, name="killed")
        expected = flat(projection(open_database("shop", farm)))
        if output == "file":
            assert records_of_lines(lines(tmp_path / "out.jsonl")) == expected
        else:
            assert as_records(once(messages(servers, "killed"))) == expected


# A short one of the long runs: DBFARM_SOAK_MINUTES=30, or python -m tests.soak --minutes 30 --postgres -----------------


MINUTES = float(os.environ.get("DBFARM_SOAK_MINUTES") or 0.1)


@pytest.mark.slow
def test_nothing_is_lost_in_a_short_run(tmp_path: Path) -> None:
    soak = run(tmp_path, minutes=MINUTES, seed=seed())
    assert soak.problems == []
    assert soak.counts["cycles"] >= 2
    assert soak.counts["transactions"] >= 10
    assert soak.counts["comparisons"] >= 2 * 3
    assert soak.counts["row images replayed"] > 0
