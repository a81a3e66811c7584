"""A snapshot holds the whole database at one moment, and what it holds builds the same database again."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet
import pytest

from wlc.dialect.duckdb import catalog
from wlc.dialect.duckdb.schema import schema_statements
from wlc.dialect.duckdb.snapshot import take
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import load_sql
from wlc.farm.database import open_database
from wlc.farm.errors import InvalidError, UnsupportedError
from wlc.farm.model import Manifest, Name, Position, file_column

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.farm.database import FarmDatabase

POSITION = Position("h1", 7, 3, "a" * 64)
CLOCK = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
CATALOG = "shop 1"

SCHEMA = r"""
CREATE SCHEMA "my schema";
CREATE TYPE mood AS ENUM ('sad', 'it''s');
CREATE TYPE "my schema"."T y" AS STRUCT(a mood, "b c" INTEGER[]);
CREATE SEQUENCE ids;
CREATE SEQUENCE "my schema"."s ""2" START 10 INCREMENT BY -3 MINVALUE -100 MAXVALUE 50 CYCLE;
CREATE SEQUENCE moved START 5;
CREATE SEQUENCE untouched START 9;
SELECT nextval('ids') FROM range(5); SELECT nextval('"my schema"."s ""2"');
SELECT setval('moved', 600, false);
CREATE MACRO plus(x, y := 1) AS x + y;
CREATE MACRO later(x) AS x;
CREATE MACRO earlier(x) AS later(x);
CREATE OR REPLACE MACRO later(x) AS x + 100;
CREATE TABLE items (
    id INTEGER PRIMARY KEY DEFAULT nextval('ids'), m mood DEFAULT 'sad', parent INTEGER REFERENCES items(id),
    "select" VARCHAR COLLATE nocase NOT NULL DEFAULT 'x''y', folded AS ("select"), twice INTEGER GENERATED ALWAYS AS (id * 2),
    shape "my schema"."T y", CHECK (id > 0 AND "select" <> ''), UNIQUE ("select", m)
);
CREATE TABLE "my schema"."a ""table" ("sp ace" INTEGER PRIMARY KEY, "naïve 😀" VARCHAR, "_tick" INTEGER, n HUGEINT);
CREATE TABLE "my schema".child (id INTEGER REFERENCES "my schema"."a ""table"("sp ace"),
    n INTEGER DEFAULT nextval('ids'));
