"""Columns of the type that the rows of a foreign table or of a materialized view are."""

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

_SERVER = "CREATE FOREIGN DATA WRAPPER none; CREATE SERVER none FOREIGN DATA WRAPPER none"
_BEFORE = f"""{_SERVER}; CREATE FOREIGN TABLE f (a int, b text) SERVER none; CREATE FOREIGN TABLE unused (a int) SERVER none;
    CREATE TYPE pair AS (f f, n int); CREATE TABLE t (id int, f f, p pair); INSERT INTO t VALUES (1, '(1,x)', '("(2,y)",3)');
    CREATE TABLE source (n int); INSERT INTO source VALUES (7);
    CREATE MATERIALIZED VIEW filled AS SELECT n FROM source; CREATE TABLE of_filled (x filled)"""
_CHANGES = (
    "ALTER FOREIGN TABLE f ADD c int; INSERT INTO t VALUES (2, '(2,z,5)')",
    "ALTER FOREIGN TABLE f RENAME COLUMN b TO bb; CREATE SCHEMA s; ALTER FOREIGN TABLE f SET SCHEMA s",
    "ALTER FOREIGN TABLE s.f RENAME TO g; ALTER TABLE t ADD more s.g[]; UPDATE t SET more = ARRAY[ROW(1, 'q', 2)::s.g]",
    "CREATE FOREIGN TABLE h (x int) SERVER none; CREATE DOMAIN d AS h; CREATE TABLE u (d d, h h, i int)",
    "INSERT INTO u VALUES ('(1)', '(2)', 3)",
    "DROP FOREIGN TABLE h CASCADE; INSERT INTO u VALUES (4)",
    "CREATE FUNCTION first_of(unused) RETURNS int LANGUAGE sql AS 'SELECT ($1).a'",
)
_TYPES = "SELECT typname FROM pg_type WHERE typtype = 'c' AND typname IN ('f', 'g', 'h', 'unused') ORDER BY 1"


@pytest.mark.slow
@pytest.mark.parametrize("begins", ["before", "after"])
def test_replicas_have_the_type_of_a_foreign_table_where_it_is_used(
    cluster: Cluster, database_url: str, tmp_path: Path, begins: str
) -> None:
    replica, farm = cluster.create_database(), str(tmp_path / "farm")
    execute(database_url, _BEFORE)
    wlc.master(database_url, farm=farm, name="x")

    def follow() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            wlr.replicate("x", farm=farm, into=replica, register=False)

    if begins == "before":
        follow()
        assert execute(replica, _TYPES) == [("f",)]
        assert execute(replica, "SELECT n FROM filled") == [(7,)]
    execute(database_url, *_CHANGES)
    wlc.flush(database_url)
    if begins == "after":
        wlc.snapshot(database_url)
    follow()
    assert texts_of(replica) == texts_of(database_url)
    assert execute(replica, _TYPES) == [("g",), ("unused",)]
    assert execute(replica, "SELECT first_of(ROW(8)), n FROM filled") == [(8, 7)]
    assert wlr.status(replica).left_out == {}


def test_a_foreign_table_of_the_replicas_owner_stays(cluster: Cluster, database_url: str, tmp_path: Path) -> None:
    replica, farm = cluster.create_database(), str(tmp_path / "farm")
    own = "CREATE FOREIGN TABLE f (a int, b text) SERVER none"
    execute(database_url, _SERVER, own, "CREATE TABLE t (f f, i int)", "INSERT INTO t VALUES ('(1,x)', 2)")
    execute(replica, _SERVER, own)
    wlc.master(database_url, farm=farm, name="x")
    wlr.replicate("x", farm=farm, into=replica, register=False)
    assert texts_of(replica) == texts_of(database_url)
    execute(database_url, "DROP FOREIGN TABLE f CASCADE", "CREATE TABLE u (i int)")
    wlc.flush(database_url)
    wlr.replicate(into=replica, register=False)
    assert texts_of(replica).keys() == {"public.u", "public.t"}
    assert execute(replica, "SELECT relkind FROM pg_class WHERE relname = 'f'") == [("f",)]
