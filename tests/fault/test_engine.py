"""What DuckDB does with many rows and threads, shows while it commits, and fails with: all of it is published exactly.

DuckDB's `UPDATE … RETURNING` and transition tables lose rows of indexed tables from about half a million rows on, where
several threads work. So every statement also runs in a DuckDB of its own, with one thread and without capture: the
number of rows that it reports there, and all rows before and after it there, are what the log is compared with.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlr import app
from tests.fault.processes import wants_all
from tests.sampling import sampled
from tests.scratch import attached
from wlc.dialect.duckdb.catalog import united
from wlc.dialect.sql import literal
from wlc.farm.database import open_database
from wlc.farm.errors import UnavailableError
from wlc.farm.model import Change, Clear, Ddl
from wlr.engine.duckdb import replica as duckdb_replica
from wlr.engine.parquet import catalog as lake_catalog
from wlr.engine.parquet import executor as lake_executor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from wlc.capture.duckdb.connection import Connection
    from wlc.farm.database import FarmDatabase

ROWS = 2_000_000 if wants_all() else 800_000
THREADS = 4
# Each statement is about every so many rows; from 160,000 on DuckDB's threads have been seen to lose some.
SHARE = 5
FEW = ROWS // SHARE

COLUMNS = "other BIGINT, v INTEGER, text VARCHAR"
TABLES = {
    "no index": f"CREATE TABLE big (id BIGINT, {COLUMNS})",
    "all indexes": f"""
        CREATE TABLE big (id BIGINT PRIMARY KEY, {COLUMNS});
        CREATE INDEX big_v ON big (v)
    """,
    "primary key": f"CREATE TABLE big (id BIGINT PRIMARY KEY, {COLUMNS})",
    "unique": f"CREATE TABLE big (id BIGINT, {COLUMNS}, UNIQUE (other))",
    "secondary index": f"CREATE TABLE big (id BIGINT, {COLUMNS}); CREATE INDEX big_v ON big (v)",
}
ALWAYS = ("all indexes",)


@dataclass(frozen=True)
class Kind:
    """A kind of statement.

    Attributes:
        run: SQL, or what is done with a connection.
        images: How many images before and after it leaves of each row that it reports; None where it does not tell.
        needs_key: It refers to the primary key.
    """

    name: str
    run: str | Callable[[Any], Any]
    images: tuple[int, int] | None = None
    needs_key: bool = False


def added(first: int, last: int, v: str = "i % 10") -> str:
    return f"SELECT i AS id, i AS other, {v} AS v, 'added' AS text FROM range({first}, {last}) r(i)"


def use_appender(connection: Any) -> None:
    with connection.appender("big") as appender:
        appender.append_rows((7_000_000 + i, 7_000_000 + i, i % 10, "appended") for i in range(20_000))


def append_frame(connection: Any) -> None:
    with duckdb.connect() as other:
        connection.append("big", other.sql(added(8_000_000, 8_000_000 + FEW)).df())


def do_several(connection: Any) -> None:
    connection.execute(f"BEGIN; UPDATE big SET v = v + 1 WHERE id % {SHARE} = 0")
    connection.execute("INSERT INTO big " + added(9_000_000, 9_000_000 + FEW))
    connection.execute("UPDATE big SET other = -other - 3 WHERE id % 9 = 0")
    connection.execute("DELETE FROM big WHERE id % 20 = 1; COMMIT")


CHANGES = f"CREATE TABLE changes AS SELECT i AS id, i % 7 AS w FROM range(0, {5 * ROWS // 2}, {SHARE}) r(i)"
INSERTED, UPDATED, DELETED = (0, 1), (1, 1), (1, 0)
KINDS = (
    Kind("INSERT VALUES", "INSERT INTO big VALUES (-1, -1, 0, 'one'), (-2, -2, NULL, NULL)", INSERTED),
    Kind("INSERT SELECT", f"INSERT INTO big {added(ROWS, ROWS + FEW)}", INSERTED),
    Kind("INSERT RETURNING", f"INSERT INTO big {added(3_000_000, 3_000_000 + FEW)} RETURNING id", INSERTED),
    # Half of the rows are there already, the others are not.
    Kind(
        "INSERT OR IGNORE",
        f"INSERT OR IGNORE INTO big {added(3_000_000 + FEW // 2, 3_000_000 + 2 * FEW)}",
        INSERTED,
        needs_key=True,
    ),
    Kind(
        "INSERT OR REPLACE",
        f"INSERT OR REPLACE INTO big {added(ROWS + FEW // 2, ROWS + 2 * FEW, '70')}",
        needs_key=True,
    ),
    Kind(
        "ON CONFLICT DO UPDATE",
        f"INSERT INTO big {added(3_000_000 + FEW, 3_000_000 + 3 * FEW)} ON CONFLICT (id) DO UPDATE SET v = big.v + excluded.v",
        needs_key=True,
    ),
    Kind("UPDATE of a plain column", f"UPDATE big SET text = text || '!' WHERE id % {SHARE} = 0", UPDATED),
    Kind("UPDATE of an indexed column", f"UPDATE big SET v = v + 100 WHERE id % {SHARE} = 1", UPDATED),
    Kind("UPDATE of a unique column", f"UPDATE big SET other = -other - 3 WHERE id % {SHARE} = 2", UPDATED),
    Kind("UPDATE of the key", f"UPDATE big SET id = id + 50000000 WHERE id % {SHARE} = 3", UPDATED),
    Kind("UPDATE FROM", "UPDATE big SET v = changes.w FROM changes WHERE big.id = changes.id", UPDATED),
    Kind(
        "UPDATE RETURNING", f"UPDATE big SET v = v - 1, other = -other WHERE id % {SHARE} = 4 RETURNING id, v", UPDATED
    ),
    Kind(
        "MERGE",
        """
            MERGE INTO big USING changes ON big.id = changes.id
            WHEN MATCHED AND changes.w = 0 THEN DELETE
            WHEN MATCHED AND changes.w < 6 THEN UPDATE SET v = changes.w, text = 'merged'
            WHEN MATCHED THEN DO NOTHING
            WHEN NOT MATCHED AND changes.w < 5 THEN INSERT VALUES (changes.id, changes.id + 60000000, changes.w, 'new')
        """,
    ),
    Kind(
        "MERGE BY SOURCE",
        """
            MERGE INTO big USING changes ON big.id = changes.id
            WHEN NOT MATCHED BY SOURCE AND big.id % 11 = 0 THEN DELETE
            WHEN NOT MATCHED BY SOURCE AND big.id % 11 = 1 THEN UPDATE SET text = 'left'
        """,
    ),
    Kind("appender", use_appender),
    Kind("append", append_frame),
    Kind("several in one transaction", do_several),
    Kind("DELETE", f"DELETE FROM big WHERE id % {SHARE} = 2", DELETED),
    Kind("DELETE USING", "DELETE FROM big USING changes WHERE big.id = changes.id AND changes.w > 1", DELETED),
    Kind("DELETE RETURNING", f"DELETE FROM big WHERE id % {SHARE} = 3 RETURNING *", DELETED),
    # From here on, every run tries all, each on what the one before has left.
    Kind("TRUNCATE", "TRUNCATE big"),
    Kind("COPY FROM", "COPY big FROM {file}", INSERTED),
    Kind("DELETE of every row", "DELETE FROM big"),
    Kind("CREATE TABLE AS", f"CREATE TABLE made AS {added(0, ROWS)}"),
)
LAST = 4


def run(connection: Any, kind: Kind, file: Path) -> Any:
    """Run a statement, or do what stands for one."""
    if not isinstance(kind.run, str):
        return kind.run(connection)
    return connection.execute(kind.run.replace("{file}", literal(str(file))))


def run_plainly(connection: Any, kind: Kind, file: Path) -> int:
    """Run a statement where nothing is captured; returns the number of rows that it reports, -1 if it does not."""
    without = replace(kind, run=kind.run.partition(" RETURNING")[0]) if isinstance(kind.run, str) else kind
    result = run(connection, without, file)
    rows = result.fetchall() if result is not None else []
    return int(rows[0][0]) if rows else -1


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_what_many_rows_and_threads_did_is_published_exactly(table: str, tmp_path: Path) -> None:
    if table not in ALWAYS and not wants_all():
        pytest.skip("DBFARM_FAULTS=all runs the others")
    source, replica, file = tmp_path / "source.duckdb", tmp_path / "replica.duckdb", tmp_path / "rows.parquet"
    seed = f"{CHANGES}; {TABLES[table]}; INSERT INTO big {added(0, ROWS)}"
    with duckdb.connect(source) as connection:
        connection.execute(seed)
    wlc.master(source, farm=str(tmp_path / "farm"), beat_s=0)
    kinds = [kind for kind in KINDS if not kind.needs_key or "id BIGINT PRIMARY KEY" in TABLES[table]]
    kinds = [*sampled(kinds[:-LAST], 3), *kinds[-LAST:]]
    with duckdb.connect(config={"threads": 1}) as plain, wlc.connect(source) as captured:
        plain.execute(seed)
        plain.execute(f"COPY ({added(0, ROWS)}) TO {literal(str(file))} (FORMAT parquet)")
        captured.execute(f"SET threads = {THREADS}")
        database = open_database("source", str(tmp_path / "farm"))
        for number, kind in enumerate(kinds, 1):
            if wants_all():
                plain.execute("CREATE OR REPLACE TEMP TABLE before AS FROM big")
            before = digest(plain, "big")
            reported = run_plainly(plain, kind, file)
            run(captured, kind, file)
            # Were this to fail, DuckDB itself would do something else with threads, captured or not.
            assert digest(captured, "big") == digest(plain, "big"), kind.name
            check_batch(database, number, plain, kind, before, reported)
            if kind.name == "several in one transaction":
                wlr.replicate("source", farm=str(tmp_path / "farm"), into=replica)
                check_replica(plain, replica, "big")
    wlr.replicate("source", farm=str(tmp_path / "farm"), into=replica)
    with duckdb.connect() as plain:
        plain.execute(f"CREATE TABLE made AS {added(0, ROWS)}")
        check_replica(plain, replica, "made")


def digest(connection: Any, source: str, weight: str = "1") -> tuple[int, int]:
    """Number of rows and sum of their hashes: both add up over what is added, and subtract what is removed."""
    hashed = f"coalesce(sum({weight} * hash(id, other, v, text)::HUGEINT), 0)"
    return connection.execute(f"SELECT coalesce(sum({weight}), 0), {hashed} FROM {source}").fetchall()[0]


def check_batch(
    database: FarmDatabase, number: int, plain: Any, kind: Kind, before: tuple[int, int], reported: int
) -> None:
    """The log says what the statement did: in numbers, and in the images of its rows."""
    batch, _ = database.read_batch(number)
    (transaction,) = batch.transactions
    records = [record for record in transaction.records if not isinstance(record, Ddl)]
    assert len(records) == 1, kind.name
    if isinstance(records[0], Clear):
        assert (records[0].removed, digest(plain, "big")[0]) == (before[0], 0), kind.name
        return
    change = records[0]
    assert isinstance(change, Change)
    if kind.images is not None:
        assert (change.removed, change.added) == tuple(share * reported for share in kind.images), kind.name
    images = f"read_parquet({[str(database.fetch(file)) for file in batch.files]})"
    found = plain.execute(
        f"SELECT count(*) FILTER (_weight < 0), count(*) FILTER (_weight > 0) FROM {images}"
    ).fetchall()
    assert found == [(change.removed, change.added)], kind.name
    was, now = (before, digest(plain, "big")) if kind.name != "CREATE TABLE AS" else ((0, 0), digest(plain, "made"))
    assert digest(plain, images, "_weight") == (now[0] - was[0], now[1] - was[1]), kind.name
    if wants_all() and kind.name != "CREATE TABLE AS":
        check_rows(plain, images, kind)


def check_rows(plain: Any, images: str, kind: Kind) -> None:
    """The same row by row."""
    plain.execute(f"""
        CREATE OR REPLACE TEMP TABLE wrong AS
        SELECT id, other, v, text, sum(weight) AS weight FROM (
            SELECT id, other, v, text, _weight AS weight FROM {images}
            UNION ALL SELECT *, 1 FROM (FROM before EXCEPT ALL FROM big)
            UNION ALL SELECT *, -1 FROM (FROM big EXCEPT ALL FROM before)
        ) GROUP BY ALL HAVING sum(weight) <> 0
    """)
    wrong = plain.execute("SELECT * FROM wrong ORDER BY ALL LIMIT 5").fetchall()
    assert wrong == [], f"{kind.name}: the log and the table differ in such rows, by so many"


def check_replica(plain: Any, replica: Path, table: str) -> None:
    plain.execute(f"ATTACH {literal(str(replica))} AS replica (READ_ONLY)")
    differing = plain.execute(f"""
        SELECT (SELECT count(*) FROM (FROM {table} EXCEPT ALL FROM replica.{table})),
               (SELECT count(*) FROM (FROM replica.{table} EXCEPT ALL FROM {table}))
    """).fetchall()
    plain.execute("DETACH replica")
    assert differing == [(0, 0)]


# A large COMMIT takes a while: who looks meanwhile is shown a part of it -----------------------------------------------


ADDED_ROWS, MORE, TRANSACTIONS = 60_000, 300_000, 8 if wants_all() else 4


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "bank.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE entry (tick INTEGER, i INTEGER, text VARCHAR); CREATE TABLE total (n BIGINT)")
        connection.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, v INTEGER)")
        connection.execute("CREATE TABLE many AS SELECT i FROM range(300000) r(i)")
        connection.execute("INSERT INTO account SELECT i, 0 FROM range(200000) r(i)")
    wlc.master(path, farm=str(tmp_path / "farm"))
    return path


def write(connection: Connection, number: int) -> None:
    """One transaction whose journal is written by several statements."""
    connection.execute("BEGIN")
    connection.execute(f"INSERT INTO entry SELECT {number}, i, 'x' || i FROM many LIMIT {ADDED_ROWS}")
    connection.execute(f"UPDATE account SET id = -id - 1, v = {number} WHERE id % 10 = {number % 10}")
    connection.execute(f"UPDATE entry SET text = 'y' WHERE tick = {number - 1} AND i % 5 = 0")
    connection.execute(f"INSERT INTO entry SELECT {number}, i, 'z' FROM many")
    connection.execute("COMMIT")


@pytest.mark.slow
def test_publishing_while_a_large_commit_runs_publishes_all_or_nothing_of_it(source: Path, tmp_path: Path):
    is_done, failures = threading.Event(), []

    def publish() -> None:
        try:
            while not is_done.is_set():
                wlc.flush(source)
        except Exception as error:
            failures.append(error)

    with wlc.connect(source) as connection:
        publishers = [threading.Thread(target=publish) for _ in range(2)]
        for publisher in publishers:
            publisher.start()
        try:
            for number in range(TRANSACTIONS):
                write(connection, number)
        finally:
            is_done.set()
            for publisher in publishers:
                publisher.join()
        count = connection.execute("SELECT count(*), sum(hash(entry)::HUGEINT) FROM entry").fetchall()
    assert failures == []
    database = open_database("bank", str(tmp_path / "farm"))
    batches = [database.read_batch(number)[0] for number in database.batch_numbers()]
    changes = {
        transaction.tick: sorted((r.removed, r.added) for r in transaction.records if isinstance(r, Change))
        for batch in batches
        for transaction in batch.transactions
    }
    updated = [0] + [ADDED_ROWS // 5 + MORE // 5] * (TRANSACTIONS - 1)
    moved = 20_000
    assert changes == {
        tick: sorted([(moved, moved), (rewritten, rewritten + ADDED_ROWS + MORE)])
        for tick, rewritten in enumerate(updated, 1)
    }
    replica = tmp_path / "replica.duckdb"
    wlr.replicate("bank", farm=str(tmp_path / "farm"), into=replica)
    with attached(replica) as copy:
        assert copy.execute("SELECT count(*), sum(hash(entry)::HUGEINT) FROM entry").fetchall() == count


ADD_MANY = "INSERT INTO {0} SELECT i, i FROM many"
KEYED_ITEM = "id INTEGER PRIMARY KEY, v INTEGER"
# What is done to a table that has no rows before.
FOLLOWING = {
    "upsert": (KEYED_ITEM, f"{ADD_MANY} ON CONFLICT (id) DO UPDATE SET v = excluded.v"),
    "update_": (KEYED_ITEM, f"BEGIN; UPDATE {{0}} SET v = 7 WHERE v = -5; {ADD_MANY}; COMMIT"),
    "merge_": (
        KEYED_ITEM,
        "MERGE INTO {0} USING many AS n ON {0}.id = n.i"
        " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (n.i, n.i)",
    ),
    "schema_change": (
        "x INTEGER, y INTEGER",
        f"BEGIN; DELETE FROM {{0}} WHERE x < 0; ALTER TABLE upsert ADD COLUMN y INTEGER; {ADD_MANY}; COMMIT",
    ),
    "type": ("x INTEGER, y INTEGER", f"BEGIN; ALTER TABLE {{0}} ALTER y TYPE BIGINT; {ADD_MANY}; COMMIT"),
    "named": ("rowid INTEGER, v INTEGER", f"BEGIN; DELETE FROM {{0}} WHERE rowid < 0; {ADD_MANY}; COMMIT"),
}


@pytest.mark.slow
def test_many_rows_that_follow_none(tmp_path: Path):
    """DuckDB does not show what several threads add after an INSERT of no rows, though all of it is committed."""
    source, replica = tmp_path / "bank.duckdb", tmp_path / "replica.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE many AS SELECT i FROM range(300000) r(i)")
        for table, (columns, _) in FOLLOWING.items():
            connection.execute(f"CREATE TABLE {table} ({columns})")
    wlc.master(source, farm=str(tmp_path / "farm"))
    with wlc.connect(source) as connection:
        connection.execute("SET threads = 4")
        for tick, (table, (_, script)) in enumerate(FOLLOWING.items(), 1):
            connection.execute(script.format(table))
            assert wlc.flush(source).tick == tick
    wlr.replicate("bank", farm=str(tmp_path / "farm"), into=replica)
    assert digests(replica, tuple(FOLLOWING)) == digests(source, tuple(FOLLOWING))


def digests(path: Path, tables: tuple[str, ...]) -> list[object]:
    with attached(path) as connection:
        return [
            connection.execute(f"SELECT count(*), sum(hash({table})::HUGEINT) FROM {table}").fetchall()
            for table in tables
        ]


def test_journal_that_cannot_be_read_whole_is_not_published_in_part(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB 2.0.0 counted rows that it did not show."""

    def hides_one(connection: duckdb.DuckDBPyConnection, queries: Sequence[str]) -> list[tuple[Any, ...]]:
        rows = united(connection, queries)
        return [(number, how, count and count - (how == "shown")) for number, how, count in rows]

    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO total FROM many LIMIT 100")
        with monkeypatch.context() as patched:
            patched.setattr("wlc.capture.duckdb.unpublished.duckdb_catalog.united", hides_one)
            with pytest.raises(UnavailableError, match="of 100 journalled rows of table main.total DuckDB shows 99"):
                wlc.flush(source)
        assert wlc.tick("bank", farm=str(tmp_path / "farm")) == 0
    assert wlc.tick("bank", farm=str(tmp_path / "farm")) == 1
    batch, _ = open_database("bank", str(tmp_path / "farm")).read_batch(1)
    assert batch.transactions[0].records[0].added == 100


