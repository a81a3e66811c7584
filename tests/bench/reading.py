"""Reading a table as of a moment from snapshot and log, beside DuckDB reading the same rows from Parquet."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import wlr
from tests.bench import lakes
from tests.bench.measure import Line, duration
from wlc.dialect.sql import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bench.measure import Setting

ROWS = 20_000_000
CHANGES = 2_000_000
BATCHES = 20
GOAL = 1.5
# Each row and column counts, so that both sides have to read them.
ALL = "count(*), bit_xor(hash(id, a, b, c, d))"
SOME = "count(*), sum(a)"
FEW = "id < 4000"


def run(setting: Setting) -> Iterator[Line]:
    """Yield CPU seconds of whole reads, of one column, and of a filter on the key."""
    rows, changes = setting.rows(ROWS), setting.rows(CHANGES)
    world = lakes.make(setting.folder / "read", rows)
    lakes.change(world, changes, BATCHES)
    farm, same = str(world.folder / "farm" / "t"), world.folder / "same.parquet"
    wlr.read(farm, "t").order("id").to_parquet(str(same), compression="zstd")
    size = f"{rows:,} rows, {changes:,} changes"
    checks = (True, False)
    for name, selected, columns, where in (
        ("all columns", ALL, None, None),
        ("one column of five", SOME, ["a"], None),
        ("1,000 rows by key", ALL, None, FEW),
    ):
        turns: list[tuple[float, ...]] = []
        for _ in range(setting.rounds):
            with lakes.plain() as connection:
                query = f"SELECT {selected} FROM read_parquet({literal(str(same))}) WHERE {where or 'true'}"
                plain, expected = cpu(lambda c=connection, q=query: c.execute(q).fetchall())
            found = [
                cpu(
                    lambda s=selected, c=columns, w=where, v=verify: (
                        wlr.read(farm, "t", columns=c, where=w, verify=v).aggregate(s).fetchall()
                    )
                )
                for verify in checks
            ]
            assert all(answer == expected for _, answer in found), (found, expected)
            turns.append((plain, *(seconds for seconds, _ in found)))
        plain, checked, unchecked = map(median, zip(*turns, strict=True))
        goal = GOAL if where is None and columns is None else None
        yield Line(f"{name}, {size}, CPU", duration(plain), duration(checked), checked / plain, goal=goal)
        yield Line(f"{name}, verify=False, CPU", duration(plain), duration(unchecked), unchecked / plain, goal=goal)


def cpu(call: Callable[[], object]) -> tuple[float, object]:
    """CPU seconds of all threads that a call takes, and its answer: other programs do not change them."""
    started = time.process_time()
    answer = call()
    return time.process_time() - started, answer
