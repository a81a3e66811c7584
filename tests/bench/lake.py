"""Rolling a Parquet replica forward: by the local engine and by Spark, beside others who rewrite the same files."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import wlr
from tests.bench import lakes, rivals, tables
from tests.bench.measure import Line, Setting, duration, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from tests.bench.lakes import World

ROWS = 20_000_000
CHANGES = 2_000_000
BATCHES = 20
FEW_CHANGES = 5_000
# No further round begins that would end later than this, in seconds from the start.
BUDGET_S = 620.0
GOAL_DUCKDB = 1.6
GOAL_DATA_FRAME = 2.0
GOAL_DELTA = 1.0
GOAL_FEW = 0.10


@dataclass(slots=True)
class Bench:
    """Both inputs and everybody's measurements.

    Attributes:
        tick: Where the log ends.
        base: Files of the replica that everybody begins with; `changes`: those of the farm.
        seconds: What each side took in each round; `peaks` in GB, where they are known.
        digests: What each side's result depends on; all are to be equal.
    """

    world: World
    spark: SparkSession
    tick: int
    base: list[str]
    changes: list[str]
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    peaks: dict[str, float] = field(default_factory=dict)
    digests: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, side: str, seconds: float, files: list[str]) -> None:
        """Keep the time of one turn; the first result of each side is looked at, after the clock has stopped."""
        self.seconds[side].append(seconds)
        if side not in self.digests:
            self.digests[side] = lakes.digest(files)

    def median(self, side: str) -> float:
        """Median of a side's seconds."""
        return median(self.seconds[side])


def run(setting: Setting) -> Iterator[Line]:
    """Yield the lines of a full rewrite, of a small change, of the change feed, and of the workers' memory."""
    started = time.monotonic()
    rows, changes = setting.rows(ROWS), setting.rows(CHANGES)
    world = lakes.make(setting.folder / "lake", rows)
    tick = lakes.change(world, changes, BATCHES)
    with lakes.session(setting.folder) as spark:
        bench = Bench(world, spark, tick, wlr.files(world.lake, "main.t"), world.change_files())
        # The session is to be warm: the first run of a query loads and compiles classes.
        _replicate(bench, "spark")
        rivals.by_data_frame(spark, bench.base[:1], bench.changes, tables.fresh(world.folder / "warm") / "up")
        lakes.forget_peaks()
        _measure(bench, setting.rounds, started)
        assert len(set(bench.digests.values())) == 1, f"the results differ: {bench.digests}"
        yield from _full_lines(bench, f"{rows:,} rows, {changes:,} changes")
        yield _few_changes(bench, setting)
        yield _feed(bench, setting.rounds)
        yield Line("Python worker of Spark, peak", "", "", bench.peaks["spark"], "GB")


def _measure(bench: Bench, rounds: int, started: float) -> None:
    """Let all sides take turns, for as many rounds as there is time for."""
    sides: dict[str, Callable[[], None]] = {
        "duckdb": lambda: _duckdb(bench),
        "spark": lambda: bench.note("spark", *_replicate(bench, "spark")),
        "data frame": lambda: _data_frame(bench),
        "local": lambda: bench.note("local", *_replicate(bench, "local")),
    }
    if rivals.has_delta():
        rivals.write_net(bench.changes, bench.world.folder / "net.parquet")
        sides["delta-rs"] = lambda: _delta(bench)
    else:
        _say(rivals.NO_DELTA)
    for number in range(rounds):
        before = time.monotonic()
        for side in tuple(sides):
            try:
                sides[side]()
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                if side != "delta-rs":
                    raise
                # It may need more memory than there is; the others go on.
                _say(f"{side} is left out: {error}")
                bench.seconds.pop(side, None)
                del sides[side]
        now = time.monotonic()
        if number + 1 < rounds and now - started + (now - before) > BUDGET_S:
            _say(f"{number + 1} of {rounds} rounds were measured: another one would take too long")
            break


def _duckdb(bench: Bench) -> None:
    into = tables.fresh(bench.world.folder / "plain") / "t"
    seconds = timed(lambda: rivals.by_duckdb(bench.base, bench.changes, into))
    bench.note("duckdb", seconds, rivals.files_in(into))


def _data_frame(bench: Bench) -> None:
    into = tables.fresh(bench.world.folder / "frame") / "t"
    seconds = timed(lambda: rivals.by_data_frame(bench.spark, bench.base, bench.changes, into))
    bench.note("data frame", seconds, rivals.files_in(into))


