"""Schema changes of every kind arrive on a replica, through the log and through a snapshot, rows and all."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.lake import any_file
from tests.oracle import contents
from tests.sampling import sampled
from tests.schema_changes import refuse_differences
from tests.scratch import attached
from wlc.dialect.sql import literal, quote
from wlc.multi_master.conflicts import published_tables

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# A master's database is called after its file; the odd name is one that has to be quoted.
CATALOG = "my shop"

# Each script is run on plain DuckDB, too. A blank line ends a part: replicas stop there and go on.
SCRIPTS = {
    "schemas": """
        CREATE SCHEMA a; CREATE SCHEMA IF NOT EXISTS a; CREATE SCHEMA "b.c d";
        CREATE TABLE a.t (x INTEGER); CREATE TABLE "b.c d".t (x INTEGER); INSERT INTO a.t VALUES (1);
        USE a; CREATE TABLE u (x INTEGER); INSERT INTO u VALUES (2); CREATE VIEW v AS SELECT * FROM u;

        DROP SCHEMA "b.c d" CASCADE; CREATE SCHEMA "b.c d"; USE a; INSERT INTO t VALUES (3); USE main;
        INSERT INTO a.u VALUES (9);
        CREATE SCHEMA empty; DROP SCHEMA empty;
    """,
    "search path": """
        CREATE SCHEMA one; CREATE SCHEMA two; SET search_path = 'one,two,main';
        CREATE TABLE t (x INTEGER); CREATE TABLE two.alone (x INTEGER); INSERT INTO alone VALUES (5);
        INSERT INTO t VALUES (1);

        SET search_path = 'one,two,main'; ALTER TABLE alone ADD COLUMN y INTEGER DEFAULT 7;
        CREATE INDEX i ON alone (y); COMMENT ON TABLE alone IS 'found';
        DROP TABLE t;
    """,
    "views": """
        CREATE TABLE t (x INTEGER, "y z" VARCHAR); INSERT INTO t VALUES (1, 'a');
        CREATE VIEW plain AS SELECT * FROM t; CREATE VIEW named(a, "b c") AS SELECT x, "y z" FROM t WHERE x > 0;
        CREATE VIEW "over" AS SELECT * FROM plain JOIN named ON x = a; CREATE VIEW constant AS SELECT 'it''s' AS v;
        CREATE VIEW lists AS SELECT list_transform([1, 2], lambda e: e + 1) AS l;

        CREATE OR REPLACE VIEW plain AS SELECT x + 1 AS x FROM t; ALTER VIEW constant RENAME TO renamed;
        CREATE VIEW IF NOT EXISTS plain AS SELECT 5; DROP VIEW "over"; CREATE VIEW "over" AS SELECT 1 AS one;
    """,
    "sequences": """
        CREATE SEQUENCE plain; CREATE SEQUENCE down START 5 INCREMENT -2 MINVALUE -10 MAXVALUE 10 CYCLE;
        CREATE SEQUENCE untouched START 7; CREATE SEQUENCE "odd "" one";
        CREATE TABLE t (id INTEGER PRIMARY KEY DEFAULT nextval('plain'), d INTEGER DEFAULT nextval('down'),
            v VARCHAR);
        INSERT INTO t (v) VALUES ('a'), ('b'); INSERT INTO t (v) SELECT 'c' FROM range(3);

        INSERT INTO t (v) SELECT 'd' FROM range(9); SELECT nextval('"odd "" one"'); SELECT nextval('plain');
        CREATE OR REPLACE SEQUENCE untouched START 70; BEGIN; SELECT nextval('untouched'); ROLLBACK;
        CREATE SEQUENCE dropped; SELECT nextval('dropped'); DROP SEQUENCE dropped; CREATE SEQUENCE dropped START 100;
    """,
    "types": """
        CREATE TYPE mood AS ENUM ('sad', 'it''s', 'ok,ay'); CREATE TYPE point AS STRUCT(x INTEGER, "y z" DOUBLE);
        CREATE TYPE id AS UUID; CREATE TYPE moods AS mood[]; CREATE TYPE passing AS mood[];
        CREATE TYPE either AS UNION(a INTEGER, m mood);
        CREATE SCHEMA s; CREATE TYPE s.mood AS ENUM ('other');
        CREATE TABLE t (m mood DEFAULT 'sad', p point, i id, l moods, e either, o s.mood);
        INSERT INTO t VALUES ('it''s', {'x': 1, 'y z': 0.5}, uuid(), ['sad', NULL], union_value(m := 'sad'::mood),
            'other');

        UPDATE t SET m = 'ok,ay', p = NULL; INSERT INTO t (m) VALUES (NULL); DROP TYPE IF EXISTS missing;
        CREATE TYPE gone AS ENUM ('x'); DROP TYPE gone; CREATE TYPE gone AS ENUM ('y'); CREATE TABLE g (v gone);
        CREATE TYPE listed AS ENUM (SELECT DISTINCT range::VARCHAR FROM range(2000)); CREATE TABLE h (v listed);
        INSERT INTO h VALUES ('77');
        CREATE TYPE same AS mood; DROP TYPE passing;
        CREATE TABLE large (e ENUM ('q', 'r')); INSERT INTO large VALUES ('q'), ('r'), (NULL);
    """,
    "columns": """
        CREATE TABLE t (a INTEGER NOT NULL, b INTEGER GENERATED ALWAYS AS (a * 2) VIRTUAL, c VARCHAR DEFAULT 'it''s',
            d TIMESTAMP DEFAULT current_timestamp, e DOUBLE DEFAULT random(), f DATE DEFAULT '2020-01-01'::DATE,
            g VARCHAR GENERATED ALWAYS AS (upper(c)), h VARCHAR COLLATE NOCASE.NOACCENT, i AS (h), CHECK (a > 0),
                CHECK (c <> 'bad' OR a < 5));
        INSERT INTO t (a) VALUES (1), (2); INSERT INTO t (a, c, h) VALUES (3, NULL, 'Mixed');
        CREATE TABLE few (x INTEGER UNIQUE, y INTEGER, z INTEGER, UNIQUE (y, z));
        INSERT INTO few VALUES (NULL, 1, NULL);

        UPDATE t SET a = a + 10, h = 'mixed'; DELETE FROM t WHERE b = 22;
        INSERT INTO few VALUES (NULL, 1, NULL), (1, 1, 1);
    """,
    "names of another schema": """
        CREATE SCHEMA s; CREATE SEQUENCE q; CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE MACRO twice(x) AS x * 2;
        CREATE TABLE s.t (x INTEGER DEFAULT nextval('q'), m mood DEFAULT 'ok',
            y INTEGER GENERATED ALWAYS AS (twice(x)));
        INSERT INTO s.t (m) VALUES ('sad'), (NULL); CREATE VIEW s.v AS SELECT twice(x) AS x FROM s.t;
        CREATE TYPE s.own AS ENUM ('a'); CREATE SEQUENCE s.q START 50;

        USE s; CREATE TABLE u (x INTEGER DEFAULT nextval('q'), o own, m main.mood); INSERT INTO u (m) VALUES ('ok');
        INSERT INTO t (m) VALUES ('ok'); ALTER TABLE t ADD COLUMN n INTEGER DEFAULT 5;
    """,
    "foreign keys": """
        CREATE TABLE parent (id INTEGER PRIMARY KEY, code VARCHAR UNIQUE, v INTEGER);
        CREATE TABLE child (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parent (id),
            code VARCHAR REFERENCES parent (code));
        CREATE TABLE tree (id INTEGER PRIMARY KEY, up INTEGER REFERENCES tree (id));
        INSERT INTO parent SELECT i, 'c' || i, 0 FROM range(6) r(i);
        INSERT INTO child SELECT i, i % 6, 'c' || (i % 3) FROM range(12) r(i);
        INSERT INTO tree VALUES (1, NULL); INSERT INTO tree VALUES (2, 1); INSERT INTO tree VALUES (3, 2), (4, 1);

        DELETE FROM child WHERE parent = 5; DELETE FROM parent WHERE id = 5; UPDATE parent SET v = v + 1;
        DELETE FROM tree WHERE id = 3; UPDATE tree SET up = NULL WHERE id = 2; INSERT INTO tree VALUES (5, 2);
        INSERT INTO tree VALUES (6, 5);
        INSERT INTO parent VALUES (5, 'c5', 9); INSERT INTO child VALUES (100, 5, 'c5');

        DELETE FROM tree WHERE id = 6; DELETE FROM tree WHERE id = 5; INSERT INTO tree VALUES (5, 1);
        DROP TABLE child; DELETE FROM parent; DROP TABLE parent;
    """,
    "indexes": """
        CREATE TABLE t (a INTEGER, b VARCHAR, c INTEGER); INSERT INTO t SELECT i, 'v' || i, i % 3 FROM range(20) r(i);
        CREATE INDEX plain ON t (c); CREATE UNIQUE INDEX "odd name" ON t (a); CREATE INDEX expression ON t ((a + c));
        CREATE INDEX two ON t (b, a);

        UPDATE t SET c = c + 1 WHERE a < 5; DELETE FROM t WHERE a = 9; INSERT INTO t VALUES (9, 'again', 0);
        DROP INDEX plain; CREATE INDEX IF NOT EXISTS two ON t (c); CREATE INDEX plain ON t (b);
        UPDATE t SET b = b || '!';
    """,
    "comments": """
        CREATE TABLE t ("a b" INTEGER); CREATE VIEW v AS SELECT * FROM t; CREATE SEQUENCE s;
        CREATE TYPE e AS ENUM ('x');
        CREATE MACRO m(x) AS x; CREATE MACRO tm(x) AS TABLE SELECT x AS y; CREATE INDEX i ON t ("a b");
        COMMENT ON TABLE t IS 'it''s'; COMMENT ON COLUMN t."a b" IS 'col'; COMMENT ON VIEW v IS 'view';
        COMMENT ON SEQUENCE s IS 'seq'; COMMENT ON TYPE e IS 'type'; COMMENT ON MACRO m IS 'macro';
        COMMENT ON MACRO TABLE tm IS 'table macro'; COMMENT ON INDEX i IS 'index';
        COMMENT ON COLUMN v."a b" IS 'of view';

        COMMENT ON TABLE t IS NULL; COMMENT ON COLUMN t."a b" IS 'new'; COMMENT ON VIEW v IS 'é😀 -- ; '' "';
    """,
    "macros": """
        CREATE MACRO plus(a, b := 1) AS a + b; CREATE MACRO many(a) AS a, (a, b) AS a * b;
        CREATE MACRO also(a) AS a; CREATE MACRO rows(n) AS TABLE SELECT i FROM range(n) r(i); CREATE SCHEMA s;
        CREATE MACRO s.plus(a) AS plus(a) + 1;
        CREATE TABLE t (x INTEGER, y INTEGER GENERATED ALWAYS AS (plus(x)), z INTEGER DEFAULT plus(5));
        INSERT INTO t (x) VALUES (1);

        CREATE OR REPLACE MACRO also(a, b := 2) AS a + b + 0; INSERT INTO t (x) VALUES (2); DROP MACRO many;
        CREATE MACRO many(a, b, c) AS a; CREATE FUNCTION third(a) AS a; DROP MACRO TABLE rows;
        UPDATE t SET x = plus(x, 5);
    """,
    "alter": """
        CREATE TABLE t (a INTEGER, b INTEGER, c VARCHAR, s STRUCT(x INTEGER, n STRUCT(y INTEGER)));
        INSERT INTO t SELECT i, i, 'v' || i, {'x': i, 'n': {'y': i}} FROM range(10) r(i);
        ALTER TABLE t ADD COLUMN d INTEGER; ALTER TABLE t ADD COLUMN e INTEGER DEFAULT 5;
        ALTER TABLE t ADD COLUMN IF NOT EXISTS e INTEGER;
        ALTER TABLE t ADD COLUMN f TIMESTAMP DEFAULT current_timestamp;
        ALTER TABLE t ADD COLUMN g DOUBLE DEFAULT random();
        INSERT INTO t (a) VALUES (100);

        ALTER TABLE t DROP COLUMN b; ALTER TABLE t RENAME COLUMN c TO "c c";
        ALTER TABLE t ALTER a TYPE VARCHAR USING a || '!';
        ALTER TABLE t ALTER e SET DEFAULT 9; ALTER TABLE t ALTER f DROP DEFAULT; ALTER TABLE t ALTER a SET NOT NULL;
        UPDATE t SET d = 1 WHERE e = 5; INSERT INTO t (a) VALUES ('x');

        ALTER TABLE t ADD COLUMN s.z VARCHAR; ALTER TABLE t DROP COLUMN s.x; ALTER TABLE t RENAME COLUMN s.n.y TO yy;
        ALTER TABLE t ALTER a DROP NOT NULL; INSERT INTO t (a) VALUES (NULL); DELETE FROM t WHERE a = '3!';
        ALTER TABLE t ADD PRIMARY KEY (g); ALTER TABLE t RENAME TO "T 2"; UPDATE "T 2" SET d = 7;
    """,
    "alter keyed": """
        CREATE TABLE k (id INTEGER PRIMARY KEY, v INTEGER, w INTEGER, UNIQUE (v));
        INSERT INTO k SELECT i, i, i FROM range(20) r(i);
        CREATE TABLE late (id INTEGER NOT NULL, v VARCHAR); INSERT INTO late SELECT i, 'v' FROM range(20) r(i);

        ALTER TABLE k ADD COLUMN x INTEGER DEFAULT 3; ALTER TABLE k DROP COLUMN w; UPDATE k SET x = 4 WHERE id < 5;
        ALTER TABLE late ADD PRIMARY KEY (id); UPDATE late SET v = 'w' WHERE id < 9;
        ALTER TABLE k RENAME COLUMN id TO key;
        UPDATE k SET key = key + 100 WHERE key < 3;
        INSERT INTO k VALUES (50, 50, 50), (4, 4, 4) ON CONFLICT (key) DO UPDATE SET x = excluded.x;
        ALTER TABLE k RENAME TO keyed; DELETE FROM keyed WHERE key > 100; CREATE TABLE k (other VARCHAR);
    """,
    "ddl and data in one transaction": """
        CREATE TABLE t (a INTEGER PRIMARY KEY, b VARCHAR); INSERT INTO t SELECT i, 'v' || i FROM range(50) r(i);
        CREATE TABLE bag (a INTEGER, b VARCHAR); INSERT INTO bag SELECT i % 3, 'x' FROM range(30) r(i);

        BEGIN; CREATE TABLE n (x INTEGER); INSERT INTO n VALUES (1); UPDATE t SET b = 'u' WHERE a < 5;
        CREATE VIEW v AS FROM n;
        INSERT INTO n SELECT a FROM t WHERE a > 40; DELETE FROM bag WHERE a = 1; COMMIT;
        BEGIN; UPDATE bag SET b = 'y' WHERE a = 2; ALTER TABLE bag ADD COLUMN c INTEGER DEFAULT 8;
        UPDATE bag SET c = 9 WHERE a = 2;
        INSERT INTO bag VALUES (7, 'z', 7); ALTER TABLE bag DROP COLUMN b; DELETE FROM bag WHERE c = 8; COMMIT;
        BEGIN; DELETE FROM t; DROP TABLE t; CREATE TABLE t (other VARCHAR); INSERT INTO t VALUES ('new'); COMMIT;

        BEGIN; CREATE TABLE lost (x INTEGER); INSERT INTO lost VALUES (1); DROP TABLE n CASCADE; ROLLBACK;
        BEGIN; CREATE TABLE passing (x INTEGER); INSERT INTO passing VALUES (1); DROP TABLE passing;
        INSERT INTO t VALUES ('2'); COMMIT;
        BEGIN; INSERT INTO n VALUES (77); ALTER TABLE n RENAME TO m; INSERT INTO m VALUES (78); UPDATE m SET x = -x;
        COMMIT;
    """,
    "drop and create again": """
        CREATE TABLE t (a INTEGER PRIMARY KEY); INSERT INTO t VALUES (1), (2); CREATE TABLE u AS SELECT * FROM t;
        DROP TABLE t; CREATE TABLE t (b VARCHAR); INSERT INTO t VALUES ('x'), ('x'); DROP TABLE IF EXISTS missing;

        DROP TABLE t; CREATE TABLE t (a INTEGER PRIMARY KEY); INSERT INTO t VALUES (5); DROP TABLE u;
        CREATE VIEW u AS SELECT 1 AS one;

        CREATE OR REPLACE TABLE t AS SELECT i AS a, i::VARCHAR AS c FROM range(100) r(i);
        CREATE OR REPLACE TABLE t (a INTEGER, z DATE);
        INSERT INTO t VALUES (1, '2020-02-02'); CREATE OR REPLACE TABLE t AS SELECT * FROM t UNION ALL SELECT 2, NULL;
        CREATE TABLE IF NOT EXISTS t (never INTEGER); DROP VIEW u; CREATE TABLE u (a INTEGER);
        INSERT INTO u VALUES (0);
    """,
    "truncate and clear": """
        CREATE TABLE t (a INTEGER PRIMARY KEY, b VARCHAR); INSERT INTO t SELECT i, 'v' FROM range(1000) r(i);
        CREATE TABLE bag AS SELECT i % 7 AS a FROM range(1000) r(i);

        TRUNCATE t; DELETE FROM bag; INSERT INTO t VALUES (1, 'again'); INSERT INTO bag VALUES (1), (1);
        BEGIN; DELETE FROM t; INSERT INTO t VALUES (1, 'b'), (2, 'c'); COMMIT; BEGIN; INSERT INTO bag VALUES (3);
        TRUNCATE bag; COMMIT;
        INSERT INTO bag VALUES (4);
    """,
    "odd names": r"""
        CREATE SCHEMA "select"; CREATE SCHEMA "é ""😀.x'";
        CREATE TABLE "select"."table" ("from" INTEGER PRIMARY KEY, "a,b" VARCHAR, "x""y" INTEGER);
        CREATE TABLE "é ""😀.x'"."t ; -- 'x" ("_tick" INTEGER, "_weight" VARCHAR,
            "n.m" INTEGER, "$1" INTEGER, "?" INTEGER);
        CREATE TABLE main."wlc" (j1 INTEGER); CREATE TABLE "CamelCase" ("ID" INTEGER, "Über" VARCHAR);
        INSERT INTO "select"."table" VALUES (1, 'a', 2);
        INSERT INTO "é ""😀.x'"."t ; -- 'x" VALUES (1, 'w', 2, 3, 4), (1, 'w', 2, 3, 4);
        INSERT INTO wlc VALUES (1); INSERT INTO camelcase VALUES (1, 'x');
        CREATE VIEW "é ""😀.x'"."v w" AS FROM "é ""😀.x'"."t ; -- 'x";

        UPDATE "select"."table" SET "a,b" = '?' WHERE "from" = 1;
        UPDATE "é ""😀.x'"."t ; -- 'x" SET _tick = 5, "$1" = "?" WHERE "n.m" = 2;
        INSERT OR REPLACE INTO "select"."table" VALUES (1, 'r', 5), (2, 's', 6);
        UPDATE CAMELCASE SET "Über" = 'y' WHERE id = 1;
        ALTER TABLE "CamelCase" RENAME "ID" TO "group"; CREATE INDEX "i x" ON "CamelCase" ("group");
        DELETE FROM "select"."table" WHERE "x""y" = 6;
        COMMENT ON COLUMN "é ""😀.x'"."t ; -- 'x"."n.m" IS 'odd';
        ALTER TABLE "é ""😀.x'"."t ; -- 'x" ADD COLUMN "new 'col'" INTEGER DEFAULT 1;
    """,
    "qualified with the database": """
        CREATE TABLE "my shop".main.t (a INTEGER, b INTEGER DEFAULT 1); INSERT INTO "my shop".main.t (a) VALUES (1);
        CREATE SCHEMA "my shop".s; CREATE TABLE "my shop".s.t (x INTEGER);
        CREATE VIEW "my shop".s.v AS SELECT * FROM "my shop".main.t;

        ALTER TABLE "my shop".main.t ADD COLUMN c INTEGER DEFAULT 3; UPDATE "my shop".main.t SET b = 5;
        CREATE INDEX i ON "my shop".main.t (a);
        INSERT INTO "my shop".s.t SELECT a FROM "my shop".main.t; COMMENT ON TABLE "my shop".main.t IS 'here';
    """,
    "created from queries": """
        CREATE TABLE src (id INTEGER, v DECIMAL(10, 2)); INSERT INTO src SELECT i, i / 3 FROM range(100) r(i);
        CREATE TABLE copied AS FROM src WHERE id > 50 ORDER BY id DESC; CREATE TABLE none AS FROM src WITH NO DATA;
        CREATE TABLE random_rows AS SELECT random() AS r, uuid() AS u, now() AS t FROM range(5);

        CREATE TABLE other AS WITH x AS (SELECT 1 AS a) SELECT *, [a] AS l FROM x;
        INSERT INTO copied FROM src LIMIT 3;
        INSERT INTO none SELECT id, random() FROM src; UPDATE random_rows SET r = random();
        DELETE FROM none WHERE random() < 0.5;
    """,
}

# What a database contains, in DuckDB's own words, apart from numbers that are given anew.
Facts = Counter[tuple[object, ...]]
NUMBERS = "database_name, database_oid, schema_oid"
FACTS = {
    "schemas": "schema_name, comment FROM duckdb_schemas() WHERE NOT internal AND {user}",
    "types": "schema_name, type_name, logical_type, labels, comment FROM duckdb_types() WHERE NOT internal AND {user}",
    "sequences": f"* EXCLUDE ({NUMBERS}, sequence_oid, start_value, last_value, sql) FROM duckdb_sequences()"
    " WHERE {user}",
    "tables": "schema_name, table_name, comment, sql, column_count FROM duckdb_tables() WHERE {user}",
    "columns": f"* EXCLUDE ({NUMBERS}, table_oid) FROM duckdb_columns() SEMI JOIN duckdb_tables() USING (table_oid)"
    " WHERE NOT internal AND {user}",
    # The columns of a view are those its tables had when it was made; only its text is replicated.
    "comments": "schema_name, table_name, column_name, comment FROM duckdb_columns()"
    " WHERE comment IS NOT NULL AND {user}",
    "constraints": f"* EXCLUDE ({NUMBERS}, table_oid, constraint_index) FROM duckdb_constraints() WHERE {{user}}",
    "views": "schema_name, view_name, comment, sql FROM duckdb_views() WHERE NOT internal AND {user}",
    "indexes": f"* EXCLUDE ({NUMBERS}, index_oid, table_oid) FROM duckdb_indexes() WHERE {{user}}",
    "macros": "* EXCLUDE (database_name, database_oid, function_oid) FROM duckdb_functions()"
    " WHERE NOT internal AND {user}",
}


def facts(path: Path) -> dict[str, Facts]:
    """Everything a database file contains: its catalog, its rows, and the next value of each sequence."""
    with duckdb.connect() as connection:
        # Asking a sequence for its next value changes it, so a copy is asked.
        copy = shutil.copyfile(path, path.with_name("asked.duckdb"))
        connection.execute(f"ATTACH {literal(str(copy))} AS {quote(CATALOG)}")
        connection.execute(f"USE {quote(CATALOG)}")
        user = f"database_name = {literal(CATALOG)} AND schema_name NOT IN ('wlc', 'wlr')"
        found: dict[str, Facts] = {
            kind: Counter(
                tuple(map(repr, row)) for row in connection.execute(f"SELECT {query.format(user=user)}").fetchall()
            )
            for kind, query in FACTS.items()
        }
        found["rows"] = Counter(
            {
                (table, *row): copies
                for table, rows in contents(connection, CATALOG).items()
                for row, copies in rows.items()
            }
        )
        listed = f"SELECT schema_name, sequence_name FROM duckdb_sequences() WHERE {user}"
        names = connection.execute(listed).fetchall()
        found["next values"] = Counter(
            (*name, *connection.execute(f"SELECT nextval({literal('.'.join(map(quote, name)))})").fetchall()[0])
            for name in names
        )
    copy.unlink()
    return found


def differences(left: dict[str, Facts], right: dict[str, Facts]) -> dict[str, object]:
    """What only one side has, by kind."""
    return {kind: (left[kind] - right[kind], right[kind] - left[kind]) for kind in left if left[kind] != right[kind]}


@pytest.fixture
def master(tmp_path: Path) -> Path:
    (tmp_path / "one").mkdir()
    source = tmp_path / "one" / f"{CATALOG}.duckdb"
    duckdb.connect(str(source)).close()
    wlc.master(source, name="shop")
    return source


TRIED = sampled(tuple(SCRIPTS), 6)
# For these, replicas begin at snapshots, too.
SNAPSHOTS = sampled(TRIED, 2)


@pytest.mark.parametrize("name", TRIED)
def test_arrives(master: Path, tmp_path: Path, name: str) -> None:
    script = SCRIPTS[name]
    parts = script.split("\n\n")
    plain = tmp_path / f"{CATALOG}.duckdb"
    is_repeatable = "random()" not in script and "current_timestamp" not in script and "uuid()" not in script
    step_by_step, early = tmp_path / "steps.duckdb", tmp_path / "early.duckdb"
    lake, at_end = tmp_path / "lake", [tmp_path / "end.duckdb", tmp_path / "end"]
    for number, part in enumerate(parts):
        with duckdb.connect(str(plain)) as connection:
            connection.execute(part)
        with wlc.connect(master) as connection:
            connection.execute(part)
        wlc.flush(master)
        expected = facts(master)
        with attached(master) as connection:
            refuse_differences(published_tables(wlc.resolve(master)), connection, CATALOG)
        for into in (step_by_step, lake):
            wlr.replicate(master, into=into, engine="local")
        assert differences(expected, facts(step_by_step)) == {}, f"through the log, part {number}"
        if number == 0 and name in SNAPSHOTS:
            wlc.snapshot(master)
            wlr.replicate(master, into=early)
            assert differences(expected, facts(early)) == {}, "through a snapshot"
    if is_repeatable:
        assert differences(expected, facts(plain)) == {}, "the capture leaves no trace"
    assert differences(expected, facts(any_file(lake))) == {}, "files, through the log"
    if name not in SNAPSHOTS:
        return
    wlr.replicate(master, into=early)
    assert differences(expected, facts(early)) == {}, "through a snapshot and the log"
    wlc.snapshot(master)
    with attached(master) as connection:
        refuse_differences(published_tables(wlc.resolve(master)), connection, CATALOG)
    for into in at_end:
        made = wlr.replicate(master, into=into, engine="local")
        assert made.transactions == 0
        assert differences(expected, facts(any_file(into))) == {}, f"{into} through a snapshot of everything"


# Every statement stands where the session's settings or its search path decide what it does.
SESSION = """
    SET TimeZone = 'Asia/Tokyo'; CREATE TABLE t (i INTEGER PRIMARY KEY); INSERT INTO t VALUES (1), (2);
    ALTER TABLE t ADD COLUMN z TIMESTAMPTZ DEFAULT '2020-06-01 00:00:00';
    ALTER TABLE t ADD COLUMN n STRUCT(q TIMESTAMPTZ) DEFAULT '{q: 2020-06-01}';
    ALTER TABLE t ADD COLUMN c TIMETZ DEFAULT '10:00:00'; CREATE TYPE zoned AS TIMESTAMPTZ;
    ALTER TABLE t ADD COLUMN u zoned DEFAULT '2020-06-01'; ALTER TABLE t ADD COLUMN d DATE DEFAULT '2020-06-01';
    SET integer_division = true; CREATE VIEW halves AS SELECT i / 2 AS h, 3 / 2 AS x FROM t; CREATE MACRO half(a) AS a / 2;
    ALTER TABLE t ADD COLUMN k INTEGER DEFAULT 1; ALTER TABLE t ALTER k SET DEFAULT (7 / 2); RESET integer_division;
    CREATE SCHEMA one; CREATE SCHEMA two; CREATE TABLE two.r (x INTEGER); SET search_path = 'one,two';
    CREATE VIEW found AS FROM r; ALTER TABLE r ADD COLUMN y INTEGER; USE main;
    SET enable_view_dependencies = true; CREATE TABLE b (i INTEGER); CREATE VIEW over_b AS FROM b;
    CREATE VIEW above AS FROM over_b; CREATE SEQUENCE owned; ALTER SEQUENCE owned OWNED BY b; DROP TABLE b CASCADE;
    CREATE SEQUENCE q; CREATE TABLE uses (i INTEGER DEFAULT nextval('q')); DROP SEQUENCE q CASCADE;
"""


def test_what_a_session_means(master: Path, tmp_path: Path) -> None:
    early = tmp_path / "early.duckdb"
    wlr.replicate(master, into=early)
    with wlc.connect(master) as connection:
        for statement in connection.extract_statements(SESSION):
            connection.execute(statement)
    wlc.flush(master)
    expected = facts(master)
    assert Counter(name for _, name, *_ in expected["views"]) == Counter(map(repr, ("found", "halves")))
    assert not expected["sequences"]
    wlr.replicate(master, into=early)
    assert differences(expected, facts(early)) == {}, "through the log"
    lake = tmp_path / "lake"
    wlr.replicate(master, into=lake, engine="local")
    assert differences(expected, facts(any_file(lake))) == {}, "files"
