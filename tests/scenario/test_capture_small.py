"""Statements that change few rows are journalled by themselves: the same results and errors, and exactly captured."""

from __future__ import annotations

import datetime
import threading
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
from tests.oracle import contents, published
from wlc.capture.duckdb import independent_insert
from wlc.capture.duckdb.shared import Shared
from wlc.capture.duckdb.small_change import SmallChanges
from wlc.farm.database import open_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.farm.model import Transaction

SEED = """
    CREATE TYPE mood AS ENUM ('sad', 'ok');
    CREATE TABLE keyed (id INTEGER PRIMARY KEY, a INTEGER CHECK (a < 1000), b VARCHAR DEFAULT 'none', l INTEGER[],
        twice INTEGER GENERATED ALWAYS AS (a * 2), d DECIMAL(9, 2) DEFAULT 0.5);
    INSERT INTO keyed SELECT i, i, 'v' || i, [i], i FROM range(100) r(i);
    CREATE INDEX keyed_a ON keyed (a);
    CREATE TABLE "odd ""one" (x DOUBLE, "wlc rows" VARCHAR, y HUGEINT, z TIME WITH TIME ZONE, m mood, i INTERVAL,
        u UNION(n INTEGER, s VARCHAR), k MAP(VARCHAR, DOUBLE), t TIMESTAMP, n BLOB, bits BIT, UNIQUE (x));
    CREATE TABLE hides (rowid INTEGER PRIMARY KEY, v INTEGER);
    INSERT INTO hides VALUES (1, 1);
    CREATE TABLE wide (id INTEGER PRIMARY KEY, paid_id INTEGER, paid BOOLEAN, n INTEGER);
    INSERT INTO wide SELECT i, i % 2, false, i FROM range(9) r(i);
    CREATE TABLE child (id INTEGER PRIMARY KEY, of INTEGER);
    INSERT INTO child VALUES (1, 50), (2, 60);
    CREATE MACRO later(x) AS x + 1;
    CREATE TABLE plain (id BIGINT PRIMARY KEY, a SMALLINT, b VARCHAR DEFAULT 'none', c DOUBLE, d DECIMAL(9, 2), t TIMESTAMP,
        is_set BOOLEAN, of INTEGER REFERENCES child);
    CREATE TABLE computed (id INTEGER, v INTEGER DEFAULT later(1));
"""
# Text and parameters, and whether the statement is a small change.
STATEMENTS: list[tuple[str, object, bool]] = [
    ("INSERT INTO keyed VALUES (?, ?, 'new', ?, ?)", [1000, 1, [1, None], None], True),
    ("insert into sales.main.keyed (d, id) values (1.5, 1001), (-2, 1002); -- two", None, True),
    ("INSERT INTO keyed (id, a) VALUES ($id, $a) -- last", {"id": 1003, "a": 3}, True),
    ("INSERT INTO keyed (id, b) VALUES ($2, $1)", ("swapped", 1004), True),
    ("INSERT INTO keyed (id, b, a) VALUES (1005, DEFAULT, CASE WHEN true THEN 1 + 1 END)", [], True),
    ("INSERT INTO keyed (id) VALUES (1)", None, False),
    ("INSERT INTO keyed (id, a) VALUES (1006, 5000)", None, False),
    ("INSERT INTO keyed (id) VALUES ('one')", None, False),
    ("INSERT INTO keyed (id) VALUES (?)", [1, 2], False),
    ("INSERT INTO keyed (id) VALUES (?)", None, False),
    ("INSERT INTO keyed (id, a) VALUES (?, ?)", [1011], False),
    ("INSERT INTO keyed (id, b) VALUES (1012, $wlc_meta)", {"wlc_meta": "mine"}, False),
    ("INSERT INTO keyed (id, b) VALUES (1013, $wlc_meta)", {"other": "mine"}, False),
    ("INSERT INTO keyed (id) VALUES (no_column)", None, False),
    ("INSERT INTO keyed (id, b) VALUES (1007, upper('x'))", None, False),
    ("INSERT INTO keyed (id) VALUES ((SELECT max(id) + 1 FROM keyed))", None, False),
    ("INSERT INTO keyed (id) VALUES (1), (1008) ON CONFLICT DO NOTHING", None, False),
    ("INSERT INTO keyed (id) VALUES (1009) RETURNING id", None, False),
    ("INSERT INTO keyed SELECT 1010, 1, 'q', NULL, 1", None, False),
    ("INSERT INTO computed (id) VALUES (1)", None, False),
    (
        """INSERT INTO "odd ""one" VALUES ('-0.0', 'é😀', 170141183460469231731687303715884105727, '12:00:00+15:59:59',"""
        " 'ok', INTERVAL '1 month -3 days', 'text', MAP {'a': 'nan'::DOUBLE}, 'infinity', '\\x00\\xFF', '0101'),"
        " ('-inf', NULL, NULL, NULL, NULL, NULL, 7, NULL, '290307-12-31 (BC) 00:00:00', NULL, NULL)",
        None,
        True,
    ),
    ("UPDATE keyed SET a = ? WHERE id = ?", [7, 7], True),
    ("UPDATE keyed SET a = ?1 WHERE id = ?2", [8, 7], True),
    ("UPDATE keyed SET a = $2 WHERE id = $1", [7], False),
    ("UPDATE keyed SET b = 'last' WHERE id = 6; -- of all", None, True),
    ("UPDATE wide SET paid = true WHERE paid_id = 1; /* more */", None, False),
    ("UPDATE wide SET n = 1 WHERE id = 2", None, True),
    ("DELETE FROM wide WHERE id = 3; -- gone", None, True),
    ("UPDATE keyed AS k SET id = k.id + 5000, b = NULL WHERE k.id = 8", None, False),
    ("UPDATE keyed SET l = [1, 2] WHERE id = 9 AND a = 9", None, False),
    ("UPDATE keyed SET b = $b WHERE id = $id", {"b": "named", "id": 10}, True),
    ("UPDATE keyed SET a = id, id = a + 8000, d = $1 WHERE id = 18", [2.345], True),
    ("UPDATE keyed SET d = d * 2 + 0.005, b = 'a' || b || NULL WHERE id = 19", None, True),
    ("UPDATE keyed SET b = DEFAULT, a = CASE WHEN a > 1 THEN 5 END WHERE id = 20", None, False),
    ("UPDATE keyed SET b = current_date WHERE id = 21", None, False),
    ("UPDATE keyed SET a = id * 1000000000 WHERE id = 22", None, False),
    ("UPDATE keyed SET a = 5, a = 6 WHERE id = 22", None, False),
    ("UPDATE keyed SET a = $a WHERE id = 22 -- both", {"a": None}, True),
    (
        """UPDATE "odd ""one" SET x = - 0.0, y = 1e9, z = '1:0:0', m = 'sad', i = '2 days', n = 'xy', bits = '1', t = ? WHERE x = 0""",
        [datetime.datetime(2026, 1, 1)],
        True,
    ),
    ('UPDATE "odd ""one" SET u = 5, k = NULL, x = \'nan\' WHERE x = 0', None, True),
    ("UPDATE keyed SET a = a WHERE id IN (11) OR id = 12", None, False),
    ("UPDATE keyed SET a = 5 WHERE id = 99999", None, True),
    ("UPDATE keyed SET id = 1 WHERE id = 13", None, False),
    ("UPDATE keyed SET b = lower(b) WHERE id = 14", None, False),
    ("UPDATE keyed SET b = 'x' WHERE id = 15 RETURNING a", None, False),
    ("UPDATE keyed SET b = 'all' WHERE id = a", None, False),
    ("""UPDATE "odd ""one" SET "wlc rows" = 'new' WHERE x = '-inf'""", None, True),
    ("UPDATE hides SET v = 2 WHERE rowid = 1", None, False),
    ("DELETE FROM keyed WHERE id = ?", [16], True),
    ("DELETE FROM keyed WHERE id = 99999", None, False),
    ("DELETE FROM keyed WHERE id = 23 AND a = 23 -- both", None, True),
    ("DELETE FROM keyed WHERE id = $id", {"id": 24}, True),
    ("DELETE FROM keyed WHERE id = ?", [25.0], True),
    ("DELETE FROM keyed WHERE id = ? AND b <> 'x'", [26], True),
    ("DELETE FROM keyed WHERE id = 17 RETURNING id", None, False),
    ("DELETE FROM child WHERE id = 1", None, True),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any, str]]:
    """A plain database and a master with the same rows; the master's connection has written to every table."""
    folder = tmp_path_factory.mktemp("small")
    for name in ("plain", "master"):
        (folder / name).mkdir()
        with duckdb.connect(str(folder / name / "sales.duckdb")) as connection:
            connection.execute(SEED)
    source = folder / "master" / "sales.duckdb"
    wlc.master(source, farm=str(folder / "farm"), beat_s=1e6)
    with duckdb.connect(str(folder / "plain" / "sales.duckdb")) as plain, wlc.connect(source) as captured:
        yield plain, captured, str(folder / "farm" / "sales")


