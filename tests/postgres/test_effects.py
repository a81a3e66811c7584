"""What the log of a PostgreSQL master says of its schema statements is what the catalog shows, at every tick."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import wlc
from tests.fault.processes import rounds, seed
from tests.postgres import folded
from wlc.farm.database import open_database
from wlc.farm.model import Ddl

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres.cluster import Cluster

pytestmark = pytest.mark.slow

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
_OWN = "::regnamespace::text ~ '^(s|n)'"
_RELATION = f"SELECT oid, oid::regclass::text FROM pg_class c WHERE relnamespace{_OWN} AND relkind"
_COLUMNS = "FROM pg_attribute WHERE attrelid = {of} AND attnum > 0 AND NOT attisdropped"
_ROUTINES = f"FROM pg_proc WHERE oid >= 16384 AND pronamespace{_OWN}"
# The number and the name of all that a word can stand for; {of} is the last relation that was named.
CHOICES = {
    "schema": f"SELECT NULL, nspname FROM pg_namespace WHERE oid{_OWN}",
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
    "domain": f"SELECT oid, format_type(oid, NULL) FROM pg_type WHERE typtype = 'd' AND typnamespace{_OWN}",
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


def _run(connection: psycopg.Connection[Any], chance: random.Random) -> tuple[int | None, list[str]]:
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
            xid, done = _run(connection, chance)
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
