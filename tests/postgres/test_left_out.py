"""What a PostgreSQL replica of a PostgreSQL master lacks: it is named before, or listed as long as it is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.postgres.cluster import execute
from wlc.farm.errors import InvalidError, ReplayError, UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres.cluster import Cluster

BEFORE = """
    CREATE EXTENSION citext; CREATE EXTENSION btree_gin; CREATE EXTENSION hstore;
    CREATE TABLE t (id int PRIMARY KEY, names citext[]); INSERT INTO t VALUES (1, '{a,B}');
    CREATE INDEX by_id ON t USING gin (id)
"""


def test_extensions_are_named_and_what_is_missing_stays_listed(
    cluster: Cluster, database_url: str, tmp_path: Path
) -> None:
    farm, copy = str(tmp_path / "farm"), cluster.create_database()
    execute(database_url, BEFORE)
    wlc.master(database_url, farm=farm, name="x")
    with pytest.raises(InvalidError, match=r"lacks extensions of the master: btree_gin, citext$") as caught:
        wlr.replicate("x", farm=farm, into=copy, register=False)
    hint = str(caught.value.hint)
    execute(copy, hint.partition(": ")[2])
    wlr.replicate("x", farm=farm, into=copy, register=False)
    assert execute(copy, "SELECT names FROM t WHERE names = '{A,b}'")
    assert wlr.status(copy).left_out == {}
    execute(
        database_url,
        "CREATE EXTENSION pg_trgm",
        "CREATE INDEX by_name ON t USING gin ((names[1]::text) gin_trgm_ops)",
        "CREATE VIEW v AS SELECT id FROM t WHERE names[1]::text % 'a'",
        "INSERT INTO t VALUES (2)",
        # The list follows new names.
        "ALTER INDEX by_name RENAME TO named; ALTER VIEW v RENAME TO w",
    )
    wlc.flush(database_url)
    with pytest.warns(UserWarning, match="is left out"):
        wlr.replicate("x", farm=farm, into=copy, register=False)
    left_out = wlr.status(copy).left_out
    assert set(left_out) == {"index public.named", "view public.w"}
    assert "gin_trgm_ops" in left_out["index public.named"]
    # What is dropped, or made in the end, is not missing any more.
    execute(copy, "CREATE EXTENSION pg_trgm")
    execute(
        database_url,
        "DROP INDEX named",
        "CREATE OR REPLACE VIEW w AS SELECT id FROM t WHERE names[1]::text % 'b'",
    )
    wlc.flush(database_url)
    wlr.replicate("x", farm=farm, into=copy, register=False)
    assert wlr.status(copy).left_out == {}


OWN_CLASS = """
    CREATE OPERATOR CLASS own FOR TYPE int USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=,
        OPERATOR 5 >, FUNCTION 1 btint4cmp(int, int)
"""
OWN_TYPE = """
    CREATE TYPE word; CREATE FUNCTION word_in(cstring) RETURNS word LANGUAGE internal STRICT IMMUTABLE AS 'textin';
    CREATE FUNCTION word_out(word) RETURNS cstring LANGUAGE internal STRICT IMMUTABLE AS 'textout';
    CREATE TYPE word (INPUT = word_in, OUTPUT = word_out, LIKE = text)
"""


def test_what_only_the_owner_of_a_replica_can_create_is_named(
    cluster: Cluster, database_url: str, tmp_path: Path
) -> None:
    farm, copy = str(tmp_path / "farm"), cluster.create_database()
    execute(database_url, OWN_TYPE, "CREATE TABLE w (a word)", "INSERT INTO w VALUES ('x')")
    wlc.master(database_url, farm=farm, name="x")
    with pytest.raises(UnsupportedError, match=r'type "public.word" does not exist') as unsupported:
        wlr.replicate("x", farm=farm, into=copy, register=False)
    assert "Create it in the replica's database" in str(unsupported.value.hint)
    execute(copy, OWN_TYPE)
    wlr.replicate("x", farm=farm, into=copy, register=False)
    execute(database_url, OWN_CLASS, "CREATE TABLE p (a int) PARTITION BY RANGE (a own)")
    execute(database_url, "INSERT INTO w VALUES ('y')")
    wlc.flush(database_url)
    with pytest.raises(ReplayError, match=r'operator class "public.own" does not exist') as stopped:
        wlr.replicate("x", farm=farm, into=copy, register=False)
    assert "Create it in the replica's database" in str(stopped.value.hint)
    execute(copy, OWN_CLASS)
    wlr.replicate("x", farm=farm, into=copy, register=False)
    assert execute(copy, "SELECT a::text FROM w ORDER BY 1") == [("x",), ("y",)]
    assert execute(copy, "SELECT pg_get_partkeydef('p'::regclass)") == [("RANGE (a own)",)]
