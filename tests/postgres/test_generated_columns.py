"""Generated columns of a PostgreSQL 18 master, which writes them into its log or refuses to change their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

import wlc
import wlr
from tests.postgres.cluster import execute

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.postgres.cluster import Cluster

BEFORE = """
    CREATE TABLE g (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED, c text);
    CREATE TABLE p (a int, b int GENERATED ALWAYS AS (a * 2) STORED) PARTITION BY LIST (a);
    CREATE TABLE p1 PARTITION OF p DEFAULT; INSERT INTO g VALUES (1), (2); INSERT INTO p VALUES (1)
"""


def test_stored_ones_follow_and_virtual_ones_are_refused(cluster_of: Callable[[int], Cluster], tmp_path: Path) -> None:
    cluster = cluster_of(18)
    url, copy, farm = cluster.create_database(), cluster.create_database(), str(tmp_path / "farm")
    execute(url, BEFORE, "CREATE TABLE v (a int, b int GENERATED ALWAYS AS (a + 1))")
    with pytest.raises(Exception, match=r"table public.v cannot be replicated: .* virtual generated column"):
        wlc.master(url, farm=farm, name="x")
    execute(url, "DROP TABLE v")
    wlc.master(url, farm=farm, name="x")
    into = tmp_path / "r.duckdb"
    for target in (copy, into):
        wlr.replicate("x", farm=farm, into=target, register=False)
    for statement in (
        "UPDATE g SET a = 3 WHERE a = 2",
        "DELETE FROM g WHERE a = 1",
        "ALTER TABLE g ALTER b SET EXPRESSION AS (a * 3)",
        "ALTER TABLE p ALTER b SET EXPRESSION AS (a * 4)",
        "ALTER TABLE g RENAME a TO aa",
        "INSERT INTO g VALUES (7)",
        "UPDATE p SET a = 5",
    ):
        execute(url, statement)
    with pytest.raises(psycopg.errors.RaiseException, match="virtual generated column"):
        execute(url, "ALTER TABLE g ADD d int GENERATED ALWAYS AS (aa + 1) VIRTUAL")
    wlc.flush(url)
    for target in (copy, into):
        wlr.replicate("x", farm=farm, into=target, register=False)
    for query in ("SELECT aa, b, c FROM g ORDER BY 1", "SELECT a, b FROM p"):
        assert execute(copy, query) == execute(url, query)
    assert execute(copy, "SELECT aa, b FROM g ORDER BY 1") == [(3, 9), (7, 21)]
