"""Columns of a mesh whose changes are added: what each site adds counts everywhere, once; see docs/sites-rules.md."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import wlc
from cli.command import run_app
from cli.wlc import app
from tests.sites import Sites, clock_ahead, refuse_repetitions, take_from
from wlc.farm.errors import CorruptError, InvalidError, UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SCHEMA = """
    CREATE TABLE stock (k INTEGER PRIMARY KEY, name VARCHAR, amount INTEGER NOT NULL, price DECIMAL(9, 2) NOT NULL);
    INSERT INTO stock VALUES (1, 'apples', 100, 1.50), (2, 'pears', 100, 2.50);
"""


def new_mesh(folder: Path, *others: str) -> Sites:
    sites = Sites(folder)
    sites.found(SCHEMA, mesh=True)
    wlc.set_rule("sales", "stock", "newest", add=["amount", "PRICE"], farm=sites.farm)
    for site in others:
        sites.join(site)
    sites.exchange()
    return sites


def stock(sites: Sites, site: str = "oslo") -> dict[int, tuple[str, int]]:
    return {k: (name, amount) for k, name, amount, _ in sites.rows(site, "stock")}


def test_what_sites_add_at_the_same_time_counts_whatever_way_it_comes(tmp_path: Path) -> None:
    sites = new_mesh(tmp_path, "rome", "paris", "york")
    # P11: oslo sells 30, rome sells 20 in two transactions, paris gets 7 and gives the row another name.
    sites.write("rome", "UPDATE stock SET amount = amount - 15 WHERE k = 1", "UPDATE stock SET amount = 80 WHERE k = 1")
    sites.write("paris", "UPDATE stock SET amount = amount + 7, name = 'green apples' WHERE k = 1")
    sites.write("oslo", "UPDATE stock SET amount = amount - 30, price = price + 0.25 WHERE k = 1")
    # A chain: what rome hands on of paris is what paris added, not what rome has.
    assert take_from(sites, "paris>rome", "rome>oslo", "oslo>york") == [1, 3, 4]
    assert stock(sites)[1] == stock(sites, "york")[1] == ("green apples", 57)
    # York has all of it by oslo, so nothing is added twice.
    assert take_from(sites, "rome>york", "paris>york", "york>paris") == [0, 0, 3]
    sites.exchange()
    sites.refuse_differences("stock")
    refuse_repetitions(sites)
    # Oslo's change is newer than the new name, and has written no name, so the name stays, and nothing is reported.
    assert stock(sites)[1] == ("green apples", 57)
    assert [wlc.exceptions(sites.file(site)) for site in sites.names] == [[]] * 4
    for site in ("oslo", "york"):
        sites.replica_equals(site, "stock")


def test_other_columns_are_those_that_were_written_last(tmp_path: Path) -> None:
    sites = new_mesh(tmp_path, "rome", "paris")
    sites.write("rome", "UPDATE stock SET name = 'by rome', amount = amount + 1 WHERE k = 1")
    sites.write("oslo", "UPDATE stock SET name = 'by oslo', amount = amount + 10 WHERE k = 1")
    # Paris writes what is there already, at last: it is a change all the same, also where it looks like none.
    sites.write("paris", "UPDATE stock SET name = 'by paris' WHERE k = 1")
    take_from(sites, "paris>oslo")
    sites.write("paris", "UPDATE stock SET name = 'by oslo' WHERE k = 1")
    sites.exchange()
    sites.refuse_differences("stock")
    assert stock(sites)[1] == ("by oslo", 111)
    # Rome's name is older than oslo's where it arrived second: it is reported, and its amount counts.
    reported = wlc.exceptions(sites.file("oslo"))
    assert [(row.source, row.cause, row.new and row.new["name"]) for row in reported] == [
        ("rome", "DATA_IN_CONFLICT", "by rome")
    ]
    # Written again, it gives the row its name, and adds nothing once more.
    assert wlc.resubmit(sites.file("oslo"), reported[0].id) == 1
    sites.exchange()
    sites.refuse_differences("stock")
    assert stock(sites)[1] == ("by rome", 111)


def test_a_write_of_what_is_there_is_not_undone_by_an_older_one(tmp_path: Path) -> None:
    """Oslo wrote x, then York something else, then Rome x: at oslo rome's change alters nothing, and is the newest."""
    sites = new_mesh(tmp_path, "rome", "york", "paris")
    sites.write("oslo", "UPDATE stock SET name = 'x' WHERE k = 1")
    wlc.flush(sites.file("oslo"))
    sites.write("york", "UPDATE stock SET name = 'between' WHERE k = 1")
    wlc.flush(sites.file("york"))
    sites.write("rome", "UPDATE stock SET name = 'x' WHERE k = 1")
    # By oslo, whose row is as before, to paris; york's older change comes after it.
    take_from(sites, "rome>oslo", "oslo>paris", "york>paris", "york>oslo")
    assert stock(sites, "paris")[1] == stock(sites)[1] == ("x", 100)
    sites.exchange()
    sites.refuse_differences("stock")


