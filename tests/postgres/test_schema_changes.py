"""What is done in a PostgreSQL master arrives in its replicas of each kind: tables, rows, and everything around them."""

from __future__ import annotations

import random
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import wlc
import wlr
from tests.fault.processes import rounds, seed
from tests.lake import any_file
from tests.postgres import folded
from tests.postgres.cluster import execute
from tests.postgres.comparing import expected_in_duckdb, held_in_duckdb, texts_of
from tests.postgres.schema_cases import CASES, CATALOG, places
from tests.sampling import sampled
from tests.sound import assert_same, assert_sound
from wlc.capture.postgres import snapshot
from wlc.farm.database import open_database
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Ddl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres.cluster import Cluster
    from wlc.capture.postgres.snapshot import Look

# What a schema change costs grows with the number of tables, so the cases share several masters; one of them has replicas
# in files, too.
MASTERS = 4
WITH_FILES = sampled(range(MASTERS), 1)


@dataclass(frozen=True)
class Changed:
    """A master in which everything has changed, its farm, and replicas that followed: in a server, a file, a folder."""

    url: str
    farm: str
    server: str
    files: tuple[Path, ...]

    def replicate(self, *places: Path | str) -> None:
        """Make replicas or roll them forward; nothing may be left out."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for into in places:
                wlr.replicate("x", farm=self.farm, into=into, engine="local", register=False)


@pytest.fixture(scope="module", params=range(MASTERS))
def changed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Changed:
    folder = tmp_path_factory.mktemp("changed")
    url, server = cluster.create_database(), cluster.create_database()
    files = (folder / "r.duckdb", folder / "lake") if request.param in WITH_FILES else ()
    found = Changed(url, str(folder / "farm"), server, files)
    cases = list(CASES.items())[request.param :: MASTERS]
    execute(url, *(places(case, f"CREATE SCHEMA OWN; SET search_path = OWN; {texts[0]}") for case, texts in cases))
    wlc.master(url, farm=found.farm, name="x")
    found.replicate(server, *files)
    steps = [(case, ("SET search_path = OWN", *texts[1:])) for case, texts in cases]
    execute(url, *(places(case, text) for case, texts in steps for text in texts))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wlc.flush(url)
    assert not wlc.status(url).bypassed
    found.replicate(server, *files)
    return found


def compare(url: str, replica: str, catalog: str = CATALOG) -> None:
    assert texts_of(replica) == texts_of(url)
    held, expected = ({str(row[0]) for row in execute(database, catalog)} for database in (replica, url))
    assert held - expected == set()
    assert expected - held == set()


@pytest.mark.slow
def test_replicas_in_a_server_follow_and_begin_at_a_snapshot(cluster: Cluster, changed: Changed):
    compare(changed.url, changed.server)
    wlc.snapshot(changed.url)
    begun = cluster.create_database()
    changed.replicate(begun)
    compare(changed.url, begun)


@pytest.mark.slow
def test_replicas_in_files_follow_and_begin_at_a_snapshot(changed: Changed, tmp_path: Path):
    wlc.snapshot(changed.url)
    begun = tmp_path / "begun.duckdb"
    changed.replicate(begun)
    expected = expected_in_duckdb(changed.url)
    for replica in (begun, *changed.files):
        held = held_in_duckdb(any_file(replica))
        assert held.keys() == expected.keys()
        assert [table for table in expected if held[table] != expected[table]] == []


@pytest.mark.slow
def test_replicas_and_the_farm_prove_themselves(changed: Changed):
    # A server's log does not say what a table holds after some of its alterations.
    assert_same(changed.server, *changed.files, may_be_unknown=True)
    assert_sound(f"{changed.farm}/x")


@pytest.mark.slow
def test_the_effects_of_the_log_and_of_a_snapshot_are_what_the_catalog_shows(changed: Changed):
    url, farm = changed.url, changed.farm
    wlc.snapshot(url)
    database = open_database("x", farm)
    first, *_, last = database.snapshot_ticks()
    batches = (database.read_batch(number)[0] for number in database.batch_numbers())
    log = [r for batch in batches for t in batch.transactions for r in t.records if isinstance(r, Ddl)]
    folds = {}
    for is_postgres in (True, False):
        fold = folded.of_snapshot(database.read_manifest(first), is_postgres=is_postgres)
        folded.follow(fold, log, is_postgres=is_postgres)
        folds[is_postgres] = fold
        later = folded.of_snapshot(database.read_manifest(last), is_postgres=is_postgres)
        assert folded.said(fold) == folded.said(later)
    assert folded.differences(folds[True], folded.shown(lambda query: execute(url, query))) == {}


# What is dropped with its owner, its schema or its extension: what makes it, rows, the drop, rows afterwards.
DROPPED = {
    "schemas": (
        "CREATE SCHEMA a CREATE TABLE r (a serial PRIMARY KEY, t text UNIQUE) CREATE VIEW v AS SELECT a FROM r",
        "CREATE TABLE a.p (a int) PARTITION BY LIST (a); CREATE TABLE a.p1 PARTITION OF a.p (FOREIGN KEY (a) REFERENCES a.r)"
        " FOR VALUES IN (1); CREATE TABLE a.p2 PARTITION OF a.p FOR VALUES IN (2) PARTITION BY LIST (a);"
        " CREATE TABLE a.p21 PARTITION OF a.p2 DEFAULT",
        "CREATE SCHEMA b CREATE TABLE c (a int REFERENCES a.r); CREATE TYPE a.e AS ENUM ('x'); CREATE TABLE kept (e a.e, n int)",
        "INSERT INTO a.r VALUES (1); INSERT INTO a.p VALUES (1), (2); INSERT INTO b.c VALUES (1); INSERT INTO kept VALUES ('x', 1)",
        "DROP SCHEMA a, b CASCADE",
    ),
    "an owner": (
        "CREATE ROLE had; CREATE SCHEMA a AUTHORIZATION had CREATE TABLE t (a int) CREATE TABLE p (a int) PARTITION BY LIST (a)",
        "GRANT CREATE ON SCHEMA public TO had; SET ROLE had; CREATE TABLE r (a int PRIMARY KEY, b serial); CREATE SEQUENCE q;"
        " CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE TYPE e AS ENUM ('x'); RESET ROLE",
        "CREATE TABLE kept (a int REFERENCES r, b int DEFAULT f(), c e, d int DEFAULT nextval('q')); CREATE TABLE a.other (a int);"
        " CREATE VIEW v AS SELECT a FROM r; CREATE TABLE a.p1 PARTITION OF a.p DEFAULT; CREATE TABLE child () INHERITS (r);"
        " CREATE TABLE p (a int) PARTITION BY LIST (a); CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);"
        " CREATE TABLE p2 PARTITION OF p DEFAULT; ALTER TABLE p1 OWNER TO had",
        "INSERT INTO r VALUES (1); INSERT INTO kept VALUES (1, 2, 'x'); INSERT INTO a.t VALUES (6); INSERT INTO p VALUES (1), (2)",
        "DROP OWNED BY had CASCADE",
        "INSERT INTO kept VALUES (9, 9); INSERT INTO p VALUES (3); DROP ROLE had",
    ),
    # A replica that is a server needs the extension, whose tables it would have then.
    "an extension": (
        "CREATE SCHEMA a; CREATE EXTENSION citext; CREATE TABLE r (a int PRIMARY KEY, b serial, c int GENERATED ALWAYS AS IDENTITY)",
        "ALTER EXTENSION citext ADD TABLE r; ALTER EXTENSION citext ADD SEQUENCE r_b_seq; ALTER EXTENSION citext ADD SEQUENCE r_c_seq",
        "CREATE TABLE kept (a int REFERENCES r, b citext); CREATE VIEW v AS SELECT a FROM r; CREATE TABLE child () INHERITS (r)",
        "INSERT INTO r VALUES (1); INSERT INTO kept VALUES (1, 'X'); INSERT INTO child VALUES (2, 3, 4)",
        "ALTER EXTENSION citext SET SCHEMA a; INSERT INTO a.r VALUES (2)",
        "DROP EXTENSION citext CASCADE",
        "INSERT INTO kept VALUES (7)",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("what", "begins"), [*((what, 0) for what in DROPPED), ("an extension", 3)])
def test_what_goes_with_its_schema_owner_or_extension(
    cluster: Cluster, database_url: str, tmp_path: Path, what: str, begins: int
):
    farm = str(tmp_path / "farm")
    copies = (
        *(() if what == "an extension" else (cluster.create_database(),)),
        tmp_path / "r.duckdb",
        tmp_path / "lake",
    )
    execute(database_url, "CREATE TABLE z (a int)", *DROPPED[what][:begins])
    wlc.master(database_url, farm=farm, name="x")
    for text in ("SELECT", *DROPPED[what][begins:]):
        execute(database_url, text)
        wlc.flush(database_url)
        assert wlc.status(database_url).bypassed == {}
        for into in copies:
            wlr.replicate("x", farm=farm, into=into, register=False)
        assert held_in_duckdb(copies[-2]) == expected_in_duckdb(database_url)
    if what != "an extension":
        compare(database_url, copies[0])
    assert_same(*copies)


@pytest.mark.slow
def test_a_snapshot_from_the_log_has_the_changed_schema(cluster: Cluster, database_url: str, tmp_path: Path):
    farm, copies = str(tmp_path / "farm"), (cluster.create_database(), tmp_path / "copy.duckdb")
    execute(database_url, "CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE TABLE person (id serial, feels mood)")
    wlc.master(database_url, farm=farm, name="x")
    execute(
        database_url,
        "ALTER TABLE person ADD p text DEFAULT 'p', ALTER id TYPE bigint; INSERT INTO person (feels) VALUES ('ok')",
        "CREATE TABLE parts (a int, b int) PARTITION BY LIST (a); CREATE TABLE part PARTITION OF parts DEFAULT",
        "INSERT INTO parts VALUES (1, 2); CREATE VIEW shown AS SELECT a FROM parts",
    )
    wlc.flush(database_url)
    assert wlr.snapshot_from_log("x", farm=farm).position.tick == wlc.tick("x", farm=farm)
    for into in copies:
        done = wlr.replicate("x", farm=farm, into=into, register=False)
        assert (done.transactions, done.snapshot) == (0, done.tick)
    assert held_in_duckdb(copies[1]) == expected_in_duckdb(database_url)
    execute(
        database_url, "ALTER TYPE mood ADD VALUE 'happy' BEFORE 'ok'", "INSERT INTO person (feels) VALUES ('happy')"
    )
    wlc.flush(database_url)
    wlr.replicate("x", farm=farm, into=copies[0], register=False)
    compare(database_url, copies[0])
    assert execute(copies[0], "SELECT max(feels)::text FROM person") == [("ok",)]
    with pytest.raises(UnsupportedError, match=r"mood got a new value.*"):
        wlr.snapshot_from_log("x", farm=farm)


# Effects of random statements ------------------------------------------------------------------------------------------


TRANSACTIONS = 90
STATEMENTS = """
    CREATE TABLE {schema}.{new} (id int PRIMARY KEY, a int UNIQUE, b text CHECK (b <> ''), c int)
    CREATE TABLE {schema}.{new} (id serial, a int CHECK (a > 0) NO INHERIT, b text, UNIQUE (a, b))
    CREATE TABLE {schema}.{new} (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int REFERENCES {keyed})
    CREATE TABLE {schema}.{new} (g int GENERATED ALWAYS AS (a + 1) STORED UNIQUE, a int, b int)
    CREATE TABLE {schema}.{new} (id int, a int, b text, PRIMARY KEY (id), UNIQUE (id, a)) PARTITION BY LIST (id)
    CREATE TABLE {schema}.{new} (LIKE {root} INCLUDING ALL) PARTITION BY LIST (id)
    CREATE TABLE {schema}.{new} PARTITION OF {root} FOR VALUES IN ({number})
    CREATE TABLE {schema}.{new} PARTITION OF {root} FOR VALUES IN ({number})
    CREATE TABLE {schema}.{new} PARTITION OF {root} FOR VALUES IN ({number}) PARTITION BY LIST (id)
    CREATE TABLE {schema}.{new} (own int) INHERITS ({plain})
    CREATE TABLE {schema}.{new} (e {enum}, n int)
    ALTER TABLE {table} RENAME TO {new}
    ALTER TABLE {table} SET SCHEMA {schema}
    ALTER TABLE {table} RENAME COLUMN {column} TO {new}
    ALTER TABLE {table} RENAME COLUMN {column} TO {new}
    ALTER TABLE {table} ADD COLUMN {new} int
    ALTER TABLE {table} ADD COLUMN {new} int DEFAULT 7 CHECK (7 > 0)
    ALTER TABLE {table} ADD COLUMN {new} int GENERATED ALWAYS AS (1 + 1) STORED
    ALTER TABLE {table} DROP COLUMN {column} CASCADE
    ALTER TABLE {table} DROP COLUMN {column} CASCADE, ADD COLUMN {column} int
    ALTER TABLE {table} ALTER COLUMN {column} TYPE text
    ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT NULL
    ALTER TABLE {table} ALTER COLUMN {column} DROP EXPRESSION
    ALTER TABLE {table} ALTER COLUMN {column} DROP IDENTITY
    ALTER TABLE {table} ADD CHECK ({column} IS NOT NULL)
    ALTER TABLE {table} ADD CONSTRAINT {new} CHECK ({column} IS NOT NULL) NOT VALID
    ALTER TABLE {table} ADD UNIQUE ({column})
    ALTER TABLE {table} ADD PRIMARY KEY ({column})
    ALTER TABLE {table} ADD FOREIGN KEY ({column}) REFERENCES {keyed}
    ALTER TABLE {table} ADD EXCLUDE ({column} WITH =)
    ALTER TABLE {table} DROP CONSTRAINT {constraint} CASCADE
    ALTER TABLE {table} RENAME CONSTRAINT {constraint} TO {new}
    ALTER TABLE {table} VALIDATE CONSTRAINT {constraint}
    ALTER TABLE {plain} INHERIT {keyed}
    ALTER TABLE {child} NO INHERIT {parent}
    ALTER TABLE {parent} DETACH PARTITION {child}
    ALTER TABLE {root} ATTACH PARTITION {table} FOR VALUES IN ({number})
    CREATE INDEX ON {table} ({column})
    CREATE UNIQUE INDEX ON {table} ({column})
    CREATE UNIQUE INDEX {new} ON {table} ({column}, (1)) WHERE {column} IS NOT NULL
    ALTER TABLE {table} ADD UNIQUE USING INDEX {its_index}
    ALTER INDEX {index} RENAME TO {new}
    DROP INDEX {index}
    DROP TABLE {table} CASCADE
    CREATE SCHEMA {new}
    ALTER SCHEMA {schema} RENAME TO {new}
    DROP SCHEMA {schema} CASCADE
    CREATE TYPE {schema}.{new} AS ENUM ('x', 'y')
    ALTER TYPE {enum} ADD VALUE '{new}'
    ALTER TYPE {enum} RENAME TO {new}
    ALTER TYPE {enum} SET SCHEMA {schema}
    DROP TYPE {enum} CASCADE
    CREATE DOMAIN {schema}.{new} AS int CHECK (VALUE > 0)
    ALTER DOMAIN {domain} ADD CONSTRAINT {new} CHECK (VALUE > 1)
    ALTER DOMAIN {domain} RENAME CONSTRAINT {check} TO {new}
    ALTER DOMAIN {domain} DROP CONSTRAINT {check}
    ALTER DOMAIN {domain} RENAME TO {new}
    ALTER DOMAIN {domain} SET SCHEMA {schema}
    DROP DOMAIN {domain} CASCADE
    CREATE SEQUENCE {schema}.{new}
    ALTER SEQUENCE {sequence} INCREMENT BY 2
    ALTER SEQUENCE {sequence} RENAME TO {new}
    ALTER SEQUENCE {sequence} SET SCHEMA {schema}
    DROP SEQUENCE {sequence} CASCADE
    CREATE FUNCTION {schema}.{new}(int, text) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT true'
    CREATE FUNCTION {schema}.{new}({enum}, {domain}[], {table}, {view}) RETURNS int LANGUAGE sql AS 'SELECT 1'
    CREATE FUNCTION {called}() RETURNS int LANGUAGE sql AS 'SELECT 1'
    ALTER TABLE {table} ADD CHECK ({called}(1, ''))
    ALTER FUNCTION {function} RENAME TO {new}
    ALTER FUNCTION {function} SET SCHEMA {schema}
    DROP FUNCTION {function} CASCADE
    CREATE VIEW {schema}.{new} AS SELECT {column} AS c FROM {table}
    CREATE OR REPLACE VIEW {view} AS SELECT 1 AS c
    ALTER VIEW {view} RENAME TO {new}
    DROP VIEW {view} CASCADE
    CREATE POLICY {new} ON {table} USING ({column} IS NOT NULL)
    ALTER TABLE {table} ENABLE ROW LEVEL SECURITY
    ALTER POLICY {policy} RENAME TO {new}
    DROP POLICY {policy}
    CREATE TRIGGER {new} BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()
    GRANT SELECT ON {table} TO PUBLIC
    INSERT INTO {table} DEFAULT VALUES
