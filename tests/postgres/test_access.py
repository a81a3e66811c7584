"""Privileges and row security of a PostgreSQL master arrive in its PostgreSQL replicas, and nobody gets more there; keys.

Docs: docs/postgresql.md.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import psycopg
import pytest

import wlc
import wlr
from tests.handmade import HandmadeFarm
from tests.postgres.cluster import execute
from wlc.farm.errors import CorruptError, InvalidError, ReplayError
from wlc.farm.model import Column, CreatedObject, DbObject, Ddl, DroppedObject, Layout, Name
from wlc.farm.seal import keys
from wlc.farm.seal.keys import add_key
from wlc.farm.store.encrypted import MAGIC

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres.cluster import Cluster

ROLES = ("reader", "writer", "tenant one", "keeper")
# What there is before the snapshot, and what is done later.
BEFORE = """
    CREATE SCHEMA s; GRANT USAGE, CREATE ON SCHEMA s TO reader; GRANT USAGE ON SCHEMA public TO reader;
    CREATE TABLE t (id int PRIMARY KEY, who text, secret text); INSERT INTO t VALUES (1, 'reader', 'x'), (2, 'writer', 'y');
    GRANT SELECT, UPDATE (who, secret) ON t TO reader; GRANT ALL ON t TO writer WITH GRANT OPTION;
    ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON t TO reader USING (who = current_user);
    CREATE POLICY all_rows ON t FOR SELECT TO writer USING (true);
    CREATE TABLE s.p (a int, b int) PARTITION BY LIST (a); CREATE TABLE s.p1 PARTITION OF s.p FOR VALUES IN (1);
    GRANT SELECT (b) ON s.p TO PUBLIC; GRANT SELECT ON s.p TO "tenant one";
    CREATE VIEW s.v AS SELECT id FROM t; GRANT SELECT ON s.v TO reader;
    CREATE FUNCTION s.f(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'; REVOKE EXECUTE ON FUNCTION s.f FROM PUBLIC;
    CREATE FUNCTION s.g(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'; GRANT EXECUTE ON FUNCTION s.g TO reader;
    CREATE TABLE q (id serial, v text); GRANT USAGE ON SEQUENCE q_id_seq TO writer;
    CREATE TABLE plain (a int)
"""
LATER = (
    "REVOKE UPDATE (secret) ON t FROM reader",
    "REVOKE GRANT OPTION FOR INSERT ON t FROM writer",
    "ALTER TABLE t RENAME who TO person",
    'GRANT SELECT (person, id) ON t TO "tenant one"',
    "ALTER TABLE t DROP COLUMN secret",
    "ALTER POLICY own ON t TO reader, writer USING (person = current_user) WITH CHECK (id > 0)",
    "DROP POLICY all_rows ON t",
    "CREATE POLICY narrow ON t AS RESTRICTIVE FOR UPDATE USING (id < 10)",
    "DO $$ BEGIN CREATE TABLE s.n (a int); GRANT SELECT ON ALL TABLES IN SCHEMA s TO reader; END $$",
    "REVOKE SELECT (b) ON s.p FROM PUBLIC; REVOKE ALL ON s.v FROM reader; GRANT SELECT ON s.v TO writer",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA s GRANT SELECT ON TABLES TO writer; CREATE TABLE s.d (a int)",
    "GRANT EXECUTE ON FUNCTION s.f TO reader; REVOKE ALL ON FUNCTION s.g FROM PUBLIC",
    "CREATE TABLE gone (a int); GRANT SELECT ON gone TO reader; DROP TABLE gone",
    "ALTER TABLE plain ENABLE ROW LEVEL SECURITY; CREATE POLICY x ON plain USING (a > 1); DROP POLICY x ON plain",
    "ALTER TABLE plain RENAME a TO b; CREATE POLICY y ON plain USING (b > 1); ALTER TABLE plain RENAME b TO c",
)
# Privileges of all but owners, which are the replica's role there.
HELD = """
    SELECT c.oid::regclass::text, a.grantee::regrole::text, a.privilege_type, a.is_grantable, '' FROM pg_class c,
        aclexplode(c.relacl) a WHERE a.grantee <> c.relowner AND relnamespace::regnamespace::text IN ('s', 'public')
        AND a.privilege_type NOT IN ('TRIGGER', 'MAINTAIN')
    UNION SELECT c.oid::regclass::text, a.grantee::regrole::text, a.privilege_type, a.is_grantable, f.attname
        FROM pg_class c JOIN pg_attribute f ON f.attrelid = c.oid, aclexplode(f.attacl) a WHERE a.grantee <> c.relowner
        AND relnamespace::regnamespace::text IN ('s', 'public')
    UNION SELECT p.oid::regprocedure::text, a.grantee::regrole::text, a.privilege_type, a.is_grantable, '' FROM pg_proc p,
        aclexplode(coalesce(p.proacl, acldefault('f', proowner))) a WHERE a.grantee <> p.proowner
        AND pronamespace::regnamespace::text = 's'
    UNION SELECT n.nspname, a.grantee::regrole::text, a.privilege_type, a.is_grantable, '' FROM pg_namespace n,
        aclexplode(n.nspacl) a WHERE a.grantee <> n.nspowner AND nspname = 's' AND a.privilege_type = 'USAGE'
    UNION SELECT tablename::text, policyname::text, concat(permissive, cmd, roles), false, concat(qual, ' / ', with_check)
        FROM pg_policies
    UNION SELECT oid::regclass::text, '', 'secured', relrowsecurity, '' FROM pg_class
        WHERE relnamespace::regnamespace::text IN ('s', 'public') AND relkind IN ('r', 'p')
"""


@pytest.fixture(scope="module")
def roles(cluster: Cluster) -> Cluster:
    for role in (*ROLES, "copier"):
        cluster.execute(f'CREATE ROLE "{role}" LOGIN')
    cluster.execute("GRANT SET ON PARAMETER session_replication_role TO copier")
    return cluster


def replica_of(cluster: Cluster) -> str:
    """A database for a replica of a role that is no superuser."""
    url = cluster.create_database()
    execute(
        url, f"GRANT CREATE ON DATABASE {url.rpartition('/')[2]} TO copier; GRANT CREATE ON SCHEMA public TO copier"
    )
    return url.replace("postgres@", "copier@")


@pytest.mark.slow
def test_privileges_and_row_security_arrive(roles: Cluster, database_url: str, tmp_path: Path) -> None:
    farm, copy = str(tmp_path / "farm"), replica_of(roles)
    execute(database_url, BEFORE)
    key = keys.new_key(keys.SIGNING)
    (tmp_path / "key").write_text(key.word)
    wlc.master(database_url, farm=farm, name="x", storage_options={"signing_key_file": str(tmp_path / "key")})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verifying = {"verify_key": keys.public_half(key).word}
        wlr.replicate("x", farm=farm, into=copy, storage_options=verifying, register=False)
        assert set(execute(copy, HELD)) == set(execute(database_url, HELD))
        execute(database_url, *LATER)
        assert not wlc.status(database_url).bypassed
        wlc.flush(database_url)
        wlr.replicate("x", farm=farm, into=copy, register=False)
    assert set(execute(copy, HELD)) == set(execute(database_url, HELD))
    assert wlr.status(copy).left_out == {}
    # The farm's tables are as row security shows them, and the replica sees all of them.
    assert execute(copy.replace("copier@", "reader@"), "SELECT id FROM t") == [(1,)]
    assert execute(copy, "SELECT id FROM t ORDER BY 1") == [(1,), (2,)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(copy.replace("copier@", "reader@"), "SELECT id FROM s.v")


def test_what_would_show_more_than_in_the_master_is_left_out(roles: Cluster, database_url: str, tmp_path: Path) -> None:
    farm, copy = str(tmp_path / "farm"), replica_of(roles)
    roles.execute("CREATE ROLE missing")
    execute(
        database_url,
        "CREATE TABLE t (id int PRIMARY KEY, who text); INSERT INTO t VALUES (1, 'reader'), (2, 'writer')",
        "GRANT SELECT ON t TO keeper, missing; GRANT CREATE ON SCHEMA public TO keeper",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        "CREATE POLICY few ON t TO keeper USING (id = 1); CREATE POLICY more ON t TO missing USING (true)",
    )
    execute(
        database_url,
        "SET ROLE keeper; CREATE VIEW v AS SELECT * FROM t; CREATE VIEW w AS SELECT * FROM v;"
        " CREATE VIEW i WITH (security_invoker = true) AS SELECT * FROM t; GRANT SELECT ON v, w, i TO reader",
    )
    wlc.master(database_url, farm=farm, name="x")
    execute(database_url, "DROP OWNED BY missing", "GRANT SELECT ON t TO reader")
    wlc.flush(database_url)
    roles.execute("DROP ROLE missing")
    with pytest.warns(UserWarning, match="left out"):
        wlr.replicate("x", farm=farm, into=copy, tick=0, access=True, register=False)
    left_out = wlr.status(copy).left_out
    assert set(left_out) == {
        "SELECT for missing on table public.t",
        "policy more for missing on table public.t",
        "forced row security on table public.t",
    }
    assert 'GRANT SELECT ON TABLE "public"."t" TO "missing"' in left_out["SELECT for missing on table public.t"]
    assert execute(copy.replace("copier@", "keeper@"), "SELECT id FROM t") == [(1,)]
    for view in ("v", "w"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            execute(copy.replace("copier@", "reader@"), f"SELECT * FROM {view}")
    # What is revoked in the master is not missing any more.
    wlr.replicate("x", farm=farm, into=copy, register=False)
    assert set(wlr.status(copy).left_out) == {"forced row security on table public.t"}
    assert execute(copy.replace("copier@", "reader@"), "SELECT * FROM i") == []
    # Its owner owns the table now, and reads all of it.
    for statements in (
        ["ALTER TABLE t NO FORCE ROW LEVEL SECURITY", "ALTER TABLE t OWNER TO keeper"],
        # Before PostgreSQL 17 no event trigger is told of it.
        ["REASSIGN OWNED BY keeper TO writer", "GRANT SELECT ON t TO reader"],
    ):
        execute(database_url, *statements)
        wlc.flush(database_url)
        wlr.replicate("x", farm=farm, into=copy, register=False)
        assert execute(copy.replace("copier@", "reader@"), "SELECT id FROM w ORDER BY 1") == [(1,), (2,)]
    assert wlr.status(copy).left_out == {}
    execute(database_url, "ALTER TABLE t OWNER TO keeper")
    with pytest.warns(UserWarning, match="privileges on view public.w, which reads tables of others"):
        wlc.flush(database_url)
    wlr.replicate("x", farm=farm, into=copy, register=False)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(copy.replace("copier@", "reader@"), "SELECT * FROM w")


def grant(statement: str) -> Ddl:
    return Ddl(statement.partition(" ")[0], Name("public", "t"), statement, dialect="postgres")


def made(kind: str, name: str, statement: str, *column: str) -> Ddl:
    layout = Layout((Column(column[0], column[1]),)) if column else None
    did = (CreatedObject(DbObject(kind, Name("public", name))),)
    return Ddl(f"CREATE {kind}", did[0].object.name, statement, dialect="postgres", layout=layout, does=did)


# The farm gives away what it has, then has it show the owner's table.
LENT = "CREATE VIEW public.v AS SELECT a FROM public.t"
SHOWS_MINE = (
    made("VIEW", "v", "CREATE OR REPLACE VIEW public.v AS SELECT a FROM public.mine"),
    made("FUNCTION", "f", "CREATE FUNCTION public.f() RETURNS text LANGUAGE sql STABLE AS 'SELECT a FROM public.mine'"),
    made("MATERIALIZED VIEW", "m", "CREATE MATERIALIZED VIEW public.m AS SELECT public.f() AS a"),
    made("MATERIALIZED VIEW", "n", "CREATE MATERIALIZED VIEW public.n AS SELECT most_common_vals::text FROM pg_stats"),
    made("TABLE", "u", "CREATE TABLE public.u (id bigint DEFAULT nextval('public.counted'))", "id", "BIGINT"),
)
GIVEN = ("m", "n", "t", "u")
CAN = """
    SELECT count(*) FILTER (WHERE has_table_privilege('reader', c.oid, 'SELECT, INSERT, UPDATE, DELETE')),
        count(*) FILTER (WHERE relkind = 'S' AND has_sequence_privilege('reader', c.oid, 'USAGE, SELECT, UPDATE'))
    FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind <> 'i'
"""


def test_an_unsigned_farm_gives_nobody_a_privilege(roles: Cluster, tmp_path: Path) -> None:
    farm, copy = HandmadeFarm(tmp_path / "farm"), replica_of(roles)
    farm.publish([made("TABLE", "t", "CREATE TABLE public.t (a text)", "a", "VARCHAR")])
    wlr.replicate(farm.url, into=copy, register=False)
    execute(copy, "CREATE TABLE mine AS SELECT 'SECRET' AS a; CREATE SEQUENCE counted; GRANT SELECT ON t TO writer")
    secured = 'ALTER TABLE "public"."t" ENABLE ROW LEVEL SECURITY'
    farm.publish(
        [made("VIEW", "v", LENT), grant('GRANT SELECT, DELETE ON TABLE "public"."v" TO PUBLIC')],
        [*SHOWS_MINE, *(grant(f'GRANT SELECT ON TABLE "public"."{name}" TO "reader"') for name in GIVEN)],
        [grant('GRANT UPDATE ON SEQUENCE "public"."counted" TO "reader"'), grant(secured)],
        # What takes away arrives.
        [grant('REVOKE SELECT ON TABLE "public"."t" FROM "writer" CASCADE')],
    )
    with pytest.warns(UserWarning, match="left out") as warned:
        wlr.replicate(into=copy, register=False)
    assert len([one for one in warned if "privileges are" in str(one.message)]) == 1
    assert execute(copy, CAN) == [(0, 0)]
    assert execute(copy, "SELECT has_table_privilege('writer', 't', 'SELECT')") == [(False,)]
    assert execute(copy, "SELECT relrowsecurity FROM pg_class WHERE relname = 't'") == [(True,)]
    cause = wlr.status(copy).left_out["SELECT for reader on table public.t"]
    assert "--access" in cause
    assert 'GRANT SELECT ON TABLE "public"."t" TO "reader"' in cause


def test_access_is_remembered(roles: Cluster, tmp_path: Path) -> None:
    read = "SELECT has_table_privilege('reader', 't', 'SELECT')"
    table = made("TABLE", "t", "CREATE TABLE public.t (a text)", "a", "VARCHAR")
    given = grant('GRANT SELECT ON TABLE "public"."t" TO "reader"')
    taken = grant('REVOKE SELECT ON TABLE "public"."t" FROM "reader" CASCADE')
    unsigned, copy = HandmadeFarm(tmp_path / "unsigned"), replica_of(roles)
    unsigned.publish([table], [given])
    wlr.replicate(unsigned.url, into=copy, access=True, register=False)
    assert execute(copy, read) == [(True,)]
    unsigned.publish([taken], [given])
    wlr.replicate(into=copy, register=False)
    assert execute(copy, read) == [(True,)]
    unsigned.publish([taken], [given])
    with pytest.warns(UserWarning, match="privileges are left out"):
        wlr.replicate(into=copy, access=False, register=False)
    assert execute(copy, read) == [(False,)]


def test_what_was_passed_on_is_revoked(roles: Cluster, tmp_path: Path) -> None:
    farm, copy = HandmadeFarm(tmp_path / "farm"), replica_of(roles)
    farm.publish(
        [made("TABLE", "t", "CREATE TABLE public.t (a text)", "a", "VARCHAR")],
        [made("FUNCTION", "f", "CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'")],
        [grant('REVOKE EXECUTE ON FUNCTION "public"."f"() FROM PUBLIC CASCADE')],
    )
    wlr.replicate(farm.url, into=copy, register=False)
    # The owner gives to writer, who gives to keeper, who gives to reader and all.
    for role, to in (("copier", "writer"), ("writer", "keeper"), ("keeper", "reader"), ("keeper", "PUBLIC")):
        option = "" if to == "PUBLIC" else " WITH GRANT OPTION"
        for what in ("SELECT, UPDATE, INSERT (a) ON t", "EXECUTE ON FUNCTION f"):
            execute(copy.replace("copier@", f"{role}@"), f"GRANT {what} TO {to}{option}")
    execute(copy, "GRANT INSERT (a) ON t TO reader")
    held = """
        SELECT concat(p, ' ', r) FROM unnest(ARRAY['reader', 'tenant one', 'keeper', 'writer']) r, LATERAL (VALUES
            ('SELECT', has_table_privilege(r, 't', 'SELECT')), ('UPDATE', has_table_privilege(r, 't', 'UPDATE')),
            ('INSERT', has_column_privilege(r, 't', 'a', 'INSERT')), ('EXECUTE', has_function_privilege(r, 'f()', 'EXECUTE'))
        ) v (p, has) WHERE has
    """
    before = {row[0] for row in execute(copy, held)}
    assert len(before) == 16
    farm.publish([grant('REVOKE SELECT, INSERT ("a") ON TABLE "public"."t" FROM "reader" CASCADE')])
    with pytest.warns(UserWarning, match="reader has it from there"):
        wlr.replicate(into=copy, register=False)
    # PUBLIC had it from writer, too.
    lost = {
        "SELECT reader",
        "SELECT tenant one",
        "SELECT keeper",
        "INSERT reader",
        "INSERT tenant one",
        "INSERT keeper",
    }
    assert {row[0] for row in execute(copy, held)} == before - lost
    farm.publish([grant('REVOKE EXECUTE ON FUNCTION "public"."f"() FROM PUBLIC CASCADE')])
    with pytest.warns(UserWarning, match="PUBLIC has it from there"):
        wlr.replicate(into=copy, register=False)
    lost |= {"EXECUTE reader", "EXECUTE tenant one", "EXECUTE keeper"}
    assert {row[0] for row in execute(copy, held)} == before - lost
    # Who has the option keeps it.
    execute(
        copy.replace("copier@", "writer@"),
        "GRANT SELECT, INSERT (a) ON t TO keeper; GRANT EXECUTE ON FUNCTION f TO keeper",
    )


def test_a_view_that_is_not_as_in_the_master_is_nobodys(roles: Cluster, tmp_path: Path) -> None:
    farm, copy = HandmadeFarm(tmp_path / "farm"), replica_of(roles)
    over = "CREATE VIEW public.w AS SELECT a FROM public.v"
    farm.publish(
        [made("TABLE", "t", "CREATE TABLE public.t (a text)", "a", "VARCHAR"), made("VIEW", "v", LENT)],
        [made("VIEW", "w", over)],
    )
    wlr.replicate(farm.url, into=copy, register=False)
    execute(copy, "CREATE TABLE mine AS SELECT 'SECRET' AS a")
    narrower = "CREATE OR REPLACE VIEW public.v AS SELECT a FROM public.t WHERE missing(a)"
    for replaced in (narrower, SHOWS_MINE[0].statement, narrower.replace("public.", "")):
        execute(copy, "GRANT SELECT ON v TO reader, PUBLIC; GRANT SELECT (a) ON w TO writer")
        farm.publish([made("VIEW", "v", replaced)])
        with pytest.warns(UserWarning, match="left out"):
            wlr.replicate(into=copy, register=False)
        assert execute(copy, CAN) == [(0, 0)]
        assert execute(copy, "SELECT has_any_column_privilege('writer', 'w', 'SELECT')") == [(False,)]
    left_out = wlr.status(copy).left_out
    assert left_out["access to view public.v"].endswith("grant them again to PUBLIC, reader")
    assert "access to view public.w" in left_out
    farm.publish([made("VIEW", "v", "CREATE OR REPLACE VIEW public.v AS SELECT a FROM public.t WHERE a > 'b'")])
    wlr.replicate(into=copy, register=False)
    assert "view public.v" not in wlr.status(copy).left_out


def test_privileges_of_an_accepted_transaction_are_listed(roles: Cluster, tmp_path: Path) -> None:
    farm, copy = HandmadeFarm(tmp_path / "farm"), replica_of(roles)
    farm.publish([made("TABLE", "t", "CREATE TABLE public.t (a text)", "a", "VARCHAR")])
    wlr.replicate(farm.url, into=copy, register=False)
    revoke = 'REVOKE SELECT ON TABLE "public"."t" FROM "reader" CASCADE'
    farm.publish([made("TABLE", "x", "CREATE TABLE public.x (a missing)", "a", "VARCHAR"), grant(revoke)])
    with pytest.raises(ReplayError):
        wlr.replicate(into=copy, register=False)
    wlr.accept(copy)
    wlr.replicate(into=copy, register=False)
    assert wlr.status(copy).left_out == {
        "privileges of accepted transaction 2 on public.t": f"it was skipped; run {revoke}"
    }


def test_what_is_listed_can_be_typed(roles: Cluster, tmp_path: Path) -> None:
    farm, copy = HandmadeFarm(tmp_path / "farm"), replica_of(roles)
    farm.publish(
        [made("TABLE", "t", "CREATE TABLE public.t (a text)", "a", "VARCHAR")],
        [
            made("FUNCTION", "f", f"CREATE FUNCTION public.f({kind}) RETURNS int LANGUAGE sql AS 'SELECT 1'")
            for kind in ("integer", "text")
        ],
        [
            grant('CREATE POLICY "p" ON "public"."t" AS RESTRICTIVE FOR SELECT TO "later", "reader" USING (a > \'b\')'),
            *(grant(f'GRANT EXECUTE ON FUNCTION "public"."f"({kind}) TO "later"') for kind in ("integer", "text")),
        ],
    )
    with pytest.warns(UserWarning, match="left out"):
        wlr.replicate(farm.url, into=copy, access=True, register=False)
    left_out = wlr.status(copy).left_out
    assert set(left_out) == {
        "policy p for later on table public.t",
        "EXECUTE for later on function public.f(integer)",
        "EXECUTE for later on function public.f(text)",
    }
    roles.execute("CREATE ROLE later")
    for cause in left_out.values():
        execute(copy, cause.partition(" run ")[2])
    assert execute(copy, "SELECT roles::text FROM pg_policies") == [("{later,reader}",)]
    f, dropped = Name("public", "f"), "DROP FUNCTION public.f(text)"
    does = (DroppedObject(DbObject("FUNCTION", f, ("text",))),)
    farm.publish([Ddl("DROP FUNCTION", f, dropped, dialect="postgres", does=does)])
    wlr.replicate(into=copy, register=False)
    assert set(wlr.status(copy).left_out) == left_out.keys() - {"EXECUTE for later on function public.f(text)"}


# Encrypted and signed farms --------------------------------------------------------------------------------------------


def test_from_master_to_replica(
    cluster: Cluster, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm, into = str(tmp_path / "farm"), cluster.create_database()
    for kind in ("encryption", "signing"):
        add_key(tmp_path / kind, kind)
        monkeypatch.setenv(f"WLC_{kind.upper()}_KEY_FILE", str(tmp_path / kind))
    execute(database_url, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'nobody reads it')")
    wlc.master(database_url, farm=farm, name="shop")
    execute(database_url, "INSERT INTO t VALUES (2, 'nobody reads it')")
    wlc.flush(database_url)
    for path in (tmp_path / "farm").rglob("*"):
        if path.is_file() and path.name not in ("wlc.config", "health.json", ".wlc.lock"):
            assert path.read_bytes().startswith(MAGIC)
    verifying = {"verify_key_file": str(tmp_path / "signing.pub")}
    assert wlr.replicate(f"{farm}/shop", into=into, storage_options=verifying).tick == 1
    assert execute(into, "SELECT count(*) FROM t") == [(2,)]
    # The master remembers that it signs and encrypts.
    monkeypatch.delenv("WLC_SIGNING_KEY_FILE")
    execute(database_url, "INSERT INTO t VALUES (3, 'c')")
    with pytest.raises(InvalidError, match="must be signed, and no signing key is given"):
        wlc.flush(database_url)
    # Another key signs; the replica remembers which one has to.
    add_key(tmp_path / "other", "signing")
    wlc.flush(database_url, storage_options={"signing_key_file": str(tmp_path / "other")})
    with pytest.raises(CorruptError, match="is signed with key"):
        wlr.replicate(into=into)
    monkeypatch.delenv("WLC_ENCRYPTION_KEY_FILE")
    with pytest.raises(InvalidError, match="no encryption key is given"):
        wlr.replicate(into=into)
    assert wlr.tick(into) == 1
    wlc.stop(database_url, storage_options={"encryption_key_file": str(tmp_path / "encryption")})
