"""What a snapshot costs beside DuckDB's own COPY TO Parquet of the same table."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import duckdb

import wlc
from tests.bench import tables
from tests.bench.measure import Line, Setting, compare, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 5_000_000
GOAL = 1.4


def run(setting: Setting) -> Iterator[Line]:
    """Yield one line per compression of the plain copy; snapshots always use zstd."""
    rows = setting.rows(ROWS)
    folder = tables.fresh(setting.folder / "snapshot")
    statements = (tables.KEYED, tables.insert_sql(0, rows))
    plain_path = tables.make_plain(folder / "plain.duckdb", *statements)
    path = tables.make_master(tables.make_plain(folder / "t.duckdb", *statements))
    ids = count(rows)

    def ours() -> float:
        # A snapshot is one of a tick, so every round needs a new one; it is published before the clock starts.
        first = next(ids)
        tables.execute(path, tables.insert_sql(first, first + 1))
        taken: list[Any] = []
        seconds = timed(lambda: taken.append(wlc.snapshot(path)))
        copied = sum(file.rows for table in taken[0].tables for file in table.files)
        assert copied == first + 1, f"{copied} rows in the snapshot instead of {first + 1}"
        return seconds

    for compression, goal in (("zstd", GOAL), ("snappy", None)):

        def plain(compression: str = compression) -> float:
            target = folder / "copy.parquet"
            target.unlink(missing_ok=True)
            return timed(lambda: _copy(f"COPY t TO '{target}' (FORMAT parquet, COMPRESSION {compression})"))

        def _copy(statement: str) -> None:
            with duckdb.connect(str(plain_path)) as connection:
                connection.execute(statement)

        yield compare(f"{rows:,} rows, COPY with {compression}", setting.rounds, plain, ours, goal, rows)
