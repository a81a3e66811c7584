"""The benchmarks of docs/benchmarks.md and docs/scale.md run, on next to no rows; how fast they are is not a test's business."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.bench import run
from tests.bench.measure import Line, render

if TYPE_CHECKING:
    from pathlib import Path

TINY = ("--scale", "0.00001", "--rounds", "1", "--singles", "2")
LINES = {
    "capture": 23,
    "flush": 2,
    "snapshot": 2,
    "replay": 5,
    "digests": 7,
    "small": 3,
    "start": 8,
    "memory": 3,
    "encryption": 2,
    "growth": 16,
    "feeds": 4,
    "tiers": 11,
    "visible": 2,
    "reading": 6,
    "peers": 12,
    "sites": 13,
    "scale": 15,
}
LONG = {
    "growth",
    "tiers",
    "visible",
    "reading",
    "peers",
    "capture",
    "replay",
    "digests",
    "memory",
    "feeds",
    "start",
    "sites",
}
# tests/spark/test_bench.py tries these: there is a session already, which takes longer to start than all the rest here.
ON_SPARK = {"lake", "lake_curve", "executors"}
# tests/postgres/test_bench.py tries this: it needs a server.
WITH_A_SERVER = {"postgres"}


def test_every_benchmark_is_tried() -> None:
    assert {*LINES, *ON_SPARK, *WITH_A_SERVER} == set(run.NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.deep) if n in LONG else n for n in LINES])
def test_a_benchmark_prints_a_figure_for_every_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([name, *TINY, "--folder", str(tmp_path)]) == 0
    printed, noted = capsys.readouterr()
    if "cannot be installed" in noted:
        pytest.skip(noted.strip())
    machine, _, table = printed.partition(f"\n{name} (")
    units = "x| requests| kB| \\$| rounds| rows/s| transactions/s| MB/s| s| ms| GB"
    figures = re.findall(rf"  [\d,.]+(?:{units})$", table, re.MULTILINE)
    assert len(figures) == LINES[name], printed
    assert re.search(r"^CPU .*cores$", machine, re.MULTILINE)


def test_a_missed_goal_is_told() -> None:
    slow = Line("insert", "1 s", "2 s", 2.0, goal=1.6)
    few = Line("flush", "", "2 s", 2e6, "rows/s", 3e6, is_most=False)
    assert [line.is_met for line in (slow, few)] == [False, False]
    assert [row.split()[-1] for row in render([slow, few])[1:]] == ["MISSED", "MISSED"]