def learn_names(captured: Any) -> None:
    """Let the connection resolve all names, which it forgets when a statement fails."""
    for table in ("keyed", "plain", "sales.main.keyed", '"odd ""one"', "hides", "child", "computed", "wide"):
        captured.execute(f"DELETE FROM {table} WHERE false")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """What came of each statement that was tried as a small change."""
    found: list[int | None] = []
    run, run_independent = SmallChanges.run, independent_insert.run

    def spy(self: SmallChanges, *args: Any) -> int | None:
        found.append(run(self, *args))
        return found[-1]

    def spy_independent(*args: Any) -> int | None:
        if (count := run_independent(*args)) is not None:
            found.append(count)
        return count

    monkeypatch.setattr(SmallChanges, "run", spy)
    monkeypatch.setattr(independent_insert, "run", spy_independent)
    return found


def transactions(farm: str, after: int) -> list[Transaction]:
    database = open_database(farm)
    batches = [database.read_batch(number)[0] for number in database.batch_numbers()]
    return [transaction for batch in batches for transaction in batch.transactions if transaction.tick > after]


def outcome(connection: Any, text: str, parameters: object = None) -> object:
    try:
        result = connection.execute(text, parameters)
        return sorted(map(str, result.fetchall())), result.description, result.rowcount
    except duckdb.Error as error:
        return type(error), str(error)


