"""Every command that fires PostgreSQL's event triggers, on a master: it runs, publishing goes on, and a replica follows.

The list is that of the documentation, "Event Trigger Firing Matrix", for `ddl_command_end`. All tests share a master.
"""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import wlc
import wlr
from tests.fault.processes import call_command
from tests.postgres.cluster import execute
from tests.postgres.comparing import texts_of
from tests.postgres.programs import program
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres.cluster import Cluster

BEFORE = """
    CREATE TABLE t (id int PRIMARY KEY, a text, n int); INSERT INTO t SELECT i, 'a', i FROM generate_series(1, 5) i;
    CREATE VIEW v AS SELECT a FROM t; CREATE SEQUENCE q; CREATE TYPE pair AS (x int, y int);
    CREATE MATERIALIZED VIEW m AS SELECT a FROM t; CREATE FOREIGN DATA WRAPPER fdw; CREATE SERVER srv FOREIGN DATA WRAPPER fdw;
    CREATE FUNCTION f(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1'; CREATE TABLE others (id int)
"""
_TRIGGER = "EXECUTE FUNCTION suppress_redundant_updates_trigger()"

# What runs for each command tag.
TAGS: dict[str, tuple[str, ...]] = {
    "CREATE ACCESS METHOD": ("CREATE ACCESS METHOD am TYPE INDEX HANDLER bthandler",),
    "CREATE AGGREGATE": ("CREATE AGGREGATE agg(int) (sfunc = int4pl, stype = int)",),
    "ALTER AGGREGATE": ("ALTER AGGREGATE agg(int) RENAME TO agg2",),
    "DROP AGGREGATE": ("DROP AGGREGATE agg2(int)",),
    "DROP ACCESS METHOD": ("DROP ACCESS METHOD am",),
    "CREATE CAST": ("CREATE CAST (text AS pair) WITH INOUT",),
    "DROP CAST": ("DROP CAST (text AS pair)",),
    "CREATE COLLATION": ('CREATE COLLATION coll FROM "C"',),
    "ALTER COLLATION": ("ALTER COLLATION coll RENAME TO coll2",),
    "DROP COLLATION": ("DROP COLLATION coll2",),
    "CREATE CONVERSION": ("CREATE CONVERSION con FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8",),
    "ALTER CONVERSION": ("ALTER CONVERSION con RENAME TO con2",),
    "DROP CONVERSION": ("DROP CONVERSION con2",),
    "CREATE DOMAIN": ("CREATE DOMAIN dom AS int CHECK (VALUE > 0)", "CREATE TABLE of_dom (id int, d dom)"),
    "ALTER DOMAIN": (
        "ALTER DOMAIN dom SET DEFAULT 5",
        "ALTER DOMAIN dom RENAME TO dom2",
        "INSERT INTO of_dom VALUES (3, 4)",
    ),
    "DROP DOMAIN": ("DROP DOMAIN dom2 CASCADE",),
    "CREATE EXTENSION": ("CREATE EXTENSION pgcrypto",),
    "ALTER EXTENSION": ("CREATE SCHEMA ext", "ALTER EXTENSION pgcrypto SET SCHEMA ext"),
    "DROP EXTENSION": ("DROP EXTENSION pgcrypto",),
    "CREATE FOREIGN DATA WRAPPER": ("CREATE FOREIGN DATA WRAPPER fdw2",),
    "ALTER FOREIGN DATA WRAPPER": ("ALTER FOREIGN DATA WRAPPER fdw2 NO HANDLER",),
    "DROP FOREIGN DATA WRAPPER": ("DROP FOREIGN DATA WRAPPER fdw2",),
    "CREATE FOREIGN TABLE": ("CREATE FOREIGN TABLE ft (a int) SERVER srv",),
    "ALTER FOREIGN TABLE": ("ALTER FOREIGN TABLE ft ADD b int",),
    "DROP FOREIGN TABLE": ("DROP FOREIGN TABLE ft",),
    "CREATE FUNCTION": ("CREATE FUNCTION g(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",),
    "ALTER FUNCTION": ("ALTER FUNCTION g(int) STRICT", "ALTER FUNCTION g RENAME TO g2"),
    "ALTER ROUTINE": ("ALTER ROUTINE g2 RENAME TO g3",),
    "DROP ROUTINE": ("CREATE FUNCTION r() RETURNS int LANGUAGE sql AS 'SELECT 1'", "DROP ROUTINE r"),
    "DROP FUNCTION": ("DROP FUNCTION g3",),
    "CREATE INDEX": ("CREATE INDEX ti ON t (a)",),
    "ALTER INDEX": ("ALTER INDEX ti RENAME TO tj",),
    "REINDEX": ("REINDEX INDEX tj",),
    "DROP INDEX": ("DROP INDEX tj",),
    "CREATE LANGUAGE": ("CREATE LANGUAGE lan HANDLER plpgsql_call_handler",),
    "ALTER LANGUAGE": ("ALTER LANGUAGE lan RENAME TO lan2",),
    "DROP LANGUAGE": ("DROP LANGUAGE lan2",),
    "ALTER LARGE OBJECT": ("SELECT lo_create(4711)", "ALTER LARGE OBJECT 4711 OWNER TO postgres"),
    "CREATE MATERIALIZED VIEW": ("CREATE MATERIALIZED VIEW m2 AS SELECT 1 AS x",),
    "ALTER MATERIALIZED VIEW": ("ALTER MATERIALIZED VIEW m2 RENAME TO m3",),
    "REFRESH MATERIALIZED VIEW": ("REFRESH MATERIALIZED VIEW m",),
    "DROP MATERIALIZED VIEW": ("DROP MATERIALIZED VIEW m3",),
    "CREATE OPERATOR": ("CREATE OPERATOR === (leftarg = int, rightarg = int, function = int4eq)",),
    "ALTER OPERATOR": ("ALTER OPERATOR === (int, int) SET (RESTRICT = eqsel)",),
    "DROP OPERATOR": ("DROP OPERATOR === (int, int)",),
    "CREATE OPERATOR FAMILY": ("CREATE OPERATOR FAMILY fam USING btree",),
    "ALTER OPERATOR FAMILY": ("ALTER OPERATOR FAMILY fam USING btree RENAME TO fam2",),
    "DROP OPERATOR FAMILY": ("DROP OPERATOR FAMILY fam2 USING btree",),
    "CREATE OPERATOR CLASS": ("CREATE OPERATOR CLASS cls FOR TYPE int USING btree AS FUNCTION 1 btint4cmp(int, int)",),
    "ALTER OPERATOR CLASS": ("ALTER OPERATOR CLASS cls USING btree RENAME TO cls2",),
    "DROP OPERATOR CLASS": ("DROP OPERATOR CLASS cls2 USING btree",),
    "CREATE POLICY": ("CREATE POLICY pol ON t USING (true)",),
    "ALTER POLICY": ("ALTER POLICY pol ON t RENAME TO pol2",),
    "DROP POLICY": ("DROP POLICY pol2 ON t",),
    "CREATE PROCEDURE": ("CREATE PROCEDURE pro(x int) LANGUAGE sql AS 'SELECT 1'",),
    "ALTER PROCEDURE": ("ALTER PROCEDURE pro RENAME TO pro2",),
    "DROP PROCEDURE": ("DROP PROCEDURE pro2",),
    "CREATE PUBLICATION": ("CREATE PUBLICATION own FOR TABLE t",),
    "ALTER PUBLICATION": ("ALTER PUBLICATION own ADD TABLE others",),
    "DROP PUBLICATION": ("DROP PUBLICATION own",),
    "CREATE RULE": ("CREATE RULE ru AS ON DELETE TO others DO INSTEAD NOTHING",),
    "ALTER RULE": ("ALTER RULE ru ON others RENAME TO ru2",),
    "DROP RULE": ("DROP RULE ru2 ON others",),
    "CREATE SCHEMA": ("CREATE SCHEMA sch CREATE TABLE inside (a int) CREATE VIEW seen AS SELECT a FROM inside",),
    "ALTER SCHEMA": (
        "CREATE SCHEMA empty",
        "ALTER SCHEMA empty RENAME TO hollow",
        "ALTER SCHEMA sch OWNER TO postgres",
    ),
    "DROP SCHEMA": ("DROP SCHEMA sch CASCADE", "DROP SCHEMA hollow"),
    "CREATE SEQUENCE": ("CREATE SEQUENCE q2 START 5",),
    "ALTER SEQUENCE": ("ALTER SEQUENCE q2 MINVALUE 3 RESTART 4", "SELECT nextval('q2')"),
    "DROP SEQUENCE": ("DROP SEQUENCE q2",),
    "CREATE SERVER": ("CREATE SERVER srv2 FOREIGN DATA WRAPPER fdw",),
    "ALTER SERVER": ("ALTER SERVER srv2 RENAME TO srv3",),
    "CREATE USER MAPPING": ("CREATE USER MAPPING FOR postgres SERVER srv3",),
    "ALTER USER MAPPING": ("ALTER USER MAPPING FOR postgres SERVER srv3 OPTIONS (ADD a '1')",),
    "DROP USER MAPPING": ("DROP USER MAPPING FOR postgres SERVER srv3",),
    "DROP SERVER": ("DROP SERVER srv3",),
    "IMPORT FOREIGN SCHEMA": (
        "CREATE EXTENSION postgres_fdw",
        """DO $$ BEGIN EXECUTE format('CREATE SERVER loop FOREIGN DATA WRAPPER postgres_fdw
            OPTIONS (host ''127.0.0.1'', port %L, dbname %L)', current_setting('port'), current_database()); END $$""",
        "CREATE USER MAPPING FOR postgres SERVER loop",
        "CREATE SCHEMA imported",
        "IMPORT FOREIGN SCHEMA public LIMIT TO (t) FROM SERVER loop INTO imported",
    ),
    "CREATE STATISTICS": ("CREATE STATISTICS sta ON id, a FROM t",),
    "ALTER STATISTICS": ("ALTER STATISTICS sta RENAME TO sta2",),
    "DROP STATISTICS": ("DROP STATISTICS sta2",),
    "CREATE SUBSCRIPTION": ("CREATE SUBSCRIPTION sub CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false)",),
    "ALTER SUBSCRIPTION": ("ALTER SUBSCRIPTION sub SET (slot_name = NONE)",),
    "DROP SUBSCRIPTION": ("DROP SUBSCRIPTION sub",),
    "CREATE TABLE": ("CREATE TABLE u (id serial PRIMARY KEY, p pair)", "INSERT INTO u (p) VALUES ('(1,2)')"),
    "CREATE TABLE AS": ("CREATE TABLE copied AS SELECT * FROM t",),
    "SELECT INTO": ("SELECT * INTO copied2 FROM t",),
    "ALTER TABLE": ("ALTER TABLE u ADD c int DEFAULT 7, ALTER id TYPE bigint",),
    "DROP TABLE": ("DROP TABLE copied, copied2",),
    "CREATE TEXT SEARCH PARSER": (
        "CREATE TEXT SEARCH PARSER par (start = prsd_start, gettoken = prsd_nexttoken, end = prsd_end, lextypes = prsd_lextype)",
    ),
    "ALTER TEXT SEARCH PARSER": ("ALTER TEXT SEARCH PARSER par RENAME TO par2",),
    "CREATE TEXT SEARCH CONFIGURATION": ("CREATE TEXT SEARCH CONFIGURATION conf (parser = par2)",),
    "ALTER TEXT SEARCH CONFIGURATION": ("ALTER TEXT SEARCH CONFIGURATION conf RENAME TO conf2",),
    "DROP TEXT SEARCH CONFIGURATION": ("DROP TEXT SEARCH CONFIGURATION conf2",),
    "DROP TEXT SEARCH PARSER": ("DROP TEXT SEARCH PARSER par2",),
    "CREATE TEXT SEARCH TEMPLATE": ("CREATE TEXT SEARCH TEMPLATE tem (lexize = dsimple_lexize)",),
    "ALTER TEXT SEARCH TEMPLATE": ("ALTER TEXT SEARCH TEMPLATE tem RENAME TO tem2",),
    "CREATE TEXT SEARCH DICTIONARY": ("CREATE TEXT SEARCH DICTIONARY dic (template = tem2)",),
    "ALTER TEXT SEARCH DICTIONARY": ("ALTER TEXT SEARCH DICTIONARY dic RENAME TO dic2",),
    "DROP TEXT SEARCH DICTIONARY": ("DROP TEXT SEARCH DICTIONARY dic2",),
    "DROP TEXT SEARCH TEMPLATE": ("DROP TEXT SEARCH TEMPLATE tem2",),
    "CREATE TRANSFORM": ("CREATE TRANSFORM FOR int LANGUAGE sql (FROM SQL WITH FUNCTION prsd_lextype(internal))",),
    "DROP TRANSFORM": ("DROP TRANSFORM FOR int LANGUAGE sql",),
    "CREATE TRIGGER": (f"CREATE TRIGGER tr BEFORE UPDATE ON t FOR EACH ROW {_TRIGGER}",),
    "ALTER TRIGGER": ("ALTER TRIGGER tr ON t RENAME TO tr2",),
    "DROP TRIGGER": ("DROP TRIGGER tr2 ON t",),
    "CREATE TYPE": (
        "CREATE TYPE en AS ENUM ('a')",
        "CREATE TYPE ra AS RANGE (subtype = int)",
        "CREATE TABLE e (id int, e en)",
    ),
    "ALTER TYPE": (
        "ALTER TYPE en ADD VALUE 'b'",
        "INSERT INTO e VALUES (1, 'b')",
        "ALTER TYPE pair ADD ATTRIBUTE z int",
    ),
    "DROP TYPE": ("DROP TYPE en CASCADE", "DROP TYPE ra"),
    "CREATE VIEW": ("CREATE VIEW w AS SELECT 1 AS x",),
    "ALTER VIEW": ("ALTER VIEW w RENAME TO w2", "ALTER VIEW v ALTER a SET DEFAULT 'x'"),
    "DROP VIEW": ("DROP VIEW w2",),
    "COMMENT": ("COMMENT ON TABLE t IS 'x'", "COMMENT ON VIEW v IS 'x'", "COMMENT ON FUNCTION f IS 'x'"),
    "GRANT": (
        "GRANT SELECT ON t TO PUBLIC",
        "GRANT USAGE ON SCHEMA public TO PUBLIC",
        "GRANT USAGE ON SEQUENCE q TO PUBLIC",
    ),
    "REVOKE": ("REVOKE SELECT ON t FROM PUBLIC",),
    "ALTER DEFAULT PRIVILEGES": ("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC",),
    "DROP OWNED": (
        "CREATE ROLE event_owner",
        "CREATE TABLE owned (a int)",
        "ALTER TABLE owned OWNER TO event_owner",
        "DROP OWNED BY event_owner",
        "DROP ROLE event_owner",
    ),
}
# A text that makes things, and statements that change how a table or an object is described, or may do so, although the
# command is about something else: an index, a schema, an extension, what others are made with.
_KEYS = """CREATE TABLE p (a int NOT NULL) PARTITION BY LIST (a); CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
    CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2) PARTITION BY LIST (a); CREATE TABLE p21 PARTITION OF p2 DEFAULT;
    ALTER TABLE ONLY p ADD CONSTRAINT k {0} (a); ALTER TABLE ONLY p2 ADD CONSTRAINT k2 {0} (a);
    ALTER TABLE p1 ADD CONSTRAINT k1 {0} (a); ALTER TABLE p21 ADD CONSTRAINT k21 {0} (a)"""
