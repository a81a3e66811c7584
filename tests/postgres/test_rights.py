"""A PostgreSQL database that a superuser has prepared is published, stopped and begun again by a role that is none.

Docs: docs/postgresql.md.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.fault.processes import call_command
from tests.postgres.cluster import execute
from tests.postgres.comparing import expected_in_duckdb, held_in_duckdb
from tests.postgres.programs import program
from wlc.capture.postgres import rights
from wlc.farm.errors import FarmError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres.cluster import Cluster

BEFORE = """
    CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'x'), (2, 'y'); CREATE SEQUENCE s;
    CREATE SCHEMA hidden; CREATE TABLE hidden.u (id bigserial PRIMARY KEY, t int REFERENCES t);
    INSERT INTO hidden.u (t) VALUES (1);
    ALTER TABLE t ENABLE ROW LEVEL SECURITY; ALTER TABLE t FORCE ROW LEVEL SECURITY; ALTER TABLE t REPLICA IDENTITY NOTHING;
    CREATE TABLE away (a int); GRANT ALL ON SCHEMA public TO PUBLIC
"""
CHANGES = (
    "UPDATE t SET a = a || '!'",
    "CREATE TABLE later AS SELECT i AS id FROM generate_series(1, 3) i",
    "ALTER TABLE t ALTER a TYPE varchar(20), ADD z int DEFAULT 5",
    "ALTER TABLE hidden.u ALTER id TYPE text",
    "SELECT nextval('s')",
    "DROP TABLE away",
)


@pytest.fixture
def publisher(cluster: Cluster, database_url: str) -> Iterator[str]:
    """The URL of a database for a role without rights in it."""
    cluster.execute("DROP ROLE IF EXISTS publisher")
    cluster.execute("CREATE ROLE publisher LOGIN")
    execute(database_url, BEFORE)
    yield cluster.url(database_url.rpartition("/")[2], user="publisher")
    execute(database_url, "DROP SCHEMA IF EXISTS wlc CASCADE", "DROP PUBLICATION IF EXISTS dbfarm_x")
    execute(database_url, "DROP OWNED BY publisher")
    cluster.execute("DROP ROLE publisher")


def run_as_superuser(database_url: str, printed: str) -> None:
    done = subprocess.run(
        [program("psql"), "-q", database_url], input=printed, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def identities(database_url: str) -> dict[str, str]:
    query = "SELECT relname, relreplident::text FROM pg_class WHERE relname IN ('t', 'u', 'later')"
    return dict(execute(database_url, query))


@pytest.mark.slow
def test_a_prepared_database_needs_no_superuser(publisher: str, database_url: str, farm: str, tmp_path: Path):
    with pytest.raises(UnsupportedError, match="role publisher may not make it a master: permission denied") as caught:
        wlc.master(publisher, farm=farm, name="x")
    assert f"wlc master '{publisher}' --print-sql" in str(caught.value.hint)
    done = call_command("wlc", "master", publisher, "--print-sql")
    assert done.returncode == 0
    run_as_superuser(database_url, done.stdout)
    into = tmp_path / "replica.duckdb"
    for history in range(2):
        wlc.master(publisher, farm=farm, name="x")
        assert set(identities(database_url).values()) == {"f"}
        if not history:
            wlr.replicate("x", farm=farm, into=into, register=False)
            for statement in CHANGES:
                execute(database_url, statement)
        else:
            execute(database_url, "DELETE FROM t WHERE id = 1 AND a = 'none'", "INSERT INTO later VALUES (9)")
            into = tmp_path / "again.duckdb"
        wlc.flush(publisher)
        assert not wlc.status(publisher).bypassed
        wlr.replicate("x", farm=farm, into=into, register=False)
        assert held_in_duckdb(into) == expected_in_duckdb(database_url)
        wlc.snapshot(publisher)
        assert all(check.outcome == "same" for check in wlc.verify_source(publisher))
        wlc.stop(publisher)
        assert identities(database_url) == {"t": "n", "u": "d", "later": "d"}
        left = "SELECT count(*) FROM pg_event_trigger UNION ALL SELECT count(*) FROM pg_publication"
        assert execute(database_url, left) == [(0,), (0,)]


def test_the_role_cannot_write_what_the_functions_trust(publisher: str, database_url: str, farm: str):
    run_as_superuser(database_url, wlc.preparation(publisher))
    wlc.master(publisher, farm=farm, name="x")
    for statement in (
        "UPDATE wlc.tables SET identity = 'FULL; ALTER ROLE publisher SUPERUSER'",
        "INSERT INTO wlc.pending VALUES ('run')",
        "CREATE FUNCTION wlc.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "DROP EVENT TRIGGER wlc_on_ddl",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
    ):
        with pytest.raises(Exception, match=r"permission denied|must be owner"):
            execute(publisher, statement)
    # Nor does a name that it may write make them drop what is not dbfarm's.
    execute(database_url, "CREATE PUBLICATION theirs")
    rename = "UPDATE wlc.state SET value = '{}' WHERE key = 'publication'"
    execute(publisher, rename.format("theirs"))
    for statement in ("SELECT wlc.finish()", "SELECT wlc.start()"):
        with pytest.raises(Exception, match="publication theirs in wlc.state is not one of dbfarm"):
            execute(publisher, statement)
    execute(publisher, rename.format("dbfarm_x"))
    assert execute(database_url, "SELECT count(*) FROM pg_publication") == [(2,)]
    execute(database_url, "DROP PUBLICATION theirs")
    with pytest.raises(Exception, match="the database is a master"):
        execute(database_url, wlc.preparation(publisher).replace("\\set ON_ERROR_STOP on", ""))
    wlc.stop(publisher)
    (taken_back,) = re.findall("^--   (DROP SCHEMA wlc .*)$", wlc.preparation(publisher), re.MULTILINE)
    run_as_superuser(database_url, f"SET client_min_messages = warning; {taken_back}")
    query = "SELECT rolreplication, rolbypassrls, pg_has_role('publisher', 'pg_read_all_data', 'USAGE') FROM pg_roles"
    assert execute(database_url, f"{query} WHERE rolname = 'publisher'") == [(False, False, False)]


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        ("ALTER ROLE publisher NOREPLICATION", "replication"),
        ("ALTER ROLE publisher NOBYPASSRLS", "does not see all rows of public.t"),
        ("REVOKE pg_read_all_data FROM publisher", "may not read hidden.u"),
        ("COMMENT ON SCHEMA wlc IS 'dbfarm: prepared by wlc master --print-sql, version 0'", "another version"),
        ("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA wlc FROM publisher", "prepared for another role"),
    ],
)
def test_a_missing_right_is_named(publisher: str, database_url: str, farm: str, taken: str, said: str):
    run_as_superuser(database_url, wlc.preparation(publisher))
    execute(database_url, taken)
    with pytest.raises(FarmError, match=said):
        wlc.master(publisher, farm=farm, name="x")
    assert execute(database_url, "SELECT count(*) FROM pg_publication") == [(0,)]


def test_a_schema_of_somebody_else_is_not_trusted(publisher: str, database_url: str, farm: str):
    execute(database_url, "CREATE SCHEMA wlc AUTHORIZATION publisher")
    with pytest.raises(FarmError, match="the schema wlc belongs to another role"):
        wlc.master(database_url, farm=farm, name="x")


def test_rows_are_sent_again_by_their_owner_without_a_superuser(publisher: str, database_url: str, cluster: Cluster):
    """A managed service's own administrator is no superuser: it owns the functions, and is a member of tables' owners."""
    if cluster.major < 15:
        pytest.skip("before PostgreSQL 15, only a superuser may set session_replication_role")
    name = database_url.rpartition("/")[2]
    cluster.execute("DROP ROLE IF EXISTS holder")
    execute(
        database_url,
        "CREATE ROLE holder",
        "GRANT holder TO publisher",
        "GRANT SET ON PARAMETER session_replication_role TO publisher",
        f"GRANT CREATE ON DATABASE {name} TO publisher",
        "SET ROLE holder; CREATE TABLE mine (a int, who text); INSERT INTO mine VALUES (1), (2)",
        """CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN NEW.who = current_user; RETURN NEW; END'""",
        "CREATE TRIGGER note BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION note()",
    )
    execute(publisher, rights.script(), "SELECT wlc.resend('mine'::regclass, false)")
    assert execute(database_url, "SELECT DISTINCT who FROM mine") == [("holder",)]
    kept = "SELECT has_schema_privilege('holder', 'wlc', 'CREATE'), (SELECT count(*) FROM wlc.pending)"
    assert execute(database_url, kept) == [(False, 0)]
    execute(database_url, "DROP OWNED BY holder")
    cluster.execute("REVOKE SET ON PARAMETER session_replication_role FROM publisher")
    cluster.execute("DROP ROLE holder")
