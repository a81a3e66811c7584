"""Nothing that changes rows or tables of a PostgreSQL master gets past its capture: it arrives, or it is refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psycopg
import pytest

import wlc
import wlr
from tests.fault.processes import call_command
from tests.postgres.cluster import execute
from tests.postgres.comparing import expected_in_duckdb, held_in_duckdb
from wlc.farm.errors import GapError, InvalidError, UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres.cluster import Cluster

SIMPLE = "CREATE TABLE t (id int PRIMARY KEY, a text, n numeric(10,2)); INSERT INTO t SELECT i, 'a' || i, i FROM generate_series(1, 5) i"
ENUM = """CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE e (id int PRIMARY KEY, m mood, l mood[]);
    INSERT INTO e VALUES (1, 'sad', '{sad,ok}'), (2, 'ok', NULL)"""

# A trigger's function that runs a statement.
WRITING = "CREATE FUNCTION w() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {}; RETURN new; END $$"

# What there is before, what is refused, and what is said. A case has a schema of its own, OWN, which may be another's: OTHER.
REFUSED: dict[str, tuple[str, str, str]] = {
    "schema renamed": (
        "CREATE SCHEMA OTHER; CREATE TABLE OTHER.t (id int)",
        "ALTER SCHEMA OTHER RENAME TO s2",
        "cannot follow its new name",
    ),
    "schema with a sequence renamed": (
        "CREATE SCHEMA OTHER; CREATE SEQUENCE OTHER.q",
        "ALTER SCHEMA OTHER RENAME TO s2",
        "cannot follow its new name",
    ),
    "schema temp": ("", "CREATE SCHEMA temp", "schema temp cannot be replicated"),
    "schema System": ("", 'CREATE SCHEMA "System"', 'schema "System" cannot be replicated'),
    "schema that becomes memory": (
        "CREATE SCHEMA OTHER",
        "ALTER SCHEMA OTHER RENAME TO memory",
        "schema memory cannot be replicated",
    ),
    "schema named as the database": ("", "CREATE SCHEMA x", "the database has the same name in the farm"),
    "schemas alike": ("", 'CREATE SCHEMA "Public"', "upper and lower case"),
    "tables alike": (SIMPLE, 'CREATE TABLE "T" (a int)', 'OWN.t and OWN."T"'),
    "table renamed to be alike": (f"{SIMPLE}; CREATE TABLE u (a int)", 'ALTER TABLE u RENAME TO "T"', "OWN.t"),
    "columns alike": (SIMPLE, 'ALTER TABLE t ADD "A" int', 'columns a and "A"'),
    "no columns": (SIMPLE, "CREATE TABLE z ()", "OWN.z cannot be replicated: it has no columns"),
    "last column dropped": ("CREATE TABLE z (a int)", "ALTER TABLE z DROP COLUMN a", "it has no columns"),
    "only a key that is given out": (
        "CREATE TABLE i (id int GENERATED ALWAYS AS IDENTITY); INSERT INTO i DEFAULT VALUES",
        "ALTER TABLE i ADD PRIMARY KEY (id)",
        "no column that can be written",
    ),
    "trigger that always keeps rows": (
        f"""{SIMPLE}; CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER no BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION f(); ALTER TABLE t ENABLE ALWAYS TRIGGER no""",
        "ALTER TABLE t ALTER n TYPE int",
        "its rows could not be written once more",
    ),
    "rule that always keeps rows": (
        f"{SIMPLE}; CREATE RULE r AS ON UPDATE TO t DO INSTEAD NOTHING; ALTER TABLE t ENABLE ALWAYS RULE r",
        "ALTER TABLE t ALTER n TYPE int",
        "its rows could not be written once more",
    ),
    "policy that keeps rows from their owner": (
        f"""{SIMPLE}; CREATE ROLE kept; GRANT ALL ON SCHEMA OWN TO kept; ALTER TABLE t OWNER TO kept;
        ALTER TABLE t ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY""",
        "ALTER TABLE t ALTER n TYPE int",
        "ALTER TABLE OWN.t NO FORCE ROW LEVEL SECURITY",
    ),
    "trigger that always writes other rows of the table": (
        f"""{SIMPLE}; {WRITING.format("UPDATE OWN.t SET a = a || '!' WHERE id = 1 AND pg_trigger_depth() = 1")};
        CREATE TRIGGER w AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION w(); ALTER TABLE t ENABLE ALWAYS TRIGGER w""",
        "ALTER TABLE t ALTER n TYPE int",
        "ALTER TABLE OWN.t DISABLE TRIGGER w",
    ),
    "trigger of replicas that writes another table": (
        f"""{SIMPLE}; CREATE TABLE o (id int REFERENCES t); {WRITING.format("INSERT INTO OWN.o VALUES (77)")};
        CREATE TRIGGER w BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION w(); ALTER TABLE t ENABLE REPLICA TRIGGER w""",
        "ALTER TABLE t ALTER n TYPE int",
        "table OWN.o was written",
    ),
    "rule that always writes another table": (
        f"""{SIMPLE}; CREATE TABLE o (id int); CREATE RULE r AS ON UPDATE TO t DO ALSO INSERT INTO o VALUES (new.id);
        ALTER TABLE t ENABLE ALWAYS RULE r""",
        "ALTER TABLE t ALTER n TYPE int",
        "ALTER TABLE OWN.t DISABLE RULE r",
    ),
    "check that writes another table": (
        f"""{SIMPLE}; CREATE TABLE o (id int PRIMARY KEY);
        CREATE FUNCTION c(id int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
        IF current_setting('session_replication_role') = 'replica' THEN INSERT INTO OWN.o VALUES (id); END IF;
        RETURN true; END $$; ALTER FUNCTION c SET search_path = OWN;
        ALTER TABLE t ADD CHECK (c(id))""",
        "INSERT INTO o VALUES (9); ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, n)",
        "table OWN.o was written",
    ),
    "replica identity": (SIMPLE, "ALTER TABLE t REPLICA IDENTITY DEFAULT", "needs its REPLICA IDENTITY FULL"),
    "table leaves the publication": (SIMPLE, "ALTER PUBLICATION dbfarm_x DROP TABLE t", "is that of dbfarm"),
    "publication of some changes": (SIMPLE, "ALTER PUBLICATION dbfarm_x SET (publish = 'insert')", "is that of dbfarm"),
    "publication dropped": (SIMPLE, "DROP PUBLICATION dbfarm_x", "is that of dbfarm"),
    "unlogged": (SIMPLE, "ALTER TABLE t SET UNLOGGED", "part of a publication"),
}


def master(url: str, farm: str, before: str, tables: tuple[str, ...] = ()) -> None:
    execute(url, before)
    wlc.master(url, farm=farm, name="x", tables=tables)


def check(url: str, farm: str, into: Path) -> None:
    wlc.flush(url)
    wlr.replicate("x", farm=farm, into=into, register=False)
    assert held_in_duckdb(into) == expected_in_duckdb(url)
    assert not wlc.status(url).bypassed


@pytest.mark.slow
def test_it_is_refused_and_what_comes_later_arrives(cluster: Cluster, database_url: str, farm: str, tmp_path: Path):
    def of(number: int, text: str) -> str:
        return re.sub(r"\bOWN\b", f"case{number}", text.replace("OTHER", f"other{number}"))

    before = (f"CREATE SCHEMA OWN; SET search_path = OWN; {before}" for before, _, _ in REFUSED.values())
    execute(database_url, *(of(number, text) for number, text in enumerate(before)))
    wlc.master(database_url, farm=farm, name="x")
    for number, (kind, (_, statement, said)) in enumerate(REFUSED.items()):
        with pytest.raises(psycopg.Error) as caught:
            execute(database_url, of(number, "SET search_path = OWN"), of(number, statement))
        assert of(number, said) in str(caught.value), kind
    execute(database_url, "CREATE TABLE later AS SELECT 1 AS a")
    check(database_url, farm, tmp_path / "replica.duckdb")
    execute(database_url, "DROP OWNED BY kept")
    cluster.execute("DROP ROLE kept")


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ('CREATE TABLE t (a int, "A" int)', 'columns a and "A"'),
        ('CREATE TABLE t (a int); CREATE TABLE "T" (a int)', 'public.t and public."T"'),
        ("CREATE TABLE t ()", "public.t cannot be replicated: it has no columns"),
        ('CREATE SCHEMA "Public"; CREATE TABLE t (a int)', "upper and lower case"),
        ("CREATE SCHEMA temp", "schema temp cannot be replicated"),
        ("CREATE SCHEMA system; CREATE TABLE system.t (a int)", "schema system cannot be replicated"),
        ('CREATE SCHEMA "Main"', 'schema "Main" cannot be replicated'),
        ("CREATE SCHEMA x", "the database has the same name in the farm"),
    ],
)
def test_what_cannot_be_replicated_is_refused_up_front(database_url: str, farm: str, before: str, said: str):
    with pytest.raises(InvalidError) as caught:
        master(database_url, farm, before)
    assert said in str(caught.value)
    assert caught.value.hint
    # Leaving it out is one way on.
    execute(database_url, "CREATE TABLE fine (a int)")
    if "schema" not in before.lower():
        wlc.master(database_url, farm=farm, name="x", tables=["fine"])


BASE_TYPES = """
    SELECT t.oid::regtype::text, p.provolatile <> 'i' AND t.typname NOT IN ('date', 'interval', 'money', 'timestamp', 'timestamptz')
    FROM pg_type t JOIN pg_proc p ON p.oid = t.typoutput
    WHERE t.typtype = 'b' AND t.typelem = 0 AND t.typname !~ '^(pg_(brin|ddl|mcv|nd|dep|node)|_)'
"""


@pytest.mark.slow
def test_values_that_change_with_a_name_are_refused(database_url: str, farm: str, tmp_path: Path):
    types = dict(execute(database_url, BASE_TYPES))
    bad = [name for name, follows in types.items() if follows]
    assert len(bad) >= 12
    assert {"regclass", "regrole", "aclitem"} <= set(bad)
    fine = ", ".join(f"c{number} {name}" for number, name in enumerate(types) if name not in bad)
    execute(database_url, "CREATE TABLE t (a regclass, id int PRIMARY KEY)", "INSERT INTO t VALUES ('t', 1)")
    with pytest.raises(InvalidError, match=r"public\.t cannot be replicated: values of column a change") as caught:
        wlc.master(database_url, farm=farm, name="x")
    execute(database_url, str(caught.value.hint).partition(";")[0])
    wlc.master(database_url, farm=farm, name="x")
    made = [
        *(f"CREATE DOMAIN d{n} AS {name}; CREATE TYPE c{n} AS (x int, y {name}[])" for n, name in enumerate(bad)),
        "CREATE TYPE inside AS (x text); CREATE TABLE has (i inside[]); CREATE TYPE around AS (i inside)",
        "CREATE TABLE deep (a around)",
        f"CREATE TABLE fine ({fine})",
        "CREATE TYPE r AS RANGE (SUBTYPE = regclass)",
    ]
    execute(database_url, *made)
    for statement in (
        *(
            f"ALTER TABLE t ADD x {t}"
            for n, name in enumerate(bad)
            for t in (name, f"{name}[]", f"d{n}", f"d{n}[]", f"c{n}")
        ),
        "CREATE TABLE x (a r)",
        "CREATE TABLE x (a rmultirange)"
        if execute(database_url, "SELECT to_regtype('rmultirange')")[0][0]
        else "CREATE TABLE x (a r[])",
        "CREATE TABLE x AS SELECT 't'::regclass AS a",
        "ALTER TABLE t ALTER a TYPE regclass USING a::regclass",
        "ALTER TYPE inside ADD ATTRIBUTE y regproc",
    ):
        with pytest.raises(psycopg.Error, match="with the names of what they refer to"):
            execute(database_url, statement)
    execute(database_url, "ALTER TABLE t RENAME TO u", "INSERT INTO u VALUES ('u', 2)")
    check(database_url, farm, tmp_path / "replica.duckdb")


def test_a_table_that_nobody_could_update_is_refused_up_front(database_url: str, farm: str):
    execute(database_url, f"{SIMPLE}; CREATE PUBLICATION other FOR TABLE t (id, a)")
    with pytest.raises(UnsupportedError, match=r"a publication has only some columns of public\.t;") as caught:
        wlc.master(database_url, farm=farm, name="x")
    assert "ALTER PUBLICATION" in str(caught.value.hint)
    execute(database_url, "ALTER PUBLICATION other SET TABLE t")
    wlc.master(database_url, farm=farm, name="x")


def test_prepared_transactions_wait_for_their_end(database_url: str, farm: str, tmp_path: Path):
    ((most,),) = execute(database_url, "SHOW max_prepared_transactions")
    if most == "0":
        # The server of the tests has none; a transaction that stays open is the same to the slot.
        master(database_url, farm, SIMPLE)
        with psycopg.connect(database_url) as open_:
            open_.execute("INSERT INTO t VALUES (7)")
            execute(database_url, "INSERT INTO t VALUES (8)")
            assert wlc.flush(database_url).transactions == 1
            open_.execute("ALTER TABLE t ADD z int DEFAULT 3")
        assert wlc.flush(database_url).transactions == 1
    check(database_url, farm, tmp_path / "replica.duckdb")


def test_rows_that_a_transaction_cannot_see_are_not_left_out(database_url: str, farm: str, tmp_path: Path):
    master(database_url, farm, SIMPLE)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM t")
        execute(database_url, "INSERT INTO t VALUES (100, 'unseen', 1)")
        with pytest.raises(psycopg.Error, match="READ COMMITTED"):
            connection.execute("ALTER TABLE t ALTER n TYPE numeric(12,2)")
        connection.execute("ROLLBACK")
        # What it made or wrote anew itself, it sees.
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("CREATE TABLE copied AS SELECT * FROM t")
        connection.execute("ALTER TABLE t ALTER n TYPE text")
        connection.execute("COMMIT")
    check(database_url, farm, tmp_path / "replica.duckdb")


def test_what_a_table_calls_runs_with_the_rights_of_its_owner(
    cluster: Cluster, database_url: str, farm: str, tmp_path: Path
):
    name = database_url.rpartition("/")[2]
    cluster.execute("DROP ROLE IF EXISTS owner")
    cluster.execute("CREATE ROLE owner LOGIN")
    before = f"""GRANT ALL ON SCHEMA public TO owner; SET ROLE owner; {SIMPLE}; CREATE SEQUENCE by_owner;
        CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM nextval(''public.by_'' || current_user); RETURN NEW; END';
        CREATE TRIGGER spy BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION spy();
        ALTER TABLE t ENABLE ALWAYS TRIGGER spy"""
    master(database_url, farm, before)
    execute(cluster.url(name, user="owner"), "ALTER TABLE t ALTER n TYPE text")
    assert execute(database_url, "SELECT last_value FROM by_owner") == [(5,)]
    check(database_url, farm, tmp_path / "replica.duckdb")
    wlc.stop(database_url)
    execute(database_url, "DROP OWNED BY owner")
    cluster.execute("DROP ROLE owner")


# What the owner of tables may run, and what must not keep a change from the replicas.
SILENCERS = (
    "SET wlc.is_busy = 'yes'; CREATE TABLE hidden AS SELECT 1 AS a; ALTER TABLE t ADD z int DEFAULT 3",
    """CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql VOLATILE AS
        'BEGIN PERFORM set_config(name, $a$$a$, is_local) FROM (VALUES ($a$wlc.rewritten$a$), ($a$wlc.touched$a$)) v(name),
        (VALUES (true), (false)) w(is_local); RETURN 7; END'""",
    "ALTER TABLE t ADD computed int DEFAULT f()",
    # Nested schema changes: while rows are computed, and while they are written once more.
    """CREATE FUNCTION g() RETURNS int LANGUAGE plpgsql VOLATILE AS
        'BEGIN CREATE TABLE IF NOT EXISTS made AS SELECT 1 AS a; RETURN 8; END'""",
    "ALTER TABLE t ADD more int DEFAULT g()",
    """CREATE FUNCTION h() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN CREATE TABLE IF NOT EXISTS public.sent AS SELECT 2 AS a; RETURN NEW; END'""",
    "CREATE TRIGGER h BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION h(); ALTER TABLE t ENABLE ALWAYS TRIGGER h",
    "ALTER TABLE t ALTER n TYPE text; INSERT INTO sent VALUES (5)",
    # A message that claims to come from the event triggers.
    """SELECT pg_logical_emit_message(true, 'wlc', jsonb_build_object('resend', 't'::regclass::oid::bigint)::text)""",
)


