"""Feeds under kill -9: whatever the moment, the output has every change, once in a file and under equal headers in Kafka."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.fault.processes import Program, rounds, seed
from tests.feed_oracle import flat, projection
from tests.mock_kafka import messages, mock_cluster
from tests.scenario.test_feed import as_records as records_of_lines
from tests.scenario.test_feed import lines
from tests.scenario.test_feed_kafka import as_records, once
from wlc.farm.database import open_database

if TYPE_CHECKING:
    from pathlib import Path

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
