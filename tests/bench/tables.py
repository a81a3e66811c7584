"""The tables and statements that the benchmarks share."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import duckdb

import wlc

if TYPE_CHECKING:
    from pathlib import Path

# No beat comes between the statements that are measured.
NO_BEAT_S = 1e6
COLUMNS = "(id BIGINT {key}, a INTEGER, b VARCHAR, c DOUBLE, d TIMESTAMP)"
KEYED = f"CREATE TABLE t {COLUMNS.format(key='PRIMARY KEY')}"
BAG = f"CREATE TABLE t {COLUMNS.format(key='')}"


def rows_sql(first: int, after: int) -> str:
    """SQL for rows with the ids from `first` up to `after`."""
    return (
        "SELECT i, (i * 7919 % 1000)::INTEGER, 'value ' || i, i / 7, TIMESTAMP '2026-01-01' + to_seconds(i)"
        f" FROM range({first}, {after}) r(i)"
    )


def insert_sql(first: int, after: int) -> str:
    """A statement that adds these rows."""
    return f"INSERT INTO t {rows_sql(first, after)}"


def make_plain(path: Path, *statements: str) -> Path:
    """Make a plain database, closed and checkpointed."""
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


def make_master(path: Path) -> Path:
    """Turn a plain database into a master with its farm beside it."""
    wlc.master(path, farm=str(path.parent / "farm"), beat_s=NO_BEAT_S)
    return path


def fresh(folder: Path) -> Path:
    """An empty folder, whatever was there before."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def execute(path: Path, *statements: str) -> None:
    """Run statements on a master, captured and published."""
    with wlc.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