_ATTACHED = tuple(
    f"ALTER INDEX {above} ATTACH PARTITION {key}" for above, key in (("k", "k1"), ("k2", "k21"), ("k", "k2"))
)
_OF_FUNCTION = """CREATE SCHEMA other; CREATE FUNCTION {0}(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1';
    CREATE TABLE p (a int) PARTITION BY RANGE ({0}(a)); CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (5);
    CREATE TABLE t (a int DEFAULT {0}(1), b int CHECK ({0}(b) > 0), g int GENERATED ALWAYS AS ({0}(a)) STORED,
        EXCLUDE USING btree ({0}(a) WITH =) WHERE ({0}(b) > 1)); CREATE INDEX ON t ({0}(a)); CREATE VIEW v AS SELECT {0}(a) AS a
    FROM t; CREATE POLICY y ON t USING ({0}(a) > 1);
    CREATE FUNCTION g() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT {0}(1); END"""
_OF_TYPES = """CREATE SCHEMA other; CREATE TYPE {0}e AS ENUM ('a'); CREATE DOMAIN {0}d AS int; CREATE TYPE {0}c AS (x {0}e, y {0}d);
    CREATE COLLATION {0}l FROM "C"; CREATE VIEW {0}v AS SELECT 1 AS x; CREATE DOMAIN {0}dd AS text COLLATE {0}l;
    CREATE FUNCTION {0}f(v {0}v) RETURNS {0}e LANGUAGE sql AS 'SELECT NULL::{0}e'; CREATE TABLE y OF {0}c;
    CREATE TABLE t (a int, e {0}e[], d {0}d, c {0}c, l text COLLATE {0}l, v {0}v, w {0}v[], dd {0}dd,
        k int CHECK (CAST(k AS {0}d) > 0), CHECK (l > 'a' COLLATE {0}l))"""
