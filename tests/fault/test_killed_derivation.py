"""Derived databases under kill -9 while the first one is written to: each tick holds what passes, and nothing else."""

from __future__ import annotations

import hashlib
import hmac
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import wlc
import wlr
from tests.fault.processes import Program, rounds, seed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

KEY = b"a key of more than sixteen bytes"
DERIVER = """
import sys
from tests.fault.test_killed_derivation import derive

derive(*sys.argv[1:])
print("ready", flush=True)
while True:
    derive(*sys.argv[1:])
"""

Bag = Counter[tuple[Any, ...]]


def derive(farm: str, key: str) -> wlr.Derived:
    chosen = wlr.row_filters(["t: id % 3 > 0"], None, ["t: v = hash"], key)
    return wlr.derive("shop", "part", farm=farm, filters=chosen, tables=["b"])


def passing(rows: Bag) -> Bag:
    found: Bag = Counter()
    for (key, value), copies in rows.items():
        if key % 3 > 0:
            masked = None if value is None else hmac.new(KEY, value.encode(), hashlib.sha256).hexdigest()
            found[key, masked] += copies
    return found


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
