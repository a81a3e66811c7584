"""A shop whose rows refer to each other, for tests of rows that are parked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import wlc
from tests.scratch import attached
from tests.sites import Sites

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

TABLES = ("customers", "orders", "items", "notes", "tree")
SCHEMA = """
    CREATE TABLE customers (id INTEGER PRIMARY KEY, email VARCHAR UNIQUE, tags VARCHAR[], v VARCHAR);
    CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customers (id), number VARCHAR UNIQUE);
    CREATE TABLE items (o INTEGER REFERENCES orders (id), what ENUM ('a', 'b'), twice INTEGER AS (o * 2));
    CREATE TABLE notes (id INTEGER PRIMARY KEY, o INTEGER REFERENCES orders (id));
    CREATE TABLE tree (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES tree (id), mark VARCHAR UNIQUE);
    INSERT INTO customers VALUES (1, 'one', ['x'], ''), (2, 'two', NULL, ''), (3, NULL, [], '');
    INSERT INTO orders VALUES (1, 1, 'A');
    INSERT INTO items VALUES (1, 'a'), (1, 'a'), (1, 'b');
    INSERT INTO tree VALUES (1, NULL, 'r');
    INSERT INTO tree VALUES (2, 1, 's');
"""


@pytest.fixture
def shop(tmp_path: Path) -> Sites:
    return found_shop(tmp_path)


def found_shop(folder: Path) -> Sites:
    """Oslo and Rome, and no rules."""
    sites = Sites(folder)
    sites.found(SCHEMA)
    sites.join("rome")
    return sites


def change_and_refer(sites: Sites) -> None:
    """Oslo changes a unique value of a row to which a new row of Rome refers, and publishes that."""
    sites.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3")
    sites.write("rome", "INSERT INTO orders VALUES (9, 3, 'B')")
    wlc.flush(sites.file("oslo"))


def refuse_anything_left(sites: Sites) -> None:
    """All sites agree, plain replicas of each hold the same, and nothing is parked."""
    sites.exchange()
    sites.refuse_differences(*TABLES)
    for site in sites.names:
        sites.replica_equals(site, *TABLES)
        with attached(sites.file(site)) as connection:
            assert not is_parked(connection, "wlc")


def is_parked(connection: duckdb.DuckDBPyConnection, schema: str) -> bool:
    own = connection.execute("SELECT table_name FROM duckdb_tables() WHERE schema_name = ?", [schema]).fetchall()
    return any(name.startswith("parked") for (name,) in own)
