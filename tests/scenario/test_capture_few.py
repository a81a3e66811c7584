"""An open transaction that changes few rows by key: with DuckDB's results and errors, exactly."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
from tests.oracle import contents, published
from wlc.capture.duckdb import superset
from wlc.farm.database import open_database

if TYPE_CHECKING:
    from pathlib import Path

SEED = """
    CREATE TABLE t (id BIGINT PRIMARY KEY, a SMALLINT, b VARCHAR, c DOUBLE, d DECIMAL(9, 2), t TIMESTAMP, h HUGEINT,
        i INTERVAL, is_set BOOLEAN, f FLOAT);
    INSERT INTO t SELECT i, i, 'v' || i, i / 3, i / 7, TIMESTAMP '2026-01-01', i, INTERVAL (i) DAY, true, i / 3
        FROM range(200) r(i);
    UPDATE t SET c = '-0.0', f = 'nan', t = 'infinity', b = 'it''s "é😀"' || chr(0) || chr(10) WHERE id = 1;
    UPDATE t SET c = 'nan', f = '-inf', t = '290307-12-31 (BC) 00:00:00', b = NULL WHERE id = 2;
    UPDATE t SET c = 5e-324, f = 1e-45, h = -170141183460469231731687303715884105728, i = '1 month -3 days' WHERE id = 3;
    CREATE TABLE checked (id INTEGER PRIMARY KEY, v INTEGER CHECK (v < 100), l INTEGER[], n BLOB);
    INSERT INTO checked VALUES (1, 1, [1], 'xy'), (2, 2, NULL, NULL);
    CREATE TABLE ruled (id INTEGER PRIMARY KEY, v INTEGER CHECK (v < 100));
    INSERT INTO ruled VALUES (1, 1), (2, 2);
    CREATE TABLE other (id INTEGER PRIMARY KEY, v INTEGER);
    INSERT INTO other VALUES (1, 1), (2, 2), (3, 3);
    CREATE TABLE moves (id INTEGER PRIMARY KEY, v INTEGER, w INTEGER);
    CREATE INDEX moves_v ON moves (v);
    INSERT INTO moves SELECT i, i, i FROM range(300) r(i);
