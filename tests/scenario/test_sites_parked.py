"""Rows to which others refer change where DuckDB forbids it in one transaction: those that refer to them are parked."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import wants_all
from tests.parked import SCHEMA, TABLES, change_and_refer, found_shop, is_parked, refuse_anything_left
from tests.scratch import attached
from tests.sites import Backup, Sites, play, take_from, write_offline
from wlc.dialect.duckdb.parked_rows import ParkedRows
from wlc.farm.errors import ReplayError, UnavailableError
from wlc.multi_master import take_round
from wlc.multi_master.duckdb import lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wlc.farm.model import Name


@pytest.fixture(scope="module")
def parking(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return found_shop(tmp_path_factory.mktemp("parking"))


@pytest.fixture
def again(parking: Sites) -> Sites:
    """Oslo and Rome, with the rows of the beginning and no rules."""
    begin_again(parking, {})
    return parking


def begin_again(sites: Sites, rules: dict[str, str]) -> None:
    """Let both sites hold the rows of the beginning, and know rules; a rule that is a site's name says who owns."""
    for table in TABLES:
        if table != "items":
            wlc.set_rule("sales", table, "none", farm=sites.farm)
    sites.exchange()
    emptied = (f"DELETE FROM {table}" for table in ("notes", "items", "orders", "customers"))
    sites.write("oslo", *emptied, *(text for text in SCHEMA.split(";") if re.search("INTO (cust|ord|items)", text)))
    for table, rule in rules.items():
        owner = rule if rule in sites.names else ""
        wlc.set_rule("sales", table, "owner" if owner else rule, site=owner, farm=sites.farm)
    sites.exchange()


def refuse_parked(sites: Sites) -> None:
    sites.refuse_differences(*TABLES)
    for site in sites.names:
        with attached(sites.file(site)) as connection:
            assert not is_parked(connection, "wlc")


@dataclass(frozen=True)
class Story:
    """What two sites do, and what becomes of it.

    Attributes:
        at_rome: Rows of rome then, of the tables that are named.
        after: Rows of both in the end.
        evicted: Tables of rome's rows that give way, and why; None if that does not matter.
        parks: Whether rows are parked.
    """

    steps: list[str]
    rules: dict[str, str] = field(default_factory=dict)
    at_rome: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    after: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    evicted: list[tuple[str, str]] | None = None
    parks: bool = True


