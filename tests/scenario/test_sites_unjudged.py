"""Tables that nobody judges, in transactions that the primary rejects for what else they did.

Docs: docs/sites-rules.md.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

import wlc
import wlr
from tests.sites import Sites, take_from
from wlc.farm.errors import ExpiredError
from wlc.multi_master.duckdb.conflict_window import KeptWindow

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SCHEMA = """
    CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE parents (k INTEGER PRIMARY KEY);
    CREATE TABLE o (k INTEGER PRIMARY KEY, v VARCHAR, parent INTEGER REFERENCES parents (k));
    CREATE TABLE free (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE single (k INTEGER PRIMARY KEY, v VARCHAR UNIQUE);
    INSERT INTO parents VALUES (1), (2);
"""


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    """Oslo, the primary, Paris, and Rome, which owns `o`."""
    found = Sites(tmp_path)
    found.found(SCHEMA)
    found.join("paris")
    found.join("rome")
    wlc.set_rule("sales", "o", "owner", site="rome", farm=found.farm)
    found.exchange()
    return found


def rejected(sites: Sites, site: str = "oslo") -> list[tuple[str, object, str, str]]:
    return [(each.table.name, each.key["k"], each.op_type, each.cause) for each in wlc.exceptions(sites.file(site))]


def counted(sites: Sites, name: str, site: str = "oslo") -> int:
    return sum(each.value for each in wlc.conflicts(sites.file(site)) if each.name == name)


def collide(sites: Sites) -> None:
    """Let Rome write a row of its own in a transaction that Oslo will reject for another one."""
    wlc.set_rule("sales", "t", "epoch_trans", farm=sites.farm)
    sites.exchange()
    sites.write("oslo", "INSERT INTO t VALUES (1, 'oslo')")
    sites.write("rome", "BEGIN; INSERT INTO o VALUES (1, 'first', 1); INSERT INTO t VALUES (1, 'rome'); COMMIT")


@pytest.mark.parametrize("is_at_once", [True, False], ids=["at once", "one after the other"])
@pytest.mark.parametrize("rule", ["owner", "none"])
def test_what_follows_a_rejected_transaction_in_a_table_that_nobody_judges_counts(
    sites: Sites, rule: str, *, is_at_once: bool
) -> None:
    """Whether the primary takes both in one step or not, the sites are equal in the end."""
    wlc.set_rule("sales", "o", rule, site="rome" if rule == "owner" else "", farm=sites.farm)
    collide(sites)
    if not is_at_once:
        take_from(sites, "rome>oslo")
    sites.write(
        "rome",
        "BEGIN; UPDATE o SET v = 'second' WHERE k = 1; INSERT INTO o VALUES (2, 'with it', 1); COMMIT",
        "DELETE FROM o WHERE k = 2",
        "INSERT INTO o VALUES (3, 'without', 1)",
    )
    sites.exchange()
    sites.refuse_differences("t", "o")
    assert sites.rows("rome", "o") == [(1, "second", 1), (3, "without", 1)]
    assert sorted(rejected(sites)) == [
        ("o", 1, "WRITE_ROW", "TRANS_IN_CONFLICT"),
        ("t", 1, "WRITE_ROW", "TRANS_IN_CONFLICT"),
    ]
    assert (counted(sites, "rejects"), counted(sites, "dependents"), counted(sites, "row_conflicts")) == (1, 0, 1)
    for site in sites.names:
        sites.replica_equals(site, "t", "o")


def test_a_row_that_follows_a_rejected_transaction_may_go(sites: Sites) -> None:
    collide(sites)
    take_from(sites, "rome>oslo")
    sites.write(
        "rome", "DELETE FROM o WHERE k = 1", "INSERT INTO o VALUES (1, 'again', 1)", "DELETE FROM o WHERE k = 1"
    )
    sites.exchange()
    sites.refuse_differences("t", "o")
    assert sites.rows("rome", "o") == []


def test_the_next_primary_knows_what_the_former_one_had_rejected(sites: Sites) -> None:
    collide(sites)
    take_from(sites, "rome>oslo", "oslo>paris")
    wlc.set_role(sites.file("oslo"), "paris", "primary")
    sites.take("paris")
    sites.write("rome", "UPDATE o SET v = 'second' WHERE k = 1")
    sites.exchange()
    sites.refuse_differences("t", "o")
    assert sites.rows("rome", "o") == [(1, "second", 1)]


def test_a_successor_that_had_written_after_its_own_rejection_keeps_that(sites: Sites) -> None:
    collide(sites)
    take_from(sites, "rome>oslo")
    sites.write("rome", "UPDATE o SET v = 'second' WHERE k = 1", "INSERT INTO o VALUES (2, 'other', 1)")
    wlc.set_role(sites.file("oslo"), "rome", "primary")
    sites.take("rome")
    sites.exchange()
    sites.refuse_differences("t", "o")
    assert sites.rows("oslo", "o") == [(1, "second", 1), (2, "other", 1)]
    assert sites.rows("oslo", "t") == [(1, "oslo")]


@pytest.mark.parametrize("is_at_once", [True, False], ids=["at once", "one after the other"])
def test_what_an_owner_writes_that_breaks_a_constraint_is_rejected(sites: Sites, *, is_at_once: bool) -> None:
    sites.write("oslo", "DELETE FROM parents WHERE k = 2")
    sites.write("rome", "INSERT INTO o VALUES (1, 'first', 2)")
    if not is_at_once:
        take_from(sites, "rome>oslo")
    sites.write("rome", "UPDATE o SET v = 'second', parent = 1 WHERE k = 1", "INSERT INTO o VALUES (2, 'other', 1)")
    sites.exchange()
    sites.refuse_differences("o", "parents")
    assert sites.rows("oslo", "o") == [(1, "second", 1), (2, "other", 1)]
    assert rejected(sites) == [("o", 1, "WRITE_ROW", "constraint")]


@pytest.mark.parametrize("table", ["free", "single"])
@pytest.mark.parametrize("rule", ["owner", "none"])
def test_a_site_goes_on_with_what_it_has_written_since(sites: Sites, rule: str, table: str) -> None:
    """What the primary tells of a row is older than that, and does not take it back for a while."""
    wlc.set_rule("sales", table, rule, site="rome" if rule == "owner" else "", farm=sites.farm)
    sites.write("rome", f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')")
    wlc.set_rule("sales", "t", "epoch_trans", farm=sites.farm)
    sites.exchange()
    sites.write("oslo", "INSERT INTO t VALUES (1, 'oslo')")
    sites.write("rome", f"BEGIN; UPDATE {table} SET v = v || ' rejected'; INSERT INTO t VALUES (1, 'rome'); COMMIT")
    take_from(sites, "rome>oslo")
    # One is published, one is not.
    sites.write("rome", f"UPDATE {table} SET v = v || ', again' WHERE k = 1", f"DELETE FROM {table} WHERE k = 2")
    with wlc.connect(sites.file("rome")) as connection:
        connection.execute(f"UPDATE {table} SET v = v || ', again' WHERE k = 3")
        wlc.take(sites.file("rome"))
        held = [(1, "a rejected, again"), (3, "c rejected, again"), (4, "d")]
        assert connection.execute(f"FROM {table} ORDER BY k").fetchall() == held
        connection.execute(f"UPDATE {table} SET v = v || ' and again' WHERE k <> 3")
    sites.exchange()
    sites.refuse_differences("t", table)
    held = [(1, "a rejected, again and again"), (3, "c rejected, again"), (4, "d and again")]
    assert sites.rows("oslo", table) == held
    for site in sites.names:
        sites.replica_equals(site, "t", table)


def test_a_row_whose_parent_is_rejected_gives_way(sites: Sites) -> None:
    """What it was before is not what the rejected transaction had made of it."""
    wlc.set_rule("sales", "t", "epoch_trans", farm=sites.farm)
    sites.exchange()
    sites.write("oslo", "INSERT INTO t VALUES (1, 'oslo')")
    sites.write(
        "rome",
        "BEGIN; INSERT INTO parents VALUES (3); INSERT INTO o VALUES (1, 'first', 3);"
        " INSERT INTO t VALUES (1, 'rome'); COMMIT",
    )
    take_from(sites, "rome>oslo")
    sites.write("rome", "UPDATE o SET v = 'second' WHERE k = 1", "INSERT INTO o VALUES (2, 'other', 1)")
    sites.exchange()
    sites.refuse_differences("t", "o", "parents")
    assert sites.rows("rome", "o") == [(2, "other", 1)]


@pytest.mark.parametrize("kind", ["foreign key", "unique"])
def test_a_row_that_gives_way_becomes_what_the_primary_told(sites: Sites, kind: str) -> None:
    """Not what the rejected transaction had made of it, which is what was there before the next own change."""
    wlc.set_rule("sales", "single", "owner", site="rome", farm=sites.farm)
    wlc.set_rule("sales", "t", "epoch_trans", farm=sites.farm)
    sites.write("rome", "INSERT INTO o VALUES (1, 'base', 1)", "INSERT INTO single VALUES (1, 'base'), (2, 'other')")
    sites.exchange()
    sites.write("oslo", "INSERT INTO t VALUES (1, 'oslo')")
    sites.write(
        "rome",
        "BEGIN; INSERT INTO parents VALUES (3); UPDATE o SET v = 'first', parent = 3; INSERT INTO t VALUES (1, 'rome');"
        " UPDATE single SET v = 'left' WHERE k = 2; UPDATE single SET v = 'first' WHERE k = 1; COMMIT",
    )
    take_from(sites, "rome>oslo")
    if kind == "foreign key":
        # The parent goes.
        sites.write("rome", "UPDATE o SET v = 'second' WHERE k = 1")
    else:
        # The value comes back.
        sites.write("rome", "UPDATE single SET v = 'other' WHERE k = 1")
    take_from(sites, "oslo>rome")
    assert sites.rows("rome", "o") == [(1, "base", 1)]
    assert sites.rows("rome", "single") == [(1, "base"), (2, "other")]
    sites.exchange()
    sites.refuse_differences("t", "o", "parents", "single")
    assert sites.rows("oslo", "o") == [(1, "base", 1)]
    assert sites.rows("oslo", "single") == [(1, "base"), (2, "other")]


def test_a_successor_sets_a_row_back_to_what_was_told_of_it(sites: Sites) -> None:
    sites.write("rome", "INSERT INTO o VALUES (1, 'base', 1)")
    sites.exchange()
    wlc.set_rule("sales", "t", "epoch_trans", farm=sites.farm)
    sites.exchange()
    sites.write("oslo", "INSERT INTO t VALUES (1, 'oslo')")
    first = "BEGIN; INSERT INTO o VALUES (2, 'first', 1); UPDATE o SET v = 'first' WHERE k = 1;"
    sites.write("rome", f"{first} INSERT INTO t VALUES (1, 'rome'); COMMIT")
    take_from(sites, "rome>oslo")
    sites.write("rome", "BEGIN; UPDATE o SET v = 'second'; INSERT INTO t VALUES (2, 'rome'); COMMIT")
    take_from(sites, "oslo>rome")
    assert sites.rows("rome", "o") == [(1, "second", 1), (2, "second", 1)]
    sites.write("oslo", "INSERT INTO t VALUES (2, 'oslo')")
    wlc.set_role(sites.file("oslo"), "rome", "primary")
    sites.take("rome")
    sites.exchange()
    sites.refuse_differences("t", "o")
    assert sites.rows("rome", "o") == [(1, "base", 1)]
    assert sites.rows("rome", "t") == [(1, "oslo"), (2, "oslo")]
    for site in sites.names:
        sites.replica_equals(site, "t", "o")
        assert wlr.verify_farm(sites.log(site).url, full=True).problems == ()


def test_what_does_not_fit_because_of_a_rejection_is_rejected(sites: Sites) -> None:
    """In tables without a rule, too: otherwise nothing later of its site could be taken."""
    wlc.set_rule("sales", "o", "none", farm=sites.farm)
    wlc.set_rule("sales", "t", "epoch_trans", farm=sites.farm)
    sites.exchange()
    sites.write("oslo", "INSERT INTO t VALUES (1, 'oslo')")
    sites.write("rome", "BEGIN; INSERT INTO parents VALUES (3); INSERT INTO t VALUES (1, 'rome'); COMMIT")
    sites.write("rome", "INSERT INTO o VALUES (1, 'child', 3)", "INSERT INTO o VALUES (2, 'other', 1)")
    sites.exchange()
    sites.refuse_differences("t", "o", "parents")
    assert sites.rows("oslo", "o") == [(2, "other", 1)]
    found = [(each.table.name, each.cause, each.dependent) for each in wlc.exceptions(sites.file("oslo"))]
    assert sorted(found) == [
        ("o", "constraint", False),
        ("parents", "TRANS_IN_CONFLICT", True),
        ("t", "TRANS_IN_CONFLICT", False),
    ]


def test_what_follows_a_refresh_that_is_pruned_is_not_taken_on_trust(sites: Sites) -> None:
    """Which rows its site has not seen cannot be said any more: the site begins anew."""
    collide(sites)
    take_from(sites, "rome>oslo", "oslo>paris")
    wlc.snapshot(sites.file("oslo"))
    wlc.prune(sites.file("oslo"), keep_for="0s", deadline=timedelta(0))
    sites.write("rome", "UPDATE o SET v = 'second' WHERE k = 1")
    with pytest.raises(ExpiredError, match="site has not seen") as caught:
        take_from(sites, "rome>oslo")
    assert "wlc join" in str(caught.value.hint)
    assert sites.rows("oslo", "o") == []


def test_nothing_is_compared_while_nothing_was_rejected(sites: Sites) -> None:
    sites.write("oslo", "INSERT INTO t VALUES (1, 'oslo')")
    sites.write("rome", "INSERT INTO o VALUES (1, 'rome', 1)", "UPDATE o SET v = 'again'")
    with patch.object(KeptWindow, "cover", side_effect=AssertionError("a window is made")):
        sites.exchange()
    assert sites.rows("oslo", "o") == [(1, "again", 1)]