def test_rows_that_several_sites_insert_have_one_sum(tmp_path: Path) -> None:
    sites = new_mesh(tmp_path, "rome")
    sites.write("rome", "INSERT INTO stock VALUES (3, 'plums', 5, 1)")
    sites.write("oslo", "INSERT INTO stock VALUES (3, 'prunes', 7, 1)")
    sites.exchange()
    sites.join("york")
    with clock_ahead(-timedelta(seconds=30)):
        sites.write("york", "UPDATE stock SET amount = amount + 1 WHERE k = 3")
    sites.exchange()
    sites.refuse_differences("stock")
    assert stock(sites)[3] == ("prunes", 13)


def test_what_is_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(
        SCHEMA + "CREATE TABLE checked (k INTEGER PRIMARY KEY, n INTEGER NOT NULL CHECK (n >= 0));"
        "CREATE TABLE x (k INTEGER PRIMARY KEY, n INTEGER, f DOUBLE NOT NULL);",
        mesh=True,
    )
    for table, added, why in (
        ("stock", "name", "column name of main.stock is VARCHAR: only whole numbers and DECIMAL"),
        ("stock", "nothing", "has no column 'nothing' of its own"),
        ("stock", "k", "part of the primary key"),
        ("x", "f", "column f of main.x is DOUBLE"),
        ("x", "n", "can be NULL"),
    ):
        with pytest.raises(InvalidError, match=why) as refused:
            wlc.set_rule("sales", table, "newest", add=[added], farm=sites.farm)
        assert refused.value.hint is not None
        assert (
            "SET NOT NULL" if "NULL" in why else f"newest --add {'n' if table == 'x' else 'amount'}"
        ) in refused.value.hint
    with pytest.raises(InvalidError, match="rule max adds no columns"):
        wlc.set_rule("sales", "stock", "max", column="amount", add=["amount"], farm=sites.farm)
    # The hint works. Another name does not hide a constraint.
    sites.write("oslo", "ALTER TABLE x ALTER n SET NOT NULL", "ALTER TABLE checked RENAME TO guarded")
    wlc.flush(sites.file("oslo"))
    with pytest.raises(UnsupportedError, match="main.guarded has a CHECK constraint"):
        wlc.set_rule("sales", "guarded", "newest", add=["n"], farm=sites.farm)
    with pytest.raises(InvalidError, match="has no table 'checked'"):
        wlc.set_rule("sales", "checked", "newest", add=["n"], farm=sites.farm)
    wlc.set_rule("sales", "x", "newest", add=["n"], farm=sites.farm)
    wlc.set_rule("sales", "stock", "newest", farm=sites.farm)
    sites.join("rome")
    sites.exchange()
    with pytest.raises(UnsupportedError, match="cannot have a CHECK constraint while columns are added"):
        sites.write("oslo", "CREATE OR REPLACE TABLE x (k INTEGER PRIMARY KEY, n INTEGER NOT NULL CHECK (n > 0))")
    # What rome deletes before it knows that amounts are added is refused at oslo, and the hint is the way out.
    sites.write("rome", "DELETE FROM stock WHERE k = 2")
    wlc.flush(sites.file("rome"))
    wlc.set_rule("sales", "stock", "newest", add=["amount"], farm=sites.farm)
    with pytest.raises(CorruptError, match="has published a deletion in main.stock") as refused_take:
        sites.take("oslo")
    assert refused_take.value.hint is not None
    assert "newest" in refused_take.value.hint
    wlc.set_rule("sales", "stock", "newest", farm=sites.farm)
    sites.exchange()
    sites.refuse_differences("stock")
    wlc.set_rule("sales", "stock", "newest", add=["amount"], farm=sites.farm)
    sites.exchange()
    for statement in (
        "DELETE FROM stock",
        "TRUNCATE stock",
        "UPDATE stock SET k = 9",
        "BEGIN; DELETE FROM stock; INSERT INTO stock VALUES (9, 'other', 1, 1); COMMIT",
    ):
        with pytest.raises(InvalidError, match="cannot be deleted, or get another key: changes of amount are added"):
            sites.write("rome", statement)
    # What is written again in one transaction is there.
    sites.write("rome", "BEGIN; DELETE FROM stock; INSERT INTO stock VALUES (1, 'again', 101, 1.50); COMMIT")
    for statement in ("ALTER TABLE stock DROP COLUMN amount", "ALTER TABLE stock ALTER amount DROP NOT NULL"):
        with pytest.raises(InvalidError, match="amount"):
            sites.write("oslo", statement)
    sites.exchange()
    sites.refuse_differences("stock")
    assert stock(sites) == {1: ("again", 101)}


