"""PostgreSQL replicas of some tables, which refer to tables that are not there: keys, parents, partitioned tables."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.postgres.cluster import execute
from tests.postgres.comparing import texts_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres.cluster import Cluster

_BEFORE = """
    CREATE TABLE outside (id int PRIMARY KEY); INSERT INTO outside VALUES (1), (2);
    CREATE TABLE in_key (y int CONSTRAINT to_outside REFERENCES outside); INSERT INTO in_key VALUES (1);
    CREATE TABLE above (x int NOT NULL); CREATE TABLE in_child (y int) INHERITS (above); INSERT INTO in_child VALUES (1, 2);
    CREATE TABLE parts (k int PRIMARY KEY, v text) PARTITION BY LIST (k); CREATE INDEX ON parts (v);
    CREATE TABLE in_part PARTITION OF parts DEFAULT; INSERT INTO parts VALUES (1, 'a');
    CREATE TABLE outer_parts (k int) PARTITION BY LIST (k); CREATE TABLE outer_part PARTITION OF outer_parts DEFAULT;
    CREATE INDEX ON outer_parts (k)
"""
_CHANGES = (
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
_LISTED = {"constraint in_later_a_fkey of table public.in_later", "constraint in_later_c_fkey of table public.in_later"}


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
    execute(database_url, _BEFORE)
    wlc.master(database_url, farm=farm, name="x", tables=of_master)
    follow(farm, followed, *of_replica)
    assert "constraint to_outside of table public.in_key" in wlr.status(followed).left_out
    execute(database_url, *_CHANGES)
    wlc.flush(database_url)
    follow(farm, followed)
    wlc.snapshot(database_url)
    follow(farm, begun, *of_replica)
    expected = {name: rows for name, rows in texts_of(database_url).items() if name.startswith("public.in_")}
    assert len(expected) == 6
    for replica in (followed, begun):
        assert texts_of(replica) == expected
        assert set(wlr.status(replica).left_out) == _LISTED
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
