"""What capture cannot do without: its reads and writes by hand, in plain SQL, by a program that does nothing else.

Each program has its own statements parsed beforehand, and DuckDB plans and runs them. The user's statement comes as text.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

import duckdb

from tests.bench import tables
from tests.bench.measure import Line, Setting, compare, timed
from wlc.dialect.duckdb.digest_sql import sum_rows
from wlc.farm.model import Column, Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bench.capture import Bulk, Transaction

_IMAGE = (
    "tick BIGINT, weight TINYINT, row_id BIGINT, meta VARCHAR, id BIGINT, a INTEGER, b VARCHAR, c DOUBLE, d TIMESTAMP"
)
_JOURNAL = f"CREATE TABLE journal ({_IMAGE}); CREATE TABLE entries (tick BIGINT, meta VARCHAR)"
_META = '{"user": "ann", "started": "2026-01-01T00:00:00.000000Z", "committed": "2026-01-01T00:00:00.000000Z"}'
_RETURNED = "WITH r AS ({} RETURNING *) INSERT INTO journal SELECT ?, {}, NULL, ?, * FROM r"
_INSERT = _RETURNED.format("INSERT INTO t VALUES (?, ?, ?, ?, ?)", 1)
_DELETE = _RETURNED.format("DELETE FROM t WHERE id = ?", -1)
_SAVE = (
    "INSERT INTO journal SELECT ?, unnest([-1, 1]), rowid, ?, id, unnest([a, CAST(? AS INTEGER)]), b, c, d FROM t"
    " WHERE id = ?"
)
_UPDATE = "UPDATE t SET a = ? WHERE id = ?"
_VALUES = (1, "value", 0.5, "2026-01-01 00:00:00")


_TYPES = {"id": "BIGINT", "a": "INTEGER", "b": "VARCHAR", "c": "DOUBLE", "d": "TIMESTAMP"}
_LAYOUT = Layout(tuple(Column(name, type_) for name, type_ in _TYPES.items()))


class _Program:
    """Runs single-row transactions and journals what they change."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, rows: int) -> None:
        self.rows = rows
        self._connection = connection
        self._parsed: dict[str, duckdb.Statement] = {}

    def _run(self, text: str, *values: object) -> None:
        if text not in self._parsed:
            (self._parsed[text],) = self._connection.extract_statements(text)
        self._connection.execute(self._parsed[text], values or None)

    def insert(self, number: int, meta: str | None = _META) -> None:
        self._run("BEGIN")
        self._run(_INSERT, 10**9 + number, *_VALUES, number, meta)
        self._run("COMMIT")

    def insert_between(self, number: int) -> None:
        """The time of the commit is known when it comes."""
        self._run("BEGIN")
        self._run(_INSERT, 3 * 10**9 + number, *_VALUES, number, None)
        self._run("INSERT INTO entries VALUES (?, ?)", number, _META)
        self._run("COMMIT")

    def update(self, number: int) -> None:
        key = number * 61 % self.rows
        self._run("BEGIN")
        self._run(_SAVE, number, _META, number, key)
        self._connection.execute(_UPDATE, [number, key])
        self._run("COMMIT")

    def update_between(self, number: int) -> None:
        key = number * 61 % self.rows
        self._run("BEGIN")
        self._run(_SAVE, number, None, number, key)
        self._connection.execute(_UPDATE, [number, key])
        self._run("INSERT INTO entries VALUES (?, ?)", number, _META)
        self._run("COMMIT")

    def delete(self, number: int) -> None:
        self._run("BEGIN")
        self._run(_DELETE, number % self.rows, number, _META)
        self._run("COMMIT")


def singles(setting: Setting, rows: int, plain: dict[str, Transaction]) -> Iterator[Line]:
    """Yield a line for each kind of transaction: plain DuckDB beside the same with a journal by hand.

    Args:
        setting: What to measure.
        rows: Rows of the table.
        plain: The transactions without a journal, by the names of their lines.
    """
    paths = [tables.fresh(setting.folder / name) / "t.duckdb" for name in ("plain", "by_hand")]
    for path, more in zip(paths, ("SELECT 1", _JOURNAL), strict=True):
        tables.make_plain(path, tables.KEYED, tables.insert_sql(0, rows), more)
    with duckdb.connect(str(paths[0])) as first, duckdb.connect(str(paths[1])) as second:
        program = _Program(second, rows)
        for name, ours in {
            "insert 1 row": program.insert,
            "BEGIN, insert 1 row, COMMIT": program.insert_between,
            "update 1 row by key": program.update,
            "BEGIN, update 1 row by key, COMMIT": program.update_between,
            "delete 1 row by key": program.delete,
        }.items():
            if setting.wants(f"by hand: {name}"):
                yield _single(setting, f"by hand: {name}", plain[name], first, ours)


def _single(setting: Setting, name: str, plain: Transaction, connection: Any, ours: Callable[[int], None]) -> Line:
    numbers, others = count(), count()

    def once(call: Callable[[], None]) -> float:
        started = perf_counter()
        call()
        return perf_counter() - started

    return compare(
        name,
        setting.singles,
        lambda: once(lambda: plain(connection, next(numbers))),
        lambda: once(lambda: ours(next(others))),
        None,
    )


def bulk(setting: Setting, name: str, line: Bulk, *, flushes: bool = False) -> Line:
    """A bulk INSERT beside the same one whose rows are written as a data file before its COMMIT.

    With `flushes`, the file is also published: its rows are digested, its checksum is computed, and it is on disk.
    """
    seed = tables.make_plain(setting.folder / "seed.duckdb", line.table)

    def plain(*more: str) -> float:
        path = tables.fresh(setting.folder / "by_hand") / "t.duckdb"
        shutil.copy(seed, path)
        with duckdb.connect(str(path)) as connection:
            return timed(lambda: [connection.execute(text) for text in ("BEGIN", line.statement, *more, "COMMIT")])

    file = setting.folder / "by_hand" / "rows.parquet"
    copy = f"COPY (SELECT 1 AS tick, 1::TINYINT AS weight, * FROM t) TO '{file}' (FORMAT parquet, COMPRESSION zstd)"

    def publish() -> float:
        def call() -> None:
            with duckdb.connect() as connection:
                sum_rows(connection, _LAYOUT, f"read_parquet('{file}')")
            with file.open("rb") as stream:
                hashlib.file_digest(stream, "sha256")
                os.fsync(stream.fileno())

        return timed(call)

    try:
        ours = (lambda: plain(copy) + publish()) if flushes else lambda: plain(copy)
        return compare(name, setting.rounds, plain, ours, None, line.changed)
    finally:
        seed.unlink()
