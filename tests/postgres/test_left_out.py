"""What a PostgreSQL replica of a PostgreSQL master lacks: it is named before, or listed as long as it is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.postgres.cluster import execute
from wlc.farm.errors import InvalidError

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
    )
    wlc.flush(database_url)
    with pytest.warns(UserWarning, match="is left out"):
        wlr.replicate("x", farm=farm, into=copy, register=False)
    left_out = wlr.status(copy).left_out
    assert set(left_out) == {"index public.by_name", "view public.v"}
    assert "gin_trgm_ops" in left_out["index public.by_name"]
    # What is dropped, or made in the end, is not missing any more.
    execute(copy, "CREATE EXTENSION pg_trgm")
    execute(
        database_url,
        "DROP INDEX by_name",
        "CREATE OR REPLACE VIEW v AS SELECT id FROM t WHERE names[1]::text % 'b'",
    )
    wlc.flush(database_url)
    wlr.replicate("x", farm=farm, into=copy, register=False)
    assert wlr.status(copy).left_out == {}
