"""One transaction bigger than the memory allowed: captured, flushed and replayed, each in a process of its own.

The peak is that of the process, resident; DuckDB's limit covers its buffers only, so plain DuckDB stands beside it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

import wlc
import wlr
from tests.bench import tables
from tests.bench.lakes import peak_gb
from tests.bench.measure import Line, Setting, duration, in_a_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 50_000_000
LIMIT = "2GB"
# What a process may need beyond the limit: the interpreter, libraries, and what DuckDB does not count.
GOAL_GB = 3.0


def run(setting: Setting) -> Iterator[Line]:
    """Yield capture, flush and replay, each in a child process."""
    rows = setting.rows(ROWS)
    folder = tables.fresh(setting.folder / "memory")
    plain = tables.make_plain(folder / "plain.duckdb", tables.BAG)
    master = tables.make_plain(folder / "t.duckdb", tables.BAG)
    tables.make_master(master)
    inserted = _child("insert", plain, folder, rows)
    yield _line(f"capture an insert of {rows:,} rows", inserted, _child("capture", master, folder, rows))
    copied = _child("copy", plain, folder, rows)
    yield _line("flush it", copied, _child("flush", master, folder, rows))
    loaded = _child("load", folder / "loaded.duckdb", folder, rows)
    yield _line("replay it", loaded, _child("replay", folder / "replica.duckdb", folder, rows))


def _line(what: str, plain: tuple[float, float], ours: tuple[float, float]) -> Line:
    theirs, own = (f"{duration(seconds)}, {peak:.2f} GB" for seconds, peak in (plain, ours))
    return Line(what, theirs, own, ours[1], "GB", GOAL_GB)


def _child(action: str, path: Path, folder: Path, rows: int) -> tuple[float, float]:
    """Seconds and peak in GB of one action."""
    seconds, peak = in_a_process("tests.bench.memory", action, path, folder, rows, WLR_MEMORY_LIMIT=LIMIT)
    return seconds, peak


# In the child --------------------------------------------------------------------------------------------------------


def _plain(path: Path, *statements: str) -> None:
    with duckdb.connect(str(path), config={"memory_limit": LIMIT}) as connection:
        for statement in statements:
            connection.execute(statement)


# Connections that must outlive their function: one that is collected is closed, and closing publishes.
_kept: list[object] = []


def _capture(path: Path, rows: int) -> None:
    connection = wlc.connect(path, config={"memory_limit": LIMIT})
    _kept.append(connection)
    connection.execute(tables.insert_sql(0, rows))
    # The process ends without closing, which would publish: that is the next process's work.
    assert wlc.tick(path) == 0, "the capture has published already"


def _flush(path: Path, rows: int) -> None:
    with wlc.connect(path, config={"memory_limit": LIMIT}):
        found = wlc.flush(path).rows
    assert found == rows, f"{found} rows published instead of {rows}"


def _replay(path: Path, folder: Path, rows: int) -> None:
    wlr.replicate(str(folder / "farm" / "t"), into=path)
    with duckdb.connect(str(path), read_only=True) as connection:
        found = connection.execute("SELECT count(*) FROM t").fetchall()[0][0]
    assert found == rows, f"{found} rows instead of {rows}"


def main(action: str, path: Path, folder: Path, rows: int) -> None:
    """Do one action and print its seconds and its peak in GB."""
    file = folder / "copy.parquet"
    actions: dict[str, Callable[[], None]] = {
        "insert": lambda: _plain(path, tables.insert_sql(0, rows)),
        "copy": lambda: _plain(path, f"COPY t TO '{file}' (FORMAT parquet, COMPRESSION zstd)"),
        "load": lambda: _plain(path, tables.BAG, f"INSERT INTO t FROM '{file}'"),
        "capture": lambda: _capture(path, rows),
        "flush": lambda: _flush(path, rows),
        "replay": lambda: _replay(path, folder, rows),
    }
    started = time.perf_counter()
    actions[action]()
    print(json.dumps([time.perf_counter() - started, peak_gb()]), flush=True)
    # No interpreter shutdown: it would close the connection, and so publish.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
