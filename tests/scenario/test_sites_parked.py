"""Rows to which others refer change where DuckDB forbids it in one transaction: those that refer to them are parked."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb
import pytest

import wlc
import wlr
from tests.parked import SCHEMA, TABLES, change_and_refer, is_parked, refuse_anything_left
from tests.scratch import attached
from tests.sites import Backup, Sites, take_from, write_offline
from wlc.dialect.duckdb.parked_rows import ParkedRows
from wlc.farm.errors import ReplayError, UnavailableError
from wlc.multi_master import take_round
from wlc.multi_master.duckdb import lines

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def set_rules(sites: Sites, rule: str) -> None:
    for table in TABLES:
        if table != "items":
            wlc.set_rule("sales", table, rule, farm=sites.farm)
    sites.exchange()


# A change of a row, a new row that refers to it, and what makes both undone.
CHANGES = (
    (
        "UPDATE customers SET email = 'new' WHERE id = 3",
        "INSERT INTO orders VALUES (9, 3, 'B')",
        ("DELETE FROM orders WHERE id = 9", "UPDATE customers SET email = NULL WHERE id = 3"),
    ),
    (
        "UPDATE customers SET tags = ['y'], v = 'v' WHERE id = 3",
        "INSERT INTO orders VALUES (9, 3, 'B')",
        ("DELETE FROM orders WHERE id = 9", "UPDATE customers SET tags = [], v = '' WHERE id = 3"),
    ),
    (
        "UPDATE tree SET mark = 't' WHERE id = 2",
        "INSERT INTO tree VALUES (9, 2, 'u')",
        ("DELETE FROM tree WHERE id = 9", "UPDATE tree SET mark = 's' WHERE id = 2"),
    ),
    (
        "UPDATE tree SET parent = NULL WHERE id = 2",
        "INSERT INTO tree VALUES (9, 2, 'u')",
        ("DELETE FROM tree WHERE id = 9", "UPDATE tree SET parent = 1 WHERE id = 2"),
    ),
)


@pytest.mark.slow
def test_a_row_is_changed_here_and_referred_to_there(shop: Sites) -> None:
    """Whoever takes first has the row that refers, and the change comes."""
    set_rules(shop, "epoch_trans")
    for change, refers, undo in CHANGES:
        for one, other in (("oslo", "rome"), ("rome", "oslo")):
            shop.write(one, change)
            shop.write(other, refers)
            shop.take(other)
            shop.exchange()
            shop.refuse_differences(*TABLES)
            for site in shop.names:
                assert not wlc.exceptions(shop.file(site)), change
                with attached(shop.file(site)) as connection:
                    assert not is_parked(connection, "wlc"), change
            if other == "oslo":
                # Also of what came before, batch by batch.
                refuse_anything_left(shop)
            shop.write("oslo", *undo)
            shop.exchange()


@pytest.mark.slow
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


@pytest.mark.slow
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
    with attached(into) as connection:
        assert connection.execute("FROM orders WHERE id > 8 ORDER BY id").fetchall() == [(9, 3, "B"), (10, 3, "C")]
        assert connection.execute("FROM customers WHERE id = 3").fetchall() == [(3, "new", [], "w")]
        assert not is_parked(connection, "wlr")
    assert all(check.outcome == "same" for check in wlr.verify(into).tables)
    with duckdb.connect(into) as connection, pytest.raises(duckdb.Error, match="is replicated"):
        connection.execute("INSERT INTO orders VALUES (11, 1, NULL)")


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_users_write_while_rows_are_parked(shop: Sites) -> None:
    """What they began before is theirs to commit, or to try again; nobody sees half of anything after it."""
    change_and_refer(shop)
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


@pytest.mark.slow
def test_a_user_has_changed_what_would_have_to_be_parked(shop: Sites) -> None:
    change_and_refer(shop)
    with wlc.connect(shop.file("rome")) as writer:
        writer.execute("BEGIN; UPDATE orders SET number = 'C' WHERE id = 9")
        with pytest.raises(UnavailableError, match="an open transaction of") as caught:
            wlc.take(shop.file("rome"))
        assert "then take again" in str(caught.value.hint)
        writer.execute("COMMIT")
    refuse_anything_left(shop)
    assert shop.rows("oslo", "orders")[1] == (9, 3, "C")


@pytest.mark.slow
def test_nothing_is_parked_where_nothing_refers(shop: Sites) -> None:
    """What comes in ordinary steps is written as it always was."""
    with patch.object(ParkedRows, "park", side_effect=AssertionError):
        shop.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3", "INSERT INTO orders VALUES (8, 2, 'Z')")
        shop.write("rome", "UPDATE customers SET v = 'x' WHERE id = 1", "INSERT INTO orders VALUES (9, 2, 'B')")
        refuse_anything_left(shop)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_query_waits_until_nothing_is_parked(shop: Sites) -> None:
    """Also a relation, and one in a transaction whose snapshot it takes."""
    change_and_refer(shop)
    counts, seen = "SELECT count(*) FROM orders", []

    def in_transaction(user: Any) -> Any:
        user.begin()
        seen.extend(user.sql(counts).fetchall())
        user.execute("INSERT INTO notes SELECT count(*), 9 FROM orders")
        user.commit()

    calls = (
        lambda user: seen.extend(user.execute(counts).fetchall()),
        lambda user: seen.extend(user.sql(counts).fetchall()),
        lambda user: seen.extend(user.table("orders").count("*").fetchall()),
        in_transaction,
    )
    threads: list[threading.Thread] = []
    remove = lines.remove

    def removing(connection: duckdb.DuckDBPyConnection, found: lines.LinesTable) -> None:
        if not threads and ParkedRows(connection, "rome", "wlc").tables():
            threads.extend(threading.Thread(target=call, args=[user]) for call, user in zip(calls, users, strict=True))
            for thread in threads:
                thread.start()
            threads[0].join(0.5)
            assert not seen
        remove(connection, found)

    users = [wlc.connect(shop.file("rome")) for _ in calls]
    with patch.object(lines, "remove", removing):
        shop.take("rome")
    for thread, user in zip(threads, users, strict=True):
        thread.join()
        user.close()
    assert seen == [(2,)] * len(calls)
    refuse_anything_left(shop)
    assert shop.rows("oslo", "notes") == [(2, 9)]


@pytest.mark.slow
def test_rows_are_counted_without_what_was_parked(shop: Sites) -> None:
    shop.write("rome", "INSERT INTO orders SELECT range, 3, range FROM range(100, 200)")
    shop.write(
        "oslo", "BEGIN; UPDATE customers SET email = 'new' WHERE id = 3; INSERT INTO orders VALUES (2, 2, 'B'); COMMIT"
    )
    (taken,) = wlc.take(shop.file("rome"))
    assert (taken.transactions, taken.rows) == (1, 3)
    refuse_anything_left(shop)


def test_triggers_of_rows_that_refer_do_not_run(tmp_path: Path) -> None:
    """What they write would be published by nobody; so the rows are not parked."""
    sites = Sites(tmp_path)
    sites.found("""
        CREATE TABLE p (k INTEGER PRIMARY KEY, v VARCHAR UNIQUE);
        CREATE TABLE c (k INTEGER PRIMARY KEY, p INTEGER REFERENCES p (k));
        CREATE TABLE audit (v VARCHAR);
        INSERT INTO p VALUES (3, 'old');
        INSERT INTO c VALUES (1, NULL);
    """)
    sites.join("rome")
    sites.write("oslo", "CREATE TRIGGER noted AFTER DELETE ON c FOR EACH STATEMENT INSERT INTO audit VALUES ('gone')")
    sites.exchange()
    sites.write("oslo", "INSERT INTO c VALUES (3, 3)")
    sites.write("rome", "UPDATE p SET v = 'new' WHERE k = 3")
    with pytest.raises(ReplayError, match="still referenced"):
        sites.take("oslo")
    assert sites.rows("oslo", "audit") == []
    sites.write("oslo", "DELETE FROM c WHERE k = 3")
    sites.exchange()
    sites.refuse_differences("p", "c", "audit")
    assert sites.rows("rome", "audit") == [("gone",)]


@pytest.mark.slow
def test_what_does_not_fit_is_not_parked_in_vain(shop: Sites) -> None:
    """Oslo removes a customer of whom Rome has orders: that no order of the writes helps."""
    wlc.set_rule("sales", "orders", "owner", site="rome", farm=shop.farm)
    shop.exchange()
    shop.write("oslo", "DELETE FROM customers WHERE id = 3")
    shop.write("rome", "INSERT INTO orders VALUES (9, 3, 'B')")
    wlc.flush(shop.file("rome"))
    with patch.object(ParkedRows, "forget", side_effect=AssertionError):
        shop.take("rome")
    assert [(row.table.name, row.cause) for row in wlc.exceptions(shop.file("rome"))] == [("orders", "constraint")]
    refuse_anything_left(shop)


@pytest.mark.slow
def test_own_rows_give_way_over_three_levels(shop: Sites) -> None:
    shop.write(
        "rome",
        "INSERT INTO customers VALUES (4, 'new', NULL, 'r')",
        "INSERT INTO orders VALUES (9, 4, 'B'), (10, 3, 'C')",
        "INSERT INTO notes VALUES (1, 9), (2, 10)",
    )
    shop.write("oslo", "UPDATE customers SET email = 'new' WHERE id = 3")
    assert take_from(shop, "oslo>rome") == [1]
    assert shop.rows("rome", "orders") == [(1, 1, "A"), (10, 3, "C")]
    assert shop.rows("rome", "notes") == [(2, 10)]
    refuse_anything_left(shop)


@pytest.mark.slow
def test_a_former_primary_parks_rows_when_it_steps_down(tmp_path: Path) -> None:
    """Its tables with changes are not those that come first."""
    sites = Sites(tmp_path)
    sites.found("""
        CREATE TABLE a (id INTEGER PRIMARY KEY, v VARCHAR);
        CREATE TABLE customers (id INTEGER PRIMARY KEY, points INTEGER UNIQUE);
        CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customers (id));
        INSERT INTO customers VALUES (1, 1), (3, 3);
    """)
    sites.join("rome")
    for table in ("a", "customers", "orders"):
        wlc.set_rule("sales", table, "epoch_trans", farm=sites.farm)
    sites.exchange()
    sites.write("oslo", "INSERT INTO orders VALUES (9, 3)")
    sites.write("rome", "UPDATE customers SET points = 77 WHERE id = 3")
    wlc.flush(sites.file("rome"))
    died = patch.object(take_round, "publish", side_effect=[None, UnavailableError("died")])
    with died, pytest.raises(UnavailableError, match="died"):
        sites.take("oslo")
    wlc.set_role("sales", "rome", "primary", lost="oslo", farm=sites.farm)
    sites.take("rome")
    sites.exchange()
    sites.refuse_differences("customers", "orders")
    assert sites.rows("oslo", "customers") == [(1, 1), (3, 77)]
    assert sites.rows("oslo", "orders") == [(9, 3)]


@pytest.mark.slow
def test_a_replica_takes_rows_of_its_tables_that_are_only_added_beside_those_that_are_parked(shop: Sites) -> None:
    into = shop.folder / "copy.duckdb"
    shop.write("oslo", "INSERT INTO orders VALUES (2, 1, 'B')")
    shop.exchange()
    shop.write(
        "oslo", "BEGIN; INSERT INTO customers (id) VALUES (4); UPDATE orders SET number = 'C' WHERE id = 2; COMMIT"
    )
    shop.write("rome", "INSERT INTO notes VALUES (1, 2)")
    wlc.flush(shop.file("rome"))
    log = shop.log("rome").url
    wlr.replicate(log, into=into, register=False)
    shop.take("rome")
    wlr.replicate(log, into=into, register=False)
    with attached(into) as connection:
        assert connection.execute("SELECT number FROM orders ORDER BY id").fetchall() == [("A",), ("C",)]
    assert all(check.outcome == "same" for check in wlr.verify(into).tables)
