"""Tables that nobody judges: rows that stay as their site has written them, although the primary tells something older.

Docs: docs/sites-rules.md.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

import wlc
import wlr
from tests.sites import Backup, Sites, take_from, write_offline
from wlc.farm.errors import ExpiredError
from wlc.multi_master.duckdb.conflict_window import KeptWindow

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.slow
@pytest.mark.parametrize("rule, is_at_once", [("owner", True), ("none", False)], ids=["at once", "one after the other"])
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


@pytest.mark.slow
def test_a_row_that_follows_a_rejected_transaction_may_go(sites: Sites) -> None:
    collide(sites)
    take_from(sites, "rome>oslo")
    sites.write(
        "rome", "DELETE FROM o WHERE k = 1", "INSERT INTO o VALUES (1, 'again', 1)", "DELETE FROM o WHERE k = 1"
    )
    sites.exchange()
    sites.refuse_differences("t", "o")
    assert sites.rows("rome", "o") == []


@pytest.mark.slow
def test_the_next_primary_knows_what_the_former_one_had_rejected(sites: Sites) -> None:
    collide(sites)
    take_from(sites, "rome>oslo", "oslo>paris")
    wlc.set_role(sites.file("oslo"), "paris", "primary")
    sites.take("paris")
    sites.write("rome", "UPDATE o SET v = 'second' WHERE k = 1")
    sites.exchange()
    sites.refuse_differences("t", "o")
    assert sites.rows("rome", "o") == [(1, "second", 1)]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("rule, table", [("owner", "single"), ("none", "free")])
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_follows_a_refresh_that_is_pruned_is_not_taken_on_trust(sites: Sites) -> None:
    """Which rows its site has not seen cannot be said any more: the site begins anew."""
    collide(sites)
    take_from(sites, "rome>oslo", "oslo>paris")
    wlc.snapshot(sites.file("oslo"))
    wlc.prune(sites.file("oslo"), keep_for="0s", deadline=timedelta(0))
    sites.write("rome", "UPDATE o SET v = 'second' WHERE k = 1")
    with pytest.raises(ExpiredError, match="site has not seen") as caught:
        take_from(sites, "rome>oslo")
    assert "wlc site join" in str(caught.value.hint)
    assert sites.rows("oslo", "o") == []


@pytest.mark.slow
def test_nothing_is_compared_while_nothing_was_rejected(sites: Sites) -> None:
    sites.write("oslo", "INSERT INTO t VALUES (1, 'oslo')")
    sites.write("rome", "INSERT INTO o VALUES (1, 'rome', 1)", "UPDATE o SET v = 'again'")
    with patch.object(KeptWindow, "cover", side_effect=AssertionError("a window is made")):
        sites.exchange()
    assert sites.rows("oslo", "o") == [(1, "again", 1)]


# After a restore: of each row that stays, the site notes in its log what was told, which nobody may take for a change -----


RESTORED = """
    CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE n (k INTEGER PRIMARY KEY, n INTEGER);
    CREATE TABLE single (k INTEGER PRIMARY KEY, v VARCHAR UNIQUE);
    CREATE TABLE parents (k INTEGER PRIMARY KEY);
    CREATE TABLE o (k INTEGER PRIMARY KEY, n INTEGER, parent INTEGER REFERENCES parents (k));
    INSERT INTO n VALUES (1, 10), (2, 20);
    INSERT INTO single VALUES (1, 'x');
    INSERT INTO parents VALUES (1), (2);
    INSERT INTO o VALUES (1, 10, 1);
