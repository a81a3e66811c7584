"""A replica for readers with an older DuckDB: what it refuses, how it goes on without a lock, and that they read it."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.environments import environment
from tests.new_master import new_master
from tests.readers import DUCKDBS
from tests.scenario.test_types_end_to_end import SAMPLES, types_and_values
from tests.scratch import attached
from wlc.dialect.duckdb import engine
from wlc.dialect.types import parse
from wlc.farm.errors import InvalidError, ReplayError, UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.dialect.types.column_types import TypeRow

OLD = "v1.4.0"
# The version that each reader's newest files have; a reader also reads older ones.
READERS = {"1.4": ("v1.4.0",), "1.5": ("v1.4.0", "v1.5.0")}
READ = """
import json, sys
import duckdb

with duckdb.connect(sys.argv[1], read_only=True) as connection:
    connection.execute("SET TimeZone = 'UTC'")
    print(json.dumps([connection.execute(query).fetchall() for query in json.loads(sys.argv[2])]))
"""
TABLES = "SELECT schema_name || '.' || table_name FROM duckdb_tables() WHERE schema_name <> 'wlr' ORDER BY 1"
COLUMNS_MOST = 40


@pytest.fixture
def source(tmp_path: Path) -> Path:
    with new_master(tmp_path / "sales.duckdb") as connection:
        connection.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, s VARCHAR); INSERT INTO t VALUES (1, 'a'), (2, 'b')"
        )
    return tmp_path / "sales.duckdb"


def write(source: Path, *statements: str) -> None:
    with wlc.connect(source) as connection:
        for statement in statements:
            connection.execute(statement)
    wlc.flush(source)


def storage_version(into: Path) -> str:
    with attached(into) as connection:
        return engine.storage_version(connection, into.stem)


def test_a_replica_keeps_its_storage_version_and_says_that_it_is_not_locked(source: Path, tmp_path: Path) -> None:
    into = tmp_path / "copy.duckdb"
    wlr.replicate(source, into=into, storage_version=OLD)
    write(source, "UPDATE t SET s = 'c' WHERE id = 2", "ALTER TABLE t ADD COLUMN x INTEGER DEFAULT 7")
    assert wlr.replicate(into=into).transactions == 2
    assert wlr.replicate(into=into, storage_version=OLD).transactions == 0
    with attached(into) as connection:
        assert connection.execute("FROM t ORDER BY id").fetchall() == [(1, "a", 7), (2, "c", 7)]
    assert storage_version(into) == OLD
    assert wlr.status(into).not_locked == f"storage version {OLD} has no triggers"
    for switch in (wlr.lock, wlr.unlock):
        with pytest.raises(
            InvalidError, match="copy.duckdb is not locked, and cannot be: storage version v1.4.0 has no"
        ):
            switch(into)


def test_another_storage_version_is_refused_and_changes_nothing(source: Path, tmp_path: Path) -> None:
    into, newest = tmp_path / "copy.duckdb", tmp_path / "newest.duckdb"
    with pytest.raises(InvalidError, match="storage version v1.3.0 is invalid") as caught:
        wlr.replicate(source, into=into, storage_version="v1.3.0")
    assert caught.value.hint == "--storage-version v1.4.0 or v1.5.0"
    with pytest.raises(InvalidError, match="--storage-version is for DuckDB files"):
        wlr.replicate(source, into=tmp_path / "lake", storage_version=OLD)
    assert not into.exists()
    wlr.replicate(source, into=newest)
    wlr.replicate(source, into=into, storage_version="v1.5.0")
    for place, has in ((newest, "of DuckDB's newest files"), (into, "v1.5.0")):
        with pytest.raises(
            InvalidError, match=f"{place.name} has the storage version {has}, and a file keeps"
        ) as caught:
            wlr.replicate(into=place, storage_version=OLD)
        assert caught.value.hint == f"make another replica: wlr replicate DB --into NEW.duckdb --storage-version {OLD}"
    assert wlr.status(newest).not_locked == ""


@pytest.mark.slow
@pytest.mark.parametrize("swaps", [False, True])
def test_a_rebuild_and_a_swap_keep_the_version(source: Path, tmp_path: Path, swaps: bool) -> None:
    into = tmp_path / "copy.duckdb"
    wlr.replicate(source, into=into, storage_version=OLD, swap=swaps)
    write(source, "INSERT INTO t VALUES (3, 'c')")
    wlr.replicate(into=into)
    wlc.snapshot(source)
    # A new history: the replica is built again.
    wlc.stop(source)
    shutil.rmtree(tmp_path / "farm" / "sales" / "wlc_logs")
    wlc.master(source, farm=str(tmp_path / "farm"))
    write(source, "INSERT INTO t VALUES (4, 'd')")
    wlr.replicate(into=into, rebase=True)
    assert storage_version(into) == OLD
    with attached(into) as connection:
        assert connection.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,), (3,), (4,)]
    check("1.4", into)


@pytest.mark.slow
def test_an_owners_older_file_is_adopted_as_it_is(source: Path, tmp_path: Path) -> None:
    into, ancient = tmp_path / "app.duckdb", tmp_path / "ancient.duckdb"
    with duckdb.connect() as connection:
        for path, version in ((into, OLD), (ancient, "v1.2.0")):
            connection.execute(
                f"ATTACH '{path}' AS f (STORAGE_VERSION '{version}'); CREATE TABLE f.own (a INT); DETACH f"
            )
    for path, asked in ((ancient, None), (into, "v1.5.0")):
        with pytest.raises(InvalidError, match=r"has the storage version v1\.[24]\.0, which --adopt keeps"):
            wlr.replicate(source, into=path, adopt=True, storage_version=asked)
    wlr.replicate(source, into=into, adopt=True)
    assert (storage_version(into), wlr.status(into).not_locked != "") == (OLD, True)
    write(source, "DELETE FROM t WHERE id = 1")
    wlr.replicate(into=into)
    with attached(into) as connection:
        assert connection.execute("FROM t").fetchall() == [(2, "b")]
    wlr.drop(into)


@pytest.mark.slow
def test_a_type_that_the_version_lacks_is_named_and_changes_nothing(source: Path, tmp_path: Path) -> None:
    into, other = tmp_path / "copy.duckdb", tmp_path / "other.duckdb"
    wlr.replicate(source, into=into, storage_version=OLD)
    write(source, "ALTER TABLE t ADD COLUMN made TIMESTAMPTZ_NS")
    with pytest.raises(
        ReplayError, match=r"column made of table main\.t has type TIMESTAMPTZ_NS, which storage version"
    ):
        wlr.replicate(into=into)
    assert "--ignore main.t" in str(wlr.status(into).failure.remedy)
    with attached(into) as connection:
        assert connection.execute("FROM t ORDER BY id").fetchall() == [(1, "a"), (2, "b")]
    wlc.snapshot(source)
    with pytest.raises(UnsupportedError, match="column made of table main.t has type TIMESTAMPTZ_NS"):
        wlr.replicate(source, into=other, storage_version=OLD)
    assert [path.name for path in tmp_path.iterdir() if "other" in path.name] == []


@pytest.mark.slow
def test_a_direct_write_is_found_by_verify_and_by_a_change_that_does_not_fit(source: Path, tmp_path: Path) -> None:
    into = tmp_path / "copy.duckdb"
    wlr.replicate(source, into=into, storage_version=OLD)
    with duckdb.connect(str(into)) as connection:
        connection.execute("DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (5, 'mine')")
    write(source, "INSERT INTO t VALUES (3, 'c')")
    wlr.replicate(into=into)
    assert [str(each.table) for each in wlr.verify(into).differing] == ["main.t"]
    write(source, "UPDATE t SET s = 'new' WHERE id = 2")
    with pytest.raises(ReplayError, match=r"main\.t"):
        wlr.replicate(into=into)
    wlr.repair(into, ["t"])
    wlr.replicate(into=into)
    assert wlr.verify(into).differing == ()
    with attached(into) as connection:
        assert connection.execute("FROM t ORDER BY id").fetchall() == [(1, "a"), (2, "new"), (3, "c")]


def test_a_replica_without_a_lock_is_not_promoted(source: Path, tmp_path: Path) -> None:
    wlr.replicate(source, into=tmp_path / "copy.duckdb", storage_version=OLD)
    with pytest.raises(InvalidError, match="has no lock, so that its owner can have written to it"):
        wlr.promote(tmp_path / "copy.duckdb")
    (guard,) = (each for each in wlr.examine(tmp_path / "copy.duckdb") if each.check == "guard")
    assert (guard.state, guard.remedy) == ("note", f"wlr verify {tmp_path / 'copy.duckdb'}")


# The readers themselves ----------------------------------------------------------------------------------------------


def read(reader: str, into: Path, *queries: str) -> list[Any]:
    """Run queries with another version of DuckDB, in its own process."""
    python = environment(f"duckdb-{reader}", *DUCKDBS[reader])
    command = [str(python), "-c", READ, str(into), json.dumps(queries)]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def plain(rows: list[Any]) -> list[list[Any]]:
    """Texts without what versions write differently: quotes within nested values, and the last moment of all times."""
    table = str.maketrans("", "", "'\\")
    return [[t and t.translate(table).replace("54.776806+", "54.775806+") for t in row] for row in rows]


def check(reader: str, into: Path) -> None:
    """A reader finds in the file what this DuckDB finds."""
    with attached(into) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        names = [name for (name,) in connection.execute(TABLES).fetchall()]
        queries = [f"SELECT COLUMNS(*)::VARCHAR FROM {name} ORDER BY ALL" for name in names]
        expected = [sorted(map(str, plain(connection.execute(query).fetchall()))) for query in queries]
    found, *contents = read(reader, into, TABLES, *queries)
    assert [name for (name,) in found] == names
    for name, right, got in zip(names, expected, contents, strict=True):
        assert sorted(map(str, plain(got))) == right, name


SCHEMA = (
    "CREATE SCHEMA s; CREATE TABLE s.kept (b BOOLEAN); CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE SEQUENCE q START 5",
    "CREATE TABLE parent (id INTEGER PRIMARY KEY, m mood DEFAULT 'good', n VARCHAR COLLATE NOCASE, UNIQUE (id, m))",
    "CREATE TABLE child (id BIGINT DEFAULT nextval('q'), p INTEGER REFERENCES parent (id), CHECK (id > 0),"
    " twice BIGINT GENERATED ALWAYS AS (id * 2), l INTEGER[] DEFAULT [1, 2])",
    "CREATE INDEX i ON child (p); CREATE UNIQUE INDEX u ON child ((id + 1))",
    "CREATE VIEW v AS SELECT p, count(*) FILTER (id > 1) AS n FROM child GROUP BY ALL HAVING n >= 0 ORDER BY p",
    "CREATE MACRO plus(a, b := 2) AS a + b; CREATE MACRO rows_of(k) AS TABLE SELECT * FROM parent WHERE id = k",
    "COMMENT ON TABLE parent IS 'who''s who'; COMMENT ON COLUMN parent.n IS 'name'",
)
ROWS = (
    "INSERT INTO parent (id, n) SELECT range, 'n' || range FROM range(2000)",
    "INSERT INTO child (p) SELECT range % 2000 FROM range(6000)",
)
LATER = (
    "UPDATE parent SET n = 'renamed ' || id WHERE id % 7 = 0",
    "DELETE FROM child WHERE p % 5 = 0; INSERT INTO child (p) VALUES (1)",
    "CREATE TABLE item AS FROM parent; ALTER TABLE item RENAME COLUMN n TO name",
    "ALTER TABLE item ADD COLUMN extra DECIMAL(9, 2) DEFAULT 1.5; ALTER TABLE item ALTER id TYPE BIGINT",
    "CREATE OR REPLACE VIEW v AS SELECT lower(name) AS name, list_transform([id], lambda x: x + 1) AS l FROM item",
    "DROP INDEX i; CREATE TABLE copied AS SELECT * EXCLUDE (extra) FROM item; TRUNCATE copied",
    "ALTER TABLE copied RENAME TO moved; DROP MACRO plus; CREATE MACRO plus(a) AS a + 1",
)
ASKED = (
    "SELECT n::VARCHAR FROM v ORDER BY ALL",
    "SELECT plus(1)::VARCHAR",
    "SELECT id::VARCHAR FROM rows_of(7)",
    "SELECT comment FROM duckdb_tables() WHERE table_name = 'parent'",
)


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "version"), [(reader, each) for reader, all_ in READERS.items() for each in all_])
def test_older_readers_read_every_round(tmp_path: Path, reader: str, version: str) -> None:
    source, into = tmp_path / "sales.duckdb", tmp_path / "copy.duckdb"
    with new_master(source) as connection:
        for statement in (*SCHEMA, *ROWS):
            connection.execute(statement)
    wlr.replicate(source, into=into, storage_version=version)
    check(reader, into)
    assert read(reader, into, *ASKED)[1:] == [[["3"]], [["7"]], [["who's who"]]]
    for statement in LATER:
        write(source, statement)
        wlr.replicate(into=into)
        check(reader, into)
    assert read(reader, into, "SELECT name FROM v WHERE l = [8]", *ASKED[1:3]) == [[["renamed 7"]], [["2"]], [["7"]]]
    wlc.snapshot(source)
    for place in (tmp_path / "of_snapshot.duckdb", tmp_path / "swapped.duckdb"):
        wlr.replicate(source, into=place, storage_version=version, swap="swapped" in place.name)
        write(source, "INSERT INTO parent (id, n) SELECT max(id) + 1, max(id)::VARCHAR FROM parent")
        wlr.replicate(into=place)
        check(reader, place)


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "version"), [(reader, each) for reader, all_ in READERS.items() for each in all_])
def test_older_readers_read_every_type_that_the_version_has(tmp_path: Path, reader: str, version: str) -> None:
    source, into = tmp_path / "sales.duckdb", tmp_path / "copy.duckdb"
    lacking = engine.STORAGE_VERSIONS[version] | ({"GEOMETRY"} if reader == "1.4" else set())

    def lacks(row: TypeRow) -> bool:
        return row.name in lacking

    typed = [(declared, values) for declared, values in types_and_values() if not parse(declared).holds(lacks)]
    assert len(typed) > 150
    with new_master(source) as connection:
        connection.execute(SAMPLES)
        for first in range(0, len(typed), COLUMNS_MOST):
            some, table = typed[first : first + COLUMNS_MOST], f"t{first}"
            columns = ", ".join(f"c{number} {declared}" for number, (declared, _) in enumerate(some))
            connection.execute(f"CREATE TABLE {table} (r INTEGER, {columns}); INSERT INTO {table} (r) VALUES (0)")
            for row in range(max(len(values) for _, values in some)):
                values = (f"({v[row]})::{declared}" if row < len(v) else "NULL" for declared, v in some)
                connection.execute(f"INSERT INTO {table} SELECT {row + 1}, {', '.join(values)}")
    wlr.replicate(source, into=into, storage_version=version)
    check(reader, into)
    with wlc.connect(source) as connection:
        for (table,) in connection.execute(TABLES.replace("'wlr'", "'wlc'")).fetchall():
            connection.execute(
                f"UPDATE {table} SET r = r + 100; INSERT INTO {table} SELECT * FROM {table} WHERE r > 101"
            )
    wlc.flush(source)
    wlr.replicate(into=into)
    check(reader, into)
    assert wlr.verify(into).differing == ()
