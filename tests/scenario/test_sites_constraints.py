"""Rows of another site that meet constraints, triggers and keys of the site that takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import wlc
from wlc.farm.errors import ReplayError, UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path


from tests.sites import Sites


def test_rows_that_break_a_constraint_are_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found()
    sites.join("rome")
    sites.write("oslo", "INSERT INTO u VALUES (1, 'same')")
    sites.write("rome", "INSERT INTO u VALUES (2, 'same')")
    with pytest.raises(ReplayError, match="which site rome published, does not fit"):
        sites.take("oslo")
    assert sites.rows("oslo", "u") == [(1, "same")]
    sites.write("oslo", "DELETE FROM u")
    assert sites.take("oslo") == 1


def test_triggers_are_refused_and_references_are_kept(tmp_path: Path) -> None:
    two = Sites(tmp_path)
    two.found()
    two.join("rome")
    two.write(
        "oslo",
        "CREATE TABLE tree (id INTEGER PRIMARY KEY, up INTEGER REFERENCES tree (id))",
        "CREATE TABLE noted (id INTEGER PRIMARY KEY)",
        "CREATE TABLE notes (id INTEGER PRIMARY KEY)",
        "CREATE TRIGGER noting AFTER INSERT ON noted FOR EACH STATEMENT INSERT INTO notes VALUES (1)",
    )
    two.exchange()
    two.write("rome", "INSERT INTO noted VALUES (1)")
    with pytest.raises(UnsupportedError, match="has a trigger, noting"):
        two.take("oslo")
    two.write("oslo", "DROP TRIGGER noting ON noted")
    two.write("rome", "INSERT INTO parents VALUES (1, 'p')", "INSERT INTO children VALUES (1, 1)")
    two.write("rome", "INSERT INTO tree VALUES (1, NULL)", "INSERT INTO tree VALUES (2, 1), (3, 1)")
    two.write("rome", "INSERT INTO tree VALUES (4, 3), (5, NULL)", "DELETE FROM tree WHERE id = 2")
    two.exchange()
    # DuckDB does not remove a child and then its parent in one transaction.
    two.write("rome", "DELETE FROM children", "DELETE FROM parents", "DELETE FROM tree WHERE id = 4")
    two.write("rome", "DELETE FROM tree WHERE id = 3", "UPDATE tree SET up = 5 WHERE id = 1")
    two.exchange()
    two.refuse_differences("noted", "parents", "children", "tree")
    assert two.rows("oslo", "tree") == [(1, 5), (5, None)]


def test_a_key_knows_no_collation_and_an_emptied_table_lists_its_rows(tmp_path: Path) -> None:
    """Before it knows of another site, the first one must say which rows it removes."""
    sites = Sites(tmp_path)
    sites.found()
    sites.write("oslo", "CREATE TABLE names (name VARCHAR COLLATE NOCASE PRIMARY KEY, n INTEGER)")
    sites.write("oslo", "INSERT INTO names VALUES ('A', 1), ('a', 2)")
    wlc.flush(sites.file("oslo"))
    sites.join("rome")
    sites.write(
        "rome", "UPDATE names SET n = 9 WHERE name COLLATE \"binary\" = 'A'", "INSERT INTO a VALUES (9, 'r', 1)"
    )
    wlc.flush(sites.file("rome"))
    sites.write("oslo", "DELETE FROM a")
    sites.exchange()
    assert set(sites.rows("oslo", "names")) == {("A", 9), ("a", 2)}
    wlc.set_rule(sites.file("oslo"), "names", "epoch")
    sites.write("oslo", "UPDATE names SET n = 10 WHERE name COLLATE \"binary\" = 'A'")
    sites.write("rome", "UPDATE names SET n = 11 WHERE name COLLATE \"binary\" = 'A'")
    wlc.flush(sites.file("rome"))
    sites.exchange()
    (rejected,) = wlc.exceptions(sites.file("oslo"))
    assert rejected.local == {"name": "A", "n": 10}
    assert set(sites.rows("oslo", "names")) == {("A", 10), ("a", 2)}
    assert sites.rows("oslo", "a") == [(9, "r", 1.0)]
    sites.refuse_differences("names", "a")
