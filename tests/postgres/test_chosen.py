"""Replicas of some tables, rows and columns of a PostgreSQL master, and tables that come in by another name and leave."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.postgres.cluster import execute
from tests.postgres.comparing import texts_of
from wlc.farm.model import Name

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres.cluster import Cluster

# Tables that refer to others -------------------------------------------------------------------------------------------


REFERRING = """
    CREATE TABLE outside (id int PRIMARY KEY); INSERT INTO outside VALUES (1), (2);
    CREATE TABLE in_key (y int CONSTRAINT to_outside REFERENCES outside); INSERT INTO in_key VALUES (1);
    CREATE TABLE above (x int NOT NULL); CREATE TABLE in_child (y int) INHERITS (above); INSERT INTO in_child VALUES (1, 2);
    CREATE TABLE parts (k int PRIMARY KEY, v text) PARTITION BY LIST (k); CREATE INDEX ON parts (v);
    CREATE TABLE in_part PARTITION OF parts DEFAULT; INSERT INTO parts VALUES (1, 'a');
    CREATE TABLE outer_parts (k int) PARTITION BY LIST (k); CREATE TABLE outer_part PARTITION OF outer_parts DEFAULT;
    CREATE INDEX ON outer_parts (k)
"""
REFERRING_CHANGES = (
    "CREATE TABLE in_later (a int PRIMARY KEY REFERENCES outside, b text); INSERT INTO in_later VALUES (1)",
    "ALTER TABLE in_later ADD c int REFERENCES outside; ALTER TABLE in_key DROP CONSTRAINT to_outside",
    "ALTER TABLE above ADD w int DEFAULT 5; ALTER TABLE above RENAME x TO xx; INSERT INTO in_child VALUES (3, 4, 6)",
    "ALTER TABLE above ADD CONSTRAINT pos CHECK (xx > 0); CREATE TABLE in_both () INHERITS (in_child, above)",
    "INSERT INTO in_both VALUES (7, 8, 9); ALTER TABLE above ADD gone int; ALTER TABLE above DROP gone",
    "ALTER TABLE parts ADD z varchar(7) DEFAULT 'zz'; INSERT INTO parts VALUES (2, 'b', 'zzz')",
    "ALTER TABLE in_child NO INHERIT above; INSERT INTO in_child VALUES (9, 9, 9); ALTER TABLE in_child INHERIT above",
    "ALTER TABLE parts DETACH PARTITION in_part; INSERT INTO in_part VALUES (3, 'c')",
    "ALTER TABLE parts ATTACH PARTITION in_part DEFAULT; UPDATE in_part SET v = 'd'",
    # The index of the partition is its own from now on.
    "CREATE TABLE in_new (a int); ALTER TABLE outer_parts DETACH PARTITION outer_part; INSERT INTO in_new VALUES (1)",
)
LISTED = {"constraint in_later_a_fkey of table public.in_later", "constraint in_later_c_fkey of table public.in_later"}


def follow(farm: str, into: str, *tables: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="constraint .* is left out")
        wlr.replicate("x", farm=farm, into=into, tables=tables or None, register=False)


def columns(url: str, table: str) -> list[tuple[object, ...]]:
    query = """SELECT attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid) FROM pg_attribute
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY 1"""
    return execute(url, query.replace("%s", f"'{table}'"))


@pytest.mark.slow
@pytest.mark.parametrize("chosen_by", ["master", "replica"])
def test_tables_refer_to_others_that_are_not_there(
    cluster: Cluster, database_url: str, tmp_path: Path, chosen_by: str
) -> None:
    farm, followed, begun = str(tmp_path / "farm"), cluster.create_database(), cluster.create_database()
    of_master, of_replica = (["in_*"], []) if chosen_by == "master" else ([], ["in_*"])
    execute(database_url, REFERRING)
    wlc.master(database_url, farm=farm, name="x", tables=of_master)
    follow(farm, followed, *of_replica)
    assert "constraint to_outside of table public.in_key" in wlr.status(followed).left_out
    execute(database_url, *REFERRING_CHANGES)
    wlc.flush(database_url)
    follow(farm, followed)
    wlc.snapshot(database_url)
    follow(farm, begun, *of_replica)
    expected = {name: rows for name, rows in texts_of(database_url).items() if name.startswith("public.in_")}
    assert len(expected) == 6
    for replica in (followed, begun):
        assert texts_of(replica) == expected
        assert set(wlr.status(replica).left_out) == LISTED
    # A replica that lacks a parent gets its changes as DuckDB replicas do: names, and not all of a type and default.
    exact = [begun, *([followed] if chosen_by == "master" else [])]
    for table in expected:
        assert {str(columns(replica, table)) for replica in exact} == {str(columns(database_url, table))}
    # What is listed can be typed once the table is there.
    execute(begun, "CREATE TABLE outside (id int PRIMARY KEY); INSERT INTO outside VALUES (1)")
    for cause in wlr.status(begun).left_out.values():
        execute(begun, cause.partition("; once it is there, run ")[2])


def test_parents_leave_and_come_back(cluster: Cluster, database_url: str, tmp_path: Path) -> None:
    farm, replica = str(tmp_path / "farm"), cluster.create_database()
    execute(
        database_url,
        "CREATE TABLE in_p (a int CHECK (a > 0)); CREATE TABLE in_c (b int) INHERITS (in_p); INSERT INTO in_c VALUES (1, 2)",
        "CREATE TABLE in_r (k int PRIMARY KEY) PARTITION BY LIST (k); CREATE TABLE in_d PARTITION OF in_r DEFAULT",
        "INSERT INTO in_r VALUES (5)",
    )
    wlc.master(database_url, farm=farm, name="x", tables=["in_*"])
    follow(farm, replica)
    steps: tuple[tuple[str, set[str]], ...] = (
        ("ALTER TABLE in_p RENAME TO p; ALTER TABLE in_r RENAME TO r", {"public.in_c", "public.in_d"}),
        ("ALTER TABLE p ADD n int DEFAULT 4; ALTER TABLE r ADD n int DEFAULT 4; INSERT INTO r VALUES (6)", set()),
        ("ALTER TABLE p RENAME TO in_p; ALTER TABLE r RENAME TO in_r", {"public.in_c", "public.in_d", "public.in_p"}),
        ("ALTER TABLE in_p ADD m int DEFAULT 4; ALTER TABLE in_r ADD m int; INSERT INTO in_c VALUES (7)", set()),
    )
    for statement, tables in steps:
        execute(database_url, statement)
        wlc.flush(database_url)
        follow(farm, replica)
        found = texts_of(replica)
        assert found.keys() == (tables or found.keys())
        assert found == {name: rows for name, rows in texts_of(database_url).items() if name.startswith("public.in_")}
    assert execute(replica, "SELECT count(*) FROM in_p") == execute(database_url, "SELECT count(*) FROM in_p")
    assert execute(replica, "TABLE in_r") == execute(database_url, "TABLE in_r")
    assert not wlc.status(database_url).bypassed


# Tables that come in by another name, and leave ------------------------------------------------------------------------


MOVES: tuple[tuple[str, ...], ...] = (
    (
        "ALTER TABLE work.big SET SCHEMA live",
        "INSERT INTO live.big VALUES (100, 'later'); INSERT INTO work.counted DEFAULT VALUES",
        "ALTER TABLE live.t SET SCHEMA work",
        "INSERT INTO work.t VALUES (2, 'away')",
    ),
    ("ALTER TABLE work.t SET SCHEMA live", "ALTER TABLE live.big RENAME TO big2", "DELETE FROM live.big2 WHERE id = 1"),
    # What a tool does that builds a table anew and swaps it.
    (
        "INSERT INTO live.t VALUES (3, 'before')",
        "BEGIN; ALTER TABLE live.t RENAME TO old; INSERT INTO work.new VALUES (8, 'x');"
        " ALTER TABLE work.new SET SCHEMA live; ALTER TABLE live.new RENAME TO t; COMMIT",
        "BEGIN; ALTER TABLE live.old SET SCHEMA work; INSERT INTO work.old VALUES (9, 'y'); COMMIT",
        "UPDATE live.t SET v = 'swapped' WHERE id = 8",
    ),
)


def counted(url: str, *patterns: str) -> dict[str, int]:
    listed = execute(
        url,
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind = 'r' AND n.nspname IN ('live', 'work')",
    )
    names = [Name(*row) for row in listed if not patterns or row[0] == "live"]
    return {str(name): execute(url, f"SELECT count(*) FROM {name.sql}")[0][0] for name in names}


@pytest.mark.slow
def test_tables_come_in_with_their_rows_and_leave(tmp_path: Path, cluster: Cluster) -> None:
    url, farm = cluster.create_database(), str(tmp_path / "farm")
    execute(
        url,
        "CREATE SCHEMA work; CREATE SCHEMA live",
        "CREATE TABLE live.t (id int PRIMARY KEY, v text); INSERT INTO live.t VALUES (1, 'a')",
        "CREATE TABLE work.big (id int PRIMARY KEY, v text)",
        "INSERT INTO work.big SELECT g, 'w' || g FROM generate_series(1, 5) g",
        "CREATE TABLE work.new (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, v text); CREATE INDEX ON work.new (v)",
        "INSERT INTO work.new VALUES (7, 'n')",
        # The sequences of other tables move, too.
        "CREATE TABLE work.counted (id int GENERATED ALWAYS AS IDENTITY); INSERT INTO work.counted DEFAULT VALUES",
    )
    wlc.master(url, farm=farm, name="moving")
    some: list[Path | str] = [cluster.create_database(), tmp_path / "some.duckdb", tmp_path / "some"]
    every = cluster.create_database()
    for into in some:
        wlr.replicate("moving", farm=farm, into=into, tables=["live.*"])
    wlr.replicate("moving", farm=farm, into=every)
    for statements in MOVES:
        execute(url, *statements)
        wlc.flush(url)
        for into in (*some, every):
            wlr.replicate(into=into)
            checks = wlr.verify(str(into)).tables
            assert {check.outcome for check in checks} == {"same"}
            found = {check.table: check.rows for check in checks}
            assert found == counted(url, *(["live.*"] if into != every else [])), (into, statements)
    assert execute(str(some[0]), "TABLE live.t ORDER BY id") == execute(url, "TABLE live.t ORDER BY id")


# Rows, columns and values ----------------------------------------------------------------------------------------------


FILTERED_STEPS: tuple[tuple[str, ...], ...] = (
    (
        "UPDATE orders SET region = 'EU' WHERE id = 2",
        "UPDATE orders SET region = 'US' WHERE id = 1",
        "INSERT INTO people VALUES (3, 'c@x', '{}')",
    ),
    (
        "ALTER TABLE orders ALTER COLUMN price TYPE numeric(12, 3) USING price * 2",
        "ALTER TABLE orders ADD CONSTRAINT dear CHECK (price < 1000), ALTER COLUMN price SET DEFAULT 5",
        "ALTER TABLE people ADD COLUMN phone text DEFAULT '0'",
        "CREATE INDEX ON people (phone); COMMENT ON COLUMN people.phone IS 'secret'",
        "UPDATE people SET phone = '1'",
    ),
    ("TRUNCATE orders", "INSERT INTO orders VALUES (9, 1, 'EU', 4), (8, 1, 'US', 4)"),
)


FILTERED = (
    "CREATE TABLE people (id int PRIMARY KEY, email text UNIQUE, doc jsonb NOT NULL)",
    "CREATE TABLE orders (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,"
    " who int REFERENCES people (id), region varchar(2) COLLATE \"C\" CHECK (region <> ''), price numeric(9, 2))",
    "CREATE INDEX ON orders (region); CREATE VIEW both_of AS SELECT email, region FROM people JOIN orders ON who = people.id",
    "INSERT INTO people VALUES (1, 'a@x', '{\"a\": 1}'), (2, 'b@x', '{}')",
    "INSERT INTO orders VALUES (1, 1, 'EU', 1), (2, 2, 'US', 2), (3, 2, NULL, 3)",
)


@pytest.mark.slow
def test_all_engines_hold_what_passes(tmp_path: Path, cluster: Cluster) -> None:
    url, farm = cluster.create_database(), str(tmp_path / "farm")
    wlc.master(url, farm=farm, name="shop")
    execute(url, *FILTERED)
    wlc.flush(url)
    chosen = wlr.row_filters(
        ["public.orders: region = 'EU'"], ["public.people: id, email"], ["public.people: email = truncate:1"]
    )
    # Tables come with the log to the first ones, and with a snapshot to the others.
    early = (cluster.create_database(), str(tmp_path / "some.duckdb"))
    late = (cluster.create_database(), str(tmp_path / "lake"))
    for into in early:
        wlr.replicate("shop", farm=farm, into=into, filters=chosen)
    wlc.snapshot(url)
    for into in late:
        wlr.replicate("shop", farm=farm, into=into, filters=chosen)
    for statements in (("SELECT 1",), *FILTERED_STEPS):
        execute(url, *statements)
        wlc.flush(url)
        for into in (*early, *late):
            wlr.replicate(into=into)
            assert {check.outcome for check in wlr.verify(into).tables} == {"same"}, (into, statements)
            for table, query in (
                ("public.orders", "SELECT * FROM orders WHERE region = 'EU'"),
                ("public.people", "SELECT id, left(email, 1) FROM people"),
            ):
                assert sorted(wlr.read(into, table).fetchall()) == sorted(execute(url, query)), (into, table)
