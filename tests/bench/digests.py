"""What digests cost capture and replay, and how fast a replica is verified.

Both sides run in processes of their own and take turns; one of them takes every row's number for 0, and does all else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import duckdb

import wlc
import wlr
from tests.bench import tables
from tests.bench.measure import Line, Setting, duration, in_a_process, timed
from wlc.dialect.duckdb import digest_sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.farm.model import Layout

BESIDE = "without digests"
ROWS = 5_000_000
VERIFIED_ROWS = 10_000_000
GOAL = 4 / 3
GOAL_ROWS_PER_S = 1e6
WORK = {
    "insert": lambda rows: tables.insert_sql(0, rows),
    "update a fifth": lambda rows: f"UPDATE t SET a = a + 1, b = b || '!' WHERE id % 5 = 0 AND id < {rows}",
    "delete a tenth": lambda rows: f"DELETE FROM t WHERE id % 10 = 3 AND id < {rows}",
}


def run(setting: Setting) -> Iterator[Line]:
    """Yield capture and replay with digests beside both without, and the verification of a replica by one core."""
    rows = setting.rows(ROWS)
    found: dict[str, list[dict[str, dict[str, float]]]] = {"without": [], "with": []}
    for _ in range(setting.rounds):
        for side, rounds in found.items():
            folder = tables.fresh(setting.folder / side)
            rounds.append(in_a_process("tests.bench.digests", side, folder, rows))
    for what in WORK:
        for part, label in (("capture", "captured and flushed"), ("replay", "replayed")):
            plain, ours = (median(turn[what][part] for turn in found[side]) for side in ("without", "with"))
            yield Line(f"{what} of {rows:,} rows, {label}", duration(plain), duration(ours), ours / plain, goal=GOAL)
    yield _verified(setting)


def measure(folder: Path, rows: int) -> dict[str, dict[str, float]]:
    """Seconds of capture with its flush, and of replay, for each kind of work."""
    source = tables.make_master(tables.make_plain(folder / "t.duckdb", tables.KEYED))
    copy = folder / "copy.duckdb"
    wlr.replicate(source, into=copy)
    found = {}
    for what, statement in WORK.items():
        captured = timed(lambda statement=statement: _capture(source, statement(rows)))
        found[what] = {"capture": captured, "replay": timed(lambda: wlr.replicate(into=copy))}
    return found


def _capture(source: Path, statement: str) -> None:
    tables.execute(source, statement)
    wlc.flush(source)


def _verified(setting: Setting) -> Line:
    rows = setting.rows(VERIFIED_ROWS)
    folder = tables.fresh(setting.folder / "verified")
    plain = tables.make_plain(folder / "t.duckdb", tables.BAG, tables.insert_sql(0, rows))
    copy = folder / "copy.duckdb"
    wlr.replicate(tables.make_master(plain), into=copy)
    with duckdb.connect() as connection:
        cores = connection.execute("SELECT current_setting('threads')").fetchall()[0][0]
    seconds = median(timed(lambda: wlr.verify(copy)) for _ in range(setting.rounds))
    speed = rows / seconds / cores
    text = duration(seconds, rows)
    return Line(f"verify {rows:,} rows, per core", "", text, speed, "rows/s", GOAL_ROWS_PER_S, is_most=False)


def _zeros(layout: Layout, source: str, value: object = None, **kept: str) -> str:
    columns = "".join(f", {expression} AS {name}" for name, expression in kept.items())
    return f"(SELECT CAST(0 AS UBIGINT) AS h{columns} FROM {source})"


def main() -> None:
    """Measure one side, for `run`."""
    side, folder, rows = sys.argv[1:]
    if side == "without":
        digest_sql.numbered_sql = _zeros
    print(json.dumps(measure(Path(folder), int(rows))))


if __name__ == "__main__":
    main()
