"""Files for readers with an older DuckDB: a schema statement that such a file cannot hold is refused by name."""

from __future__ import annotations

import re

import duckdb
import pytest

from wlc.dialect.duckdb import catalog, engine
from wlc.dialect.types import BY_NAME
from wlc.farm.model import Ddl, Name
from wlr.engine.duckdb.storage_version import storable
from wlr.engine.replica_state import ReplicaState
from wlr.replay.plan.failure import StepError

# A type of each name that a version lacks.
LACKING = {"EMPTY STRUCT": "STRUCT", "TUPLE": "TUPLE(INTEGER, VARCHAR)"}
PLACES = ("{0}", "{0}[]", "{0}[2]", "STRUCT(x {0})", "MAP(INTEGER, {0})", "UNION(x INTEGER, y {0})")
UNREADABLE = engine.UNREADABLE_TYPE
OTHERS = {
    "CREATE TYPE": f"CREATE TYPE v AS {UNREADABLE}",
    "CREATE MACRO": f"CREATE MACRO v(x) AS x::{UNREADABLE.lower()}",
    "CREATE MACRO, quoted": f'CREATE MACRO v(x) AS x::"{UNREADABLE}"',
    "CREATE VIEW": f"CREATE VIEW v AS SELECT x::{UNREADABLE}::VARCHAR AS a FROM t",
    "CREATE TABLE, check": f"CREATE TABLE v (a INTEGER CHECK (a::{UNREADABLE} IS NULL))",
    "CREATE VIEW, by its column": "CREATE VIEW v AS SELECT memory.hidden() AS a",
}


@pytest.fixture
def connection(tmp_path) -> duckdb.DuckDBPyConnection:
    with duckdb.connect(config={"threads": 1}) as opened:
        opened.execute(f"ATTACH '{tmp_path}/f.duckdb' AS f; USE f; CREATE TABLE t (x VARCHAR)")
        opened.execute(f"CREATE MACRO memory.hidden() AS NULL::{UNREADABLE}")
        yield opened


def run(connection: duckdb.DuckDBPyConnection, version: str, statement: str, name: str) -> None:
    """Run a statement as a replica of this storage version does, with the layout that its master would record."""
    connection.execute(f"BEGIN; {statement}")
    layout = catalog.tables(connection, "f").get(Name("main", name))
    connection.execute("ROLLBACK; BEGIN")
    state = ReplicaState("id", "master", "f", storage_version=version)
    try:
        with storable(connection, state, Ddl("CREATE X", Name("main", name), statement, layout=layout)):
            connection.execute(statement)
    finally:
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("version", engine.STORAGE_VERSIONS)
def test_a_column_of_a_type_that_the_version_lacks_is_named(connection, version) -> None:
    lacking = engine.STORAGE_VERSIONS[version]
    assert lacking <= BY_NAME.keys()
    for kind in sorted(lacking):
        for place in PLACES:
            declared = place.format(LACKING.get(kind, kind))
            for statement in (f"CREATE TABLE v (a INTEGER, b {declared})", f"ALTER TABLE t ADD COLUMN b {declared}"):
                name = statement.split()[2]
                with pytest.raises(
                    StepError, match=f"^column b of table main.{name} has type .*{version} cannot"
                ) as caught:
                    run(connection, version, statement, name)
                assert f"--ignore main.{name}" in str(caught.value.remedy)
            run(connection, "", statement, name)


@pytest.mark.parametrize("what", OTHERS)
def test_a_type_that_makes_the_file_unreadable_is_found_in_other_objects(connection, what) -> None:
    for version in engine.STORAGE_VERSIONS:
        with pytest.raises(
            StepError, match=re.escape(f"type {UNREADABLE}, which storage version {version} cannot hold")
        ):
            run(connection, version, OTHERS[what], "v")
    run(connection, "", OTHERS[what], "v")


def test_texts_that_only_spell_the_type_are_no_types(connection) -> None:
    run(connection, "v1.4.0", f"CREATE VIEW v AS SELECT '{UNREADABLE}' AS a /* {UNREADABLE} */ FROM t", "v")


@pytest.mark.parametrize("version", [*engine.STORAGE_VERSIONS, engine.NEWEST_STORAGE_VERSION])
def test_a_file_tells_its_version_and_refuses_triggers_if_it_is_older(tmp_path, version) -> None:
    with duckdb.connect(config={"threads": 1}) as opened:
        opened.execute(f"ATTACH '{tmp_path}/f.duckdb' AS f (STORAGE_VERSION '{version}'); CREATE TABLE f.t (a INT)")
        opened.execute("CREATE TABLE f.u (a INT)")
        assert engine.storage_version(opened, "f") == version
        trigger = "CREATE TRIGGER g AFTER INSERT ON f.t FOR EACH STATEMENT INSERT INTO f.u SELECT 1"
        if version == engine.NEWEST_STORAGE_VERSION:
            opened.execute(trigger)
        else:
            with pytest.raises(duckdb.BinderException, match="CREATE TRIGGER is only supported"):
                opened.execute(trigger)


def test_the_newest_version_is_that_of_a_new_file(tmp_path) -> None:
    with duckdb.connect(config={"threads": 1}) as opened:
        opened.execute(f"ATTACH '{tmp_path}/f.duckdb' AS f")
        assert engine.storage_version(opened, "f") == engine.NEWEST_STORAGE_VERSION