ONE, TWO, ORDER = (1, "one", ["x"], ""), (2, "two", None, ""), (1, 1, "A")
EPOCH = dict.fromkeys(("customers", "orders", "notes"), "epoch")
STORIES = {
    "rows that refer to rows that refer": Story(
        [
            "oslo: UPDATE customers SET email = 'new' WHERE id = 3",
            "rome: INSERT INTO orders VALUES (8, 3, 'B'), (9, 3, 'C')",
            "rome>oslo",
            "oslo: INSERT INTO items VALUES (8, 'a'), (8, 'a'), (9, 'b'), (9, NULL)",
            "oslo>rome",
            "rome: INSERT INTO notes VALUES (1, 9)",
            "oslo: UPDATE customers SET v = 'w' WHERE id = 3",
        ],
        after={"customers": [ONE, TWO, (3, "new", [], "w")], "notes": [(1, 9)]},
    ),
    "a rejected change is set back although rows refer to it since": Story(
        [
            "oslo: UPDATE customers SET v = 'o' WHERE id = 3",
            "rome: UPDATE customers SET email = 'r', v = 'r' WHERE id = 3",
            "rome: INSERT INTO orders VALUES (9, 3, 'B')",
            "rome>oslo",
        ],
        EPOCH,
        after={"customers": [ONE, TWO, (3, None, [], "o")], "orders": [ORDER, (9, 3, "B")]},
    ),
    # Rome may not write the row that refers, so nobody could do that by hand.
    "a row of another owner refers to the one that is set back": Story(
        [
            "rome: UPDATE customers SET email = 'r' WHERE id = 3",
            "oslo: UPDATE customers SET email = 'o' WHERE id = 3",
            "oslo: INSERT INTO orders VALUES (9, 3, 'B')",
        ],
        {"customers": "epoch_trans", "orders": "oslo"},
        after={"customers": [ONE, TWO, (3, "o", [], "")]},
        parks=False,
    ),
    # The order goes back to a customer that is gone, and whose address the customer has that it refers to now.
    "rows in the way that need each other in a circle": Story(
        [
            "oslo: UPDATE customers SET email = 'three' WHERE id = 3",
            "oslo: INSERT INTO orders VALUES (2, 3, 'B')",
            "oslo>rome",
            "rome>oslo",
            "rome: UPDATE orders SET customer = 2 WHERE id = 2",
            "rome: DELETE FROM customers WHERE id = 3",
            "rome: INSERT INTO customers VALUES (9, 'three', NULL, '')",
            "rome: UPDATE orders SET customer = 9, number = 'Z' WHERE id = 2",
            "oslo: INSERT INTO orders VALUES (5, 1, 'Z')",
            "oslo>rome",
        ],
        EPOCH,
        {"orders": [ORDER, (2, 3, "B"), (5, 1, "Z")], "customers": [ONE, TWO, (3, "three", [], "")]},
    ),
    "own rows give way over three levels": Story(
        [
            "rome: INSERT INTO customers VALUES (4, 'new', NULL, 'r')",
            "rome: INSERT INTO orders VALUES (9, 4, 'B'), (10, 3, 'C')",
            "rome: INSERT INTO notes VALUES (1, 9), (2, 10)",
            "oslo: UPDATE customers SET email = 'new' WHERE id = 3",
            "oslo>rome",
        ],
        at_rome={"orders": [ORDER, (10, 3, "C")], "notes": [(2, 10)]},
    ),
    # Oslo removes a customer of whom rome has orders: no order of the writes helps.
    "what does not fit is not parked in vain": Story(
        [
            "oslo: DELETE FROM customers WHERE id = 3",
            "rome: INSERT INTO orders VALUES (9, 3, 'B')",
            "oslo>rome",
        ],
        {"orders": "rome"},
        evicted=[("orders", "constraint")],
        parks=False,
    ),
    "nothing is parked where nothing refers": Story(
        [
            "oslo: UPDATE customers SET email = 'new' WHERE id = 3",
            "oslo: INSERT INTO orders VALUES (8, 2, 'Z')",
            "rome: UPDATE customers SET v = 'x' WHERE id = 1",
            "rome: INSERT INTO orders VALUES (9, 2, 'B')",
            "rome>oslo",
            "oslo>rome",
        ],
        parks=False,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STORIES)
def test_rows_are_parked_and_come_back(parking: Sites, name: str) -> None:
    story, real, calls = STORIES[name], ParkedRows.forget, list[object]()

    def forget(parked: ParkedRows, names: Sequence[Name]) -> None:
        calls.append(names)
        real(parked, names)

    begin_again(parking, story.rules)
    before = len(wlc.exceptions(parking.file("rome")))
    with patch.object(ParkedRows, "forget", forget):
        play(parking, story.steps)
        assert {table: parking.rows("rome", table) for table in story.at_rome} == story.at_rome
        parking.exchange()
    assert bool(calls) == story.parks
    assert {table: parking.rows("rome", table) for table in story.after} == story.after
    refuse_parked(parking)
    evicted = [(row.table.name, row.cause) for row in wlc.exceptions(parking.file("rome"))[before:]]
    assert story.evicted in (None, evicted)


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


# A change of a row, a new row that refers to it, and what makes both undone.
CHANGES = (
    (
        "customers SET email = 'new' WHERE id = 3",
        "orders VALUES (9, 3, 'B')",
        "customers SET email = NULL WHERE id = 3",
    ),
    (
        "customers SET tags = ['y'], v = 'v' WHERE id = 3",
        "orders VALUES (9, 3, 'B')",
        "customers SET tags = [], v = '' WHERE id = 3",
    ),
    ("tree SET mark = 't' WHERE id = 2", "tree VALUES (9, 2, 'u')", "tree SET mark = 's' WHERE id = 2"),
    ("tree SET parent = NULL WHERE id = 2", "tree VALUES (9, 2, 'u')", "tree SET parent = 1 WHERE id = 2"),
)


@pytest.mark.slow
def test_a_row_is_changed_here_and_referred_to_there(parking: Sites) -> None:
    """Whoever takes first has the row that refers, and the change comes; plain replicas follow, batch by batch."""
    begin_again(parking, dict.fromkeys((table for table in TABLES if table != "items"), "epoch_trans"))
    rejected = {site: len(wlc.exceptions(parking.file(site))) for site in parking.names}
    directions = [("oslo", "rome"), ("rome", "oslo")]
    for number, (change, refers, undone) in enumerate(CHANGES):
        for one, other in directions if wants_all() else [directions[number % 2]]:
            parking.write(one, f"UPDATE {change}")
            parking.write(other, f"INSERT INTO {refers}")
            parking.take(other)
            parking.exchange()
            refuse_parked(parking)
            parking.write("oslo", f"DELETE FROM {refers.split()[0]} WHERE id = 9", f"UPDATE {undone}")
            parking.exchange()
    assert {site: len(wlc.exceptions(parking.file(site))) for site in parking.names} == rejected
    for site in parking.names:
        parking.replica_equals(site, *TABLES)


@pytest.mark.slow
def test_a_plain_replica_follows_a_site_that_had_rows_parked(again: Sites) -> None:
    """It stands behind each transaction, so that it has what refers when the row changes."""
    into, log = again.folder / "copy.duckdb", again.log("rome").url
    play(again, ["oslo: INSERT INTO orders VALUES (2, 1, 'B')", "oslo>rome"])
    again.write("oslo", "UPDATE customers SET email = 'new', v = 'w' WHERE id = 3")
    # In one table a row changes to which others refer, in the other rows are only added.
    again.write(
        "oslo", "BEGIN; INSERT INTO customers (id) VALUES (4); UPDATE orders SET number = 'D' WHERE id = 2; COMMIT"
    )
    again.write("rome", "INSERT INTO orders VALUES (9, 3, 'B2'), (10, 3, 'C')", "INSERT INTO notes VALUES (1, 2)")
    wlc.flush(again.file("rome"))
    wlr.replicate(log, into=into, register=False)
    again.take("rome")
    wlr.replicate(log, into=into, register=False)
    with attached(into) as connection:
        assert connection.execute("FROM orders ORDER BY id").fetchall() == again.rows("rome", "orders")
        assert connection.execute("FROM customers WHERE id = 3").fetchall() == [(3, "new", [], "w")]
        assert not is_parked(connection, "wlr")
    assert [row[2] for row in again.rows("rome", "orders")] == ["A", "D", "B2", "C"]
    assert all(check.outcome == "same" for check in wlr.verify(into).tables)
    with duckdb.connect(into) as connection, pytest.raises(duckdb.Error, match="belongs to a replica"):
        connection.execute("INSERT INTO orders VALUES (11, 1, NULL)")


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["epoch", "epoch_trans"])
def test_a_successor_sets_back_a_row_and_one_that_refers_to_it(shop: Sites, rule: str) -> None:
    begin_again(shop, dict.fromkeys(EPOCH, rule))
    shop.write("oslo", "UPDATE customers SET v = 'o' WHERE id = 3")
    wlc.flush(shop.file("oslo"))
    shop.write(
        "rome",
        "BEGIN; INSERT INTO customers VALUES (4, 'four', NULL, ''); INSERT INTO orders VALUES (4, 4, 'D');"
        " UPDATE customers SET v = 'r' WHERE id = 3; COMMIT",
        "INSERT INTO notes VALUES (1, 4)",
        "INSERT INTO orders VALUES (9, 3, 'B')",
    )
    wlc.set_role("sales", "rome", "primary", farm=shop.farm, lost="oslo")
    shop.take("rome")
    is_whole = rule == "epoch_trans"
    assert shop.rows("rome", "orders") == [ORDER, *([] if is_whole else [(4, 4, "D")]), (9, 3, "B")]
    assert shop.rows("rome", "customers")[2] == (3, None, [], "o")
    assert shop.rows("rome", "notes") == ([] if is_whole else [(1, 4)])
    shop.replica_equals("rome", *TABLES)