@pytest.mark.slow
def test_results_and_rows_are_those_of_duckdb(pair: tuple[Any, Any, str], small: list[int | None]) -> None:
    plain, captured, farm = pair
    learn_names(captured)
    for text, parameters, is_small in STATEMENTS:
        small.clear()
        found = outcome(captured, text, parameters)
        assert found == outcome(plain, text, parameters), text
        assert any(count is not None for count in small) == is_small, text
        if isinstance(found, tuple) and len(found) == 2:
            learn_names(captured)
    assert contents(captured._raw, "sales") == contents(plain, "sales")
    wlc.flush(captured._shared.path)
    assert published(farm) == contents(plain, "sales")


def prepared(connection: Any) -> list[str]:
    found = connection._raw.execute(
        "SELECT statement FROM duckdb_prepared_statements() WHERE name LIKE 'wlc %'"
    ).fetchall()
    return [text for (text,) in found]


@pytest.mark.slow
def test_an_insert_that_comes_again_is_prepared(pair: tuple[Any, Any, str], small: list[int | None]) -> None:
    plain, captured, farm = pair
    learn_names(captured)
    texts = [
        "INSERT INTO plain VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        "insert into plain (c, b, id, d) values ($1, $2, $3, $4) -- again",
        "INSERT INTO plain (id, a) VALUES ($2, $1)",
        "INSERT INTO plain (id, a) VALUES (?, 5)",
    ]
    rows: list[tuple[str, list[Any]]] = [
        (texts[0], [n, n, "it's", n / 3, n / 7, "2026-01-01", True, 1]) for n in range(5)
    ]
    rows += [
        (texts[0], [1 << 40, 1, "", 1, 1, None, None, None]),
        (texts[0], [1 << 41, 2.5, "\\ é😀\n", "5", "1", *[None] * 3]),
    ]
    rows += [(texts[0], [1 << 42, "7", 5, True, False, datetime.datetime(2026, 1, 2), "no", 2])]
    rows += [(texts[1], [value, None, 10 + n, 1.005]) for n, value in enumerate((-0.0, 1e308, 5e-324, 0.1 + 0.2, 1e22))]
    rows += [(texts[1], [value, "x", 20 + n, 1.0]) for n, value in enumerate((float("nan"), float("-inf"), 7, None))]
    # These fail: a key that is there, no such parent, too large, no number, no time, too few, too many.
    rows += [(texts[0], [30, 1, "", 0.0, 0.0, "2026-01-01", True, 99]), (texts[0], [2, 1, "", 0.0, 0.0, None, True, 1])]
    rows += [
        (texts[0], [31, 99999, "", 0.0, 0.0, "2026-01-01", True, 1]),
        (texts[0], [32, 1, "", 0.0, 1e9, "2026-01-01", True, 1]),
    ]
    rows += [(texts[0], [33, 1, "", 0.0, 0.0, "soon", True, 1]), (texts[0], [34, 1]), (texts[1], [1.0] * 5)]
    rows += [(texts[2], [n, 40 + n]) for n in range(3)] + [(texts[3], [50 + n]) for n in range(3)]
    for text, values in rows:
        assert outcome(captured, text, values) == outcome(plain, text, values), (text, values)
        learn_names(captured)
    assert [text.count("$") for text in sorted(prepared(captured))] == [10, 6]
    assert contents(captured._raw, "sales") == contents(plain, "sales")
    wlc.flush(captured._shared.path)
    assert published(farm) == contents(plain, "sales")


