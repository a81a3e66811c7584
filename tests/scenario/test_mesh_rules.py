"""Rules of a mesh that add, and those that compare a column as MySQL NDB Cluster has them; see docs/sites-rules.md."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import wlc
from cli.command import run_app
from cli.wlc import app
from tests.sites import Sites, clock_ahead, refuse_repetitions, take_from
from wlc.farm.errors import CorruptError, InvalidError, UnsupportedError
from wlc.multi_master.circle import COLUMN_RULES, read_circle

if TYPE_CHECKING:
    from pathlib import Path


STOCK = """
    CREATE TABLE stock (k INTEGER PRIMARY KEY, name VARCHAR, amount INTEGER NOT NULL, price DECIMAL(9, 2) NOT NULL);
    INSERT INTO stock VALUES (1, 'apples', 100, 1.50), (2, 'pears', 100, 2.50);
"""


def mesh_that_adds(folder: Path, *others: str) -> Sites:
    sites = Sites(folder)
    sites.found(STOCK, mesh=True)
    wlc.set_rule("sales", "stock", "newest", add=["amount", "PRICE"], farm=sites.farm)
    for site in others:
        sites.join(site)
    sites.exchange()
    return sites


def stock(sites: Sites, site: str = "oslo") -> dict[int, tuple[str, int]]:
    return {k: (name, amount) for k, name, amount, _ in sites.rows(site, "stock")}


@pytest.mark.slow
def test_what_sites_add_at_the_same_time_counts_whatever_way_it_comes(tmp_path: Path) -> None:
    sites = mesh_that_adds(tmp_path, "rome", "paris", "york")
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


@pytest.mark.slow
def test_other_columns_are_those_that_were_written_last(tmp_path: Path) -> None:
    sites = mesh_that_adds(tmp_path, "rome", "paris")
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


@pytest.mark.slow
def test_a_write_of_what_is_there_is_not_undone_by_an_older_one(tmp_path: Path) -> None:
    """Oslo wrote x, then York something else, then Rome x: at oslo rome's change alters nothing, and is the newest."""
    sites = mesh_that_adds(tmp_path, "rome", "york", "paris")
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


@pytest.mark.slow
def test_rows_that_several_sites_insert_have_one_sum(tmp_path: Path) -> None:
    sites = mesh_that_adds(tmp_path, "rome")
    sites.write("rome", "INSERT INTO stock VALUES (3, 'plums', 5, 1)")
    sites.write("oslo", "INSERT INTO stock VALUES (3, 'prunes', 7, 1)")
    sites.exchange()
    sites.join("york")
    with clock_ahead(-timedelta(seconds=30)):
        sites.write("york", "UPDATE stock SET amount = amount + 1 WHERE k = 3")
    sites.exchange()
    sites.refuse_differences("stock")
    assert stock(sites)[3] == ("prunes", 13)