# DuckDB fails by an error of its own and gives up the database ---------------------------------------------------------


_TICKS = re.compile(r"_tick BETWEEN (\d+) AND (\d+)")


def is_poison(text: str) -> bool:
    """Whether a statement makes the table `poison`, or reads the images of transaction 2."""
    return text.startswith("CREATE TABLE poison") or any(
        int(first) <= 2 <= int(last) for first, last in _TICKS.findall(text)
    )


class BrokenByPoison:
    """A connection that fails as DuckDB does at a certain statement, and at every statement after it."""

    def __init__(self, inner: duckdb.DuckDBPyConnection, broken: list[str] | None = None) -> None:
        self._inner = inner
        self._broken: list[str] = [] if broken is None else broken

    def execute(self, text: str, *arguments: Any) -> Any:
        if self._broken:
            raise duckdb.FatalException(
                "FATAL Error: Failed: database has been invalidated because of a previous fatal error. The database must"
                ' be restarted prior to being used again.\nOriginal error: "INTERNAL Error: Attempted to access index 3"'
            )
        if is_poison(text):
            self._broken.append(text)
            raise duckdb.InternalException("INTERNAL Error: Attempted to access index 3 within vector of size 3")
        return self._inner.execute(text, *arguments)

    def cursor(self) -> BrokenByPoison:
        return BrokenByPoison(self._inner.cursor(), self._broken)

    def __enter__(self) -> BrokenByPoison:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def breaking(open_one: Callable[..., duckdb.DuckDBPyConnection]) -> Callable[..., Any]:
    return lambda *arguments, **options: BrokenByPoison(open_one(*arguments, **options))


