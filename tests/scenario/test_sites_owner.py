"""Tables that one site owns, in transactions that the primary rejects for what else they did.

Docs: docs/sites.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

import wlc
from tests.sites import Sites, take_from
from wlc.capture.duckdb.sites.conflict_window import KeptWindow

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = """
    CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE parents (k INTEGER PRIMARY KEY);
    CREATE TABLE o (k INTEGER PRIMARY KEY, v VARCHAR, parent INTEGER REFERENCES parents (k));
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
def test_an_owner_that_builds_on_what_was_rejected_is_rejected_too(sites: Sites, *, is_at_once: bool) -> None:
    """Whether the primary takes both transactions in one step or not: what is left is equal everywhere."""
    collide(sites)
    if not is_at_once:
        take_from(sites, "rome>oslo")
    sites.write(
        "rome",
        "BEGIN; UPDATE o SET v = 'second' WHERE k = 1; INSERT INTO o VALUES (2, 'with it', 1); COMMIT",
        "INSERT INTO o VALUES (3, 'without', 1)",
    )
    sites.exchange()
    sites.refuse_differences("t", "o")
    assert sites.rows("rome", "o") == [(3, "without", 1)]
    assert sorted(rejected(sites)) == [
        ("o", 1, "UPDATE_ROW", "TRANS_IN_CONFLICT"),
        ("o", 1, "WRITE_ROW", "TRANS_IN_CONFLICT"),
        ("o", 2, "WRITE_ROW", "TRANS_IN_CONFLICT"),
        ("t", 1, "WRITE_ROW", "TRANS_IN_CONFLICT"),
    ]
    assert (counted(sites, "rejects"), counted(sites, "dependents"), counted(sites, "row_conflicts")) == (2, 1, 1)
    # What the owner writes once it knows is accepted.
    sites.write("rome", "INSERT INTO o VALUES (1, 'third', 1)")
    sites.exchange()
    assert (1, "third", 1) in sites.rows("oslo", "o")


def test_the_next_primary_knows_what_the_former_one_had_rejected(sites: Sites) -> None:
    collide(sites)
    take_from(sites, "rome>oslo", "oslo>paris")
    wlc.set_role(sites.file("oslo"), "paris", "primary")
    sites.take("paris")
    sites.write("rome", "UPDATE o SET v = 'second' WHERE k = 1")
    take_from(sites, "rome>paris")
    assert rejected(sites, "paris") == [("o", 1, "UPDATE_ROW", "TRANS_IN_CONFLICT")]
    sites.exchange()
    sites.refuse_differences("t", "o")
    assert sites.rows("rome", "o") == []


@pytest.mark.parametrize("is_at_once", [True, False], ids=["at once", "one after the other"])
def test_what_an_owner_writes_that_breaks_a_constraint_is_rejected(sites: Sites, *, is_at_once: bool) -> None:
    sites.write("oslo", "DELETE FROM parents WHERE k = 2")
    sites.write("rome", "INSERT INTO o VALUES (1, 'first', 2)")
    if not is_at_once:
        take_from(sites, "rome>oslo")
    sites.write("rome", "UPDATE o SET v = 'second', parent = 1 WHERE k = 1", "INSERT INTO o VALUES (2, 'other', 1)")
    sites.exchange()
    sites.refuse_differences("o", "parents")
    assert sites.rows("oslo", "o") == [(2, "other", 1)]
    assert rejected(sites) == [
        ("o", 1, "WRITE_ROW", "constraint"),
        ("o", 1, "UPDATE_ROW", "TRANS_IN_CONFLICT"),
    ]


def test_what_an_owner_writes_is_compared_with_nothing_while_nothing_was_rejected(sites: Sites) -> None:
    sites.write("oslo", "INSERT INTO t VALUES (1, 'oslo')")
    sites.write("rome", "INSERT INTO o VALUES (1, 'rome', 1)", "UPDATE o SET v = 'again'")
    with patch.object(KeptWindow, "cover", side_effect=AssertionError("a window is made")):
        sites.exchange()
    assert sites.rows("oslo", "o") == [(1, "again", 1)]
