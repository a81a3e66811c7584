"""Rows that stay as a site has written them, although the primary tells something older, and copies of files.

Of each such row the site notes in its log what was told, which nobody may take for a change.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import wlc
from tests.sites import Backup, Sites, take_from, write_offline

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SCHEMA = """
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
    sites.found(SCHEMA)
    sites.join("rome")
    wlc.set_rule("sales", "t", "epoch_trans", farm=sites.farm)
    sites.exchange()
    return sites


def collide(sites: Sites, *statements: str) -> None:
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


def test_a_restored_site_takes_back_what_it_held_and_not_what_it_was_told(two: Sites) -> None:
    collide(two, "UPDATE n SET n = n + 100 WHERE k = 1")
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


def test_a_site_that_is_restored_takes_back_nothing_of_rows_that_it_never_had(two: Sites) -> None:
    """In its log, images that cancel out stand for a row that was absent and that it was told to be."""
    two.join("paris")
    two.exchange()
    backup = Backup.of(two, "paris")
    collide(two, "INSERT INTO n VALUES (5, 50)")
    two.exchange()
    take_back(backup)
    assert end_equal(two, "n") == [(1, 10), (2, 20)]
    assert all(check.outcome == "same" for check in wlc.verify_source(two.file("paris")))


def test_what_a_restored_site_was_told_need_not_fit(two: Sites) -> None:
    collide(two, "UPDATE single SET v = 'left' WHERE k = 1")
    backup = Backup.of(two, "rome")
    two.write("rome", "UPDATE single SET v = 'left, too' WHERE k = 1", "INSERT INTO single VALUES (3, 'x')")
    take_from(two, "oslo>rome")
    take_back(backup)
    assert end_equal(two, "single") == [(1, "left, too"), (3, "x")]


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


def test_a_primary_that_was_rolled_back_takes_from_a_site_that_has_such_a_row(two: Sites) -> None:
    two.write("oslo", "INSERT INTO t VALUES (2, 'before')")
    wlc.flush(two.file("oslo"))
    place, kept = two.folder / "farm" / "sales", two.folder / "kept"
    shutil.copytree(place, kept, ignore=shutil.ignore_patterns("sites"))
    backup = Backup.of(two, "oslo")
    collide(two, "UPDATE n SET n = n + 100 WHERE k = 1")
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
