"""Rows to which others refer change where DuckDB forbids it in one transaction: those that refer to them are parked."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING
from unittest.mock import patch

import duckdb
import pytest

import wlc
import wlr
from tests.sites import Backup, Sites, take_from, write_offline
from wlc.dialect.duckdb.parked_rows import ParkedRows
from wlc.farm.errors import ReplayError, UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

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
    """Oslo and Rome, and no rules."""
    sites = Sites(tmp_path)
    sites.found(SCHEMA)
    sites.join("rome")
    return sites


def set_rules(sites: Sites, rule: str) -> None:
    for table in TABLES:
        if table != "items":
            wlc.set_rule("sales", table, rule, farm=sites.farm)
    sites.exchange()


def refuse_anything_left(sites: Sites) -> None:
    """All sites agree, plain replicas of each hold the same, and nothing is parked."""
    sites.exchange()
    sites.refuse_differences(*TABLES)
    for site in sites.names:
        sites.replica_equals(site, *TABLES)
        with duckdb.connect(sites.file(site), read_only=True) as connection:
            assert not is_parked(connection, "wlc")


def is_parked(connection: duckdb.DuckDBPyConnection, schema: str) -> bool:
    own = connection.execute("SELECT table_name FROM duckdb_tables() WHERE schema_name = ?", [schema]).fetchall()
    return any(name.startswith("parked") for (name,) in own)


@pytest.mark.parametrize(
    ("change", "refers"),
    [
        ("UPDATE customers SET email = 'new' WHERE id = 3", "INSERT INTO orders VALUES (9, 3, 'B')"),
        ("UPDATE customers SET tags = ['y'], v = 'v' WHERE id = 3", "INSERT INTO orders VALUES (9, 3, 'B')"),
        ("UPDATE tree SET mark = 't' WHERE id = 2", "INSERT INTO tree VALUES (9, 2, 'u')"),
        ("UPDATE tree SET parent = NULL WHERE id = 2", "INSERT INTO tree VALUES (9, 2, 'u')"),
    ],
)
def test_a_row_is_changed_here_and_referred_to_there(shop: Sites, change: str, refers: str) -> None:
    """Whoever takes first has the row that refers, and the change comes."""
    set_rules(shop, "epoch_trans")
    for one, other in (("oslo", "rome"), ("rome", "oslo")):
        shop.write(one, change)
        shop.write(other, refers)
        shop.take(other)
        refuse_anything_left(shop)
        assert not wlc.exceptions(shop.file("oslo"))
        assert not wlc.exceptions(shop.file("rome"))
        shop.write("oslo", "DELETE FROM orders WHERE id = 9", "DELETE FROM tree WHERE id = 9")
        shop.write("oslo", "UPDATE customers SET email = NULL, tags = [], v = '' WHERE id = 3")
        shop.write("oslo", "UPDATE tree SET parent = 1, mark = 's' WHERE id = 2")
        shop.exchange()


def test_rows_that_refer_to_rows_that_refer_are_parked_too(shop: Sites) -> None:
    shop.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3")
    shop.write(
        "rome", "INSERT INTO orders VALUES (8, 3, 'B'), (9, 3, 'C')", "INSERT INTO tree VALUES (3, 2, 'x'), (4, 2, 'y')"
    )
    shop.take("oslo")
    shop.write("oslo", "INSERT INTO items VALUES (8, 'a'), (8, 'a'), (9, 'b'), (9, NULL)")
    shop.exchange()
    shop.write("oslo", "INSERT INTO tree VALUES (5, 4, 'z')", "UPDATE customers SET v = 'w' WHERE id = 3")
    refuse_anything_left(shop)
    assert shop.rows("rome", "customers")[2] == (3, "new", [], "w")
    assert len(shop.rows("rome", "items")) == 7


def test_a_plain_replica_follows_a_site_that_had_rows_parked(shop: Sites) -> None:
    """It stands behind each transaction, so that it has what refers when the row changes."""
    into = shop.folder / "copy.duckdb"
    shop.write("oslo", "UPDATE customers SET email = 'new', v = 'w' WHERE id = 3")
    shop.write("rome", "INSERT INTO orders VALUES (9, 3, 'B'), (10, 3, 'C')")
    wlc.flush(shop.file("rome"))
    log = shop.log("rome").url
    wlr.replicate(log, into=into, register=False)
    shop.take("rome")
    wlr.replicate(log, into=into, register=False)
    with duckdb.connect(into, read_only=True) as connection:
        assert connection.execute("FROM orders WHERE id > 8 ORDER BY id").fetchall() == [(9, 3, "B"), (10, 3, "C")]
        assert connection.execute("FROM customers WHERE id = 3").fetchall() == [(3, "new", [], "w")]
        assert not is_parked(connection, "wlr")
    assert all(check.outcome == "same" for check in wlr.verify(into).tables)
    with duckdb.connect(into) as connection, pytest.raises(duckdb.Error, match="is replicated"):
        connection.execute("INSERT INTO orders VALUES (11, 1, NULL)")


def test_owners_of_a_mesh_change_and_refer_to_a_row(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(SCHEMA, mesh=True)
    for site in ("rome", "paris"):
        sites.join(site)
    for table, owner in (("customers", "oslo"), ("orders", "rome"), ("notes", "paris")):
        wlc.set_rule("sales", table, "owner", site=owner, farm=sites.farm)
    sites.exchange()
    for customer in (2, 3):
        sites.write("oslo", f"UPDATE customers SET email = 'new {customer}' WHERE id = {customer}")
        sites.write("rome", f"INSERT INTO orders VALUES ({customer + 5}, {customer}, 'O{customer}')")
        sites.write("paris", f"INSERT INTO notes VALUES ({customer}, 1)")
        take_from(sites, "paris>rome", "oslo>rome", "rome>oslo", "oslo>paris", "rome>paris")
        refuse_anything_left(sites)


def test_a_rejected_change_is_set_back_although_rows_refer_to_it_since(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(SCHEMA)
    sites.join("rome")
    for table in ("customers", "orders"):
        wlc.set_rule("sales", table, "epoch", farm=sites.farm)
    sites.exchange()
    sites.write("oslo", "UPDATE customers SET v = 'o' WHERE id = 3")
    sites.write(
        "rome", "UPDATE customers SET email = 'r', v = 'r' WHERE id = 3", "INSERT INTO orders VALUES (9, 3, 'B')"
    )
    sites.take("oslo")
    sites.exchange()
    sites.refuse_differences("customers", "orders")
    assert sites.rows("rome", "customers")[2] == (3, None, [], "o")
    assert sites.rows("rome", "orders")[1:] == [(9, 3, "B")]
    for site in sites.names:
        sites.replica_equals(site, *TABLES)


def test_a_row_of_another_owner_refers_to_the_one_that_is_set_back(tmp_path: Path) -> None:
    """Rome may not write it, so nobody could do that by hand."""
    sites = Sites(tmp_path)
    sites.found(SCHEMA)
    sites.join("rome")
    wlc.set_rule("sales", "customers", "epoch_trans", farm=sites.farm)
    wlc.set_rule("sales", "orders", "owner", site="oslo", farm=sites.farm)
    sites.exchange()
    sites.write("rome", "UPDATE customers SET email = 'r' WHERE id = 3")
    wlc.flush(sites.file("rome"))
    sites.write("oslo", "UPDATE customers SET email = 'o' WHERE id = 3", "INSERT INTO orders VALUES (9, 3, 'B')")
    sites.exchange()
    sites.refuse_differences("customers", "orders")
    assert sites.rows("rome", "customers")[2] == (3, "o", [], "")
    sites.write("oslo", "UPDATE customers SET v = 'w' WHERE id = 3")
    sites.exchange()
    sites.refuse_differences("customers", "orders")


def test_a_successor_sets_back_a_row_to_which_others_refer(shop: Sites) -> None:
    set_rules(shop, "epoch")
    shop.write("oslo", "UPDATE customers SET v = 'o' WHERE id = 3")
    wlc.flush(shop.file("oslo"))
    shop.write("rome", "UPDATE customers SET email = 'r' WHERE id = 3")
    shop.write("rome", "INSERT INTO orders VALUES (9, 3, 'B')")
    wlc.set_role("sales", "rome", "primary", farm=shop.farm, lost="oslo")
    shop.take("rome")
    assert shop.rows("rome", "customers")[2][1:] == (None, [], "o")


def test_a_restored_site_takes_back_a_row_to_which_others_refer(shop: Sites) -> None:
    backup = Backup.of(shop, "rome")
    shop.write("rome", "UPDATE customers SET email = 'r' WHERE id = 3")
    wlc.flush(shop.file("rome"))
    backup.restore()
    write_offline(shop, "rome", "INSERT INTO orders VALUES (9, 3, 'B')")
    with pytest.warns(match="a new history begins"):
        shop.take("rome")
    refuse_anything_left(shop)
    assert shop.rows("rome", "customers")[2][1] == "r"
    assert shop.rows("oslo", "orders")[1:] == [(9, 3, "B")]


KILLED = """
import os, signal, sys
import wlc, wlr
from wlc.dialect.duckdb.parked_rows import ParkedRows
ParkedRows.{method} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
{command}
"""


def run_killed(method: str, command: str) -> None:
    """Run a command in a process that is killed when it calls a method."""
    script = KILLED.format(method=method, command=command)
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("method", ["forget", "_note"])
def test_rows_come_back_when_a_take_was_killed(shop: Sites, method: str) -> None:
    shop.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3")
    shop.write("rome", "INSERT INTO orders VALUES (9, 3, 'B')", "INSERT INTO notes VALUES (1, 9), (2, 9)")
    wlc.flush(shop.file("rome"))
    wlc.flush(shop.file("oslo"))
    before = shop.rows("rome", "notes")
    run_killed(method, f"wlc.take({str(shop.file('rome'))!r})")
    with duckdb.connect(shop.file("rome")) as connection:
        assert is_parked(connection, "wlc") == (method == "forget")
    # Any command that opens the file for writing does.
    wlc.flush(shop.file("rome"))
    assert shop.rows("rome", "notes") == before
    assert shop.rows("rome", "orders")[1] == (9, 3, "B")
    assert shop.rows("rome", "customers")[2][1] is None
    refuse_anything_left(shop)


def test_rows_come_back_when_a_replay_was_killed(shop: Sites) -> None:
    into = shop.folder / "copy.duckdb"
    shop.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3")
    shop.write("rome", "INSERT INTO orders VALUES (9, 3, 'B')", "INSERT INTO notes VALUES (1, 9)")
    wlc.flush(shop.file("rome"))
    log = shop.log("rome").url
    wlr.replicate(log, into=into, register=False)
    shop.take("rome")
    run_killed("forget", f"wlr.replicate({log!r}, into={str(into)!r}, register=False)")
    wlr.replicate(log, into=into, register=False)
    assert all(check.outcome == "same" for check in wlr.verify(into).tables)
    with duckdb.connect(into) as connection:
        assert connection.execute("SELECT email FROM customers WHERE id = 3").fetchall() == [("new",)]
        assert not is_parked(connection, "wlr")
        with pytest.raises(duckdb.Error, match="is replicated"):
            connection.execute("DELETE FROM notes")


def test_rows_that_cannot_come_back_are_named(shop: Sites) -> None:
    """Only somebody who writes without wlc to the file of a take that was killed can keep them from coming back."""
    shop.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3")
    shop.write("rome", "INSERT INTO orders VALUES (9, 3, 'B')")
    wlc.flush(shop.file("oslo"))
    run_killed("forget", f"wlc.take({str(shop.file('rome'))!r})")
    with duckdb.connect(shop.file("rome")) as connection:
        connection.execute("INSERT INTO orders VALUES (9, 1, 'X')")
    with pytest.raises(UnavailableError, match=r'main\.orders into "rome"\.wlc\."parked 0", and they cannot') as caught:
        wlc.flush(shop.file("rome"))
    assert "undo what was written to the file without dbfarm" in str(caught.value.hint)
    with duckdb.connect(shop.file("rome")) as connection:
        connection.execute("DELETE FROM orders WHERE id = 9")
    wlc.flush(shop.file("rome"))
    refuse_anything_left(shop)


def test_rows_that_cannot_be_parked_need_a_hand(tmp_path: Path) -> None:
    """A column of the table hides DuckDB's own row ids; the hint says what to do."""
    sites = Sites(tmp_path)
    sites.found("""
        CREATE TABLE p (k INTEGER PRIMARY KEY, v VARCHAR UNIQUE);
        CREATE TABLE c (k INTEGER PRIMARY KEY, p INTEGER REFERENCES p (k), rowid INTEGER);
        INSERT INTO p VALUES (3, 'old');
    """)
    sites.join("rome")
    sites.write("oslo", "UPDATE p SET v = 'new' WHERE k = 3")
    sites.write("rome", "INSERT INTO c VALUES (3, 3, 3)")
    for _ in range(2):
        with pytest.raises(ReplayError, match="still referenced") as caught:
            sites.take("rome")
    assert "copy the rows here that refer to that key, delete them, take" in str(caught.value.hint)
    sites.write("rome", "DELETE FROM c WHERE k = 3")
    sites.exchange()
    sites.write("rome", "INSERT INTO c VALUES (3, 3, 3)")
    sites.exchange()
    sites.refuse_differences("p", "c")
    assert sites.rows("oslo", "c") == [(3, 3, 3)]
    assert sites.rows("rome", "p") == [(3, "new")]


