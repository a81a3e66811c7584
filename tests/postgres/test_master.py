"""A PostgreSQL master and its replicas: what is committed arrives, whatever it was."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import wlc
import wlr
from tests.lake import to_duckdb
from tests.postgres.cluster import execute
from tests.postgres.comparing import expected_in_duckdb, held_in_duckdb, texts_of
from tests.sampling import sampled
from tests.sound import assert_same, assert_sound
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from tests.postgres.cluster import Cluster
    from tests.postgres.comparing import Rows

pytestmark = pytest.mark.slow

TABLES = {
    "customers": "CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, mail varchar(80), since date)",
    "orders": """CREATE TABLE orders (id bigserial PRIMARY KEY, customer bigint REFERENCES customers ON DELETE CASCADE,
        amount numeric(12,2), at timestamptz, note text)""",
    "notes": "CREATE TABLE notes (day date, text text)",
}
ROWS = {
    "customers": "INSERT INTO customers SELECT i, 'c' || i, NULL, '2020-01-01' FROM generate_series(1, 50) i",
    "orders": """INSERT INTO orders (customer, amount, at, note)
        SELECT i % 50 + 1, i / 7.0, '2024-01-01', 'n' || i FROM generate_series(1, 500) i""",
    "notes": "INSERT INTO notes VALUES ('2024-01-01', 'a'), ('2024-01-01', 'a'), (NULL, NULL)",
}

# Each is a transaction of its own.
CHANGES = {
    "insert": "INSERT INTO customers VALUES (51, 'new', 'a@b', now())",
    "update": "UPDATE orders SET amount = amount + 1, note = NULL WHERE id <= 100",
    "update of keys": "UPDATE orders SET id = -id WHERE id % 7 = 0",
    "delete with cascade": "DELETE FROM customers WHERE id BETWEEN 10 AND 12",
    "one of two equal rows": "DELETE FROM notes WHERE ctid = (SELECT min(ctid) FROM notes WHERE text = 'a')",
    "equal rows": "INSERT INTO notes VALUES (NULL, NULL), (NULL, NULL), ('2024-01-01', 'a')",
    "truncate": "TRUNCATE notes",
    "truncate with cascade": "TRUNCATE customers CASCADE",
    "truncate between changes": """BEGIN; INSERT INTO notes VALUES (NULL, 'before'); UPDATE notes SET day = '2000-01-01';
        TRUNCATE notes; INSERT INTO notes VALUES (NULL, 'after'); COMMIT""",
    "truncate twice": "BEGIN; INSERT INTO notes SELECT FROM generate_series(1, 3); TRUNCATE notes;"
    " INSERT INTO notes VALUES (NULL, 'x'); TRUNCATE notes; COMMIT",
    "copy": "COPY (SELECT 1) TO PROGRAM 'cat > /dev/null'; INSERT INTO notes SELECT NULL, repeat('x', i)"
    " FROM generate_series(1, 2000) i",
    "savepoints": """BEGIN; INSERT INTO notes VALUES (NULL, 'kept'); SAVEPOINT s; INSERT INTO notes VALUES (NULL, 'gone');
        ROLLBACK TO s; UPDATE customers SET name = 'kept' WHERE id = 1; COMMIT""",
    "rollback": "BEGIN; DELETE FROM orders; ROLLBACK",
    "upsert": """INSERT INTO customers SELECT i, 'up' || i FROM generate_series(40, 60) i
        ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name""",
    "merge": """MERGE INTO customers c USING (SELECT generate_series(1, 5) i) s ON c.id = s.i
        WHEN MATCHED AND i < 3 THEN DELETE WHEN MATCHED THEN UPDATE SET name = 'merged'""",
    "large values": "INSERT INTO notes SELECT NULL, string_agg(md5(i::text), '') FROM generate_series(1, 3000) i",
    "update beside large values": """INSERT INTO notes SELECT NULL, string_agg(md5(i::text), '')
        FROM generate_series(1, 3000) i; UPDATE notes SET day = '2024-06-06' WHERE length(text) > 10000""",
}

# Schema changes with rows before, between and after; each is a transaction of its own unless it says otherwise.
SCHEMA_CHANGES = {
    "add column": "ALTER TABLE orders ADD COLUMN extra int; UPDATE orders SET extra = id WHERE id < 5",
    "add column with default": "ALTER TABLE orders ADD COLUMN state text DEFAULT 'open' NOT NULL",
    "add column with the time": "ALTER TABLE orders ADD COLUMN seen timestamptz DEFAULT now()",
    "add column that is computed": "ALTER TABLE orders ADD COLUMN code uuid DEFAULT gen_random_uuid()",
    "add column in a transaction": """BEGIN; DELETE FROM orders WHERE id = 3; ALTER TABLE orders ADD COLUMN b int DEFAULT 5;
        INSERT INTO orders (customer, b) VALUES (2, 9); ALTER TABLE orders DROP COLUMN note;
        UPDATE orders SET amount = 0 WHERE id = 4; COMMIT""",
    "serial column": "ALTER TABLE notes ADD COLUMN n serial",
    "identity column": "ALTER TABLE notes ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY (START 100 INCREMENT 5)",
    "generated column": "ALTER TABLE orders ADD COLUMN twice numeric GENERATED ALWAYS AS (amount * 2) STORED;"
    " UPDATE orders SET amount = 3 WHERE id = 9",
    "drop column": "ALTER TABLE orders DROP COLUMN note; DELETE FROM orders WHERE id = 1",
    "rename column": "ALTER TABLE orders RENAME COLUMN note TO remark; UPDATE orders SET remark = 'r' WHERE id = 8",
    "swap columns": """BEGIN; ALTER TABLE customers RENAME name TO t; ALTER TABLE customers RENAME mail TO name;
        ALTER TABLE customers RENAME t TO mail; COMMIT""",
    "rename key": "ALTER TABLE orders RENAME COLUMN id TO number; UPDATE orders SET amount = 1 WHERE number = 8",
    "rename table": "ALTER TABLE notes RENAME TO remarks; INSERT INTO remarks VALUES (NULL, 'new')",
    "other type": "ALTER TABLE orders ALTER amount TYPE double precision USING amount / 3",
    "other type in a transaction": """BEGIN; UPDATE orders SET amount = 7 WHERE id = 2; ALTER TABLE orders ALTER amount TYPE text
        USING 'about ' || amount; DELETE FROM orders WHERE id = 2; INSERT INTO orders (id, amount) VALUES (-1, 'x'); COMMIT""",
    "longer text": "ALTER TABLE customers ALTER mail TYPE varchar(200); UPDATE customers SET mail = repeat('m', 150)",
    "wider number": "ALTER TABLE orders ALTER amount TYPE numeric(20,4); UPDATE orders SET amount = 1.2345 WHERE id = 5",
    "type of the key": "ALTER TABLE orders ALTER id TYPE text; UPDATE orders SET id = 'o' || id WHERE id < '2'",
    "other key": "ALTER TABLE orders DROP CONSTRAINT orders_pkey; INSERT INTO orders (id) VALUES (1); DELETE FROM orders"
    " WHERE ctid = (SELECT min(ctid) FROM orders WHERE id = 1)",
    "first key": "DELETE FROM notes; INSERT INTO notes VALUES (NULL, 'k'); ALTER TABLE notes ADD PRIMARY KEY (text);"
    " UPDATE notes SET day = now()",
    "constraints": """ALTER TABLE orders ADD CONSTRAINT positive CHECK (amount > -100), ADD UNIQUE (customer, id);
        ALTER TABLE orders DROP CONSTRAINT positive; ALTER TABLE orders ALTER customer SET NOT NULL""",
    "new table": "CREATE TABLE fresh (a int PRIMARY KEY, b jsonb); INSERT INTO fresh VALUES (1, '{\"a\": 1}')",
    "new table with rows at once": "CREATE TABLE copied AS SELECT * FROM orders WHERE id < 10",
    "new table and rows in a transaction": """BEGIN; CREATE TABLE copied AS SELECT * FROM orders; DELETE FROM copied
        WHERE id > 20; ALTER TABLE copied ADD PRIMARY KEY (id); INSERT INTO copied (id) VALUES (-5); COMMIT""",
    "table for a moment": "BEGIN; CREATE TABLE moment (a int); INSERT INTO moment VALUES (1); DROP TABLE moment; COMMIT",
    "drop and make again": """DROP TABLE notes; CREATE TABLE notes (n serial, other text);
        INSERT INTO notes (other) VALUES ('again')""",
    "drop several": "DROP TABLE orders, notes CASCADE",
    "schemas": """CREATE SCHEMA archive; ALTER TABLE notes SET SCHEMA archive; INSERT INTO archive.notes VALUES (NULL, 'x');
        CREATE TABLE archive.old (id int PRIMARY KEY)""",
    "drop schema": "CREATE SCHEMA gone CREATE TABLE t (a int); DROP SCHEMA gone CASCADE",
    "unlogged becomes logged": "CREATE UNLOGGED TABLE fast (a int); INSERT INTO fast VALUES (1), (2);"
    " ALTER TABLE fast SET LOGGED; INSERT INTO fast VALUES (3)",
    "temporary table": "BEGIN; CREATE TEMP TABLE t (a int) ON COMMIT DROP; INSERT INTO t VALUES (1);"
    " INSERT INTO notes SELECT NULL, 'temp'; COMMIT",
    "partitions": """CREATE TABLE events (day date, n int) PARTITION BY RANGE (day);
        CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
        CREATE TABLE events_2 (n int, day date); INSERT INTO events_2 VALUES (7, '2024-02-03');
        ALTER TABLE events ATTACH PARTITION events_2 FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
        INSERT INTO events VALUES ('2024-01-05', 1), ('2024-02-05', 2); UPDATE events SET day = '2024-02-06' WHERE n = 1;
        ALTER TABLE events ADD COLUMN more text DEFAULT 'm'; TRUNCATE events_2; INSERT INTO events VALUES ('2024-01-07', 3);
        ALTER TABLE events DETACH PARTITION events_1; INSERT INTO events_1 VALUES ('2024-01-08', 4)""",
    "partitions get another type": """CREATE TABLE old_part (a int, b int); INSERT INTO old_part VALUES (2, 20);
        CREATE TABLE p (a int, b int) PARTITION BY LIST (a); CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
        ALTER TABLE p ATTACH PARTITION old_part FOR VALUES IN (2); INSERT INTO p VALUES (1, 1);
        ALTER TABLE p ALTER b TYPE text USING 'b' || b; INSERT INTO p VALUES (1, 'x'); ALTER TABLE p ALTER b SET NOT NULL;
        ALTER TABLE p RENAME b TO c; ALTER TABLE p ADD PRIMARY KEY (a, c); UPDATE p SET c = c || '!'; CREATE INDEX ON p (c);
        ALTER TABLE p DROP CONSTRAINT p_pkey; ALTER TABLE p ALTER c DROP NOT NULL; ALTER TABLE p DROP COLUMN c""",
    "children get another type": """CREATE TABLE child (c int) INHERITS (notes); INSERT INTO child VALUES (NULL, 'child', 1);
        ALTER TABLE notes ALTER day TYPE text; ALTER TABLE notes RENAME text TO body; ALTER TABLE child ADD own int DEFAULT 4;
        ALTER TABLE notes ADD CHECK (body <> ''); ALTER TABLE notes DROP COLUMN day; INSERT INTO child VALUES ('y', 2, 3);
        ALTER TABLE child NO INHERIT notes; ALTER TABLE notes ADD COLUMN z int""",
    "partitions in partitions": """CREATE TABLE p (a int, b int) PARTITION BY LIST (a);
        CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1) PARTITION BY LIST (b);
        CREATE TABLE p11 PARTITION OF p1 FOR VALUES IN (1); INSERT INTO p VALUES (1, 1); TRUNCATE p;
        INSERT INTO p VALUES (1, 1); DROP TABLE p11""",
    "inheritance": "CREATE TABLE child (c int) INHERITS (notes); INSERT INTO child VALUES (NULL, 'in child', 1);"
    " ALTER TABLE notes ADD COLUMN both_have int DEFAULT 3",
    "in a function": """CREATE FUNCTION grow() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        CREATE TABLE grown (a int PRIMARY KEY); INSERT INTO grown VALUES (1); ALTER TABLE grown ADD COLUMN b int DEFAULT 2;
        END $$; SELECT grow()""",
    "names that need quotes": 'CREATE TABLE "Odd ""name" ("A b" int PRIMARY KEY, "select" text, _tick int, _weight int);'
    ' INSERT INTO "Odd ""name" VALUES (1, \'x\', 2, 3); ALTER TABLE "Odd ""name" RENAME "A b" TO "c.d" ',
    "things without rows": """CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);
        CREATE TABLE person (name text, feels mood, age positive); INSERT INTO person VALUES ('a', 'ok', 3);
        CREATE VIEW adults AS SELECT * FROM person WHERE age > 18; CREATE INDEX ON person (age);
        CREATE MATERIALIZED VIEW many AS SELECT * FROM person; COMMENT ON TABLE person IS 'people'""",
}


@dataclass(frozen=True)
class Shop:
    """A master and a replica of each kind."""

    url: str
    folder: Path
    copy: Path
    postgres: str
    lake: Path
    # A server's log does not say what a table holds after some of its alterations.
    may_be_unknown: bool = False

    def replicate(self, *places: object) -> None:
        """Roll replicas forward, or make them."""
        for place in places:
            with warnings.catch_warnings():
                # It creates tables, which no function of a replica may.
                warnings.filterwarnings("ignore", message=r"function in_a_function\.grow is left out")
                wlr.replicate("shop", farm=str(self.folder / "farm"), into=str(place))

    def follow(self) -> None:
        """Publish, roll the replicas forward, and compare them all."""
        wlc.flush(self.url)
        self.replicate(self.copy, self.postgres, self.lake)
        self.compare(self.copy, self.postgres, to_duckdb(self.lake, self.folder / "lake.duckdb"))
        assert_same(self.copy, self.lake, self.postgres, may_be_unknown=self.may_be_unknown)
        assert_sound(self.folder / "farm" / "shop")

    def new_replicas(self, cluster: Cluster) -> tuple[Path, str]:
        """Make a replica as a file and one in a server."""
        name = cluster.create_database()
        file = self.folder / f"{name.rpartition('/')[2]}.duckdb"
        self.replicate(file, name)
        return file, name

    def compare(self, *replicas: Path | str) -> None:
        """Compare every row of replicas with the master."""
        for replica in replicas:
            if isinstance(replica, str):
                assert texts_of(replica) == texts_of(self.url)
            else:
                assert held_in_duckdb(replica) == expected_in_duckdb(self.url)


def new_shop(cluster: Cluster, folder: Path) -> Shop:
    """Make a master with a replica of each kind."""
    url = cluster.create_database()
    execute(url, *TABLES.values(), *ROWS.values())
    wlc.master(url, farm=str(folder / "farm"), name="shop")
    shop = Shop(url, folder, folder / "copy.duckdb", cluster.create_database(), folder / "lake")
    shop.replicate(shop.copy, shop.postgres, shop.lake)
    return shop


@pytest.fixture
def shop(cluster: Cluster, tmp_path: Path) -> Shop:
    return new_shop(cluster, tmp_path)


@pytest.fixture(scope="module")
def busy_shop(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop to which one change after the other is made."""
    return new_shop(cluster, tmp_path_factory.mktemp("busy"))