def test_a_user_can_neither_silence_nor_forge_what_is_captured(
    cluster: Cluster, database_url: str, farm: str, tmp_path: Path
):
    name = database_url.rpartition("/")[2]
    cluster.execute("DROP ROLE IF EXISTS silencer")
    cluster.execute("CREATE ROLE silencer LOGIN")
    master(database_url, farm, f"GRANT ALL ON SCHEMA public TO silencer; SET ROLE silencer; {SIMPLE}")
    for statement in SILENCERS:
        execute(cluster.url(name, user="silencer"), statement)
    assert {"hidden", "made", "sent"} < {table for _, table in execute(database_url, _PUBLISHED)}
    check(database_url, farm, tmp_path / "replica.duckdb")
    wlc.stop(database_url)
    execute(database_url, "DROP OWNED BY silencer")
    cluster.execute("DROP ROLE silencer")


def test_a_type_waits_for_those_who_write_its_values(database_url: str, farm: str, tmp_path: Path):
    master(database_url, farm, ENUM)
    with psycopg.connect(database_url) as writer, psycopg.connect(database_url, autocommit=True) as other:
        writer.execute("INSERT INTO e VALUES (3, 'sad', NULL)")
        other.execute("SET lock_timeout = '300ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
    execute(database_url, "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "DELETE FROM e WHERE id = 3")
    check(database_url, farm, tmp_path / "replica.duckdb")


def test_what_bypasses_disabled_triggers_is_named(database_url: str, farm: str, tmp_path: Path):
    master(database_url, farm, f"{SIMPLE}; CREATE TABLE dropped (a int)")
    execute(
        database_url,
        "ALTER EVENT TRIGGER wlc_on_ddl DISABLE",
        "ALTER EVENT TRIGGER wlc_on_drop DISABLE",
        "CREATE TABLE unseen (a int)",
        "DROP TABLE dropped",
        "ALTER TABLE t RENAME a TO b",
    )
    expected = {
        "public.unseen": "was created",
        "public.dropped": "was dropped",
        "public.t": "was altered",
        "wlc_on_ddl": "does not fire",
        "wlc_on_drop": "does not fire",
    }
    assert wlc.status(database_url).bypassed == expected
    with pytest.warns(UserWarning, match=r"public.unseen was created"):
        wlc.flush(database_url)
    with pytest.raises(UnsupportedError, match=r"public.t was altered") as caught:
        wlc.snapshot(database_url)
    assert "wlc stop" in str(caught.value.hint)
    execute(database_url, "ALTER EVENT TRIGGER wlc_on_ddl ENABLE ALWAYS", "DROP EVENT TRIGGER wlc_on_rewrite")
    found = wlc.status(database_url).bypassed
    assert found is not None
    assert "wlc_on_ddl" not in found
    assert found["wlc_on_rewrite"] == "does not fire"
    execute(database_url, "INSERT INTO t VALUES (9, 'nine', 9)")
    with pytest.raises(UnsupportedError, match=r"public.t has columns id, b, n that were not announced") as caught:
        wlc.flush(database_url)
    assert f"wlc stop {database_url}" in str(caught.value.hint)
    with pytest.warns(UserWarning, match="the history ends with tick 0: table public.t has columns"):
        wlc.stop(database_url)
    wlc.master(database_url, farm=farm, name="x")
    check(database_url, farm, tmp_path / "replica.duckdb")


def test_status_says_what_it_cannot_check_because_somebody_has_locked_it(database_url: str, farm: str):
    master(database_url, farm, "CREATE TABLE t (a int DEFAULT 1); CREATE TABLE other (a int DEFAULT 1)")
    with psycopg.connect(database_url, options="-c idle_in_transaction_session_timeout=10s") as holder:
        holder.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        assert wlc.status(database_url).bypassed == {"public.t": "not checked: locked"}
    assert wlc.status(database_url).bypassed == {}


def test_only_tables_of_the_patterns_are_replicated(database_url: str, farm: str, tmp_path: Path):
    before = """CREATE SCHEMA s; CREATE TABLE in_a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);
        CREATE TABLE s.any (id int); INSERT INTO in_a VALUES (1); INSERT INTO b VALUES (1); INSERT INTO s.any VALUES (1);
        ALTER TABLE b REPLICA IDENTITY NOTHING"""
    master(database_url, farm, before, ("in_*", "s.*"))
    into = tmp_path / "replica.duckdb"

    def published() -> set[str]:
        return {f"{schema}.{table}" for schema, table in execute(database_url, _PUBLISHED)}

    def identity(table: str) -> str:
        return str(execute(database_url, f"SELECT relreplident FROM pg_class WHERE oid = '{table}'::regclass")[0][0])

    def compare(tables: set[str]) -> None:
        wlc.flush(database_url)
        wlr.replicate("x", farm=farm, into=into, register=False)
        expected = {name: rows for name, rows in expected_in_duckdb(database_url).items() if name in tables}
        assert held_in_duckdb(into) == expected
        assert published() == set(expected) == tables

    compare({"public.in_a", "s.any"})
    assert identity("b") == "n"
    execute(
        database_url, "INSERT INTO b VALUES (5)", "CREATE TABLE other (a int)", "CREATE TABLE in_c AS SELECT 1 AS a"
    )
    compare({"public.in_a", "public.in_c", "s.any"})
    execute(
        database_url,
        "BEGIN; INSERT INTO b VALUES (6); ALTER TABLE b RENAME TO in_b; INSERT INTO in_b VALUES (7);"
        " UPDATE in_b SET id = id + 10; COMMIT",
        "ALTER TABLE in_a RENAME TO out_a",
        "INSERT INTO out_a VALUES (9)",
    )
    compare({"public.in_b", "public.in_c", "s.any"})
    assert [identity(table) for table in ("in_b", "in_c", "out_a")] == ["f", "f", "d"]
    wlc.stop(database_url)
    assert [identity(table) for table in ("in_b", "in_c", "out_a")] == ["n", "d", "d"]


# What there is before, what is done, and the tables that are replicated afterwards; the pattern is `sales.*`.
MOVES: dict[str, tuple[str, tuple[str, ...], set[str]]] = {
    "parent leaves without its child": (
        "CREATE TABLE sales.p (id int); CREATE TABLE sales.c () INHERITS (sales.p); INSERT INTO sales.c VALUES (1)",
        ("ALTER TABLE sales.p SET SCHEMA archive", "INSERT INTO sales.c VALUES (2)"),
        {"sales.c"},
    ),
    "schema takes the name": (
        """DROP SCHEMA sales; CREATE TABLE archive.z (id int PRIMARY KEY, v text); CREATE INDEX ON archive.z (v);
        CREATE TABLE archive.a () INHERITS (archive.z); INSERT INTO archive.z VALUES (1, 'z'); INSERT INTO archive.a VALUES (2, 'a');
        CREATE TABLE t (id int REFERENCES archive.z); INSERT INTO t VALUES (1)""",
        ("ALTER SCHEMA archive RENAME TO sales", "INSERT INTO sales.z VALUES (3, 'y')", "DELETE FROM sales.a"),
        {"sales.z", "sales.a"},
    ),
    "index of the identity is gone": (
        """CREATE TABLE sales.p (id int NOT NULL); CREATE UNIQUE INDEX i ON sales.p (id); INSERT INTO sales.p VALUES (1);
        ALTER TABLE sales.p REPLICA IDENTITY USING INDEX i; CREATE TABLE sales.q (id int)""",
        ("DROP INDEX sales.i", "ALTER TABLE sales.p SET SCHEMA archive", "INSERT INTO archive.p VALUES (2)"),
        {"sales.q"},
    ),
    "identity has lost its index before": (
        """CREATE TABLE sales.p (id int NOT NULL); CREATE UNIQUE INDEX i ON sales.p (id); CREATE TABLE sales.q (id int);
        ALTER TABLE sales.p REPLICA IDENTITY USING INDEX i; DROP INDEX sales.i""",
        ("ALTER TABLE sales.p SET SCHEMA archive",),
        {"sales.q"},
    ),
}


@pytest.mark.parametrize("kind", MOVES)
def test_tables_that_move_across_the_pattern(database_url: str, farm: str, tmp_path: Path, kind: str):
    before, statements, tables = MOVES[kind]
    master(database_url, farm, f"CREATE SCHEMA sales; CREATE SCHEMA archive; {before}", ("sales.*",))
    execute(database_url, *statements)
    wlc.flush(database_url)
    into = tmp_path / "replica.duckdb"
    wlr.replicate("x", farm=farm, into=into, register=False)
    expected = {name: rows for name, rows in expected_in_duckdb(database_url).items() if name in tables}
    assert held_in_duckdb(into) == expected
    assert set(expected) == tables == {".".join(row) for row in execute(database_url, _PUBLISHED)}
    assert not wlc.status(database_url).bypassed
    identities = execute(database_url, _IDENTITIES)
    assert {name for name, identity in identities if identity == "f"} == tables
    assert {identity for _, identity in identities} <= {"f", "d"}


_IDENTITIES = """SELECT n.nspname || '.' || c.relname, c.relreplident FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND n.nspname IN ('sales', 'archive')"""


def test_a_table_that_left_the_publication_ends_the_history(database_url: str, farm: str):
    master(database_url, farm, SIMPLE)
    execute(
        database_url,
        "ALTER EVENT TRIGGER wlc_on_drop DISABLE",
        "ALTER EVENT TRIGGER wlc_on_ddl DISABLE",
        "ALTER PUBLICATION dbfarm_x DROP TABLE t",
        "ALTER EVENT TRIGGER wlc_on_ddl ENABLE ALWAYS",
        "ALTER EVENT TRIGGER wlc_on_drop ENABLE ALWAYS",
    )
    said = "table public.t has left the publication dbfarm_x"
    with pytest.raises(GapError, match=said) as caught:
        wlc.flush(database_url)
    assert "wlc stop" in str(caught.value.hint)
    with pytest.warns(UserWarning, match=said):
        wlc.status(database_url)
    with pytest.warns(UserWarning, match="the history ends with tick 0"):
        wlc.stop(database_url)
    wlc.master(database_url, farm=farm)
    execute(database_url, "INSERT INTO t VALUES (77)")
    assert wlc.flush(database_url).rows == 1


_PUBLISHED = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = 'dbfarm_x'"


def test_patterns_are_for_postgresql_only(tmp_path: Path):
    import duckdb

    path = tmp_path / "a.duckdb"
    duckdb.connect(str(path)).close()
    done = call_command("wlc", "master", path, "--tables", "a*")
    assert done.returncode == 2
    assert "all tables of a DuckDB master are replicated" in done.stderr
    assert "wlr replicate --tables" in done.stderr
    assert not (tmp_path / "dbfarm").exists()