def _delta(bench: Bench) -> None:
    net, into = bench.world.folder / "net.parquet", bench.world.folder / "delta"
    seconds, peak, files = rivals.by_delta(bench.base, net, into)
    bench.note("delta-rs", seconds, files)
    bench.peaks["delta-rs"] = max(peak, bench.peaks.get("delta-rs", 0.0))


def _replicate(bench: Bench, engine: str) -> tuple[float, list[str]]:
    into = lakes.copy(bench.world.lake, bench.world.folder / "copy")
    seconds = timed(lambda: wlr.replicate(into=into, tick=bench.tick, engine=engine, register=False))
    if engine == "spark":
        bench.peaks["spark"] = max(lakes.workers_peak_gb(), bench.peaks.get("spark", 0.0))
    return seconds, wlr.files(into, "main.t")


def _full_lines(bench: Bench, size: str) -> Iterator[Line]:
    duckdb, spark, local, frame = (bench.median(side) for side in ("duckdb", "spark", "local", "data frame"))
    yield Line(f"Spark engine, {size}", duration(duckdb), duration(spark), spark / duckdb, goal=GOAL_DUCKDB)
    yield Line(f"local engine, {size}", duration(duckdb), duration(local), local / duckdb)
    text = f"{duration(frame)} (PySpark)"
    yield Line("DataFrame / Spark engine", text, duration(spark), frame / spark, "x", GOAL_DATA_FRAME, is_most=False)
    if "delta-rs" in bench.seconds:
        delta = bench.median("delta-rs")
        text = f"{duration(delta)}, {bench.peaks['delta-rs']:.2f} GB (delta-rs)"
        for engine, ours in (("Spark", spark), ("local", local)):
            name = f"delta-rs MERGE / {engine} engine"
            yield Line(name, text, duration(ours), delta / ours, "x", GOAL_DELTA, is_most=False)


# A small change ------------------------------------------------------------------------------------------------------


def _few_changes(bench: Bench, setting: Setting) -> Line:
    """Measure changes whose keys all lie in the range of one file, from where the rounds have ended."""
    world, few = bench.world, setting.rows(FEW_CHANGES)
    current = lakes.copy(world.lake, world.folder / "current")
    wlr.replicate(into=current, tick=bench.tick, register=False, engine="local")
    before = wlr.files(current, "main.t")
    with lakes.plain() as connection:
        query = f"SELECT min(id), max(id) FROM {lakes.read([before[len(before) // 2]])}"
        low, high = connection.execute(query).fetchall()[0]
    tick = lakes.change(world, few, turn=2, low=low, high=high)
    seconds = []
    for _ in range(setting.rounds):
        copy = lakes.copy(current, world.folder / "copy")
        inodes = {Path(file).stat().st_ino for file in before}
        seconds.append(timed(lambda copy=copy: wlr.replicate(into=copy, tick=tick, register=False, engine="local")))
        after = {Path(file).stat().st_ino for file in wlr.files(copy, "main.t")}
        assert len(inodes - after) == 1, f"{len(inodes - after)} files of {len(before)} were rewritten"
        assert len(after) == len(before), f"{len(after)} files instead of {len(before)}"
    ours, full = median(seconds), bench.median("local")
    name = f"local engine, {few:,} changes in 1 of {len(before)} files / full rewrite"
    return Line(name, "", f"{duration(ours)} / {duration(full)}", ours / full, goal=GOAL_FEW)


# The change feed -----------------------------------------------------------------------------------------------------


def _feed(bench: Bench, rounds: int) -> Line:
    """Measure how fast Spark reads all changes through the data source, beside their files as they lie there."""
    world, spark = bench.world, bench.spark
    reader = spark.read.format("dbfarm").option("farm", str(world.folder / "farm")).option("database", "t")
    reader = reader.option("table", "t").option("changes", "true").option("to_tick", bench.tick)
    native = spark.read.parquet(*bench.changes)
    rows = native.count()
    assert reader.load().count() == rows, "the change feed has not all images"
    turns = []
    for _ in range(rounds):
        first = timed(lambda: native.write.format("noop").mode("overwrite").save())
        turns.append((first, timed(lambda: reader.load().write.format("noop").mode("overwrite").save())))
    plain, ours = (median(seconds) for seconds in zip(*turns, strict=True))
    text = f"{duration(plain, rows)} (Spark alone)"
    return Line(f"change feed, {rows:,} images", text, duration(ours, rows), rows / ours, "rows/s")


def _say(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)
