"""How time and memory of a Parquet replica grow: with the table for the same changes, and with the changes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import wlr
from tests.bench import lakes
from tests.bench.measure import Line, Setting, duration, in_a_process, timed
from tests.bench.plot import Panel, draw

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.bench.lakes import World

SIZES = (1_250_000, 5_000_000, 20_000_000)
CHANGES = 100_000
# The changes of one table come one after the other; those in the middle are as many as the other tables get.
MIDDLE = 5_000_000
RISING = (10_000, CHANGES, 1_000_000)
ENGINES = ("local", "spark")


@dataclass(frozen=True, slots=True)
class Point:
    """What one engine needed: seconds, and the most memory of a process that did the work, in GB."""

    engine: str
    rows: int
    changes: int
    seconds: float
    peak: float


def run(setting: Setting) -> Iterator[Line]:
    """Yield every point for both engines, and draw them if that is asked for."""
    points: list[Point] = []
    with lakes.session(setting.folder) as spark:
        warm = lakes.make(setting.folder / "warm", setting.rows(SIZES[0]))
        _spark(spark, warm, warm.lake, lakes.change(warm, setting.rows(CHANGES)))
        for size in SIZES:
            world = lakes.make(setting.folder / "curve", setting.rows(size))
            for turn, changes in enumerate(RISING if size == MIDDLE else (CHANGES,), start=1):
                found = _measure(setting, spark, world, setting.rows(changes), turn)
                points += found
                yield from (_line(point) for point in found)
    if setting.plots:
        middle, few = setting.rows(MIDDLE), setting.rows(CHANGES)
        (setting.plots / "lake_curve.svg").write_text(draw(_panels(points, middle, few)), encoding="utf-8")


def _measure(setting: Setting, spark: SparkSession, world: World, changes: int, turn: int) -> list[Point]:
    """Measure one more lot of changes, and leave the replica behind them."""
    tick = lakes.change(world, changes, turn=turn)
    results: dict[str, list[tuple[float, float]]] = {engine: [] for engine in ENGINES}
    for _ in range(setting.rounds):
        results["local"].append(_child(lakes.copy(world.lake, world.folder / "local"), tick))
        results["spark"].append(_spark(spark, world, world.folder / "spark", tick))
    digests = {lakes.digest(wlr.files(world.folder / engine, "main.t")) for engine in ENGINES}
    assert len(digests) == 1, f"the engines differ: {digests}"
    lakes.copy(world.folder / "local", world.lake)
    points = []
    for engine, found in results.items():
        seconds, peaks = zip(*found, strict=True)
        points.append(Point(engine, world.rows, changes, median(seconds), max(peaks)))
    return points


def _spark(spark: SparkSession, world: World, into: Path, tick: int) -> tuple[float, float]:
    if into != world.lake:
        lakes.copy(world.lake, into)
    lakes.forget_peaks()
    seconds = timed(lambda: wlr.replicate(into=into, tick=tick, engine="spark", register=False))
    return seconds, lakes.workers_peak_gb()


def _line(point: Point) -> Line:
    name = f"{point.engine} engine, {point.rows:,} rows, {point.changes:,} changes"
    return Line(name, "", duration(point.seconds), point.peak, "GB")


def _panels(points: list[Point], rows: int, changes: int) -> list[Panel]:
    by_rows = [point for point in points if point.changes == changes]
    by_changes = [point for point in points if point.rows == rows]

    def panel(what: str, unit: str, below: str, chosen: list[Point], x: str, y: str) -> Panel:
        curves: dict[str, Sequence[tuple[float, float]]] = {
            f"{engine} engine": sorted((getattr(p, x), getattr(p, y)) for p in chosen if p.engine == engine)
            for engine in ENGINES
        }
        return Panel(what, below, unit, curves)

    below_rows, below_changes = f"rows of the table, {changes:,} changes", f"changes, {rows:,} rows"
    return [
        panel("time", "s", below_rows, by_rows, "rows", "seconds"),
        panel("time", "s", below_changes, by_changes, "changes", "seconds"),
        panel("memory of a process", "GB", below_rows, by_rows, "rows", "peak"),
        panel("memory of a process", "GB", below_changes, by_changes, "changes", "peak"),
    ]


# The local engine works in a process of its own, whose memory nothing else has used --------------------------------------


def _child(into: Path, tick: int) -> tuple[float, float]:
    seconds, peak = in_a_process("tests.bench.lake_curve", into, tick)
    return seconds, peak


def main(into: str, tick: str) -> None:
    """Roll a replica forward and print the seconds and the peak in GB."""
    seconds = timed(lambda: wlr.replicate(into=into, tick=int(tick), engine="local", register=False))
    print(json.dumps([seconds, lakes.peak_gb()]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
