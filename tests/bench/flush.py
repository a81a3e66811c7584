"""How fast a flush publishes what is journalled."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import wlc
from tests.bench import tables
from tests.bench.measure import Line, Setting, duration, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 5_000_000
GOAL_ROWS_PER_S = 3e6


def run(setting: Setting) -> Iterator[Line]:
    """Yield the flush of one big transaction, and of the same rows in a thousand."""
    rows = setting.rows(ROWS)
    yield _flush(setting, f"flush {rows:,} rows, 1 transaction", rows, 1)
    transactions = min(1000, rows // 10)
    yield _flush(setting, f"flush {rows:,} rows, {transactions:,} transactions", rows, transactions)


def _flush(setting: Setting, name: str, rows: int, transactions: int) -> Line:
    step = rows // transactions
    copies, flushes = [], []
    for _ in range(setting.rounds):
        folder = tables.fresh(setting.folder / "flush")
        path = tables.make_master(tables.make_plain(folder / "t.duckdb", tables.BAG))
        with wlc.connect(path) as connection:
            for number in range(transactions):
                connection.execute(tables.insert_sql(number * step, (number + 1) * step))
            # Plain DuckDB writes the same rows to a file of the same kind; it neither hashes nor empties anything.
            copy = f"COPY t TO '{folder / 'copy.parquet'}' (FORMAT parquet, COMPRESSION zstd)"
            copies.append(timed(lambda copy=copy, connection=connection: connection.execute(copy)))
            published: list[Any] = []
            flushes.append(timed(lambda path=path, published=published: published.append(wlc.flush(path))))
            assert published[0].rows == step * transactions, f"{published[0].rows} rows were published"
    done, plain, ours = step * transactions, median(copies), median(flushes)
    text = duration(plain, done)
    return Line(name, text, duration(ours, done), done / ours, "rows/s", GOAL_ROWS_PER_S, is_most=False)
