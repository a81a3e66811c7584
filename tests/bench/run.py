"""Measure dbfarm beside plain DuckDB: `python tests/bench/run.py capture`, or `all`.

Every ratio comes from one run in which both sides take turns (A B A B …); the figures are medians. Nothing here is a
test: a slow machine is not a defect. tests/scenario/test_bench.py keeps the programs themselves from rotting.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    # Run as a script: the project takes the place of this folder, whose names would hide other packages' modules.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.bench import machine
from tests.bench.measure import Setting, render

if TYPE_CHECKING:
    from collections.abc import Sequence

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = (
    "capture",
    "flush",
    "snapshot",
    "replay",
    "digests",
    "small",
    "start",
    "memory",
    "lake",
    "lake_curve",
    "executors",
    "postgres",
    "encryption",
    "growth",
    "feeds",
    "tiers",
    "visible",
    "reading",
    "peers",
    "sites",
    "scale",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="+", choices=[*NAMES, "all"], help="what to measure")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of bulk statements (default 3)")
    parser.add_argument("--singles", type=int, default=400, help="rounds of single-row transactions (default 400)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows, to try a benchmark quickly")
    parser.add_argument(
        "--only", default="", help="of capture and postgres, only what has lines whose name contains this"
    )
    parser.add_argument("--folder", type=Path, help="where the databases are made (default: temporary)")
    parser.add_argument("--markdown", action="store_true", help="print tables, and draw plots, for docs/benchmarks.md")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks that are named; returns the number of goals that were missed."""
    options = parse(arguments)
    print("\n".join(machine.describe()), flush=True)
    missed = 0
    # A picture of a try would say nothing.
    plots = DOCS if options.markdown and options.scale == 1 else None
    for name in NAMES if "all" in options.name else dict.fromkeys(options.name):
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"bench-{name}-", dir=options.folder) as folder:
            setting = Setting(Path(folder), options.scale, options.rounds, options.singles, options.only, plots)
            module = importlib.import_module(f"tests.bench.{name}")
            lines = list(module.run(setting))
        if options.scale != 1:
            # The goals are about the full size only.
            lines = [replace(line, goal=None) for line in lines]
        print(f"\n{name} ({time.monotonic() - started:.0f} s, load {machine.load()})\n", flush=True)
        beside = getattr(module, "BESIDE", "DuckDB alone")
        print("\n".join(render(lines, beside=beside, markdown=options.markdown)), flush=True)
        missed += sum(not line.is_met for line in lines)
    print(f"\ngoals missed: {missed}", flush=True)
    return missed


if __name__ == "__main__":
    main()