def test_users_write_while_rows_are_parked(shop: Sites) -> None:
    """What they began before is theirs to commit, or to try again; nobody sees half of anything after it."""
    shop.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3")
    shop.write("rome", "INSERT INTO orders VALUES (9, 3, 'B')")
    wlc.flush(shop.file("oslo"))
    with wlc.connect(shop.file("rome")) as reader, wlc.connect(shop.file("rome")) as writer:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM orders").fetchone() == (2,)
        writer.execute("BEGIN; INSERT INTO notes VALUES (1, 9)")
        assert take_from(shop, "oslo>rome") == [1]
        assert reader.execute("SELECT count(*) FROM orders").fetchone() == (2,)
        reader.execute("COMMIT")
        writer.execute("COMMIT")
    refuse_anything_left(shop)
    assert shop.rows("oslo", "notes") == [(1, 9)]


def test_a_user_has_changed_what_would_have_to_be_parked(shop: Sites) -> None:
    shop.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3")
    shop.write("rome", "INSERT INTO orders VALUES (9, 3, 'B')")
    wlc.flush(shop.file("oslo"))
    with wlc.connect(shop.file("rome")) as writer:
        writer.execute("BEGIN; UPDATE orders SET number = 'C' WHERE id = 9")
        with pytest.raises(UnavailableError, match="an open transaction of") as caught:
            wlc.take(shop.file("rome"))
        assert "then take again" in str(caught.value.hint)
        writer.execute("COMMIT")
    refuse_anything_left(shop)
    assert shop.rows("oslo", "orders")[1] == (9, 3, "C")