@pytest.mark.parametrize("change", sampled(list(CHANGES), 9))
def test_changes_arrive(busy_shop: Shop, change: str) -> None:
    execute(busy_shop.url, "TRUNCATE customers CASCADE", "TRUNCATE notes", *ROWS.values())
    execute(busy_shop.url, CHANGES[change])
    busy_shop.follow()


def test_replicas_that_are_made_after_changes_hold_the_same(busy_shop: Shop, cluster: Cluster) -> None:
    busy_shop.follow()
    busy_shop.compare(*busy_shop.new_replicas(cluster))


def schema_of(change: str) -> str:
    """Every change of the schema happens to a shop of its own."""
    return change.replace(" ", "_")


def tables_of(change: str) -> list[str]:
    """Return the tables that a change is about, and those that they refer to."""
    text = SCHEMA_CHANGES[change] + (" customers" if "orders" in SCHEMA_CHANGES[change] else "")
    return [table for table in TABLES if table in text]


def execute_in(schema: str, url: str, *statements: str) -> None:
    """Run statements as somebody who works in a schema."""
    with psycopg.connect(url, autocommit=True, options=f"-c search_path={schema}") as connection:
        for statement in statements:
            connection.execute(statement)


@dataclass(frozen=True)
class Compared:
    """What a master holds, and what each of its replicas holds of it."""

    in_duckdb: list[tuple[Rows, Rows]]
    in_postgres: list[tuple[Rows, Rows]]


