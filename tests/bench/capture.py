"""What capture costs: the same statements through duckdb.connect and wlc.connect."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

import duckdb

import wlc
from tests.bench import by_hand, tables
from tests.bench.measure import Line, Setting, compare, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

BULK_ROWS = 5_000_000
SINGLE_TABLE_ROWS = 100_000
THREADS = 8
THREADS_COMMITS = 1_000
WARM_UP = 20
# Other rows than those that are measured.
WARM_UP_FROM = 10**8 + 50_000


# Runs transaction number n on a connection.
Transaction = Callable[[Any, int], None]


@dataclass(frozen=True, slots=True)
class Bulk:
    """A bulk statement, on a table that already has `rows` rows."""

    name: str
    table: str
    rows: int
    statement: str
    changed: int
    goal: float | None = None
    images_per_row: int = 1

    @property
    def images(self) -> int:
        """Row images that the capture has to journal."""
        return self.changed * self.images_per_row


def run(setting: Setting) -> Iterator[Line]:
    """Yield bulk statements, single-row transactions of one connection, both by hand, and transactions of threads."""
    for bulk in bulks(setting):
        if setting.wants(bulk.name):
            yield _bulk(setting, bulk)
    for bulk in bulks(setting)[:2]:
        if setting.wants(name := f"{bulk.name}, captured and flushed"):
            yield _bulk(setting, replace(bulk, name=name, goal=1.5), flushes=True)
        if setting.wants(name := f"by hand: {bulk.name}, and a data file"):
            yield by_hand.bulk(setting, name, bulk)
        if setting.wants(name := f"by hand: {bulk.name}, a data file, published"):
            yield by_hand.bulk(setting, name, bulk, flushes=True)
    yield from _singles(setting)
    rows = setting.rows(SINGLE_TABLE_ROWS)
    yield from by_hand.singles(setting, rows, {name: run for name, _, run in single_transactions(rows)})
    each = max(1, setting.rows(THREADS_COMMITS) // THREADS)
    name = f"{each * THREADS:,} commits of {THREADS} threads, 1 row each"
    if setting.wants(name):
        yield _threads(setting, name, each)


def bulks(setting: Setting) -> list[Bulk]:
    full, fifth = setting.rows(BULK_ROWS), setting.rows(BULK_ROWS) // 5
    insert, keyed, bag = tables.insert_sql(0, full), tables.KEYED, tables.BAG
    some = f"WHERE id >= {fifth} AND id < {2 * fifth}"
    update = f"UPDATE t SET a = a + 1 {some}"
    return [
        Bulk(f"insert {full:,} rows, primary key", keyed, 0, insert, full, 1.25),
        Bulk(f"insert {full:,} rows, no key", bag, 0, insert, full, 1.6),
        Bulk(f"delete {fifth:,} rows, primary key", keyed, full, f"DELETE FROM t {some}", fifth, 2.5),
        Bulk(f"delete {fifth:,} rows, no key", bag, full, f"DELETE FROM t {some}", fifth),
        Bulk(f"update {fifth:,} rows, primary key", keyed, full, update, fifth, None, 2),
    ]


def _bulk(setting: Setting, bulk: Bulk, *, flushes: bool = False) -> Line:
    seed = tables.make_plain(setting.folder / "seed.duckdb", bulk.table, tables.insert_sql(0, bulk.rows))
    master = setting.folder / "master"

    def plain() -> float:
        path = tables.fresh(setting.folder / "plain") / "t.duckdb"
        shutil.copy(seed, path)
        with duckdb.connect(str(path)) as connection:
            return timed(lambda: connection.execute(bulk.statement))

    def ours() -> float:
        path = tables.fresh(master) / "t.duckdb"
        shutil.copy(seed, path)
        with wlc.connect(tables.make_master(path)) as connection:
            images = []

            def flush() -> None:
                images.append(wlc.flush(path).rows)

            seconds = timed(lambda: (connection.execute(bulk.statement), flushes and flush()))
            if not flushes:
                flush()
            assert images == [bulk.images], f"{images[0]} images were journalled instead of {bulk.images}"
            return seconds

    try:
        return compare(bulk.name, setting.rounds, plain, ours, bulk.goal, bulk.changed)
    finally:
        seed.unlink()


def _singles(setting: Setting) -> Iterator[Line]:
    rows = setting.rows(SINGLE_TABLE_ROWS)
    statements = (tables.KEYED, tables.insert_sql(0, rows))
    plain = tables.make_plain(tables.fresh(setting.folder / "plain") / "t.duckdb", *statements)
    ours = tables.make_plain(tables.fresh(setting.folder / "master") / "t.duckdb", *statements)
    with duckdb.connect(str(plain)) as first, wlc.connect(tables.make_master(ours)) as second:
        for name, goal, transaction in single_transactions(rows):
            if setting.wants(name):
                yield _single(setting, name, goal, transaction, first, second)
                published = wlc.flush(ours).transactions
                assert published >= setting.singles, f"{published} of {setting.singles} transactions were journalled"


def single_transactions(rows: int) -> list[tuple[str, float | None, Transaction]]:
    """Names, goals, and what runs transaction number n on a connection; `rows` are there from the start."""
    insert, values = "INSERT INTO t VALUES (?, ?, ?, ?, ?)", "2026-01-01 00:00:00"

    def insert_alone(connection: Any, number: int) -> None:
        connection.execute(insert, [10**9 + number, 1, "value", 0.5, values])

    def insert_text(connection: Any, number: int) -> None:
        connection.execute(f"INSERT INTO t VALUES ({2 * 10**9 + number}, 1, 'value', 0.5, '{values}')")

    def insert_between(connection: Any, number: int) -> None:
        connection.execute("BEGIN")
        connection.execute(insert, [3 * 10**9 + number, 1, "value", 0.5, values])
        connection.execute("COMMIT")

    def update(connection: Any, number: int) -> None:
        connection.execute("UPDATE t SET a = ? WHERE id = ?", [number, number * 61 % rows])

    def update_between(connection: Any, number: int) -> None:
        connection.execute("BEGIN")
        connection.execute("UPDATE t SET a = ? WHERE id = ?", [number, number * 61 % rows])
        connection.execute("COMMIT")

    def delete(connection: Any, number: int) -> None:
        connection.execute("DELETE FROM t WHERE id = ?", [number % rows])

    return [
        ("insert 1 row", 1.6, insert_alone),
        ("insert 1 row, values in the text", 2.5, insert_text),
        ("BEGIN, insert 1 row, COMMIT", 1.5, insert_between),
        ("update 1 row by key", 3.0, update),
        ("BEGIN, update 1 row by key, COMMIT", 2.5, update_between),
        ("delete 1 row by key", 2.5, delete),
    ]


def _single(setting: Setting, name: str, goal: float | None, transaction: Transaction, plain: Any, ours: Any) -> Line:
    for number in range(min(WARM_UP, setting.singles)):
        transaction(plain, WARM_UP_FROM + number)
        transaction(ours, WARM_UP_FROM + number)
    numbers, others = count(), count()
    return compare(name, setting.singles, _turn(transaction, plain, numbers), _turn(transaction, ours, others), goal)


def _threads(setting: Setting, name: str, each: int) -> Line:
    """Threads of one process, each with a connection of its own, that insert one row after the other."""

    def plain() -> float:
        path = tables.make_plain(tables.fresh(setting.folder / "plain") / "t.duckdb", tables.KEYED)
        with duckdb.connect(str(path)) as connection:
            return _insert_at_once(connection, each)

    def ours() -> float:
        path = tables.make_plain(tables.fresh(setting.folder / "master") / "t.duckdb", tables.KEYED)
        with wlc.connect(tables.make_master(path)) as connection:
            seconds = _insert_at_once(connection, each)
            published = wlc.flush(path).transactions
            assert published == each * THREADS, f"{published} of {each * THREADS} transactions were journalled"
            return seconds

    return compare(name, setting.rounds, plain, ours, 2.0)


def _insert_at_once(connection: Any, each: int) -> float:
    connections = [connection.cursor() for _ in range(THREADS)]
    insert, values = "INSERT INTO t VALUES (?, ?, ?, ?, ?)", "2026-01-01 00:00:00"

    def insert_rows(thread: int) -> None:
        for number in range(each):
            connections[thread].execute(insert, [thread * each + number, 1, "value", 0.5, values])

    with ThreadPoolExecutor(THREADS) as pool:
        seconds = timed(lambda: list(pool.map(insert_rows, range(THREADS))))
    for one in connections:
        one.close()
    return seconds


def _turn(transaction: Transaction, connection: Any, numbers: Iterator[int]) -> Callable[[], float]:
    def turn() -> float:
        number = next(numbers)
        started = perf_counter()
        transaction(connection, number)
        return perf_counter() - started

    return turn