"""
_OWN_SCHEMAS = "::regnamespace::text ~ '^(s|n)'"
_RELATION = f"SELECT oid, oid::regclass::text FROM pg_class c WHERE relnamespace{_OWN_SCHEMAS} AND relkind"
_COLUMNS = "FROM pg_attribute WHERE attrelid = {of} AND attnum > 0 AND NOT attisdropped"
_ROUTINES = f"FROM pg_proc WHERE oid >= 16384 AND pronamespace{_OWN_SCHEMAS}"
# The number and the name of all that a word can stand for; {of} is the last relation that was named.
CHOICES = {
    "schema": f"SELECT NULL, nspname FROM pg_namespace WHERE oid{_OWN_SCHEMAS}",
    "table": f"{_RELATION} IN ('r', 'p')",
    "plain": f"{_RELATION} = 'r' AND NOT relispartition",
    "root": f"{_RELATION} = 'p'",
    "keyed": f"{_RELATION} IN ('r', 'p') AND EXISTS (SELECT FROM pg_constraint WHERE conrelid = c.oid AND contype = 'p')",
    "child": f"{_RELATION} IN ('r', 'p') AND EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid)",
    "parent": f"{_RELATION} IN ('r', 'p') AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid)",
    "index": f"{_RELATION} IN ('i', 'I')",
    "its_index": "SELECT NULL, relname FROM pg_class c JOIN pg_index ON indexrelid = c.oid WHERE indrelid = {of}",
    "sequence": f"{_RELATION} = 'S'",
    "view": f"{_RELATION} = 'v'",
    "column": f"SELECT NULL, attname {_COLUMNS}",
    "constraint": "SELECT NULL, conname FROM pg_constraint WHERE conrelid = {of}",
    "domain": f"SELECT oid, format_type(oid, NULL) FROM pg_type WHERE typtype = 'd' AND typnamespace{_OWN_SCHEMAS}",
    "check": "SELECT NULL, conname FROM pg_constraint WHERE contypid = {of}",
    "enum": "SELECT NULL, format_type(oid, NULL) FROM pg_type WHERE typtype = 'e'",
    "function": f"SELECT NULL, oid::regprocedure::text {_ROUTINES}",
    "called": f"SELECT DISTINCT NULL, oid::regproc::text {_ROUTINES}",
    "policy": "SELECT NULL, format('%I ON %s', polname, polrelid::regclass) FROM pg_policy",
}


class _Words(dict[str, str]):
    """What the words of a statement stand for."""

    def __init__(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        self._connection, self._chance, self._of = connection, chance, 0

    def __missing__(self, word: str) -> str:
        if word in ("new", "number"):
            return f"{'n' if word == 'new' else ''}{self._chance.randrange(100_000)}"
        found = self._connection.execute(f"{CHOICES[word].format(of=self._of)} ORDER BY 2").fetchall()
        if not found:
            raise LookupError(word)
        oid, self[word] = self._chance.choice(found)
        self._of = oid or self._of
        return self[word]


def _run_some(connection: psycopg.Connection[Any], chance: random.Random) -> tuple[int | None, list[str]]:
    """Run a transaction of some statements; return its number, and the statements with the errors of some."""
    listed, done = [line.strip() for line in STATEMENTS.strip().splitlines()], []
    with connection.transaction():
        for _ in range(chance.randint(1, 4)):
            try:
                done.append(chance.choice(listed).format_map(_Words(connection, chance)))
                with connection.transaction():
                    connection.execute(done[-1])
            except LookupError:
                continue
            except psycopg.Error as error:
                done.append(f"-- {error}".partition("\n")[0])
        ((xid,),) = connection.execute("SELECT pg_current_xact_id_if_assigned()::text::bigint").fetchall()
    return xid, done


@pytest.mark.slow
@pytest.mark.parametrize("number", range(rounds(1)))
def test_the_effects_of_random_statements_are_what_the_catalog_shows(cluster: Cluster, tmp_path: Path, number: int):
    url, farm, chance = cluster.create_database(), str(tmp_path), random.Random(f"{seed()} {number}")
    history: list[str] = []
    expected: dict[int, tuple[int, dict[str, Any]]] = {}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA s1; CREATE SCHEMA s2; CREATE TABLE s1.n (id int PRIMARY KEY, a int)")
        wlc.master(url, farm=farm, name="x")
        wlc.snapshot(url)
        for _ in range(TRANSACTIONS):
            xid, done = _run_some(connection, chance)
            history += done
            if xid is not None:
                expected[xid] = (len(history), folded.shown(lambda query: connection.execute(query).fetchall()))
    wlc.flush(url)
    database = open_database("x", farm)
    (tick,) = database.snapshot_ticks()
    fold, others = (folded.of_snapshot(database.read_manifest(tick), is_postgres=which) for which in (True, False))
    for batch in (database.read_batch(number)[0] for number in database.batch_numbers()):
        for transaction in batch.transactions:
            ddls = [record for record in transaction.records if isinstance(record, Ddl)]
            assert transaction.xid is not None
            until, catalog = expected[transaction.xid]
            said = "\n".join(
                [*history[max(0, until - 12) : until], *(f"{d.statement} -- {d.original}: {d.does}" for d in ddls)]
            )
            folded.follow(fold, ddls, is_postgres=True)
            folded.follow(others, ddls, is_postgres=False)
            assert folded.differences(fold, catalog) == {}, said
    wlc.snapshot(url)
    manifest = database.read_manifest(database.snapshot_ticks()[-1])
    assert folded.differences(folded.of_snapshot(manifest, is_postgres=True), catalog) == {}
    assert folded.said(others) == folded.said(folded.of_snapshot(manifest, is_postgres=False))


# Digests ---------------------------------------------------------------------------------------------------------------


DIGESTED = (
    "CREATE TABLE t (id int PRIMARY KEY, a text, n numeric(10,2)); INSERT INTO t SELECT i, i, i FROM generate_series(1, 9) i",
    "CREATE TABLE bag (a int, b text); INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (2, NULL)",
)
ADDED = "ALTER TABLE t ADD z int DEFAULT 5, ADD day date DEFAULT '2024-02-29' NOT NULL"


def check_digests(url: str, farm: str, into: Path) -> None:
    """The newest batch says what every table holds, a replica agrees, and so do the rows of both."""
    database = open_database("x", farm)
    batch, _ = database.read_batch(database.config().batches - 1)
    assert batch.undigested == frozenset()
    assert batch.digests
    wlr.replicate("x", farm=farm, into=into, register=False)
    assert {check_digests.outcome for check_digests in wlr.verify(into).tables} == {"same"}
    checks = wlc.verify_source(url)
    assert {check_digests.outcome for check_digests in checks} == {"same"}
    assert len(checks) == 2


@pytest.mark.slow
@pytest.mark.parametrize("beat_s", [60, pytest.param(0, marks=pytest.mark.deep)])
def test_what_tables_hold_is_known_after_every_schema_change(
    database_url: str, tmp_path: Path, beat_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm, into = str(tmp_path / "farm"), tmp_path / "copy.duckdb"
    execute(database_url, *DIGESTED)
    wlc.master(database_url, farm=farm, name="x", beat_s=beat_s)
    wlr.replicate("x", farm=farm, into=into, register=False)
    steps = [
        [ADDED],
        ["ALTER TABLE bag DROP a; INSERT INTO bag VALUES ('y')"],
        [f"BEGIN; UPDATE t SET n = 0 WHERE id = 1; ALTER TABLE t DROP a; {ADDED.replace('ADD ', 'ADD x')}; COMMIT"],
    ]
    if beat_s:
        steps.append(
            ["DELETE FROM t WHERE id = 2", "ALTER TABLE t ADD w text DEFAULT 'w'", "UPDATE t SET w = 'v' WHERE id = 3"]
        )
    for statements in steps:
        execute(database_url, *statements)
        wlc.flush(database_url)
        check_digests(database_url, farm, into)
    # Others write while the table is looked at: what they commit is in the batch, and not in what is seen.
    looking = snapshot.looking

    @contextmanager
    def looking_while_others_write(url: str) -> Iterator[Look]:
        with looking(url) as look:
            execute(
                url,
                "INSERT INTO bag VALUES ('unseen', 'c')",
                "INSERT INTO t VALUES (100)",
                "DELETE FROM bag WHERE b = 'y'",
            )
            ((lsn,),) = execute(url, "SELECT pg_current_wal_insert_lsn()::text")
            yield replace(look, moment=replace(look.moment, lsn=lsn))

    if beat_s:
        monkeypatch.setattr(snapshot, "looking", looking_while_others_write)
        execute(database_url, "ALTER TABLE bag ADD c text DEFAULT 'd'")
        assert wlc.flush(database_url).transactions == 4
        check_digests(database_url, farm, into)


def test_a_table_that_others_have_locked_is_unknown_for_now(database_url: str, tmp_path: Path) -> None:
    import psycopg

    farm = str(tmp_path / "farm")
    execute(database_url, *DIGESTED)
    wlc.master(database_url, farm=farm, name="x")
    execute(database_url, ADDED)
    with psycopg.connect(database_url, options="-c idle_in_transaction_session_timeout=20s") as other:
        other.execute("LOCK TABLE t")
        assert wlc.flush(database_url).transactions == 1
    outcomes = {check_digests.table: check_digests.outcome for check_digests in wlc.verify_source(database_url)}
    assert outcomes == {"public.t": "unknown", "public.bag": "same"}


def test_a_value_that_does_not_fit_leaves_unknown_what_its_table_holds_after_a_schema_change(
    database_url: str, tmp_path: Path
) -> None:
    farm, into = str(tmp_path / "farm"), tmp_path / "copy.duckdb"
    tables = "CREATE TABLE {0} (id int PRIMARY KEY, a int[]); INSERT INTO {0} VALUES (0, '{{1}}')"
    execute(database_url, *(tables.format(name) for name in ("t", "u", "emptied")))
    wlc.master(database_url, farm=farm, name="x")
    for name in ("t", "u", "emptied"):
        execute(
            database_url,
            f"INSERT INTO {name} VALUES (1, '{{1,2}}'), (2, '{{{{1,2}},{{3,4}}}}')",
            f"DELETE FROM {name} WHERE id = 2",
        )
    execute(database_url, "ALTER TABLE t RENAME TO renamed", "ALTER TABLE u ADD COLUMN x int", "TRUNCATE emptied")
    wlc.flush(database_url)
    outcomes = {check_digests.table: check_digests.outcome for check_digests in wlc.verify_source(database_url)}
    assert outcomes == {"public.renamed": "unknown", "public.u": "unknown", "public.emptied": "same"}
    wlc.snapshot(database_url)
    wlr.replicate("x", farm=farm, into=into, register=False)
    assert {check_digests.outcome for check_digests in wlr.verify(into).tables} == {"same"}
    assert {check_digests.outcome for check_digests in wlc.verify_source(database_url)} == {"same"}


# Types of rows of foreign tables and materialized views ----------------------------------------------------------------


SERVER = "CREATE FOREIGN DATA WRAPPER none; CREATE SERVER none FOREIGN DATA WRAPPER none"
FOREIGN = f"""{SERVER}; CREATE FOREIGN TABLE f (a int, b text) SERVER none; CREATE FOREIGN TABLE unused (a int) SERVER none;
    CREATE TYPE pair AS (f f, n int); CREATE TABLE t (id int, f f, p pair); INSERT INTO t VALUES (1, '(1,x)', '("(2,y)",3)');
    CREATE TABLE source (n int); INSERT INTO source VALUES (7);
    CREATE MATERIALIZED VIEW filled AS SELECT n FROM source; CREATE TABLE of_filled (x filled)"""
FOREIGN_CHANGES = (
    "ALTER FOREIGN TABLE f ADD c int; INSERT INTO t VALUES (2, '(2,z,5)')",
    "ALTER FOREIGN TABLE f RENAME COLUMN b TO bb; CREATE SCHEMA s; ALTER FOREIGN TABLE f SET SCHEMA s",
    "ALTER FOREIGN TABLE s.f RENAME TO g; ALTER TABLE t ADD more s.g[]; UPDATE t SET more = ARRAY[ROW(1, 'q', 2)::s.g]",
    "CREATE FOREIGN TABLE h (x int) SERVER none; CREATE DOMAIN d AS h; CREATE TABLE u (d d, h h, i int)",
    "INSERT INTO u VALUES ('(1)', '(2)', 3)",
    "DROP FOREIGN TABLE h CASCADE; INSERT INTO u VALUES (4)",
    "CREATE FUNCTION first_of(unused) RETURNS int LANGUAGE sql AS 'SELECT ($1).a'",
)
ROW_TYPES = "SELECT typname FROM pg_type WHERE typtype = 'c' AND typname IN ('f', 'g', 'h', 'unused') ORDER BY 1"


@pytest.mark.parametrize("begins", ["before", "after"])
def test_replicas_have_the_type_of_a_foreign_table_where_it_is_used(
    cluster: Cluster, database_url: str, tmp_path: Path, begins: str
) -> None:
    replica, farm = cluster.create_database(), str(tmp_path / "farm")
    execute(database_url, FOREIGN)
    wlc.master(database_url, farm=farm, name="x")

    def follow() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            wlr.replicate("x", farm=farm, into=replica, register=False)

    if begins == "before":
        follow()
        assert execute(replica, ROW_TYPES) == [("f",)]
        assert execute(replica, "SELECT n FROM filled") == [(7,)]
    execute(database_url, *FOREIGN_CHANGES)
    wlc.flush(database_url)
    if begins == "after":
        wlc.snapshot(database_url)
    follow()
    assert texts_of(replica) == texts_of(database_url)
    assert execute(replica, ROW_TYPES) == [("g",), ("unused",)]
    assert execute(replica, "SELECT first_of(ROW(8)), n FROM filled") == [(8, 7)]
    assert wlr.status(replica).left_out == {}


def test_a_foreign_table_of_the_replicas_owner_stays(cluster: Cluster, database_url: str, tmp_path: Path) -> None:
    replica, farm = cluster.create_database(), str(tmp_path / "farm")
    own = "CREATE FOREIGN TABLE f (a int, b text) SERVER none"
    execute(database_url, SERVER, own, "CREATE TABLE t (f f, i int)", "INSERT INTO t VALUES ('(1,x)', 2)")
    execute(replica, SERVER, own)
    wlc.master(database_url, farm=farm, name="x")
    wlr.replicate("x", farm=farm, into=replica, register=False)
    assert texts_of(replica) == texts_of(database_url)
    execute(database_url, "DROP FOREIGN TABLE f CASCADE", "CREATE TABLE u (i int)")
    wlc.flush(database_url)
    wlr.replicate(into=replica, register=False)
    assert texts_of(replica).keys() == {"public.u", "public.t"}
    assert execute(replica, "SELECT relkind FROM pg_class WHERE relname = 'f'") == [("f",)]