@pytest.mark.slow
def test_users_write_while_rows_are_parked(again: Sites) -> None:
    """What they began before is theirs to commit, or to try again; nobody sees half of anything after it."""
    change_and_refer(again)
    with wlc.connect(again.file("rome")) as reader, wlc.connect(again.file("rome")) as writer:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM orders").fetchone() == (2,)
        writer.execute("BEGIN; INSERT INTO notes VALUES (1, 9)")
        assert take_from(again, "oslo>rome") == [1]
        assert reader.execute("SELECT count(*) FROM orders").fetchone() == (2,)
        reader.execute("COMMIT")
        writer.execute("COMMIT")
        # What would have to be parked a user has changed.
        writer.execute("INSERT INTO orders VALUES (10, 3, 'X')")
        again.write("oslo", "UPDATE customers SET email = 'newer' WHERE id = 3")
        writer.execute("BEGIN; UPDATE orders SET number = 'C' WHERE id = 10")
        with pytest.raises(UnavailableError, match="an open transaction of") as caught:
            wlc.take(again.file("rome"))
        assert "then take again" in str(caught.value.hint)
        writer.execute("COMMIT")
    again.exchange()
    refuse_parked(again)
    assert (again.rows("oslo", "notes"), again.rows("oslo", "orders")[2]) == ([(1, 9)], (10, 3, "C"))


@pytest.mark.slow
def test_a_query_waits_until_nothing_is_parked(again: Sites) -> None:
    """Also a relation, and one in a transaction whose snapshot it takes."""
    change_and_refer(again)
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

    users = [wlc.connect(again.file("rome")) for _ in calls]
    with patch.object(lines, "remove", removing):
        again.take("rome")
    for thread, user in zip(threads, users, strict=True):
        thread.join()
        user.close()
    assert seen == [(2,)] * len(calls)
    again.exchange()
    refuse_parked(again)
    assert again.rows("oslo", "notes") == [(2, 9)]


@pytest.mark.slow
def test_rows_are_counted_without_what_was_parked(again: Sites) -> None:
    again.write("rome", "INSERT INTO orders SELECT range, 3, range FROM range(100, 200)")
    again.write(
        "oslo", "BEGIN; UPDATE customers SET email = 'new' WHERE id = 3; INSERT INTO orders VALUES (2, 2, 'B'); COMMIT"
    )
    (taken,) = wlc.take(again.file("rome"))
    assert (taken.transactions, taken.rows) == (1, 3)
    again.exchange()
    refuse_parked(again)
