"""A PostgreSQL master renames tables, or moves them to another schema, into and out of what its replicas hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import wlc
import wlr
from tests.postgres.cluster import execute
from wlc.farm.model import Name

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres.cluster import Cluster

STEPS: tuple[tuple[str, ...], ...] = (
    (
        "ALTER TABLE work.big SET SCHEMA live",
        "INSERT INTO live.big VALUES (100, 'later')",
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


def held(url: str, *patterns: str) -> dict[str, int]:
    listed = execute(
        url,
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind = 'r' AND n.nspname IN ('live', 'work')",
    )
    names = [Name(*row) for row in listed if not patterns or row[0] == "live"]
    return {str(name): execute(url, f"SELECT count(*) FROM {name.sql}")[0][0] for name in names}


def test_tables_come_in_with_their_rows_and_leave(tmp_path: Path, cluster: Cluster) -> None:
    url, farm = cluster.create_database(), str(tmp_path / "farm")
    execute(
        url,
        "CREATE SCHEMA work; CREATE SCHEMA live",
        "CREATE TABLE live.t (id int PRIMARY KEY, v text); INSERT INTO live.t VALUES (1, 'a')",
        "CREATE TABLE work.big (id int PRIMARY KEY, v text)",
        "INSERT INTO work.big SELECT g, 'w' || g FROM generate_series(1, 5) g",
        "CREATE TABLE work.new (id int PRIMARY KEY, v text); INSERT INTO work.new VALUES (7, 'n')",
    )
    wlc.master(url, farm=farm, name="moving")
    some: list[Path | str] = [cluster.create_database(), tmp_path / "some.duckdb", tmp_path / "some"]
    every = cluster.create_database()
    for into in some:
        wlr.replicate("moving", farm=farm, into=into, tables=["live.*"])
    wlr.replicate("moving", farm=farm, into=every)
    for statements in STEPS:
        execute(url, *statements)
        wlc.flush(url)
        for into in (*some, every):
            wlr.replicate(into=into)
            checks = wlr.verify(str(into)).tables
            assert {check.outcome for check in checks} == {"same"}
            found = {check.table: check.rows for check in checks}
            assert found == held(url, *(["live.*"] if into != every else [])), (into, statements)
    assert execute(str(some[0]), "TABLE live.t ORDER BY id") == execute(url, "TABLE live.t ORDER BY id")
