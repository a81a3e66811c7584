"""Taking turns, medians, and the lines that are printed."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Setting:
    """How much is measured, and where.

    Attributes:
        scale: Share of the full number of rows.
        rounds: Turns of each side for bulk statements; `singles` for single-row transactions.
        only: Lines whose name does not contain this are left out.
        plots: Where pictures of the figures are drawn; none are if it is None.
    """

    folder: Path
    scale: float = 1.0
    rounds: int = 3
    singles: int = 400
    only: str = ""
    plots: Path | None = None

    def rows(self, full: int) -> int:
        """The number of rows to use where the benchmark proper has `full`."""
        return max(10, int(full * self.scale))

    def wants(self, name: str) -> bool:
        """Whether the line of this name is to be measured."""
        return self.only in name


@dataclass(frozen=True, slots=True)
class Line:
    """One measured figure.

    Attributes:
        plain: What plain DuckDB needed, as text; empty where there is nothing to compare with.
        figure: What the goal is about, in `unit`; without a goal it is for information.
        is_most: The goal is the greatest figure allowed, not the least.
    """

    what: str
    plain: str
    ours: str
    figure: float
    unit: str = "x"
    goal: float | None = None
    is_most: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the goal, if there is one, is met."""
        if self.goal is None:
            return True
        return self.figure <= self.goal if self.is_most else self.figure >= self.goal

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as it is printed."""
        goal, verdict = "", ""
        if self.goal is not None:
            goal = f"{'<=' if self.is_most else '>='} {_number(self.goal, self.unit)}"
            verdict = "met" if self.is_met else "MISSED"
        return (self.what, self.plain, self.ours, _number(self.figure, self.unit), goal, verdict)


def compare(
    what: str, rounds: int, plain: Callable[[], float], ours: Callable[[], float], goal: float | None, rows: int = 0
) -> Line:
    """Measure both sides in turns; each callable prepares what it needs and returns the seconds that count.

    Args:
        rows: Rows that both sides process, to print a speed beside the seconds.
    """
    pairs = [(plain(), ours()) for _ in range(rounds)]
    first, second = (median(seconds) for seconds in zip(*pairs, strict=True))
    return Line(what, duration(first, rows), duration(second, rows), second / first, goal=goal)


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes, without the debts of what came before: garbage and unwritten pages."""
    gc.collect()
    os.sync()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def in_a_process(module: str, *arguments: object, **environment: str) -> Any:
    """Run a module of benchmarks in a process of its own, and return what its last line says."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    variables = {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, env=variables, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def duration(seconds: float, rows: int = 0) -> str:
    """Seconds as text, and the speed if there are rows."""
    text = f"{seconds * 1000:.2f} ms" if seconds < 0.1 else f"{seconds:.2f} s"
    return f"{text} ({rows / seconds / 1e6:.1f} M rows/s)" if rows else text


def render(lines: Iterable[Line], *, beside: str = "DuckDB alone", markdown: bool = False) -> list[str]:
    """The lines as a table; `beside` is what dbfarm is compared with."""
    table = [("", beside, "dbfarm", "figure", "goal", ""), *(line.cells for line in lines)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in table]
    if not markdown:
        return ["  ".join(row).rstrip() for row in rows]
    rule = ["-" * max(width, 3) for width in widths]
    return [f"| {' | '.join(row)} |" for row in [rows[0], rule, *rows[1:]]]


def _number(value: float, unit: str) -> str:
    if unit == "x":
        return f"{value:.2f}x"
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.2f} {unit}"