@pytest.mark.slow
def test_prepared_statements_end_with_what_they_were_made_for(
    pair: tuple[Any, Any, str], small: list[int | None]
) -> None:
    _, captured, farm = pair
    insert, keys = "INSERT INTO plain (id, b) VALUES (?, ?)", iter(range(100, 200))

    def insert_twice() -> None:
        learn_names(captured)
        small.clear()
        for _ in range(2):
            captured.execute(insert, [next(keys), "x"])
        assert small == [1, 1]

    insert_twice()
    (before,) = {text for text in prepared(captured) if "(id, b)" in text}
    with captured.cursor() as other:
        other.execute("ALTER TABLE plain ADD COLUMN more INTEGER DEFAULT 5")
    # The first one learns of the change.
    captured.execute(insert, [next(keys), "x"])
    insert_twice()
    assert before not in prepared(captured)
    captured.execute("CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.plain (id BIGINT, b VARCHAR); USE elsewhere")
    captured.execute(insert, [next(keys), "there"])
    captured.execute(insert, [next(keys), "there"])
    captured.execute("USE sales.main")
    captured.execute(insert, [next(keys), "here"])
    assert captured.execute("SELECT count(*) FROM elsewhere.plain").fetchall() == [(2,)]
    insert_twice()
    for (name,) in captured._raw.execute("SELECT name FROM duckdb_prepared_statements()").fetchall():
        captured._raw.execute(f'DEALLOCATE "{name}"')
    learn_names(captured)
    captured.execute(insert, [next(keys), "x"])
    insert_twice()
    wlc.flush(captured._shared.path)
    assert published(farm) == contents(captured._raw, "sales")


def test_a_transaction_has_its_rows_times_and_user(pair: tuple[Any, Any, str], small: list[int | None]) -> None:
    _, captured, farm = pair
    learn_names(captured)
    before = wlc.flush(captured._shared.path).tick
    started = datetime.datetime.now(datetime.UTC)
    captured.execute("INSERT INTO keyed (id) VALUES (2000), (2001)")
    captured.execute("UPDATE keyed SET a = 3 WHERE id = 2000")
    captured.execute("UPDATE keyed SET a = 3 WHERE id = 123456")
    captured.execute("DELETE FROM keyed WHERE id = 2001")
    assert small == [2, 1, 0, 1]
    wlc.flush(captured._shared.path)
    found = transactions(farm, before)
    assert [[(r.added, r.removed) for r in t.records] for t in found] == [[(2, 0)], [(1, 1)], [(0, 1)]]
    times = [time for t in found for time in (t.started, t.committed) if time]
    assert len(times) == 6
    assert [started, *times] == sorted([started, *times])
    assert all(t.user for t in found)


