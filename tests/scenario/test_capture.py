"""What plain DuckDB does, wlc.connect does, and the farm knows of it: checked against the simplest model."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import pytest

import wlc
from tests.oracle import contents, published
from tests.sampling import sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SEED = """
    CREATE TABLE keyed (id INTEGER PRIMARY KEY, a INTEGER, b VARCHAR, c DOUBLE);
    INSERT INTO keyed SELECT i, i % 7, 'v' || i, i / 3 FROM range(500) r(i);
    CREATE TABLE bag (a INTEGER, b VARCHAR, l INTEGER[]);
    INSERT INTO bag SELECT i % 5, 'x' || (i % 3), [i % 2] FROM range(200) r(i);
    CREATE TABLE pair (x INTEGER, y VARCHAR, v INTEGER, PRIMARY KEY (x, y), UNIQUE (v));
    INSERT INTO pair SELECT i, 'y' || i, i FROM range(50) r(i);
    CREATE SCHEMA "odd s.chema";
    CREATE TABLE "odd s.chema"."select ""t"" x" ("group" INTEGER PRIMARY KEY, "weird col.""x" VARCHAR, "_tick" INTEGER);
    INSERT INTO "odd s.chema"."select ""t"" x" VALUES (1, 'é😀', 5), (2, NULL, NULL);
    CREATE TABLE hides (rowid INTEGER, v INTEGER);
    INSERT INTO hides VALUES (1, 1), (2, 2), (2, 2);
    CREATE TABLE nocase (n VARCHAR COLLATE NOCASE, x DOUBLE);
    INSERT INTO nocase VALUES ('a', 0.0), ('b', 'nan');