CREATE TABLE computed (x INTEGER DEFAULT earlier(1), y INTEGER GENERATED ALWAYS AS (later(x)), CHECK (plus(x) > 0));
CREATE TABLE altered AS SELECT 1 AS x;
ALTER TABLE altered ADD COLUMN y INTEGER DEFAULT 5; ALTER TABLE altered ALTER y SET NOT NULL;
CREATE TABLE nothing (x INTEGER);
CREATE MACRO overloaded(x, "p q" := 'a''b)') AS x, (z, w := {'q': 1, 'r': [1, 2]}, v := NULL) AS z;
CREATE MACRO "my schema"."w "" o"("p q" INTEGER, "select" VARCHAR := 'a
	(') AS TABLE (SELECT "p q" AS one, "select" AS two);
CREATE MACRO cheap(n) AS TABLE SELECT * FROM items WHERE id < n;
CREATE VIEW named(p, "q q") AS SELECT id, "select" FROM items;
CREATE VIEW "over view" AS SELECT * FROM named;
CREATE OR REPLACE VIEW named(p, "q q") AS SELECT id, "select" FROM items WHERE id > 0;
CREATE VIEW "my schema".own AS SELECT * FROM child;
CREATE VIEW from_macro AS SELECT * FROM cheap(10);
CREATE TABLE gone (x INTEGER); CREATE VIEW "AS orphan"("x AS") AS SELECT x FROM gone; DROP TABLE gone;
CREATE INDEX plain ON items (m);
CREATE UNIQUE INDEX "u "" i" ON "my schema".child (n, (id + 1));
COMMENT ON TABLE items IS 'it''s a table'; COMMENT ON COLUMN items.m IS 'column'; COMMENT ON VIEW named IS 'view';
COMMENT ON COLUMN named.p IS 'column of a view'; COMMENT ON INDEX plain IS 'index';
COMMENT ON SEQUENCE ids IS 'sequence';
COMMENT ON TYPE mood IS 'type'; COMMENT ON MACRO plus IS 'macro'; COMMENT ON MACRO TABLE cheap IS 'table macro';
COMMENT ON INDEX "my schema"."u "" i" IS 'index elsewhere';
INSERT INTO items (id, parent, shape) VALUES (100, NULL, {'a': 'sad', 'b c': [1, NULL]});
INSERT INTO items (id, parent, "select") VALUES (101, 100, 'child');
INSERT INTO "my schema"."a ""table" VALUES (1, 'é', 2, 170141183460469231731687303715884105727), (2, NULL, NULL, NULL);
INSERT INTO "my schema".child (id) VALUES (1), (1), (NULL);
INSERT INTO computed VALUES (DEFAULT);
CREATE SCHEMA wlc; CREATE TABLE wlc.journal (x INTEGER); CREATE VIEW wlc.seen AS SELECT 1;
CREATE TEMP TABLE passing (x INTEGER);
"""

# What a database contains, in DuckDB's own words, apart from numbers that are given anew.
NUMBERS = "database_name, database_oid, schema_oid"
FACTS = {
    "schemas": "schema_name, comment FROM duckdb_schemas() WHERE NOT internal AND {user}",
    "types": "schema_name, type_name, logical_type, labels, comment FROM duckdb_types() WHERE NOT internal AND {user}",
    "sequences": f"* EXCLUDE ({NUMBERS}, sequence_oid, start_value) FROM duckdb_sequences() WHERE {{user}}",
    "tables": "schema_name, table_name, comment, sql FROM duckdb_tables() WHERE {user}",
    "columns": f"* EXCLUDE ({NUMBERS}, table_oid) FROM duckdb_columns() "
    "WHERE NOT internal AND table_name <> 'AS orphan' AND {user}",
    "constraints": f"* EXCLUDE ({NUMBERS}, table_oid, constraint_index) FROM duckdb_constraints() WHERE {{user}}",
    "views": "schema_name, view_name, comment, sql FROM duckdb_views() WHERE NOT internal AND {user}",
    "indexes": f"* EXCLUDE ({NUMBERS}, index_oid, table_oid) FROM duckdb_indexes() WHERE {{user}}",
    "macros": "* EXCLUDE (database_name, database_oid, function_oid) "
    "FROM duckdb_functions() WHERE NOT internal AND {user}",
}


@pytest.fixture
def master(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(tmp_path / f"{CATALOG}.db") as opened:
        yield opened


@pytest.fixture
def farm(tmp_path: Path) -> FarmDatabase:
    return open_database(str(tmp_path / "farm" / "shop"))


def take_one(master: duckdb.DuckDBPyConnection, farm: FarmDatabase) -> Manifest:
    with master.cursor() as cursor:
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        return take(cursor, CATALOG, farm, POSITION, CLOCK, {"h1": 7})


def build(farm: FarmDatabase, manifest: Manifest) -> duckdb.DuckDBPyConnection:
    """Make a database from a snapshot in the plainest way."""
    copy = duckdb.connect(":memory:")
    copy.execute(f"ATTACH ':memory:' AS {quote(manifest.catalog)}")
    for ddl in manifest.schema:
        copy.execute(f"USE {quote(manifest.catalog)}.{quote(ddl.search_path[0])}")
        copy.execute(ddl.statement)
    copy.execute(f"USE {quote(manifest.catalog)}.main")
    for table in manifest.tables:
        stored = table.layout.stored
        names = ", ".join(quote(column.name) for column in stored)
        values = ", ".join(load_sql(column, quote(file_column(column.name))) for column in stored)
        refers_to_itself = table.table in catalog.foreign_keys(copy, manifest.catalog).get(table.table, frozenset())
        for file in table.files:
            rows = f"SELECT {values} FROM read_parquet({literal(str(farm.fetch_snapshot(manifest, file)))})"
            # The one such table here has two generations.
            for part in ("WHERE parent IS NULL", "WHERE parent IS NOT NULL") if refers_to_itself else ("",):
                copy.execute(f"INSERT INTO {table.table.sql} ({names}) {rows} {part}")
    for position in manifest.sequences:
        copy.execute(f"SELECT setval({literal(position.sequence.sql)}, {position.value})")
    for ddl in manifest.schema_after:
        copy.execute(f"USE {quote(manifest.catalog)}.{quote(ddl.search_path[0])}")
        copy.execute(ddl.statement)
    copy.execute(f"USE {quote(manifest.catalog)}.main")
    return copy


def facts(connection: duckdb.DuckDBPyConnection, kind: str) -> list[str]:
    user = f"database_name = '{CATALOG}' AND schema_name <> 'wlc'"
    return sorted(str(row) for row in connection.execute("SELECT " + FACTS[kind].format(user=user)).fetchall())


def contents(connection: duckdb.DuckDBPyConnection, source: str) -> list[str]:
    return sorted(str(row) for row in connection.execute(f"FROM {source}").fetchall())


def test_a_copy_has_everything_the_master_has(master: duckdb.DuckDBPyConnection, farm: FarmDatabase) -> None:
    master.execute(SCHEMA)
    manifest = take_one(master, farm)
    copy = build(farm, farm.read_manifest(POSITION.tick))
    for kind in FACTS:
        assert facts(copy, kind) == facts(master, kind), kind
        assert facts(copy, kind) or kind == "types", kind
    for table in manifest.tables:
        assert contents(copy, table.table.sql) == contents(master, table.table.sql), table.table
    for view in ('"over view"', "from_macro", '"my schema".own', "cheap(200)", '"my schema"."w "" o"(1)', "named"):
        assert contents(copy, view) == contents(master, view), view
    for call in ("overloaded(1)", "overloaded(1, w := 2, v := 3)", "plus(1)", "earlier(1)"):
        try:
            expected = master.execute(f"SELECT {call}").fetchone()
        except duckdb.BinderException:
            continue
        assert copy.execute(f"SELECT {call}").fetchone() == expected, call


def test_the_manifest_says_where_it_stands(master: duckdb.DuckDBPyConnection, farm: FarmDatabase) -> None:
    master.execute(SCHEMA)
    manifest = take_one(master, farm)
    assert (manifest.position, manifest.clock, manifest.catalog) == (POSITION, CLOCK, CATALOG)
    assert (manifest.database, manifest.vector) == ("shop", {"h1": 7})
    rows = {str(table.table): sum(file.rows for file in table.files) for table in manifest.tables}
    assert rows["main.items"] == 2
    assert rows["main.nothing"] == 0
    assert not any(name.startswith(("wlc.", "temp.")) for name in rows)
    for table in manifest.tables:
        for file in table.files:
            # Another reader than DuckDB finds the same rows.
            assert pyarrow.parquet.read_table(farm.fetch_snapshot(manifest, file)).num_rows == file.rows
    order = list(rows)
    assert order.index('my schema.a "table') < order.index("my schema.child")


def test_the_next_value_of_a_sequence_is_the_masters(master: duckdb.DuckDBPyConnection, farm: FarmDatabase) -> None:
    master.execute(SCHEMA)
    take_one(master, farm)
    copy = build(farm, farm.read_manifest(POSITION.tick))
    for sequence in ("ids", '"my schema"."s ""2"', "moved", "untouched"):
        query = f"SELECT nextval({literal(sequence)}) FROM range(60)"
        limited = query.replace("60", "3") if "s " not in sequence else query
        assert copy.execute(limited).fetchall() == master.execute(limited).fetchall(), sequence


def test_writers_go_on_and_are_not_seen(master: duckdb.DuckDBPyConnection, farm: FarmDatabase) -> None:
    master.execute("CREATE TABLE a (x BIGINT); CREATE TABLE b (x BIGINT)")
    master.execute("INSERT INTO a FROM range(1000); INSERT INTO b FROM range(1000)")
    stop, written = threading.Event(), threading.Event()

    def write() -> None:
        with master.cursor() as cursor:
            while not stop.is_set():
                # The same rows go to both tables, so a torn snapshot has more rows in one.
                cursor.execute("BEGIN; INSERT INTO a FROM range(3000); INSERT INTO b FROM range(3000); COMMIT")
                written.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert written.wait(300)
        with master.cursor() as cursor:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            seen = cursor.execute("SELECT count(*) FROM a").fetchone()
            written.clear()
            assert written.wait(300)
            manifest = take(cursor, CATALOG, farm, POSITION, CLOCK, {})
    finally:
        stop.set()
        writer.join()
    assert [(sum(file.rows for file in table.files),) for table in manifest.tables] == [seen, seen]


def test_without_a_transaction_there_is_no_snapshot(master: duckdb.DuckDBPyConnection, farm: FarmDatabase) -> None:
    with pytest.raises(InvalidError, match="transaction"):
        take(master, CATALOG, farm, POSITION, CLOCK, {})
    assert farm.snapshot_ticks() == []


@pytest.mark.parametrize(
    "statements, named",
    [
        ("CREATE SCHEMA a; CREATE SCHEMA a.b; CREATE TABLE a.b.t (x INTEGER)", '"a"."b"'),
        ("CREATE TABLE t (x INTEGER); CREATE MACRO m() AS TABLE FROM t; DROP TABLE t", "main.m"),
        ("CREATE TABLE t (x VARIANT); INSERT INTO t SELECT INTERVAL 1 MONTH", '"x"'),
    ],
)
def test_what_cannot_be_copied_is_named_and_nothing_is_published(
    master: duckdb.DuckDBPyConnection, farm: FarmDatabase, statements: str, named: str
) -> None:
    master.execute(statements)
    with pytest.raises(UnsupportedError, match=named):
        take_one(master, farm)
    assert farm.snapshot_ticks() == []
    assert farm.store.list() == []


def test_a_view_over_what_is_not_there_does_not_stop_a_copy(
    master: duckdb.DuckDBPyConnection, farm: FarmDatabase, tmp_path: Path
) -> None:
    master.execute(f"COPY (SELECT 1 AS x) TO '{tmp_path}/f.csv'")
    master.execute(f"CREATE VIEW on_file AS FROM '{tmp_path}/f.csv'; CREATE VIEW on_view AS FROM on_file")
    manifest = take_one(master, farm)
    (tmp_path / "f.csv").rename(tmp_path / "g.csv")
    copy = build(farm, manifest)
    (tmp_path / "g.csv").rename(tmp_path / "f.csv")
    assert copy.execute("FROM on_view").fetchall() == [(1,)]


def test_a_database_called_memory_can_be_copied(farm: FarmDatabase) -> None:
    with duckdb.connect(":memory:") as source:
        source.execute("CREATE TABLE t (x INTEGER PRIMARY KEY)")
        before, after = schema_statements(source, "memory")
    assert [(ddl.kind, ddl.object) for ddl in before + after] == [("CREATE TABLE", Name("main", "t"))]
