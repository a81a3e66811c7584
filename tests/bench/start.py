"""What the commands cost that do next to nothing, in CPU seconds of their process."""

from __future__ import annotations

import resource
import subprocess
import sys
from statistics import median
from typing import TYPE_CHECKING

import wlr
from tests.bench import tables
from tests.bench.measure import Line, Setting, duration

if TYPE_CHECKING:
    from collections.abc import Iterator

GOAL_S = 0.25
IMPORT_GOAL_MS = 50.0
BESIDE = "import duckdb"


def run(setting: Setting) -> Iterator[Line]:
    """Yield each command beside a Python that only imports duckdb, then what imports add to that."""
    folder = tables.fresh(setting.folder / "start")
    path = tables.make_plain(folder / "t.duckdb", tables.KEYED, tables.insert_sql(0, 1000))
    tables.make_master(path)
    tables.execute(path, tables.insert_sql(1000, 1001))
    replica, lake, database = str(folder / "replica.duckdb"), f"{folder / 'lake'}/", str(folder / "farm" / "t")
    for into in (replica, lake):
        wlr.replicate(database, into=into)
    commands = {
        "wlr tick REPLICA": ("wlr", "tick", replica),
        "wlr replicate, nothing to do": ("wlr", "replicate", "--into", replica),
        "wlr replicate, nothing to do, lake": ("wlr", "replicate", "--into", lake),
        "wlr --help": ("wlr", "--help"),
        "wlc --help": ("wlc", "--help"),
        "wlc tick DB": ("wlc", "tick", database),
    }
    rounds = setting.rounds * 3 if setting.scale == 1 else 1
    for name, command in commands.items():
        program = f"import sys; sys.argv[0] = {command[0]!r}; from cli.{command[0]} import main; main()"
        bare, ours = _turns(rounds, program, *command[1:])
        yield Line(name, duration(bare), duration(ours), ours, "s", GOAL_S)
    for imported in ("import wlr", "from wlr import replicate"):
        bare, ours = _turns(rounds, f"import duckdb; {imported}")
        yield Line(f"{imported}, beside it", duration(bare), duration(ours), 1000 * (ours - bare), "ms", IMPORT_GOAL_MS)


def _turns(rounds: int, program: str, *arguments: str) -> tuple[float, float]:
    """Median CPU seconds of importing duckdb and of a program, which take turns."""
    turns = [(_cpu_s("import duckdb"), _cpu_s(program, *arguments)) for _ in range(rounds)]
    bare, ours = (median(seconds) for seconds in zip(*turns, strict=True))
    return bare, ours


def _cpu_s(program: str, *arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