"""

# Each line is run on a plain database and on a master; results and errors must be the same, and the farm must know.
STATEMENTS = [
    "INSERT INTO keyed VALUES (1000, 1, 'new', 0.5)",
    "INSERT INTO keyed (b, id) VALUES ('x', 1001), (NULL, 1002)",
    "INSERT INTO keyed BY NAME SELECT 1003 AS id, 'by name' AS b",
    "INSERT INTO keyed SELECT id + 5000, a, b, c FROM keyed WHERE a = 3 RETURNING id, b",
    "INSERT INTO keyed VALUES (1, 1, 'dup', 1)",
    "INSERT OR IGNORE INTO keyed VALUES (1, 1, 'ignored', 1), (2000, 1, 'kept', 1)",
    "INSERT OR REPLACE INTO keyed VALUES (1, 9, 'replaced', 9), (2001, 9, 'added', 9)",
    "INSERT INTO keyed VALUES (2, 8, 'up', 8), (2002, 8, 'in', 8) ON CONFLICT (id) DO UPDATE SET b = excluded.b, a = a + 1",
    "INSERT INTO keyed VALUES (3, 8, 'no', 8), (2003, 8, 'in', 8) ON CONFLICT DO NOTHING",
    "INSERT INTO keyed SELECT i, -1, 'many', 0 FROM range(100, 300) r(i) ON CONFLICT (id) DO UPDATE SET b = 'many'",
    "INSERT INTO keyed SELECT (random() * 10)::INTEGER + 600, -1, 'r', 0 ON CONFLICT (id) DO UPDATE SET b = 'again'",
    "INSERT OR REPLACE INTO pair VALUES (1, 'y1', 2)",
    "INSERT INTO pair VALUES (7, 'y7', 700) ON CONFLICT (x, y) DO UPDATE SET v = excluded.v RETURNING *",
    "UPDATE keyed SET a = a + 1 WHERE id = 5",
    "UPDATE keyed SET id = id + 100000 WHERE id = 6",
    "UPDATE keyed AS k SET b = k.b || '!' WHERE k.a = 2 RETURNING k.id",
    "UPDATE keyed SET c = b2.s FROM (SELECT a, sum(a) AS s FROM bag GROUP BY a) b2 WHERE keyed.a = b2.a",
    "UPDATE keyed SET a = 1 WHERE id IN (SELECT id FROM keyed ORDER BY b LIMIT 3)",
    "UPDATE keyed SET a = 2 WHERE random() < 2",
    "UPDATE bag SET l = [7] WHERE a = 1",
    "UPDATE bag SET b = NULL",
    "UPDATE keyed SET a = 5 WHERE id = 99999999",
    "UPDATE nocase SET n = 'A' WHERE n = 'a' AND random() < 2",
    "UPDATE nocase SET x = '-0.0' WHERE x = 0 AND random() < 2",
    "UPDATE nocase SET x = '-0.0' WHERE x = 0",
    "WITH big AS (SELECT id FROM keyed WHERE a > 3) UPDATE keyed SET c = -1 WHERE id IN (SELECT id FROM big)",
    "DELETE FROM keyed WHERE id < 20",
    "DELETE FROM keyed USING bag WHERE keyed.a = bag.a AND keyed.id < 60",
    "DELETE FROM bag WHERE a = 3 RETURNING *",
    "DELETE FROM pair",
    "TRUNCATE bag",
    "DELETE FROM keyed WHERE nonsense = 1",
    "MERGE INTO keyed USING (SELECT 1 AS id, 'm' AS b UNION ALL SELECT 77777, 'n') s ON keyed.id = s.id"
    " WHEN MATCHED THEN UPDATE SET b = s.b WHEN NOT MATCHED THEN INSERT (id, b) VALUES (s.id, s.b)",
    "MERGE INTO keyed AS k USING bag ON k.id = bag.a WHEN MATCHED THEN DELETE",
    "MERGE INTO pair USING (SELECT 3 AS x) s ON pair.x = s.x WHEN NOT MATCHED BY SOURCE THEN DELETE",
    "WITH gone AS (DELETE FROM keyed WHERE id = 7 RETURNING *) SELECT * FROM gone",
    "WITH added AS (INSERT INTO bag VALUES (1, 'cte', NULL) RETURNING a) SELECT count(*) FROM added",
    "EXPLAIN ANALYZE DELETE FROM keyed WHERE id = 8",
    "PREPARE p AS UPDATE keyed SET b = $1 WHERE id = $2; EXECUTE p('prepared', 9); EXECUTE p('twice', 10)",
    "INSERT INTO hides VALUES (3, 3); UPDATE hides SET v = 9 WHERE rowid = 2; DELETE FROM hides WHERE v = 1",
    """INSERT INTO "odd s.chema"."select ""t"" x" VALUES (3, 'x', 9)""",
    """UPDATE "odd s.chema"."select ""t"" x" SET "weird col.""x" = 'ü', _tick = 0 WHERE "group" = 1""",
    """DELETE FROM "odd s.chema"."select ""t"" x" WHERE "group" = 2""",
    "CREATE TABLE made AS SELECT * FROM keyed WHERE id < 30",
    "CREATE TABLE empty (a INTEGER); CREATE OR REPLACE TABLE empty AS SELECT 1 AS b",
    "CREATE OR REPLACE TABLE bag AS SELECT 5 AS other",
    "CREATE TEMP TABLE scratch AS SELECT 1; INSERT INTO scratch VALUES (2); DELETE FROM scratch",
    "CREATE TEMP TABLE keyed (id INTEGER); INSERT INTO keyed VALUES (1); DROP TABLE temp.keyed",
    "ALTER TABLE keyed ADD COLUMN d DATE DEFAULT '2020-01-01'",
    "ALTER TABLE keyed ADD COLUMN r DOUBLE DEFAULT random()",
    "ALTER TABLE keyed DROP COLUMN c",
    "ALTER TABLE keyed RENAME COLUMN b TO renamed",
    "ALTER TABLE keyed ALTER a TYPE VARCHAR",
    "ALTER TABLE keyed ALTER a SET DEFAULT 5; INSERT INTO keyed (id) VALUES (-5)",
    "ALTER TABLE bag RENAME TO sack; INSERT INTO sack VALUES (1, 'after', NULL)",
    "ALTER TABLE bag ALTER a SET NOT NULL",
    "DROP TABLE pair; CREATE TABLE pair (other VARCHAR); INSERT INTO pair VALUES ('re-created')",
    'DROP SCHEMA "odd s.chema" CASCADE',
    "CREATE VIEW v AS SELECT a FROM bag; CREATE OR REPLACE VIEW v AS SELECT 1 AS one; DROP VIEW v",
    "CREATE INDEX i ON keyed (a); UPDATE keyed SET a = a + 1 WHERE id < 40; DROP INDEX i",
    "CREATE SEQUENCE s START 10; INSERT INTO keyed SELECT nextval('s') + 9000, 1, 's', 1",
    "CREATE MACRO plus(x) AS x + 1; UPDATE keyed SET a = plus(a) WHERE plus(id) < 40",
    "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE moods (m mood); INSERT INTO moods VALUES ('ok'), (NULL)",
    "COMMENT ON TABLE keyed IS 'kept'; COMMENT ON COLUMN keyed.a IS 'too'",
    "CREATE TABLE g (a INTEGER, twice INTEGER GENERATED ALWAYS AS (a * 2)); INSERT INTO g VALUES (4); UPDATE g SET a = 5",
    "BEGIN; INSERT INTO keyed VALUES (-1, 0, 'gone', 0); DELETE FROM keyed WHERE id = -1; COMMIT",
    "BEGIN; INSERT INTO keyed VALUES (-1, 0, 'x', 0); UPDATE keyed SET id = -2 WHERE id = -1; UPDATE keyed SET a = 1; COMMIT",
    "BEGIN; UPDATE keyed SET a = 1 WHERE id < 50; DELETE FROM keyed WHERE id < 25; UPDATE keyed SET b = 'q' WHERE id < 60; COMMIT",
    "BEGIN; UPDATE keyed SET a = 1 WHERE id < 9; DELETE FROM keyed; INSERT INTO keyed VALUES (1, 2, 'b', 4); COMMIT",
    "BEGIN; INSERT INTO bag VALUES (1, 'a', NULL); ALTER TABLE bag ADD COLUMN n INTEGER; UPDATE bag SET n = 5 WHERE a = 1;"
    " INSERT INTO bag VALUES (2, 'b', NULL, 2); DELETE FROM bag WHERE a = 2; COMMIT",
    "BEGIN; UPDATE bag SET a = 9 WHERE a = 1; ALTER TABLE bag ALTER a TYPE VARCHAR; UPDATE bag SET a = 'z' WHERE a = '9';"
    " ALTER TABLE bag DROP COLUMN l; INSERT INTO bag VALUES ('n', 'm'); COMMIT",
    "BEGIN; INSERT INTO bag VALUES (77, 'x', NULL); CREATE INDEX bi ON bag (a); INSERT INTO bag VALUES (78, 'x', NULL); COMMIT",
    "BEGIN; INSERT INTO bag VALUES (77, 'x', NULL); ALTER TABLE bag RENAME TO sack; DELETE FROM sack WHERE a = 77; COMMIT",
    "BEGIN; INSERT INTO bag VALUES (77, 'x', NULL); DROP TABLE bag; CREATE TABLE bag (z INTEGER); INSERT INTO bag VALUES (1); COMMIT",
    "BEGIN; CREATE TABLE fresh (a INTEGER); INSERT INTO fresh VALUES (1), (2); UPDATE fresh SET a = 3; DROP TABLE fresh; COMMIT",
    "BEGIN; DELETE FROM keyed; ROLLBACK",
    "BEGIN; INSERT INTO keyed VALUES (-9, 0, 'x', 0); INSERT INTO keyed VALUES (1, 0, 'dup', 0)",
    "ROLLBACK",
    "CALL pragma_version()",
    "SET VARIABLE x = 5; UPDATE keyed SET a = getvariable('x') WHERE id = getvariable('x')",
    "FROM keyed ORDER BY ALL LIMIT 3",
    "PIVOT bag ON b USING count(*) GROUP BY a",
    "CREATE TABLE pivoted AS PIVOT bag ON b USING count(*) GROUP BY a",
    "INSERT INTO pair SELECT 5000, 'p', 5000 FROM (PIVOT bag ON b USING count(*)) LIMIT 1",
    "SELECT 1; SELECT 2",
    "",
    "SELECT nonsense",
    "this is not SQL",
]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[duckdb.DuckDBPyConnection, Any, Path]]:
    """A plain database and a master with the same contents."""
    for name in ("plain", "sales"):
        folder = tmp_path / name
        folder.mkdir()
        with duckdb.connect(str(folder / "sales.duckdb")) as connection:
            connection.execute(SEED)
    source = tmp_path / "sales" / "sales.duckdb"
    wlc.master(source, farm=str(tmp_path / "farm"))
    plain, captured = duckdb.connect(str(tmp_path / "plain" / "sales.duckdb")), wlc.connect(source)
    yield plain, captured, tmp_path / "farm" / "sales"
    plain.close()
    captured.close()


def publish(captured: Any) -> None:
    publisher = captured._shared.publisher
    publisher.try_publish()
    assert publisher.failure is None


def outcome(connection: Any, run: Callable[[Any], object]) -> object:
    try:
        return run(connection)
    except duckdb.Error as error:
        return type(error), str(error).split("\n", maxsplit=1)[0]


def results(connection: Any, text: str, parameters: object = None) -> object:
    connection.execute(text, parameters)
    rows = connection.fetchall()
    if text.startswith("EXPLAIN"):
        return len(rows)
    return sorted(map(str, rows)), [column[:2] for column in connection.description or []]


def equal_rows(plain: duckdb.DuckDBPyConnection, captured: Any, *, ignore: str = "") -> None:
    left, right = contents(plain, "sales"), contents(captured._raw, "sales")
    assert left.keys() == right.keys()
    assert {name: rows for name, rows in left.items() if ignore not in name} == {
        name: rows for name, rows in right.items() if ignore not in name
    } or ignore


def is_random(text: str) -> bool:
    """Whether a statement leaves other rows in the one database than in the other."""
    return "random() *" in text or "DEFAULT random()" in text


@pytest.mark.slow
@pytest.mark.parametrize("text", sampled(STATEMENTS, 6))
def test_same_result_and_captured(pair, text: str) -> None:
    plain, captured, farm = pair
    assert outcome(captured, lambda c: results(c, text)) == outcome(plain, lambda c: results(c, text))
    for connection in (plain, captured):
        if "dup', 0)" in text:
            connection.execute("ROLLBACK")
    if not is_random(text):
        assert contents(captured._raw, "sales") == contents(plain, "sales")
    publish(captured)
    assert published(str(farm)) == contents(captured._raw, "sales")


@pytest.mark.slow
def test_all_statements_one_after_another(pair) -> None:
    plain, captured, farm = pair
    for text in sorted(STATEMENTS, key=is_random):
        expected = outcome(plain, lambda c, text=text: results(c, text))
        found = outcome(captured, lambda c, text=text: results(c, text))
        assert is_random(text) or found == expected, text
        if captured._session.transaction is not None:
            captured.execute("ROLLBACK")
            plain.execute("ROLLBACK")
        assert is_random(text) or contents(captured._raw, "sales") == contents(plain, "sales"), text
    publish(captured)
    assert published(str(farm)) == contents(captured._raw, "sales")


CALLS: list[Callable[[Any], object]] = [
    lambda c: c.executemany("INSERT INTO keyed VALUES (?, ?, ?, 0)", [[9001, 1, "a"], [9002, 2, "b"]]).fetchall(),
    lambda c: c.executemany("INSERT INTO keyed VALUES (?, ?, ?, 0)", [[9001, 1, "a"], [1, 2, "dup"], [9003, 1, "c"]]),
    lambda c: c.execute("UPDATE keyed SET b = $name WHERE id = $id", {"name": "n", "id": 4}).fetchall(),
    lambda c: c.execute("UPDATE keyed SET b = ?, a = ? WHERE id = ? AND b = ?", ["n", 3, 4, "v4"]).fetchall(),
    lambda c: c.execute("INSERT OR REPLACE INTO keyed VALUES (?, ?, '$x ?', 1)", [4, 44]).fetchall(),
    lambda c: c.sql("SELECT 9100 AS id, 1 AS a, 'r' AS b, 1.0 AS c").insert_into("keyed"),
    lambda c: c.sql("SELECT 1 AS one").create("from_relation"),
    lambda c: c.table("keyed").insert([9101, 1, "i", 1.0]),
    lambda c: c.table("keyed").update({"a": duckdb.lit(0)}, condition=duckdb.col("id") < 10),
    lambda c: c.sql("DELETE FROM keyed WHERE id < 3 RETURNING id").order("id").fetchall(),
    lambda c: c.sql("INSERT INTO bag VALUES (1, 'q', NULL); SELECT count(*) FROM bag").fetchall(),
    lambda c: c.append("bag", pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "l": [[1], [2]]})).fetchall(),
    lambda c: c.append("keyed", pd.DataFrame({"b": ["x"], "id": [9200]}), by_name=True) and None,
    lambda c: c.values([1, "x"]).fetchall(),
    lambda c: c.from_df(pd.DataFrame({"a": [5], "b": ["df"], "l": [None]})).insert_into("bag"),
    lambda c: c.sql("SELECT a FROM bag").create_view("relation_view") and None,
    lambda c: (c.begin(), c.execute("DELETE FROM bag"), c.commit(), c.execute("SELECT count(*) FROM bag").fetchone())[
        -1
    ],
    lambda c: (c.begin(), c.execute("DELETE FROM bag"), c.rollback(), c.execute("SELECT count(*) FROM bag").fetchone())[
        -1
    ],
    lambda c: c.commit() and None,
    lambda c: c.execute("SELECT range AS r FROM range(3)").df().to_dict(),
    lambda c: c.execute("INSERT INTO bag VALUES (1, 'x', NULL) RETURNING a, b").df().to_dict(),
    lambda c: c.execute("DELETE FROM bag WHERE a = 1").rowcount,
    lambda c: [row for row in iter(c.execute("UPDATE bag SET a = 1 WHERE a = 2 RETURNING a").fetchone, None)],
    lambda c: c.execute(c.extract_statements("DELETE FROM keyed WHERE id = 11")[0]).fetchall(),
    lambda c: c.table("no_such_table"),
    lambda c: c.append("no_such_table", pd.DataFrame({"a": [1]})),
]


@pytest.mark.slow
def test_all_calls_one_after_another(pair) -> None:
    plain, captured, farm = pair
    for number, call in enumerate(CALLS):
        assert outcome(captured, call) == outcome(plain, call), f"call {number}"
        assert contents(captured._raw, "sales") == contents(plain, "sales"), f"call {number}"
    publish(captured)
    assert published(str(farm)) == contents(captured._raw, "sales")


@pytest.mark.slow
@pytest.mark.parametrize("number", sampled(range(len(CALLS)), 3))
def test_calls(pair, number: int) -> None:
    plain, captured, farm = pair
    assert outcome(captured, CALLS[number]) == outcome(plain, CALLS[number])
    assert contents(captured._raw, "sales") == contents(plain, "sales")
    publish(captured)
    assert published(str(farm)) == contents(captured._raw, "sales")


@pytest.mark.slow
def test_appenders(pair) -> None:
    plain, captured, farm = pair
    for connection in (plain, captured):
        with connection.appender("bag") as rows:
            for number in range(5000):
                rows.append_row(number, "appended", None)
        with connection.appender("keyed", action="delete", key=["id"]) as rows:
            rows.append_rows([[1], [2]])
        rows = connection.appender("keyed", action="upsert")
        rows.append_row(5, 1, "upserted", 2.0)
        rows.flush()
    assert contents(captured._raw, "sales") == contents(plain, "sales")
    publish(captured)
    assert published(str(farm)) == contents(captured._raw, "sales")


@pytest.mark.slow
def test_variables_of_the_caller(pair) -> None:
    plain, captured, farm = pair
    for connection in (plain, captured):
        frame = pd.DataFrame({"a": [41], "b": ["frame"], "l": [None]})
        connection.execute("INSERT INTO bag SELECT * FROM frame")
        connection.execute("DELETE FROM keyed WHERE id IN (SELECT a FROM frame)")
        connection.register("named", frame)
        connection.execute("INSERT INTO bag SELECT * FROM named")
    assert contents(captured._raw, "sales") == contents(plain, "sales")
    publish(captured)
    assert published(str(farm)) == contents(captured._raw, "sales")


@pytest.mark.slow
def test_cursors_have_their_own_transactions_in_commit_order(pair) -> None:
    _, captured, farm = pair
    other = captured.cursor()
    captured.begin()
    captured.execute("INSERT INTO keyed VALUES (7001, 0, 'first begun', 0)")
    other.begin()
    other.execute("UPDATE keyed SET b = 'other' WHERE id = 30")
    other.execute("INSERT INTO bag VALUES (1, 'other', NULL)")
    other.commit()
    captured.execute("DELETE FROM keyed WHERE id = 31")
    captured.execute("ALTER TABLE pair ADD COLUMN extra INTEGER")
    captured.commit()
    other.execute("INSERT INTO pair VALUES (900, 'z', 900, 5)")
    other.close()
    publish(captured)
    assert published(str(farm)) == contents(captured._raw, "sales")
    batch, _ = wlc.resolve(str(farm)).read_batch(1)
    assert [transaction.records[0].table.name for transaction in batch.transactions[:1]] == ["keyed"]
    committed = [transaction.committed for transaction in batch.transactions]
    assert all(isinstance(time, datetime.datetime) for time in committed)
    assert committed == sorted(filter(None, committed))


def test_conflicting_cursors_fail_as_in_duckdb(pair) -> None:
    plain, captured, farm = pair
    for connection in (plain, captured):
        other = connection.cursor()
        connection.begin()
        connection.execute("UPDATE keyed SET a = 7 WHERE id = 1")
        other.begin()
        with pytest.raises(duckdb.TransactionException):
            other.execute("UPDATE keyed SET a = 2 WHERE id = 1")
        other.rollback()
        connection.commit()
        other.close()
    publish(captured)
    assert published(str(farm)) == contents(captured._raw, "sales")


@pytest.mark.slow
@pytest.mark.parametrize("altered", ["INTEGER USING NULL", "INTEGER USING 7", "VARCHAR USING 'x'"])
@pytest.mark.parametrize("rows", [0, 1])
def test_rows_that_come_before_a_table_is_rewritten_are_a_conflict(pair, altered: str, rows: int) -> None:
    """DuckDB computes values for rows, too, that the altering transaction does not see."""
    _, captured, farm = pair
    captured.execute(f"CREATE TABLE rewritten AS SELECT 1 AS k, 2::INTEGER AS v FROM range({rows})")
    other = captured.cursor()
    captured.begin()
    assert len(captured.execute("FROM rewritten").fetchall()) == rows
    other.execute("INSERT INTO rewritten VALUES (3, 4)")
    with pytest.raises(duckdb.TransactionException, match="Conflict: rows of table main.rewritten"):
        captured.execute(f"ALTER TABLE rewritten ALTER v TYPE {altered}; COMMIT")
    other.close()
    publish(captured)
    assert published(str(farm)) == contents(captured._raw, "sales")


@pytest.mark.slow
def test_copy_from_and_import(pair, tmp_path: Path) -> None:
    plain, captured, farm = pair
    plain.execute(f"COPY bag TO '{tmp_path}/bag.csv'; COPY keyed TO '{tmp_path}/keyed.parquet'")
    for connection in (plain, captured):
        connection.execute(f"COPY bag FROM '{tmp_path}/bag.csv'")
        connection.execute(f"CREATE TABLE read AS FROM read_csv('{tmp_path}/bag.csv')")
        connection.execute(
            "ATTACH ':memory:' AS side; CREATE TABLE side.t AS SELECT 1 AS x; INSERT INTO side.t VALUES (2)"
        )
        connection.execute("USE side; DELETE FROM t; USE sales; DELETE FROM keyed WHERE id = 3")
    assert contents(captured._raw, "sales") == contents(plain, "sales")
    publish(captured)
    assert published(str(farm)) == contents(captured._raw, "sales")


@pytest.mark.slow
def test_rolled_back_transactions_are_kept_as_headers(pair) -> None:
    _, captured, farm = pair
    captured.execute("BEGIN; DELETE FROM bag; ROLLBACK")
    captured.execute("INSERT INTO bag VALUES (1, 'x', NULL)")
    publish(captured)
    batch, _ = wlc.resolve(str(farm)).read_batch(1)
    assert [(t.committed is None, len(t.records)) for t in batch.transactions] == [(True, 0), (False, 1)]
