"""How long after its commit a row is visible on a replica that follows in another process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from statistics import median
from typing import TYPE_CHECKING

import wlc
import wlr
from tests.bench import tables
from tests.bench.measure import Line, Setting, duration

if TYPE_CHECKING:
    from collections.abc import Iterator

GOAL_S = 0.05
_FOLLOW = "import sys; sys.argv[0] = 'wlr'; from cli.wlr import main; main()"


def run(setting: Setting) -> Iterator[Line]:
    """Yield the median time from the return of a commit to the end of the round that applies it."""
    folder = tables.fresh(setting.folder / "visible")
    path = tables.make_plain(folder / "t.duckdb", tables.KEYED, tables.insert_sql(0, 1000))
    tables.make_master(path)
    wlc.beat(path, 0)
    replica, database = str(folder / "replica.duckdb"), str(folder / "farm" / "t")
    wlr.replicate(database, into=replica)
    command = [sys.executable, "-u", "-c", _FOLLOW, "replicate", database, "--into", replica, "--follow", "--json"]
    commits, waits = [], []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower, wlc.connect(path) as connection:
        assert follower.stdout is not None
        follower.stdout.readline()
        for number in range(setting.rounds * 10):
            # The follower waits by then.
            time.sleep(0.2)
            begun = time.perf_counter()
            connection.execute(tables.insert_sql(1000 + number, 1001 + number))
            committed = time.perf_counter()
            follower.stdout.readline()
            commits.append(committed - begun)
            waits.append(time.perf_counter() - committed)
        follower.send_signal(signal.SIGINT)
    yield Line("commit that publishes", "", duration(median(commits)), median(commits), "s")
    yield Line("commit to visible", "", duration(median(waits)), median(waits), "s", GOAL_S)