"""
INSERT = "INSERT INTO t (id, a, c, b) VALUES (?, ?, ?, ?)"
# Statements of one transaction, with parameters or without.
TRANSACTIONS: list[list[str | tuple[str, Any]]] = [
    [
        "UPDATE t SET a = a + 1 WHERE id = 1",
        "UPDATE t SET a = a + 1 WHERE id = 2",
        "UPDATE t SET b = '' WHERE id = 3",
    ],
    ["UPDATE t SET a = 5 WHERE id = 4", "UPDATE t SET b = b || a, c = -c WHERE id = 4"],
    ["UPDATE t SET a = 5 WHERE id = 5", "DELETE FROM t WHERE id = 5"],
    ["DELETE FROM t WHERE id = 6", "INSERT INTO t (id) VALUES (6)"],
    [("UPDATE t SET a = $a, b = $b WHERE id = $id", {"id": 7, "a": None, "b": "x"})],
    [("UPDATE t SET a = ?, c = ? WHERE id = ?", [8.6, "1e5", 8])],
    [
        "UPDATE t SET id = 1007 WHERE id = 7",
        "UPDATE t SET a = 1 WHERE id = 1007",
        "UPDATE t SET a = 2 WHERE id = 8",
    ],
    ["UPDATE t SET a = 5 WHERE id = 99999", "UPDATE other SET v = 5 WHERE id = 1"],
    ["UPDATE t SET a = 5 WHERE id = 9", "UPDATE t SET a = 6 WHERE id < 20"],
    ["UPDATE t SET a = 5 WHERE id = 9", "DELETE FROM t WHERE id IN (9, 10) RETURNING id"],
    ["UPDATE t SET a = 5 WHERE id = 11", "INSERT INTO t (id) VALUES (11) ON CONFLICT DO UPDATE SET a = 7"],
    [
        "UPDATE t SET a = 5 WHERE id = 12",
        "UPDATE t SET a = 1 WHERE no_column = 1",
        "UPDATE t SET a = 6 WHERE id = 13",
    ],
    ["UPDATE t SET a = 5 WHERE id = 12", "UPDATE t SET a = 32767 + id WHERE id = 13"],
    ["UPDATE t SET a = 'many' WHERE id = 13"],
    ["UPDATE t SET a = true + 1 WHERE id = 13"],
    [("UPDATE t SET a = ? WHERE id = ?", [1])],
    ["UPDATE ruled SET v = 500 WHERE id = 1"],
    ["UPDATE ruled SET v = 50 WHERE id = 1", "DELETE FROM ruled WHERE id = 2"],
    ["UPDATE checked SET l = NULL WHERE id = 1"],
    ["UPDATE t SET a = 5 WHERE id = 14", "CREATE TABLE made (i INTEGER)", "UPDATE t SET a = 6 WHERE id = 14"],
    [
        "UPDATE t SET a = 5 WHERE id = 15",
        "ALTER TABLE t ADD COLUMN more INTEGER",
        "UPDATE t SET a = 6 WHERE id = 15",
    ],
    ["UPDATE other SET v = 5 WHERE id = 3", "DELETE FROM other", "INSERT INTO other VALUES (1, 1)"],
    [(INSERT, [2000, 1, 0.1 + 0.2, "\\\\ 'é😀'"])],
    [(INSERT, [2001, 1, float("nan"), None]), "UPDATE t SET a = 1 WHERE id = 20"],
    ["UPDATE t SET a = 1 WHERE id = 20", (INSERT, [2002, 1, -0.0, "x"])],
    [(INSERT, [2003, 1, 1, "x"]), (INSERT, [2004, 1, 1, "y"])],
    [(INSERT, [2005, 1, 1, "x"]), "UPDATE t SET b = 'z' WHERE id = 2005"],
    [(INSERT, [2006, 1, 1, "x"]), "DELETE FROM t WHERE id = 2006"],
    [(INSERT, [2007, 1, 1, "x"]), (INSERT, [2007, 1, 1, "twice"])],
    [(INSERT, [2008, 99999, 1, "x"])],
    [(INSERT, [2009])],
    ["INSERT INTO t (id, t) VALUES (2010, '290307-12-31 (BC) 00:00:00'); -- last"],
    ["INSERT INTO t (id, t) VALUES (2020, '290307-12-31 (BC) 00:00:00') -- last"],
    ["INSERT INTO t (id, a) VALUES (2011, 'x') -- wrong"],
    ["INSERT INTO t (id) VALUES (2012), (2013)"],
    ["INSERT INTO checked VALUES (9, 500, NULL, NULL)"],
    # Rows that an indexed column moves behind all others, rows that are changed again, and conditions that find many.
    [
        "UPDATE moves SET v = -1 WHERE id = 1",
        "UPDATE moves SET w = 7 WHERE id = 1",
        "UPDATE moves SET v = 3 WHERE id = 2",
    ],
    ["UPDATE moves SET w = 5 WHERE id = 3", "UPDATE moves SET v = 5 WHERE id = 3", "DELETE FROM moves WHERE id = 3"],
    [
        "UPDATE moves SET w = 5 WHERE id = 4",
        "UPDATE moves SET w = 6 WHERE id = 4 OR id < 9",
        "DELETE FROM moves WHERE id = 8",
    ],
    ["UPDATE moves SET w = 5 WHERE id = 10", "UPDATE moves SET w = w + 1 WHERE id = 10 OR v > 20 AND v < 200"],
    [
        "UPDATE moves SET w = 5 WHERE id = 11 OR w > 200",
        "UPDATE moves SET w = 6 WHERE id = 11",
        "DELETE FROM moves WHERE w = 6",
    ],
    [
        "INSERT INTO moves VALUES (900, 1, 1)",
        "UPDATE moves SET w = 5 WHERE id = 900",
        "UPDATE moves SET w = 5 WHERE id = 12",
    ],
    ["UPDATE moves SET w = 5 WHERE id = 13", "DELETE FROM moves WHERE v > 250", "UPDATE moves SET w = 6 WHERE id = 13"],
    ["UPDATE moves SET w = 5 WHERE id = 14", "UPDATE moves SET w = 6 WHERE id = 14", "DELETE FROM moves"],
]


def outcome(connection: Any, text: str, parameters: object = None) -> object:
    try:
        result = connection.execute(text, parameters)
        return sorted(map(str, result.fetchall())), result.description, result.rowcount
    except duckdb.BinderException as error:
        # The line is not shown for what was found out about a part of the statement.
        return type(error), str(error).partition("\n\nLINE")[0]
    except duckdb.Error as error:
        return type(error), str(error)


def make(folder: Path) -> tuple[Path, str]:
    for name in ("plain", "master"):
        (folder / name).mkdir()
        with duckdb.connect(str(folder / name / "sales.duckdb")) as connection:
            connection.execute(SEED)
    source = folder / "master" / "sales.duckdb"
    wlc.master(source, farm=str(folder / "farm"), beat_s=1e6)
    return source, str(folder / "farm" / "sales")


@pytest.mark.slow
def test_transactions_are_those_of_duckdb(tmp_path: Path) -> None:
    source, farm = make(tmp_path)
    with duckdb.connect(str(tmp_path / "plain" / "sales.duckdb")) as plain, wlc.connect(source) as captured:
        for statements in TRANSACTIONS:
            for one in ("BEGIN", *statements, "COMMIT"):
                text, parameters = (one, None) if isinstance(one, str) else one
                found = outcome(captured, text, parameters)
                assert found == outcome(plain, text, parameters), (statements, text)
        assert contents(captured._raw, "sales") == contents(plain, "sales")
        wlc.flush(source)
        assert published(farm) == contents(plain, "sales")


def test_a_transaction_has_its_user_times_and_images(tmp_path: Path) -> None:
    source, farm = make(tmp_path)
    with wlc.connect(source) as captured:
        for id_ in (100, 101, 102):
            captured.execute("BEGIN; UPDATE t SET a = 1 WHERE id = 103; UPDATE other SET v = v + 1 WHERE id = 1")
            captured.execute(f"DELETE FROM t WHERE id = {id_}").execute("COMMIT")
        captured.execute("BEGIN").execute("UPDATE t SET a = 2 WHERE id = 110").execute("ROLLBACK")
        captured.execute("BEGIN").execute("DELETE FROM t WHERE id = 110").execute("COMMIT")
    database = open_database(farm)
    batches = [database.read_batch(number)[0] for number in database.batch_numbers()]
    found = [t for batch in batches for t in batch.transactions if t.committed and t.records]
    assert [[(r.added, r.removed) for r in t.records] for t in found] == [[(1, 2), (1, 1)]] * 3 + [[(0, 1)]]
    assert all(t.user and t.committed and t.started <= t.committed for t in found)


def test_a_transaction_that_commits_out_of_order_is_numbered_again(tmp_path: Path) -> None:
    source, farm = make(tmp_path)
    with wlc.connect(source) as captured, captured.cursor() as other:
        for number in range(3):
            captured.execute("BEGIN").execute(f"UPDATE t SET a = 9 WHERE id = {number}")
            other.execute("BEGIN").execute(f"UPDATE t SET a = 8 WHERE id = {10 + number}").execute("COMMIT")
            captured.execute(f"UPDATE t SET b = 'z' WHERE id = {20 + number}").execute("COMMIT")
        captured.execute("BEGIN").execute("UPDATE t SET a = 1 WHERE id = 50")
        other.execute("BEGIN").execute("UPDATE t SET b = 'other' WHERE id = 50").execute("COMMIT")
        with pytest.raises(duckdb.TransactionException, match="Conflict"):
            captured.execute("COMMIT")
        wlc.flush(source)
        assert published(farm) == contents(captured._raw, "sales")


@pytest.mark.parametrize("statement", ["UPDATE t SET a = 2 WHERE id = 121", "DELETE FROM t WHERE id = 121"])
def test_a_row_that_was_not_saved_is_noticed_after_the_first_statement_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    source, farm = make(tmp_path)
    with wlc.connect(source) as captured:
        captured.execute("BEGIN").execute("UPDATE t SET a = 1 WHERE id = 120")
        monkeypatch.setattr(superset, "touched_rows", lambda effect, table: f"{table.sql} WHERE id = 121 AND false")
        captured.execute(statement)
        with pytest.raises(wlc.UnsupportedError, match="table main.t could not be captured exactly"):
            captured.execute("COMMIT")
        wlc.flush(source)
        assert published(farm) == contents(captured._raw, "sales")


@pytest.mark.slow
def test_threads_change_rows_of_one_table(tmp_path: Path) -> None:
    source, farm = make(tmp_path)
    failures: list[BaseException] = []

    def work(connection: Any, first: int) -> None:
        try:
            for number in range(first, first + 20):
                connection.execute("BEGIN").execute("UPDATE t SET a = a + 1 WHERE id = ?", [number])
                connection.execute(INSERT, [10_000 + number, 1, 1.5, "x"]).execute("COMMIT")
        except BaseException as error:
            failures.append(error)

    with wlc.connect(source) as captured:
        cursors = [captured.cursor() for _ in range(3)]
        threads = [threading.Thread(target=work, args=[c, 30 * n]) for n, c in enumerate(cursors, start=1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for cursor in cursors:
            cursor.close()
        assert not failures
        wlc.flush(source)
        assert published(farm) == contents(captured._raw, "sales")
