"""A writing master process is killed with kill -9, again and again, and nothing that it said it committed is lost."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import duckdb

import wlc
import wlr
from tests.fault import writer
from tests.fault.processes import program, rounds, seed
from tests.fault.trial import check_log
from tests.oracle import file_contents, published
from wlc.farm import open_database

if TYPE_CHECKING:
    from pathlib import Path


def test_what_a_killed_master_has_committed_is_published_once(tmp_path: Path):
    rng = random.Random(seed())
    source, replica, farm = tmp_path / "bank.duckdb", tmp_path / "replica.duckdb", tmp_path / "farm"
    with duckdb.connect(str(source)) as connection:
        connection.execute(writer.TABLES)
    wlc.master(source, farm=str(farm))
    for number in range(rounds(5)):
        wlc.beat(source, (0, 0.02, 300)[number % 3])
        said = write_and_kill(source, rng)
        check_said(source, said)
        wlc.flush(source)
        last = check_log(open_database(str(farm / "bank")))
        assert wlr.replicate("bank", farm=str(farm), into=replica).tick == last
        held = file_contents(replica)
        assert held == file_contents(source)
        assert sum(int(amount or 0) * count for (_, amount), count in held["main.account"].items()) == 0
    assert published(str(farm / "bank")) == file_contents(source)


def write_and_kill(source: Path, rng: random.Random) -> dict[int, int]:
    """Returns for each client the last transaction that it said it had committed."""
    with program("tests.fault.writer", source, rng.randrange(2**32)) as running:
        for _ in range(rng.randrange(1, 40)):
            running.next_line()
        time.sleep(rng.random() * 0.05)
        running.kill()
    said = dict.fromkeys(range(writer.CLIENTS), 0)
    for line in running.lines:
        client, number = map(int, line.split())
        said[client] = number
    return said


def check_said(source: Path, said: dict[int, int]) -> None:
    """The database has every transaction that was said to be committed, once, and at most one more of each client."""
    with duckdb.connect(str(source), read_only=True) as connection:
        rows = connection.execute("SELECT client, number FROM ledger ORDER BY ALL").fetchall()
    for client, last in said.items():
        numbers = [number for owner, number in rows if owner == client]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= last