def test_rows_without_a_key_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = Sites(tmp_path)
    sites.found("CREATE TABLE events (v VARCHAR, x DOUBLE); CREATE TABLE keyed (k INTEGER PRIMARY KEY);", mesh=True)
    assert run_app(app, "wlc", ["rule", "sales", "main.events", "add", "--farm", sites.farm]) == 0
    assert "add" in capsys.readouterr().out
    with pytest.raises(InvalidError, match="has a primary key: rule add is for tables without one"):
        wlc.set_rule("sales", "keyed", "add", farm=sites.farm)
    sites.join("rome")
    sites.join("paris")
    sites.exchange()
    with pytest.raises(UnsupportedError, match="cannot have a UNIQUE constraint"):
        sites.write("oslo", "CREATE UNIQUE INDEX once ON events (v, x)")
    # Equal rows count as often as they were inserted, -0.0 is not 0.0, whatever way they come.
    sites.write("oslo", "INSERT INTO events VALUES ('a', 0.0), ('b', NULL)")
    sites.write("rome", "INSERT INTO events VALUES ('a', 0.0), ('a', '-0.0'::DOUBLE), ('a', 'nan'::DOUBLE)")
    assert take_from(sites, "rome>paris", "oslo>paris") == [1, 1]
    sites.write("oslo", "DELETE FROM events WHERE v = 'a'")
    sites.write("paris", "INSERT INTO events VALUES ('a', 0.0)")
    assert take_from(sites, "paris>oslo", "oslo>rome") == [2, 3]
    sites.exchange()
    sites.refuse_differences("events")
    held = sorted(map(repr, sites.rows("rome", "events")))
    assert held == ["('a', -0.0)", "('a', 0.0)", "('a', 0.0)", "('a', nan)", "('b', None)"]
    # Only the primary removes and changes rows.
    sites.write("oslo", "UPDATE events SET x = 1 WHERE v = 'a' AND x = 0")
    for statement in ("DELETE FROM events", "UPDATE events SET x = 2", "TRUNCATE events"):
        with pytest.raises(InvalidError, match="site rome can only add rows to main.events"):
            sites.write("rome", statement)
    sites.write("rome", "UPDATE events SET x = x", "INSERT INTO events VALUES ('rome', 1)")
    sites.exchange()
    sites.refuse_differences("events")
    # A site that joins after rows have gone has the same ones, and adds its own.
    wlc.snapshot(sites.file("oslo"))
    sites.join("york")
    sites.write("york", "INSERT INTO events VALUES ('york', 1)")
    sites.exchange()
    sites.refuse_differences("events")
    assert [row for row in sites.rows("oslo", "events") if row[0] != "a"] == [("b", None), ("rome", 1.0), ("york", 1.0)]