_OF_OPERATORS = """CREATE SCHEMA other; CREATE OPERATOR {0}=== (leftarg = int, rightarg = int, function = int4eq);
    CREATE TEXT SEARCH CONFIGURATION {0}s (COPY = simple); CREATE OPERATOR CLASS {0}o FOR TYPE int USING btree AS OPERATOR 1 <,
    OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 btint4cmp(int, int);
    CREATE TABLE p (a int) PARTITION BY RANGE (a {0}o); CREATE TABLE t (a int, b tsvector DEFAULT to_tsvector('{0}s'::regconfig, ''),
        EXCLUDE USING btree (a {0}o WITH =), CHECK (a OPERATOR({1}.===) a)); CREATE INDEX ON t (a {0}o)"""
FOLLOWED: dict[str, tuple[str, ...]] = {
    "keys of partitions": (
        _KEYS.format("PRIMARY KEY"),
        *_ATTACHED,
        "ALTER INDEX k1 RENAME TO j1",
        "ALTER TABLE k RENAME TO j",
    ),
    "keys of partitions, from above": (_KEYS.format("UNIQUE"), _ATTACHED[2], _ATTACHED[1], _ATTACHED[0]),
    "indexes of constraints": (
        "CREATE TABLE t (a int PRIMARY KEY, b int UNIQUE, EXCLUDE USING btree (b WITH =)); CREATE INDEX i ON t (b)",
        *(f"ALTER INDEX {name} RENAME TO {name}2" for name in ("t_pkey", "t_b_key", "t_b_excl")),
        "REINDEX TABLE CONCURRENTLY t; ALTER INDEX i RENAME TO j",
        "REINDEX TABLE CONCURRENTLY t; DROP INDEX j",
    ),
    "sequences": (
        "CREATE SCHEMA other; CREATE SEQUENCE q; CREATE TABLE t (a int DEFAULT nextval('q'), b int GENERATED ALWAYS AS IDENTITY)",
        "ALTER SEQUENCE q OWNED BY t.a; ALTER SEQUENCE q RENAME TO r; ALTER TABLE t_b_seq RENAME TO s",
        "ALTER SEQUENCE s INCREMENT 3; ALTER SEQUENCE r OWNED BY NONE; ALTER SEQUENCE r SET SCHEMA other",
        "DROP SEQUENCE other.r CASCADE",
    ),
    "a function": (
        _OF_FUNCTION.format("f"),
        "ALTER FUNCTION f RENAME TO h",
        "ALTER FUNCTION h SET SCHEMA other",
        "DROP POLICY y ON t; DROP VIEW v; DROP TABLE p; DROP FUNCTION other.h CASCADE",
    ),
    "a function's schema": (_OF_FUNCTION.format("other.f"), "ALTER SCHEMA other RENAME TO renamed"),
    "types": (
        _OF_TYPES.format(""),
        *(
            f"ALTER {thing} RENAME TO {thing[-1]}2"
            for thing in ("TYPE e", "DOMAIN d", "TYPE c", "COLLATION l", "VIEW v")
        ),
        "ALTER TYPE c2 RENAME ATTRIBUTE x TO xx CASCADE",
        "ALTER TYPE c2 ADD ATTRIBUTE z int CASCADE",
        "CREATE OR REPLACE VIEW v2 AS SELECT 1 AS x, 2 AS y",
        *(f"ALTER {thing}2 SET SCHEMA other" for thing in ("TYPE e", "DOMAIN d", "TYPE c", "COLLATION l", "VIEW v")),
        *(
            f"DROP {thing}2 CASCADE"
            for thing in ("COLLATION other.l", "DOMAIN other.d", "TYPE other.c", "TYPE other.e")
        ),
    ),
    "types' schema": (_OF_TYPES.format("other."), "ALTER SCHEMA other RENAME TO renamed"),
    "operators": (
        _OF_OPERATORS.format("", "OWN"),
        "ALTER OPERATOR CLASS o USING btree RENAME TO o2",
        "ALTER TEXT SEARCH CONFIGURATION s RENAME TO s2",
        "ALTER OPERATOR CLASS o2 USING btree SET SCHEMA other",
        "ALTER TEXT SEARCH CONFIGURATION s2 SET SCHEMA other",
        "ALTER OPERATOR === (int, int) SET SCHEMA other",
        "DROP TABLE p; DROP OPERATOR FAMILY o USING btree CASCADE; DROP OPERATOR other.=== (int, int) CASCADE",
    ),
    "operators' schema": (_OF_OPERATORS.format("other.", "other"), "ALTER SCHEMA other RENAME TO renamed"),
    "an extension": (
        "CREATE SCHEMA other; CREATE TABLE member (a serial PRIMARY KEY); CREATE INDEX i ON member ((a + 1))",
        "CREATE EXTENSION citext; ALTER EXTENSION citext ADD TABLE member",
        "CREATE TABLE t (a citext PRIMARY KEY, b int REFERENCES member); CREATE TABLE p (a citext) PARTITION BY LIST (a)",
        "ALTER EXTENSION citext SET SCHEMA other",
        "DROP EXTENSION citext CASCADE",
    ),
    "a materialized view": (
        "CREATE MATERIALIZED VIEW m AS SELECT 1 AS a; CREATE INDEX i ON m (a)",
        "ALTER MATERIALIZED VIEW m RENAME TO n; ALTER TABLE n RENAME a TO b",
    ),
    "foreign tables": (
        "CREATE TABLE p (a int) PARTITION BY LIST (a); CREATE TABLE b (a int)",
        "CREATE FOREIGN TABLE pf PARTITION OF p DEFAULT SERVER srv; CREATE FOREIGN TABLE f (x int) INHERITS (b) SERVER srv",
        "CREATE TABLE c (y int) INHERITS (f); CREATE TABLE t (r f, z int)",
        "ALTER FOREIGN TABLE f ADD q int",
        "ALTER TABLE f RENAME TO ff",
        "DROP FOREIGN TABLE ff CASCADE",
    ),
}
# Tables that are another than it is noted; likewise all else, but for what replicas make anew whenever it is replaced.
_OTHERS = """
    SELECT t.oid::regclass::text FROM wlc.tables t WHERE wlc.plain(t.description) IS DISTINCT FROM wlc.plain(wlc.describe(t.oid))
    UNION ALL SELECT coalesce(o.description, n.description)->>'identity' FROM wlc.objects o FULL JOIN (
        SELECT f.*, wlc.describe_object(class, object) AS description FROM wlc.all_objects(1, 6) f) n
        ON (n.class, n.object) = (o.class, o.oid)
    WHERE CASE WHEN o.description->>'kind' IN ('view', 'function', 'procedure') AND n.description IS NOT NULL
        THEN o.description - 'definition' <> n.description - 'definition'
        ELSE o.description IS DISTINCT FROM n.description END
"""