def test_a_lost_row_is_noticed(
    pair: tuple[Any, Any, str], small: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, captured, farm = pair
    count = SmallChanges._count

    def lose(self: SmallChanges, statement: Any, values: Any) -> int:
        found = count(self, statement, values)
        if "wlc" not in (statement if isinstance(statement, str) else statement.query):
            return found
        self.connection.execute("DELETE FROM wlc.j1 WHERE rowid >= 36028797018960000 AND _weight = 1")
        return found - 1

    learn_names(captured)
    monkeypatch.setattr(SmallChanges, "_count", lose)
    assert captured.execute("INSERT INTO keyed (id) VALUES (3000), (3001)").fetchall() == [(2,)]
    assert captured.execute("UPDATE keyed SET a = 3 WHERE id = 3000").fetchall() == [(1,)]
    assert small == [None, None]
    wlc.flush(captured._shared.path)
    assert published(farm) == contents(captured._raw, "sales")


def test_what_another_transaction_changed_is_a_conflict(pair: tuple[Any, Any, str]) -> None:
    _, captured, farm = pair
    with captured.cursor() as other:
        other.execute("BEGIN")
        other.execute("UPDATE keyed SET a = 1 WHERE id = 20")
        with pytest.raises(duckdb.TransactionException, match="Conflict"):
            captured.execute("UPDATE keyed SET a = 2 WHERE id = 20")
        captured.execute("UPDATE keyed SET a = 2 WHERE id = 21")
        other.execute("COMMIT")
    wlc.flush(captured._shared.path)
    assert published(farm) == contents(captured._raw, "sales")


def test_an_update_leaves_its_row_in_its_place(pair: tuple[Any, Any, str], small: list[int | None]) -> None:
    """So a transaction that updates a row excludes others that do, also where no index has the column."""
    _, captured, farm = pair
    learn_names(captured)
    before = captured.execute("SELECT rowid, id FROM wide").fetchall()
    captured.execute("UPDATE wide SET n = 50 WHERE id = 4")
    assert small == [1]
    assert captured.execute("SELECT rowid, id FROM wide").fetchall() == before
    with captured.cursor() as other:
        other.execute("BEGIN")
        other.execute("UPDATE wide SET n = 51 WHERE id = 5")
        with pytest.raises(duckdb.TransactionException, match="Conflict"):
            captured.execute("UPDATE wide SET n = 52 WHERE id = 5")
        other.execute("COMMIT")
    wlc.flush(captured._shared.path)
    assert published(farm) == contents(captured._raw, "sales")


def test_a_schema_change_and_a_temporary_table_are_seen(pair: tuple[Any, Any, str]) -> None:
    _, captured, farm = pair
    captured.execute("INSERT INTO child VALUES (10, NULL)")
    with captured.cursor() as other:
        other.execute("ALTER TABLE child ADD COLUMN more INTEGER")
    captured.execute("INSERT INTO child VALUES (11, NULL, 5)")
    captured.execute("INSERT INTO child VALUES (12, NULL, 6)")
    captured.execute("CREATE TEMP TABLE child (a INTEGER, b INTEGER, c INTEGER)")
    captured.execute("INSERT INTO child VALUES (13, NULL, 7)")
    captured.execute("DROP TABLE temp.child")
    wlc.flush(captured._shared.path)
    assert published(farm) == contents(captured._raw, "sales")


def test_a_database_with_several_sites_captures_as_ever(
    pair: tuple[Any, Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, captured, _ = pair
    learn_names(captured)
    session = captured._session
    effect = session.effect("DELETE FROM keyed WHERE id = 30", "DELETE")
    table = session._small.table(effect, None, settings_vary=False)
    monkeypatch.setattr(Shared, "site", object())
    assert session._run_small(effect, table, "DELETE FROM keyed WHERE id = 30", None) is None
    assert captured._raw.execute("SELECT id FROM keyed WHERE id = 30").fetchall() == [(30,)]


@pytest.mark.slow
def test_threads_commit_in_the_order_of_ticks(pair: tuple[Any, Any, str]) -> None:
    _, captured, farm = pair
    before = wlc.flush(captured._shared.path).tick
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            with captured.cursor() as connection:
                for number in range(first, first + 10):
                    connection.execute("INSERT INTO keyed (id) VALUES (?)", [number])
                    connection.execute("UPDATE keyed SET a = 1 WHERE id = ?", [number])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[10_000 * number]) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    wlc.flush(captured._shared.path)
    found = transactions(farm, before)
    assert len(found) == 80
    times = [t.committed for t in found if t.committed]
    assert times == sorted(times)
    assert published(farm) == contents(captured._raw, "sales")
