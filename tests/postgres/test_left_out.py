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
    with pytest.raises(InvalidError, match=r"lacks extensions of the master: btree_gin, citext(\n|$)") as caught:
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
    assert set(left_out) == {"index named of table public.t", "view public.w"}
    assert "gin_trgm_ops" in left_out["index named of table public.t"]
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


OWN_COLLATION = "CREATE COLLATION own (LOCALE = 'C')"
PARTS = """
    CREATE FUNCTION two() RETURNS int LANGUAGE internal IMMUTABLE STRICT AS 'pg_backend_pid';
    CREATE TABLE p (a int, b text DEFAULT 'x', PRIMARY KEY (a, b)) PARTITION BY RANGE (a own);
    CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
    CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (a);
    CREATE TABLE p21 PARTITION OF p2 FOR VALUES FROM (10) TO (15);
    CREATE TABLE c (a text COLLATE own NOT NULL, n int DEFAULT two(), UNIQUE (a), CONSTRAINT c_check CHECK (n > 0 OR two() > 0));
    INSERT INTO p VALUES (1), (11);
    INSERT INTO c VALUES ('x', 1)
"""
# Written by a PostgreSQL master: what was left out is renamed, changed and dropped.
LATER = """
    CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30);
    ALTER TABLE p DETACH PARTITION p1;
    ALTER TABLE p ADD COLUMN d int;
    INSERT INTO p VALUES (12, 'y', 3), (22, 'z', 4);
    INSERT INTO p1 VALUES (2);
    CREATE TABLE p5 (LIKE p) PARTITION BY LIST (b);
    CREATE TABLE p51 PARTITION OF p5 FOR VALUES IN ('v', 'w') PARTITION BY LIST (b);
    CREATE TABLE p511 PARTITION OF p51 FOR VALUES IN ('w');
    CREATE TABLE p52 PARTITION OF p5 FOR VALUES IN ('x');
    INSERT INTO p5 VALUES (51, 'w', 5), (52, 'x', 6);
    ALTER TABLE p ATTACH PARTITION p5 FOR VALUES FROM (50) TO (60);
    ALTER TABLE c RENAME CONSTRAINT c_check TO checked;
    ALTER TABLE c RENAME COLUMN n TO m;
    ALTER TABLE c ADD COLUMN o text COLLATE own;
    INSERT INTO c VALUES ('y', 2, 'o')
"""