# This cannot run here: it needs a library.
NOT_RUN = {"SECURITY LABEL"}
# PostgreSQL has names for them, but no command.
NEVER = {
    "ALTER ACCESS METHOD",
    "ALTER CAST",
    "ALTER CONSTRAINT",
    "ALTER TRANSFORM",
    "CREATE CONSTRAINT",
    "CREATE ROUTINE",
    "DROP CONSTRAINT",
    "LOGIN",
}


@pytest.fixture(scope="module")
def shared(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    """A master, its farm and a replica."""
    url, farm = cluster.create_database(), str(tmp_path_factory.mktemp("farm"))
    replica = cluster.create_database()
    execute(url, BEFORE)
    wlc.master(url, farm=farm, name="x")
    wlr.replicate("x", farm=farm, into=replica, register=False)
    yield url, farm, replica
    wlc.stop(url)


@pytest.mark.parametrize("tag", TAGS)
def test_a_command_runs_and_publishing_goes_on(shared: tuple[str, str, str], tag: str):
    url, _, _ = shared
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in TAGS[tag]:
            connection.execute(statement)
        assert connection.execute("SELECT wlc.is_known(%s), wlc.is_running()", [tag]).fetchall() == [(True, False)]
        assert connection.execute("SELECT count(*) FROM wlc.pending WHERE what <> 'rewritten'").fetchall() == [(0,)]


def test_replicas_follow_all_of_them(shared: tuple[str, str, str]):
    url, farm, replica = shared
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert wlc.flush(url).transactions > 0
        wlr.replicate("x", farm=farm, into=replica, register=False)
    assert texts_of(replica) == texts_of(url)
    assert not wlc.status(url).bypassed


@pytest.fixture(scope="module")
def watched(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A master that nothing follows."""
    url = cluster.create_database()
    execute(url, "CREATE TABLE z (a int); CREATE FOREIGN DATA WRAPPER fdw; CREATE SERVER srv FOREIGN DATA WRAPPER fdw")
    wlc.master(url, farm=str(tmp_path_factory.mktemp("farm")), name="x")
    return url


@pytest.mark.slow
@pytest.mark.parametrize("case", FOLLOWED)
def test_what_is_noted_follows_what_others_are_made_with(watched: str, case: str):
    schema = f"followed{list(FOLLOWED).index(case)}"
    with psycopg.connect(watched, autocommit=True) as connection:
        before, *changes = (text.replace("OWN.", f"{schema}.") for text in FOLLOWED[case])
        connection.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}; {before}")
        for change in changes:
            for statement in change.split(";"):
                connection.execute(statement)
            assert connection.execute(_OTHERS).fetchall() == [], change
        connection.execute(f"DROP SCHEMA IF EXISTS {schema}, other, renamed CASCADE")


def test_the_list_has_every_command_that_the_server_has(database_url: str):
    text = Path(program("postgres")).read_bytes()
    words = {word.decode() for word in re.findall(rb"(?<=\0)[A-Z]{4,}(?: [A-Z]+){0,3}(?=\0)", text)}
    fired = set()
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE FUNCTION f() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'")
        for tag in words:
            with suppress(psycopg.Error), connection.transaction(force_rollback=True):
                connection.execute(
                    f"CREATE EVENT TRIGGER e ON ddl_command_end WHEN TAG IN ('{tag}') EXECUTE FUNCTION f()"
                )
                fired.add(tag)
        connection.rollback()
    assert {"CREATE VIEW", "GRANT"} < fired
    assert fired - TAGS.keys() - NOT_RUN == NEVER & fired


@pytest.mark.parametrize("tag", sorted(NOT_RUN))
def test_other_commands_are_known(shared: tuple[str, str, str], tag: str):
    assert execute(shared[0], f"SELECT wlc.is_known('{tag}')") == [(True,)]


def test_a_command_that_is_not_known_is_refused(shared: tuple[str, str, str]):
    url, _, _ = shared
    assert execute(url, "SELECT wlc.is_known('CREATE PROPERTY GRAPH')") == [(False,)]
    with psycopg.connect(url) as connection:
        connection.execute("ALTER EVENT TRIGGER wlc_on_ddl DISABLE")
        connection.execute(
            "CREATE OR REPLACE FUNCTION wlc.is_known(tag text) RETURNS boolean LANGUAGE sql AS 'SELECT false'"
        )
        connection.execute("ALTER EVENT TRIGGER wlc_on_ddl ENABLE ALWAYS")
        with pytest.raises(
            psycopg.Error, match=r"dbfarm does not know what CREATE VIEW changes: CREATE VIEW later AS"
        ) as caught:
            connection.execute("CREATE VIEW later AS SELECT 1 AS x")
        assert "wlc stop" in str(caught.value.diag.message_hint)
        connection.rollback()


@pytest.mark.slow
def test_what_is_not_understood_stops_publishing_and_status_says_so(database_url: str, farm_folder: str):
    execute(database_url, "CREATE TABLE t (a int)")
    wlc.master(database_url, farm=farm_folder, name="x")
    sent = """SELECT pg_logical_emit_message(true, value, '{"object": 7, "tag": "CREATE WONDER"}') FROM wlc.state WHERE key = 'prefix'"""
    execute(database_url, sent)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="a schema change was not understood: .*CREATE WONDER") as caught:
            wlc.flush(database_url)
        assert "wlc stop" in str(caught.value.hint)
    with pytest.warns(UserWarning, match="nothing is published: a schema change was not understood: .*CREATE WONDER"):
        wlc.status(database_url)
    with pytest.raises(UnsupportedError, match="CREATE WONDER"):
        wlc.verify_source(database_url)
    # The hint works as it is typed, and a new history begins.
    command = re.search(r"wlc stop \S+", str(caught.value.hint))
    assert command
    done = call_command(*command.group(0).rstrip(",;").split())
    assert done.returncode == 0
    assert "the history ends with tick 0: a schema change was not understood" in done.stderr
    execute(database_url, "INSERT INTO t VALUES (1)")
    assert wlc.master(database_url, farm=farm_folder, name="x").state == "active"
    assert wlc.status(database_url).bypassed == {}
    assert {check.outcome for check in wlc.verify_source(database_url)} == {"same"}


@pytest.fixture
def farm_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("farm"))
