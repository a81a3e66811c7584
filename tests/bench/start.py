"""How long the commands take that do next to nothing."""

from __future__ import annotations

import subprocess
import sys
from statistics import median
from typing import TYPE_CHECKING

import wlr
from tests.bench import tables
from tests.bench.measure import Line, Setting, duration, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

GOAL_S = 0.5


def run(setting: Setting) -> Iterator[Line]:
    """Yield each command beside a Python that only imports duckdb."""
    folder = tables.fresh(setting.folder / "start")
    path = tables.make_plain(folder / "t.duckdb", tables.KEYED, tables.insert_sql(0, 1000))
    tables.make_master(path)
    tables.execute(path, tables.insert_sql(1000, 1001))
    replica, database = str(folder / "replica.duckdb"), str(folder / "farm" / "t")
    wlr.replicate(database, into=replica)
    commands = {
        "wlr tick REPLICA": ("wlr", "tick", replica),
        "wlr --help": ("wlr", "--help"),
        "wlc --help": ("wlc", "--help"),
        "wlc tick DB": ("wlc", "tick", database),
    }
    rounds = setting.rounds * 3 if setting.scale == 1 else 1
    for name, command in commands.items():
        yield _command(name, command, rounds)


def _command(name: str, command: tuple[str, ...], rounds: int) -> Line:
    program = f"import sys; sys.argv[0] = {command[0]!r}; from cli.{command[0]} import main; main()"
    bare, ours = [], []
    for _ in range(rounds):
        bare.append(timed(lambda: _run("import duckdb")))
        ours.append(timed(lambda: _run(program, *command[1:])))
    return Line(name, duration(median(bare)), duration(median(ours)), median(ours), "s", GOAL_S)


def _run(program: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, stdout=subprocess.DEVNULL)