OPENING = ((duckdb_replica, "attach"), (lake_catalog, "open_scratch"), (lake_executor, "connect"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, statement",
    [
        ("copy.duckdb", "CREATE TABLE poison (i INTEGER)"),
        ("lake", "INSERT INTO t VALUES (2, 'b')"),
        pytest.param("copy.duckdb", "INSERT INTO t VALUES (2, 'b')", marks=pytest.mark.deep),
        pytest.param("lake", "CREATE TABLE poison (i INTEGER)", marks=pytest.mark.deep),
    ],
)
def test_an_error_of_duckdb_is_a_failure_of_the_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, statement: str
) -> None:
    source, into = tmp_path / "source.duckdb", tmp_path / kind
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY, v VARCHAR)")
    wlc.master(source, farm=str(tmp_path / "farm"))
    wlr.replicate(source, into=into)
    with wlc.connect(source) as connection:
        for text in ("INSERT INTO t VALUES (1, 'a')", statement, "INSERT INTO t VALUES (3, 'c')"):
            connection.execute(text)
    wlc.flush(source)
    with monkeypatch.context() as patch:
        for module, name in OPENING:
            patch.setattr(module, name, breaking(getattr(module, name)))
        assert run_app(app, "wlr", ["replicate", "--into", str(into)]) == 5
    failure = wlr.status(into).failure
    assert failure is not None
    assert (failure.tick, wlr.tick(into)) == (2, 1)
    assert "INTERNAL Error" in failure.cause
    assert wlr.accept(into).tick == 2
    wlr.replicate(into=into)
    assert wlr.tick(into) == 3
    assert {table.table: table.outcome for table in wlr.verify(into).tables}["main.t"] == (
        "same" if statement.startswith("CREATE") else "accepted"
    )