# Masters and replicas say what replicas will not have.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("begins", ["at a snapshot", "before"])
def test_tables_do_without_what_only_an_owner_can_create(
    cluster: Cluster, database_url: str, tmp_path: Path, begins: str
) -> None:
    farm, copy = str(tmp_path / "farm"), cluster.create_database()
    execute(database_url, OWN_CLASS, OWN_COLLATION)
    if begins == "before":
        wlc.master(database_url, farm=farm, name="x")
        wlr.replicate("x", farm=farm, into=copy, register=False)
        execute(database_url, PARTS)
        wlc.flush(database_url)
    else:
        execute(database_url, PARTS)
        wlc.master(database_url, farm=farm, name="x")
    wlr.replicate("x", farm=farm, into=copy, register=False)
    left_out = wlr.status(copy).left_out
    assert set(left_out) == {
        "partitioning of table public.p",
        "partitioning of table public.p2",
        "collation of column a of table public.c",
        "default of column n of table public.c",
        "constraint c_check of table public.c",
    }
    assert execute(copy, "SELECT a, b FROM p ORDER BY 1") == [(1, "x"), (11, "x")]
    execute(database_url, *LATER.split(";\n"))
    wlc.flush(database_url)
    wlr.replicate("x", farm=farm, into=copy, register=False)
    assert execute(copy, "SELECT a, d FROM p ORDER BY 1") == [(11, None), (12, 3), (22, 4), (51, 5), (52, 6)]
    assert execute(copy, "SELECT a FROM ONLY p1 ORDER BY 1") == [(1,), (2,)]
    left_out = wlr.status(copy).left_out
    renamed = {"default of column m of table public.c", "constraint checked of table public.c"}
    assert renamed | {"collation of column o of table public.c"} < set(left_out)
    assert {"partitioning of table public.p5", "partitioning of table public.p51"} < set(left_out)
    # What is listed can be typed once it is there.
    execute(copy, OWN_COLLATION, "CREATE FUNCTION two() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2'")
    renamed.add("collation of column a of table public.c")
    execute(copy, *(left_out[what].partition("once it is there, run ")[2] for what in sorted(renamed)))
    query = "SELECT attcollation::regcollation::text FROM pg_attribute WHERE attrelid = 'c'::regclass AND attname = 'a'"
    assert execute(copy, query) == [("own",)]
    assert execute(copy, "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'c'::regclass") == [
        ("two()",)
    ]
    assert execute(copy, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'checked'") == [
        ("CHECK (((m > 0) OR (two() > 0)))",)
    ]
    execute(database_url, "ALTER TABLE c DROP CONSTRAINT checked, ALTER m DROP DEFAULT, DROP COLUMN o; DROP TABLE p")
    wlc.flush(database_url)
    wlr.replicate("x", farm=farm, into=copy, register=False)
    assert wlr.status(copy).left_out == {}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_base_type_is_text_unless_the_owner_created_it(cluster: Cluster, database_url: str, tmp_path: Path) -> None:
    farm, bare, prepared = str(tmp_path / "farm"), cluster.create_database(), cluster.create_database()
    execute(database_url, OWN_TYPE, "CREATE TABLE w (a word, b word[])", "INSERT INTO w VALUES ('x', '{a}')")
    wlc.master(database_url, farm=farm, name="x")
    execute(prepared, OWN_TYPE)
    for copy in (bare, prepared):
        wlr.replicate("x", farm=farm, into=copy, register=False)
    assert wlr.status(bare).left_out["base type public.word"].endswith("its values are text here")
    assert "base type public.word" not in wlr.status(prepared).left_out
    execute(
        database_url, "INSERT INTO w VALUES ('y', NULL)", OWN_TYPE.replace("word", "late"), "CREATE TABLE v (a late)"
    )
    execute(database_url, "INSERT INTO v VALUES ('v')", "ALTER TYPE late RENAME TO later", "UPDATE w SET b = '{c,d}'")
    wlc.flush(database_url)
    for copy in (bare, prepared):
        wlr.replicate("x", farm=farm, into=copy, register=False)
        assert execute(copy, "SELECT a::text, b::text FROM w ORDER BY 1") == [("x", "{c,d}"), ("y", "{c,d}")]
        assert execute(copy, "SELECT a::text, pg_typeof(a)::text FROM v") == [("v", "later")]
        assert "base type public.later" in wlr.status(copy).left_out
    execute(database_url, "DROP TABLE v, w", "DROP TYPE later CASCADE", "DROP TYPE word CASCADE")
    wlc.flush(database_url)
    for copy in (bare, prepared):
        wlr.replicate("x", farm=farm, into=copy, register=False)
        assert not [what for what in wlr.status(copy).left_out if "type" in what]
    # What the owner of a replica created stays.
    assert execute(prepared, "SELECT 'a'::word::text") == [("a",)]
    assert execute(bare, "SELECT to_regtype('word')") == [(None,)]


def test_a_file_and_a_lake_list_what_only_postgresql_has(database_url: str, tmp_path: Path) -> None:
    farm, copy, lake = str(tmp_path / "farm"), tmp_path / "copy.duckdb", tmp_path / "lake"
    execute(
        database_url,
        "CREATE TABLE t (id int PRIMARY KEY, a int CONSTRAINT positive CHECK (a > 0))",
        "CREATE INDEX by_a ON t (a); CREATE VIEW v AS SELECT id FROM t; GRANT SELECT ON t TO PUBLIC",
        "CREATE TABLE gone (id int); CREATE INDEX ON gone (id); CREATE TABLE parts (id int) PARTITION BY LIST (id)",
    )
    wlc.master(database_url, farm=farm, name="x")
    for into in (copy, lake):
        wlr.replicate("x", farm=farm, into=into, register=False)
        listed = wlr.status(into).left_out
        assert set(listed) == {
            "constraint positive of table public.t",
            "index by_a of table public.t",
            "index gone_id_idx of table public.gone",
            "view public.v",
        }
        assert set(listed.values()) == {"only PostgreSQL replicas have it"}
    execute(
        database_url,
        "DROP INDEX by_a; DROP TABLE gone; ALTER VIEW v RENAME TO w; CREATE TABLE u (id int PRIMARY KEY REFERENCES t)",
        "CREATE FUNCTION f(int) RETURNS int LANGUAGE sql AS 'SELECT $1'; ALTER TABLE t RENAME TO s",
    )
    wlc.flush(database_url)
    for into in (copy, lake):
        wlr.replicate(into=into)
        assert set(wlr.status(into).left_out) == {
            "constraint positive of table public.s",
            "constraint u_id_fkey of table public.u",
            "function public.f(integer)",
            "view public.w",
        }


