"""Many single-row transactions from the master through the farm to a replica."""

from __future__ import annotations

import shutil
from statistics import median
from typing import TYPE_CHECKING

import wlc
import wlr
from tests.bench import tables
from tests.bench.measure import Line, Setting, duration, timed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

TRANSACTIONS = 100_000
GOAL_PER_S = 100_000


def run(setting: Setting) -> Iterator[Line]:
    """Yield capture, flush and replay of the same transactions, in transactions per second."""
    number = setting.rows(TRANSACTIONS)
    folder = tables.fresh(setting.folder / "small")
    path = tables.make_plain(folder / "t.duckdb", tables.KEYED, tables.insert_sql(0, number))
    tables.make_master(path)
    replica, copy = folder / "replica.duckdb", folder / "copy.duckdb"
    wlr.replicate(str(folder / "farm" / "t"), into=replica)
    with wlc.connect(path) as connection:
        yield _line("capture", number, timed(lambda: _work(connection, number)), None)
        published = []
        yield _line("flush", number, timed(lambda: published.append(wlc.flush(path))), None)
    assert published[0].transactions == number, f"{published[0].transactions} transactions were published"
    seconds = []
    for _ in range(setting.rounds):
        shutil.copy(replica, copy)
        seconds.append(timed(lambda: wlr.replicate(into=copy)))
        assert wlr.tick(copy) == wlc.tick(path), "the replica does not hold every transaction"
    yield _line("replay", number, median(seconds), GOAL_PER_S)


def _line(what: str, number: int, seconds: float, goal: float | None) -> Line:
    name = f"{what} {number:,} single-row transactions"
    return Line(name, "", duration(seconds), number / seconds, "transactions/s", goal, is_most=False)


def _work(connection: Any, number: int) -> None:
    """Six inserts, three updates and one delete in ten."""
    for n in range(number):
        if n % 10 < 6:
            values = [10**9 + n, n, "value", 0.5, "2026-01-01 00:00:00"]
            connection.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?)", values)
        elif n % 10 < 9:
            connection.execute("UPDATE t SET a = ? WHERE id = ?", [n, n * 61 % number])
        else:
            connection.execute("DELETE FROM t WHERE id = ?", [n])
