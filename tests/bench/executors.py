"""What one more executor costs: the same step with one and with two executors of one core, in CPU seconds."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import wlr
from tests.bench import lakes
from tests.bench.measure import ROOT, Line, Setting, duration, in_a_process

if TYPE_CHECKING:
    from collections.abc import Iterator

BESIDE = "Python workers"
ROWS = 5_000_000
CHANGES = 500_000
BATCHES = 20
# JVMs compile what they run: the first runs of a session are not those that follow.
WARM_UPS = 2
GOAL = 10.0
# What tells the processes of a session apart, by their command lines; all others are the driver's.
_KINDS = {"pyspark.daemon": "workers", "CoarseGrainedExecutorBackend": "executors"}


def run(setting: Setting) -> Iterator[Line]:
    """Yield the CPU seconds of a step with one and with two executors, and what the second one adds."""
    rows, changes = setting.rows(ROWS), setting.rows(CHANGES)
    world = lakes.make(setting.folder / "lake", rows)
    tick = lakes.change(world, changes, BATCHES)
    spent = {}
    for executors in (1, 2):
        spent[executors] = found = _child(executors, world.lake, tick, setting.rounds)
        name = f"{executors} executor{'s' * (executors > 1)} of one core, {rows:,} rows, {changes:,} changes"
        rest = f"executors {duration(found['executors'])}, driver {duration(found['driver'])}"
        yield Line(name, duration(found["workers"]), rest, sum(found.values()), "s")
    # The driver is there once, and compiles what it runs for longer than that.
    one, two = (spent[executors]["workers"] + spent[executors]["executors"] for executors in (1, 2))
    more = 100 * (two - one) / one
    yield Line("CPU seconds that the second one adds", "", f"{two - one:.2f} s of {one:.2f} s", more, "%", GOAL)


def _child(executors: int, lake: Path, tick: int, rounds: int) -> dict[str, float]:
    """Seconds of CPU by kind of process, medians of the rounds."""
    turns = in_a_process("tests.bench.executors", executors, lake, tick, rounds)
    return {kind: median(turn[kind] for turn in turns) for kind in turns[0]}


# In the child: a cluster on this machine, with processes of its own ---------------------------------------------------


def _cpu_s() -> dict[str, float]:
    """CPU seconds of this process and all below it, by kind; those that have ended count for their parents."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats: dict[int, tuple[int, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            stats[int(folder.name)] = int(fields[1]), sum(map(int, fields[11:15])) / ticks
    mine = {os.getpid()}
    while more := {number for number, (parent, _) in stats.items() if parent in mine} - mine:
        mine |= more
    found = dict.fromkeys((*_KINDS.values(), "driver"), 0.0)
    for number in mine & stats.keys():
        with suppress(OSError):
            line = Path(f"/proc/{number}/cmdline").read_text()
            found[next((kind for word, kind in _KINDS.items() if word in line), "driver")] += stats[number][1]
    return found


def main(executors: int, lake: Path, tick: int, rounds: int) -> None:
    """Roll copies of a replica forward on a cluster of so many executors and print the CPU seconds of each turn."""
    import pyspark

    from wlr.spark.session import spark_session

    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        # A cluster on one machine starts its executors with Spark's own scripts.
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(lake.with_name("executors")),
    }
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.cores": "1",
        "spark.executor.memory": "1g",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }
    turns = []
    with spark_session(f"local-cluster[{executors},1,1024]", settings):
        for number in range(WARM_UPS + rounds):
            into, before = lakes.copy(lake, lake.with_name("copy")), _cpu_s()
            wlr.replicate(into=into, tick=tick, engine="spark", register=False)
            if number >= WARM_UPS:
                after = _cpu_s()
                turns.append({kind: after[kind] - before[kind] for kind in after})
    print(json.dumps(turns), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