REACHING = """
    CREATE FUNCTION token() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN NEW.k := encode(gen_random_bytes(8), 'hex'); RETURN NEW; END $$;
    CREATE FUNCTION nested() RETURNS int LANGUAGE sql AS 'SELECT 1 /* /* */ */';
    CREATE DOMAIN tok AS text DEFAULT encode(gen_random_bytes(4), 'hex') NOT NULL CONSTRAINT odd CHECK (gen_random_bytes(1) IS NOT NULL);
    CREATE TABLE a (id int PRIMARY KEY, d tok, k text DEFAULT encode(gen_random_bytes(4), 'hex'),
        CONSTRAINT odd CHECK (gen_random_bytes(1) IS NOT NULL));
    CREATE TRIGGER fills BEFORE INSERT ON a FOR EACH ROW EXECUTE FUNCTION token();
    ALTER TABLE t ADD k text DEFAULT encode(gen_random_bytes(4), 'hex');
    ALTER TABLE t ADD CONSTRAINT "other one" CHECK (gen_random_bytes(1) IS NOT NULL);
    CREATE VIEW v AS SELECT gen_random_bytes(4) AS r, id FROM a;
    CREATE MATERIALIZED VIEW m AS SELECT gen_random_bytes(4) AS r, id FROM a;
    CREATE VIEW state AS SELECT key FROM wlc.state;
    ALTER DOMAIN tok RENAME CONSTRAINT odd TO renamed;
    ALTER DOMAIN tok SET DEFAULT gen_random_bytes(3)::text;
    ALTER DOMAIN tok ADD CONSTRAINT more CHECK (gen_random_bytes(2) IS NOT NULL);
    ALTER TABLE a ENABLE ROW LEVEL SECURITY;
    CREATE POLICY p ON a USING (gen_random_bytes(1) IS NOT NULL);
    INSERT INTO a VALUES (1);
    INSERT INTO t VALUES (1);
    UPDATE a SET d = 'x'
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_calls_a_function_of_an_extension_stops_no_rows(
    cluster: Cluster, database_url: str, tmp_path: Path
) -> None:
    farm, copies = str(tmp_path / "farm"), [cluster.create_database() for _ in range(2)]
    for url in (database_url, *copies):
        execute(url, "CREATE EXTENSION pgcrypto")
    execute(database_url, "CREATE TABLE t (id int PRIMARY KEY)")
    wlc.master(database_url, farm=farm, name="x")
    wlr.replicate("x", farm=farm, into=copies[0], register=False)
    execute(database_url, *REACHING.split(";\n"))
    wlc.flush(database_url)
    for copy in copies:
        wlr.replicate("x", farm=farm, into=copy, register=False)
        for table in "at":
            query = f"SELECT * FROM {table}"
            assert execute(copy, query) == execute(database_url, query)
        left_out = wlr.status(copy).left_out
        assert set(left_out) == {
            "function public.token()",
            "function public.nested()",
            "default of domain public.tok",
            "constraint renamed of domain public.tok",
            "constraint more of domain public.tok",
            "default of column k of table public.a",
            "constraint odd of table public.a",
            "default of column k of table public.t",
            "constraint other one of table public.t",
            "view public.v",
            "materialized view public.m",
            "view public.state",
            "policy p on table public.a",
        }
        for what in [what for what in left_out if what.startswith(("default", "constraint"))]:
            execute(copy, left_out[what].partition("; to have it, run ")[2])
        wlc.snapshot(database_url)


# As pg_dump writes it: functions are made before what they read.
DUMP = (
    "SET check_function_bodies = off; CREATE FUNCTION n() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) FROM late'",
    "SET check_function_bodies = off; CREATE FUNCTION n(int) RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) + $1 FROM late'",
    "REVOKE EXECUTE ON FUNCTION n() FROM PUBLIC",
    "CREATE VIEW shown AS SELECT n() AS n",
    "GRANT SELECT ON shown TO PUBLIC",
    "CREATE MATERIALIZED VIEW kept AS SELECT n() + 1 AS n WITH NO DATA",
    "CREATE TABLE first (id int PRIMARY KEY, v bigint DEFAULT n(3))",
)
ACCESS = "SELECT 'shown', relacl::text FROM pg_class WHERE relname = 'shown' UNION ALL SELECT proname, proacl::text FROM pg_proc WHERE proname = 'n' ORDER BY 1, 2"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("by", ["the log", "hand"])
def test_what_came_before_its_table_is_made_with_it(
    cluster: Cluster, database_url: str, tmp_path: Path, by: str
) -> None:
    farm, copy, other = str(tmp_path / "farm"), cluster.create_database(), cluster.create_database()
    wlc.master(database_url, farm=farm, name="x")
    wlr.replicate("x", farm=farm, into=copy, register=False, access=True)
    for statement in DUMP:
        execute(database_url, statement)
        wlc.flush(database_url)
        wlr.replicate(into=copy)
    left_out = wlr.status(copy).left_out
    assert set(left_out) == {
        "function public.n()",
        "function public.n(integer)",
        "EXECUTE for PUBLIC on function public.n()",
        "view public.shown",
        "materialized view public.kept",
        "SELECT for PUBLIC on table public.shown",
        "default of column v of table public.first",
    }
    execute(
        database_url,
        "CREATE TABLE late (id int PRIMARY KEY)",
        "INSERT INTO late VALUES (1)",
        "INSERT INTO first VALUES (1)",
    )
    wlc.flush(database_url)
    if by == "hand":
        # What is typed needs no second try.
        execute(
            copy,
            "CREATE TABLE late (id int)",
            *(cause.partition("; once it is there, run ")[2] for cause in left_out.values()),
        )
        execute(copy, "ALTER TABLE late RENAME TO aside")
    wlr.replicate(into=copy)
    assert wlr.status(copy).left_out == {}
    execute(copy, "REFRESH MATERIALIZED VIEW kept")
    assert execute(copy, "SELECT s.n, n(2), v, k.n FROM shown s, first, kept k") == [(1, 3, 4, 2)]
    wlc.snapshot(database_url)
    wlr.replicate("x", farm=farm, into=other, register=False, access=True)
    assert execute(copy, ACCESS) == execute(other, ACCESS)
    assert execute(other, "SELECT n, n(2), v FROM shown, first") == [(1, 3, 4)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_left_out_is_not_made_of_what_has_another_name_now(
    cluster: Cluster, database_url: str, tmp_path: Path
) -> None:
    farm, copy = str(tmp_path / "farm"), cluster.create_database()
    execute(database_url, "CREATE EXTENSION pg_trgm", "CREATE TABLE t (a text, b text)")
    wlc.master(database_url, farm=farm, name="x")
    wlr.replicate("x", farm=farm, into=copy, register=False)
    execute(database_url, "CREATE VIEW v AS SELECT a FROM t WHERE a % 'x'")
    wlc.flush(database_url)
    wlr.replicate(into=copy)
    assert "; once it is there, run CREATE OR REPLACE VIEW" in wlr.status(copy).left_out["view public.v"]
    execute(database_url, "ALTER TABLE t RENAME a TO c", "ALTER TABLE t RENAME b TO a", "INSERT INTO t VALUES ('x')")
    wlc.flush(database_url)
    execute(copy, "CREATE EXTENSION pg_trgm")
    wlr.replicate(into=copy)
    # The view reads c in the master.
    assert execute(copy, "SELECT to_regclass('v')") == [(None,)]
    assert "CREATE" not in wlr.status(copy).left_out["view public.v"]
    execute(database_url, "CREATE OR REPLACE VIEW v AS SELECT c AS a FROM t WHERE c % 'x'")
    wlc.flush(database_url)
    wlr.replicate(into=copy)
    assert wlr.status(copy).left_out == {}