"""


@pytest.fixture
def two(tmp_path: Path) -> Sites:
    """Oslo, the primary, and Rome; a rule for `t` alone."""
    sites = Sites(tmp_path)
    sites.found(RESTORED)
    sites.join("rome")
    wlc.set_rule("sales", "t", "epoch_trans", farm=sites.farm)
    sites.exchange()
    return sites


def collide_with(sites: Sites, *statements: str) -> None:
    """Let Oslo reject a transaction of Rome."""
    sites.write("oslo", "INSERT INTO t VALUES (1, 'oslo')")
    sites.write("rome", "; ".join(["BEGIN", *statements, "INSERT INTO t VALUES (1, 'rome')", "COMMIT"]))
    take_from(sites, "rome>oslo")


def take_back(backup: Backup) -> None:
    """Let a site that is restored take its own past back."""
    backup.restore()
    with pytest.warns(UserWarning, match="back from its own log"):
        backup.sites.take(backup.site)


def end_equal(sites: Sites, table: str) -> list[tuple[object, ...]]:
    sites.exchange()
    sites.refuse_differences("t", "n", "single", "parents", "o")
    for site in sites.names:
        sites.replica_equals(site, "t", "n", "single", "parents", "o")
    return sites.rows("oslo", table)


@pytest.mark.slow
def test_a_restored_site_takes_back_what_it_held_and_not_what_it_was_told(two: Sites) -> None:
    collide_with(two, "UPDATE n SET n = n + 100 WHERE k = 1")
    backup = Backup.of(two, "rome")
    two.write("rome", "UPDATE n SET n = n + 1 WHERE k = 1")
    take_from(two, "oslo>rome")
    assert two.rows("rome", "n") == [(1, 111), (2, 20)]
    backup.restore()
    with pytest.warns(UserWarning, match="back from its own log"):
        wlc.flush(two.file("rome"))
    assert two.rows("rome", "n") == [(1, 111), (2, 20)]
    two.write("rome", "UPDATE n SET n = n + 1 WHERE k = 1")
    assert end_equal(two, "n") == [(1, 112), (2, 20)]


@pytest.mark.slow
def test_a_site_that_is_restored_takes_back_nothing_of_rows_that_it_never_had(two: Sites) -> None:
    """In its log, images that cancel out stand for a row that was absent and that it was told to be."""
    two.join("paris")
    two.exchange()
    backup = Backup.of(two, "paris")
    collide_with(two, "INSERT INTO n VALUES (5, 50)")
    two.exchange()
    take_back(backup)
    assert end_equal(two, "n") == [(1, 10), (2, 20)]
    assert all(check.outcome == "same" for check in wlc.verify_source(two.file("paris")))


@pytest.mark.slow
def test_what_a_restored_site_was_told_need_not_fit(two: Sites) -> None:
    collide_with(two, "UPDATE single SET v = 'left' WHERE k = 1")
    backup = Backup.of(two, "rome")
    two.write("rome", "UPDATE single SET v = 'left, too' WHERE k = 1", "INSERT INTO single VALUES (3, 'x')")
    take_from(two, "oslo>rome")
    take_back(backup)
    assert end_equal(two, "single") == [(1, "left, too"), (3, "x")]


@pytest.mark.slow
def test_a_site_that_is_restored_twice_ends_as_the_others(two: Sites) -> None:
    first = Backup.of(two, "rome")
    two.write("rome", "UPDATE n SET n = n + 100")
    two.exchange()
    first.restore()
    write_offline(two, "rome", "INSERT INTO n VALUES (7, 70)")
    with pytest.warns(UserWarning, match="a new history begins"):
        wlc.flush(two.file("rome"))
    second = Backup.of(two, "rome")
    two.write("rome", "UPDATE n SET n = n + 1 WHERE k = 1")
    two.take("rome")
    two.exchange()
    two.refuse_differences("n")
    take_back(second)
    assert end_equal(two, "n") == [(1, 11), (2, 120), (7, 70)]


@pytest.mark.slow
def test_a_row_goes_back_to_what_was_accepted_since_it_was_told(two: Sites) -> None:
    """After a restore the primary tells once more what it has accepted behind the site's own past."""
    backup = Backup.of(two, "rome")
    two.write("rome", "UPDATE o SET n = 100")
    two.exchange()
    backup.restore()
    write_offline(two, "rome", "UPDATE o SET n = 11")
    with pytest.warns(UserWarning, match="a new history begins"):
        wlc.flush(two.file("rome"))
    two.take("oslo")
    two.write("oslo", "DELETE FROM parents WHERE k = 2")
    two.write("rome", "UPDATE o SET n = n + 1, parent = 2")
    take_from(two, "oslo>rome")
    assert two.rows("rome", "o") == [(1, 11, 1)]
    wlc.set_rule("sales", "o", "epoch", farm=two.farm)
    assert end_equal(two, "o") == [(1, 11, 1)]


@pytest.mark.slow
def test_a_primary_that_was_rolled_back_takes_from_a_site_that_has_such_a_row(two: Sites) -> None:
    two.write("oslo", "INSERT INTO t VALUES (2, 'before')")
    wlc.flush(two.file("oslo"))
    place, kept = two.folder / "farm" / "sales", two.folder / "kept"
    shutil.copytree(place, kept, ignore=shutil.ignore_patterns("sites"))
    backup = Backup.of(two, "oslo")
    collide_with(two, "UPDATE n SET n = n + 100 WHERE k = 1")
    two.write("rome", "UPDATE n SET n = n + 1 WHERE k = 1")
    take_from(two, "oslo>rome")
    backup.restore()
    for each in place.iterdir():
        if each.is_dir() and each.name != "sites":
            shutil.rmtree(each)
        elif each.is_file():
            each.unlink()
    shutil.copytree(kept, place, dirs_exist_ok=True)
    with pytest.warns(UserWarning, match="a new history begins"):
        two.write("oslo", "INSERT INTO n VALUES (9, 90)")
    assert end_equal(two, "n") == [(1, 111), (2, 20), (9, 90)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("TRUNCATE n", [(1, 11), (7, 70)]),
        ("ALTER TABLE n ADD COLUMN more VARCHAR DEFAULT 'm'", [(1, 11, "m"), (2, 20, "m"), (7, 70, "m")]),
    ],
    ids=["emptied", "wider"],
)
def test_what_a_restored_primary_has_written_since_is_newer_than_what_it_did_to_the_table(
    two: Sites, statement: str, left: list[tuple[object, ...]]
) -> None:
    backup = Backup.of(two, "oslo")
    two.write("oslo", statement)
    two.exchange()
    backup.restore()
    write_offline(two, "oslo", "INSERT INTO n VALUES (7, 70)", "UPDATE n SET n = 11 WHERE k = 1")
    with pytest.warns(UserWarning, match="has committed"):
        two.take("oslo")
    assert end_equal(two, "n") == left