@pytest.mark.slow
def test_what_is_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(
        STOCK + "CREATE TABLE checked (k INTEGER PRIMARY KEY, n INTEGER NOT NULL CHECK (n >= 0));"
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


@pytest.mark.slow
def test_rows_without_a_key_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = Sites(tmp_path)
    sites.found("CREATE TABLE events (v VARCHAR, x DOUBLE); CREATE TABLE keyed (k INTEGER PRIMARY KEY);", mesh=True)
    assert run_app(app, "wlc", ["site", "rule", "sales", "main.events", "add", "--farm", sites.farm]) == 0
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


# The scenarios and what is counted are those of `ndb_rpl_conflict_1.inc`, `_2.inc`, `max_ins_1` and `basic`.


def mesh_that_compares(folder: Path, *rules: str, rows: str = "") -> Sites:
    """Oslo and Rome with a table of the name of each rule."""
    sites = Sites(folder)
    tables = (f"CREATE TABLE {rule} (k INTEGER PRIMARY KEY, x UINTEGER, v VARCHAR);" for rule in rules)
    sites.found("".join((*tables, *(f"INSERT INTO {rule} {rows};" for rule in rules if rows))), mesh=True)
    for rule in rules:
        wlc.set_rule("sales", rule, rule, column="x", farm=sites.farm)
    sites.join("rome")
    sites.exchange()
    return sites


def everywhere(sites: Sites, site: str, *statements: str) -> None:
    """Run statements in the table of each rule."""
    tables = [rule.rule for rule in read_circle(sites.log("oslo")).rules]
    sites.write(site, *(statement.format(t=table) for table in tables for statement in statements))


def rejected(sites: Sites) -> dict[str, int]:
    """How many rows oslo has rejected by each rule."""
    return {each.rule: each.value for each in wlc.conflicts(sites.file("oslo")) if each.rule}


def column(sites: Sites, table: str) -> dict[int, int]:
    return {k: x for k, x, _ in sites.rows("oslo", table)}


@pytest.mark.slow
def test_o1_o2_o3_changes_that_meet_other_values(tmp_path: Path) -> None:
    sites = mesh_that_compares(tmp_path, "old", "max", "max_delete_wins", rows="SELECT range, 10, '' FROM range(1, 5)")
    everywhere(sites, "oslo", "UPDATE {t} SET x = 12, v = 'target'")
    everywhere(sites, "rome", "UPDATE {t} SET x = 11, v = 'a' WHERE k < 4", "DELETE FROM {t} WHERE k = 4")
    take_from(sites, "rome>oslo")
    assert rejected(sites) == {"old": 4, "max": 4, "max_delete_wins": 3}
    assert [column(sites, table).get(4) for table in ("old", "max", "max_delete_wins")] == [12, 12, None]
    found = wlc.exceptions(sites.file("oslo"), table="old")
    assert [(row.key, row.op_type, row.cause) for row in sorted(found, key=lambda row: str(row.key))] == [
        ({"k": 1}, "UPDATE_ROW", "DATA_IN_CONFLICT"),
        ({"k": 2}, "UPDATE_ROW", "DATA_IN_CONFLICT"),
        ({"k": 3}, "UPDATE_ROW", "DATA_IN_CONFLICT"),
        ({"k": 4}, "DELETE_ROW", "DATA_IN_CONFLICT"),
    ]
    assert {row.source for row in found} == {"rome"}
    assert {row.dependent for row in found} == {False}
    (one,) = (row for row in found if row.key == {"k": 1})
    assert (one.old, one.new) == ({"k": 1, "x": 10, "v": ""}, {"k": 1, "x": 11, "v": "a"})
    assert one.local == {"k": 1, "x": 12, "v": "target"}
    # Row 1 becomes what rome has, and row 4 goes.
    everywhere(sites, "oslo", "UPDATE {t} SET x = 11 WHERE k = 1", "DELETE FROM {t} WHERE k = 4")
    everywhere(sites, "rome", "UPDATE {t} SET x = 13 WHERE k < 4")
    take_from(sites, "rome>oslo")
    assert rejected(sites) == {"old": 6, "max": 4, "max_delete_wins": 3}
    assert column(sites, "old") == {1: 13, 2: 12, 3: 12}
    assert column(sites, "max") == column(sites, "max_delete_wins") == {1: 13, 2: 13, 3: 13}
    # What was rejected has changed nothing, so a plain replica of the site is as the site.
    sites.replica_equals("oslo", "old", "max", "max_delete_wins")


@pytest.mark.slow
def test_o4_inserts_onto_rows_that_are_there(tmp_path: Path) -> None:
    sites = mesh_that_compares(tmp_path, "max", "max_ins", "max_del_win_ins")
    everywhere(sites, "oslo", "INSERT INTO {t} SELECT range, 12, 'target' FROM range(5, 9)")
    everywhere(sites, "rome", "INSERT INTO {t} VALUES (5, 11, ''), (6, 11, '')")
    take_from(sites, "rome>oslo")
    assert rejected(sites) == {"max": 2, "max_ins": 2, "max_del_win_ins": 2}
    everywhere(sites, "rome", "INSERT INTO {t} VALUES (7, 13, ''), (8, 13, '')")
    take_from(sites, "rome>oslo")
    assert rejected(sites) == {"max": 4, "max_ins": 2, "max_del_win_ins": 2}
    assert column(sites, "max") == {5: 12, 6: 12, 7: 12, 8: 12}
    assert column(sites, "max_ins") == column(sites, "max_del_win_ins") == {5: 12, 6: 12, 7: 13, 8: 13}
    assert {row.cause for row in wlc.exceptions(sites.file("oslo"))} == {"ROW_ALREADY_EXISTS"}


@pytest.mark.slow
def test_o5_a_rule_needs_a_column_that_it_can_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each refusal says what to type, and that works."""
    sites = Sites(tmp_path)
    sites.found(
        "CREATE TABLE t (k INTEGER PRIMARY KEY, x UINTEGER, v VARCHAR, twice INTEGER AS (x * 2));"
        "CREATE TABLE text (k INTEGER PRIMARY KEY, v VARCHAR); CREATE TABLE bag (x INTEGER);"
        "CREATE TABLE once (k INTEGER PRIMARY KEY, x INTEGER UNIQUE);",
        mesh=True,
    )
    farm = sites.farm
    for compared, why in (
        ("", "rule max compares a column"),
        ("nothing", "has no column 'nothing' of its own"),
        ("twice", "has no column 'twice' of its own"),
        ("v", "is VARCHAR, and rule max compares whole numbers"),
        ("k", "is part of the primary key"),
    ):
        with pytest.raises(InvalidError, match=why) as refused:
            wlc.set_rule("sales", "t", "max", column=compared, farm=farm)
        assert refused.value.hint == f"wlc site rule {farm}/sales main.t max --column x"
    with pytest.raises(InvalidError, match="compares whole numbers") as refused:
        wlc.set_rule("sales", "text", "max", column="v", farm=farm)
    assert refused.value.hint is not None
    assert "add one" in refused.value.hint
    with pytest.raises(InvalidError, match="no primary key"):
        wlc.set_rule("sales", "bag", "max", column="x", farm=farm)
    with pytest.raises(UnsupportedError, match="a UNIQUE constraint"):
        wlc.set_rule("sales", "once", "max", column="x", farm=farm)
    with pytest.raises(InvalidError, match="rule newest compares no column"):
        wlc.set_rule("sales", "t", "newest", column="x", farm=farm)
    assert (
        run_app(app, "wlc", ["site", "rule", "sales", "main.t", "max", "--column", "X", "--farm", farm, "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)[0]["column"] == "x"
    # Once there is another site, which knows the rule, the column stays.
    sites.join("rome")
    sites.exchange()
    sites.write("oslo", "ALTER TABLE t DROP COLUMN twice")
    for statement in ("ALTER TABLE t DROP COLUMN x", "ALTER TABLE t ALTER x TYPE VARCHAR"):
        with pytest.raises(InvalidError, match="column"):
            sites.write("oslo", statement)


@pytest.mark.slow
def test_a_chain_of_changes_is_compared_with_what_it_leaves(tmp_path: Path) -> None:
    """Each change of a step meets the row as those accepted before it left it, empty columns included."""
    sites = mesh_that_compares(tmp_path, *COLUMN_RULES, rows="SELECT range, 10, '' FROM range(1, 4)")
    everywhere(sites, "oslo", "UPDATE {t} SET x = 12 WHERE k = 1", "DELETE FROM {t} WHERE k = 2")
    everywhere(
        sites,
        "rome",
        "UPDATE {t} SET x = 13 WHERE k = 1",
        "UPDATE {t} SET x = 11 WHERE k = 1",
        "DELETE FROM {t} WHERE k = 1",
        "INSERT INTO {t} VALUES (1, 14, 'again')",
        # Gone at oslo: nothing to update, nothing to delete, then there is room.
        "UPDATE {t} SET x = 20 WHERE k = 2",
        "DELETE FROM {t} WHERE k = 2",
        "INSERT INTO {t} VALUES (2, 1, 'new')",
        # An empty column is lower than any number, and a tie loses.
        "UPDATE {t} SET x = NULL WHERE k = 3",
        "UPDATE {t} SET x = 0 WHERE k = 3",
    )
    take_from(sites, "rome>oslo")
    assert column(sites, "old") == {1: 12, 2: 1, 3: 0}
    # 13 is accepted, 11 is not, and the deletion was made from 11.
    assert column(sites, "max") == {1: 13, 2: 1, 3: 10}
    assert column(sites, "max_delete_wins") == {1: 14, 2: 1, 3: 10}
    assert column(sites, "max_ins") == {1: 14, 2: 1, 3: 10}
    assert column(sites, "max_del_win_ins") == {1: 14, 2: 1, 3: 10}
    # old: 13, 11, deletion, insert; 20, deletion. max: 11, deletion, insert; the same; NULL and 0.
    assert rejected(sites) == {"old": 6, "max": 7, "max_delete_wins": 5, "max_ins": 6, "max_del_win_ins": 5}
    sites.replica_equals("oslo", *COLUMN_RULES)


@pytest.mark.slow
def test_what_is_rejected_is_handed_on_to_nobody(tmp_path: Path) -> None:
    """A third site that reads only the one that rejected a change contains it, and does not get it: no convergence."""
    sites = mesh_that_compares(tmp_path, "max", rows="VALUES (1, 10, 'first')")
    sites.join("paris")
    sites.exchange()
    sites.write("oslo", "UPDATE max SET x = 12, v = 'oslo'")
    sites.write("rome", "UPDATE max SET x = 11, v = 'rome'")
    assert take_from(sites, "rome>oslo", "oslo>paris", "rome>paris") == [1, 2, 0]
    assert sites.rows("paris", "max") == [(1, 12, "oslo")]
    # A tie is lost at both sites, which stay different: the application's business, as in NDB.
    sites.write("oslo", "UPDATE max SET x = 20, v = 'oslo'")
    sites.write("rome", "UPDATE max SET x = 20, v = 'rome'")
    sites.exchange()
    assert [sites.rows(site, "max")[0][2] for site in ("oslo", "rome")] == ["oslo", "rome"]
    assert sum(sites.take(site) for site in sites.names) == 0


@pytest.mark.slow
def test_numbers_of_one_site_each_make_all_sites_equal(tmp_path: Path) -> None:
    """As docs/sites-rules.md says of max_ins: numbers rise, no two sites write the same one, and nobody deletes."""
    sites = mesh_that_compares(tmp_path, "max_ins", rows="VALUES (1, 0, 'first')")
    sites.join("paris")
    sites.exchange()
    for beat in (1, 2):
        for number, site in enumerate(sites.names):
            version = f"{beat}0{number if beat == 1 else 2 - number}"
            sites.write(
                site,
                f"UPDATE max_ins SET x = {version}, v = '{site} {beat}' WHERE k = 1",
                f"INSERT INTO max_ins VALUES (2, {version}, '{site} {beat}')"
                f" ON CONFLICT DO UPDATE SET x = excluded.x, v = excluded.v",
            )
        # Round the ring one way, then the other; each hop passes on what it has accepted only.
        take_from(sites, *(("oslo>rome", "rome>paris") if beat == 1 else ("paris>rome", "rome>oslo")))
    sites.exchange()
    sites.refuse_differences("max_ins")
    assert sites.rows("paris", "max_ins") == [(1, 202, "oslo 2"), (2, 202, "oslo 2")]