# What a schema change costs grows with the number of tables, so the changes share several masters.
MASTERS = 5


@pytest.fixture(scope="module", params=sampled(range(MASTERS), 1))
def changed_schemas(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[list[str], Compared]:
    """Make some of the changes, follow them, and make replicas from the snapshots that can be taken afterwards."""
    folder, url = tmp_path_factory.mktemp("schemas"), cluster.create_database()
    changes = list(SCHEMA_CHANGES)[request.param :: MASTERS]
    for change in changes:
        execute(url, f"CREATE SCHEMA {schema_of(change)}")
        names = tables_of(change)
        execute_in(schema_of(change), url, *(TABLES[name] for name in names), *(ROWS[name] for name in names))
    wlc.master(url, farm=str(folder / "farm"), name="shop")
    shop = Shop(url, folder, folder / "copy.duckdb", cluster.create_database(), folder / "lake", may_be_unknown=True)
    shop.replicate(shop.copy, shop.postgres, shop.lake)
    for change in changes:
        execute_in(schema_of(change), url, *_statements(SCHEMA_CHANGES[change]))
    wlc.flush(url)
    replicas: list[Path | str] = [shop.copy, shop.postgres]
    shop.replicate(*replicas, shop.lake)
    assert_same(*replicas, shop.lake, may_be_unknown=True)
    assert_sound(folder / "farm" / "shop")
    # Snapshots of the changed schema can be loaded, too: the one that the log leads to, and the master's own.
    wlr.snapshot_from_log("shop", farm=str(folder / "farm"))
    replicas += shop.new_replicas(cluster)
    execute(url, "CREATE TABLE later (a int)")
    wlc.snapshot(url)
    shop.replicate(*replicas, shop.lake)
    replicas += shop.new_replicas(cluster)
    expected, texts = expected_in_duckdb(url), texts_of(url)
    files = [*(replica for replica in replicas if isinstance(replica, Path)), to_duckdb(shop.lake, folder / "l.duckdb")]
    servers = [replica for replica in replicas if isinstance(replica, str)]
    return changes, Compared(
        [(held_in_duckdb(file), expected) for file in files], [(texts_of(server), texts) for server in servers]
    )


@pytest.mark.filterwarnings("ignore:CREATE FUNCTION in_a_function.grow:UserWarning")
def test_schema_changes_arrive(changed_schemas: tuple[list[str], Compared]) -> None:
    changes, compared = changed_schemas
    for held, expected in (*compared.in_duckdb, *compared.in_postgres):
        assert held.keys() == expected.keys()
        wrong = [table for table in expected if held[table] != expected[table]]
        assert wrong == [], f"of {changes}"


def test_a_new_value_of_an_enum_arrives(shop: Shop, cluster: Cluster) -> None:
    execute(shop.url, "CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE TABLE person (feels mood)")
    execute(shop.url, "INSERT INTO person VALUES ('ok')", "ALTER TYPE mood ADD VALUE 'happy' BEFORE 'ok'")
    execute(shop.url, "INSERT INTO person VALUES ('happy')")
    shop.follow()
    assert execute(shop.postgres, "SELECT max(feels)::text FROM person") == [("ok",)]
    with pytest.raises(UnsupportedError, match=r"mood got a new value.*"):
        wlr.snapshot_from_log("shop", farm=str(shop.folder / "farm"))


def _statements(script: str) -> list[str]:
    """Run statements one by one, unless they are a transaction or hold a function's body."""
    if script.lstrip().startswith("BEGIN") or "$$" in script:
        return [script]
    return [statement for statement in script.split(";") if statement.strip()]