def test_rows_come_back_when_a_step_fails_in_spite_of_them(shop: Sites) -> None:
    shop.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3")
    shop.write("rome", "INSERT INTO orders VALUES (9, 3, 'B')")
    wlc.flush(shop.file("oslo"))

    def fail(*_: object) -> None:
        raise duckdb.OperationalError("no space left on device")

    with patch.object(ParkedRows, "forget", fail), pytest.raises(UnavailableError, match="no space left"):
        wlc.take(shop.file("rome"))
    refuse_anything_left(shop)


def test_nothing_is_parked_where_nothing_refers(shop: Sites) -> None:
    """What comes in ordinary steps is written as it always was."""
    with patch.object(ParkedRows, "park", side_effect=AssertionError):
        shop.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3", "INSERT INTO orders VALUES (8, 2, 'Z')")
        shop.write("rome", "UPDATE customers SET v = 'x' WHERE id = 1", "INSERT INTO orders VALUES (9, 2, 'B')")
        refuse_anything_left(shop)


def test_rows_in_the_way_that_need_each_other_in_a_circle_go_back(shop: Sites) -> None:
    """The order goes back to a customer that is gone, and whose address the customer has that it refers to now."""
    set_rules(shop, "epoch")
    shop.write("oslo", "UPDATE customers SET email = 'three' WHERE id = 3", "INSERT INTO orders VALUES (2, 3, 'B')")
    shop.exchange()
    shop.write(
        "rome",
        "UPDATE orders SET customer = 2 WHERE id = 2",
        "DELETE FROM customers WHERE id = 3",
        "INSERT INTO customers VALUES (9, 'three', NULL, '')",
        "UPDATE orders SET customer = 9, number = 'Z' WHERE id = 2",
    )
    shop.write("oslo", "INSERT INTO orders VALUES (5, 1, 'Z')")
    assert take_from(shop, "oslo>rome") == [1]
    assert shop.rows("rome", "orders") == [(1, 1, "A"), (2, 3, "B"), (5, 1, "Z")]
    assert [row[:2] for row in shop.rows("rome", "customers")] == [(1, "one"), (2, "two"), (3, "three")]
    refuse_anything_left(shop)


def test_a_successor_sets_back_a_row_and_one_that_refers_to_it(shop: Sites) -> None:
    set_rules(shop, "epoch_trans")
    shop.write("oslo", "UPDATE customers SET v = 'o' WHERE id = 3")
    wlc.flush(shop.file("oslo"))
    shop.write(
        "rome",
        "BEGIN; INSERT INTO customers VALUES (4, 'four', NULL, ''); INSERT INTO orders VALUES (4, 4, 'D');"
        " UPDATE customers SET v = 'r' WHERE id = 3; COMMIT",
        "INSERT INTO notes VALUES (1, 4)",
    )
    wlc.set_role("sales", "rome", "primary", farm=shop.farm, lost="oslo")
    shop.take("rome")
    assert shop.rows("rome", "orders") == [(1, 1, "A")]
    assert shop.rows("rome", "customers")[2:] == [(3, None, [], "o")]
    assert shop.rows("rome", "notes") == []
    shop.replica_equals("rome", *TABLES)
