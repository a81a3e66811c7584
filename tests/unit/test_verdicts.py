"""What the primary rejects of another site's step, decided over relations that a test spells out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.handmade_step import CAUGHT_UP, CUT, HandmadePrimary, P, Row
from wlc.farm.model import Name
from wlc.multi_master.duckdb import conflict_window, verdicts

if TYPE_CHECKING:
    from collections.abc import Mapping

# Table of the conflicts of MySQL NDB Cluster's epoch_1.inc; the names are its tests'.


def test_e1_changes_after_what_the_primary_did_are_accepted() -> None:
    primary = HandmadePrimary()
    primary.rows("t", k1="Metropole")
    primary.line("t", 1)
    changes: list[list[Row]] = [
        [("t", 1, "Metropole", "Favourite")],
        [("t", 1, "Favourite", "a")],
        [("t", 1, "a", "b")],
    ]
    assert primary.judge(*changes, past=CAUGHT_UP) == {}


def test_e2_e11_a_row_that_only_the_site_knows_may_come_and_go() -> None:
    primary = HandmadePrimary()
    assert primary.judge([("t", 2, None, "a")], [("t", 2, "a", "b")], [("t", 2, "b", None)]) == {}


def test_e3_insert_of_a_row_that_the_primary_inserted() -> None:
    primary = HandmadePrimary()
    primary.rows("t", k2="Loopy")
    primary.line("t", 2)
    assert primary.judge([("t", 2, None, "Cloisters")]) == {"epoch": 1}
    assert primary.rejected() == [(1, "WRITE_ROW", "ROW_ALREADY_EXISTS")]


def test_e4_update_of_a_row_that_the_primary_updated() -> None:
    primary = HandmadePrimary()
    primary.rows("t", k2="Peters Yard")
    primary.line("t", 2)
    assert primary.judge([("t", 2, "Loopy", "x")]) == {"epoch": 1}
    assert primary.rejected() == [(1, "UPDATE_ROW", "DATA_IN_CONFLICT")]


def test_e5_delete_of_a_row_that_the_primary_updated() -> None:
    primary = HandmadePrimary()
    primary.rows("t", k2="new")
    primary.line("t", 2)
    assert primary.judge([("t", 2, "old", None)]) == {"epoch": 1}
    assert primary.rejected("op, cause, spoils") == [("DELETE_ROW", "DATA_IN_CONFLICT", True)]


def test_e6_update_of_a_row_that_the_primary_deleted() -> None:
    primary = HandmadePrimary()
    primary.line("t", 2)
    assert primary.judge([("t", 2, "old", "new")]) == {"epoch": 1}
    assert primary.rejected() == [(1, "UPDATE_ROW", "ROW_DOES_NOT_EXIST")]


def test_e7_delete_of_a_row_that_the_primary_deleted_needs_no_refresh() -> None:
    primary = HandmadePrimary()
    primary.line("t", 2)
    assert primary.judge([("t", 2, "old", None)]) == {"epoch": 1, "delete_delete": 1}
    assert primary.rejected("op, cause, spoils") == [("DELETE_ROW", "ROW_DOES_NOT_EXIST", False)]


def test_e8_insert_after_both_sides_deleted_is_rejected() -> None:
    primary = HandmadePrimary()
    primary.line("t", 3)
    assert primary.judge([("t", 3, "old", None)], [("t", 3, None, "Dalriada")]) == {"epoch": 2, "delete_delete": 1}


def test_e8_insert_after_both_sides_deleted_and_the_site_has_seen_that_is_accepted_in_one_step_as_in_two() -> None:
    primary = HandmadePrimary()
    primary.line("t", 3)
    changes: list[list[Row]] = [[("t", 3, "old", None)], [("t", 3, None, "Dalriada")]]
    assert primary.judge(*changes, past=[CUT, CAUGHT_UP]) == {"epoch": 1, "delete_delete": 1}
    assert primary.judge([("t", 3, None, "Dalriada")], past=CAUGHT_UP) == {}


def test_e9_insert_update_and_delete_of_a_row_that_the_primary_inserted() -> None:
    primary = HandmadePrimary()
    primary.rows("t", k4="Haymarket")
    primary.line("t", 4)
    changes: list[list[Row]] = [[("t", 4, None, "a")], [("t", 4, "a", "b")], [("t", 4, "b", None)]]
    assert primary.judge(*changes) == {"epoch": 3}
    assert primary.rejected() == [
        (1, "WRITE_ROW", "ROW_ALREADY_EXISTS"),
        (2, "UPDATE_ROW", "DATA_IN_CONFLICT"),
        (3, "DELETE_ROW", "DATA_IN_CONFLICT"),
    ]


def test_e10_delete_insert_and_update_of_a_row_that_the_primary_updated() -> None:
    primary = HandmadePrimary()
    primary.rows("t", k4="Blind poet")
    primary.line("t", 4)
    assert primary.judge([("t", 4, "x", None)], [("t", 4, None, "a")], [("t", 4, "a", "b")]) == {"epoch": 3}


def test_e12_one_row_of_a_hundred_is_in_conflict() -> None:
    primary = HandmadePrimary()
    primary.rows("t", k1="P's")
    primary.line("t", 1)
    many: list[Row] = [("t", key, None, "x") for key in range(100)]
    counts = primary.judge(many, [("t", 1, "x", "y")], [("t", 1, "y", None)], [("t", 1, None, "z")])
    assert counts == {"epoch": 4}
    assert {line for line, *_ in primary.rejected()} == {1, 2, 3, 4}


def test_e13_batched_deletes_do_not_depend_on_the_borders_of_batches() -> None:
    primary = HandmadePrimary()
    primary.line("t", 1)
    many: list[Row] = [("t", 1, "x", None), *(("t", key, None, "x") for key in range(2, 202))]
    assert primary.judge(many, [("t", 1, None, "again")]) == {"epoch": 2, "delete_delete": 1}
    assert primary.judge(many) == {"epoch": 1, "delete_delete": 1}
    assert primary.judge([("t", 1, None, "again")]) == {"epoch": 1}


def test_e15_the_site_has_seen_the_first_of_two_changes_only() -> None:
    primary = HandmadePrimary()
    primary.rows("t", k1="second")
    primary.line("t", 1, tick=11)
    primary.line("t", 1, tick=12)
    assert primary.judge([("t", 1, "first", "x")], past={P: 11}) == {"epoch": 1}
    assert primary.judge([("t", 1, "second", "x")], past={P: 12}) == {}


def test_a_rejected_change_spoils_what_comes_after_it_although_the_site_has_caught_up_between() -> None:
    primary = HandmadePrimary()
    primary.rows("t", k1="P's")
    primary.line("t", 1)
    changes: list[list[Row]] = [[("t", 1, "old", "a")], [("t", 1, "P's", "b")]]
    assert primary.judge(*changes, past=[CUT, CAUGHT_UP]) == {"epoch": 2}
    assert primary.rejected("line, direct") == [(1, True), (2, False)]


def test_a_line_of_a_third_site_counts_by_its_own_name() -> None:
    rome = "r" * 32
    primary = HandmadePrimary()
    primary.rows("t", k1="x")
    primary.line("t", 1, tick=5, history=rome)
    assert primary.judge([("t", 1, "x", "y")], past={P: 100}) == {"epoch": 1}
    assert primary.judge([("t", 1, "x", "y")], past={P: 100, rome: 4}) == {"epoch": 1}
    assert primary.judge([("t", 1, "x", "y")], past={rome: 5}) == {}


def test_a_change_accepted_before_a_site_was_restored_counts_for_what_the_site_does_afterwards() -> None:
    restored = "n" * 32
    primary = HandmadePrimary()
    primary.rows("t", k1="x")
    primary.line("t", 1, tick=5, history=restored)
    assert primary.judge([("t", 1, "w", "y")], past={P: 20, restored: 3}) == {"epoch": 1}


def test_a_cleared_table_is_in_conflict_as_a_whole() -> None:
    primary = HandmadePrimary(names=("t", "u"), rules={"t": "epoch", "u": "epoch"})
    number = conflict_window.key_sql(Name("main", "t"), (), ())
    primary.connection.execute(
        f"INSERT INTO {conflict_window.WINDOW} BY NAME SELECT {number} AS key, '{P}' AS history, 20 AS tick"
    )
    assert primary.judge([("t", 1, None, "a"), ("u", 1, None, "a")]) == {"epoch": 1}


def test_tables_without_a_rule_are_not_judged() -> None:
    primary = HandmadePrimary(rules={})
    primary.line("t", 1)
    assert primary.judge([("t", 1, "old", "new")]) == {}


# Whole transactions: ndb_rpl_conflict_epoch_trans.


def whole(*others: str, **rules: str) -> HandmadePrimary:
    return HandmadePrimary(names=("t", *others), rules={"t": "epoch_trans", **rules})


def three(counts: Mapping[str, int]) -> tuple[int, int, int]:
    return counts["row_conflicts"], counts["row_rejects"], counts["rejects"]


def test_t1_one_row() -> None:
    primary = whole()
    primary.rows("t", k2="P's")
    primary.line("t", 2)
    counts = primary.judge([("t", 2, "old", "new")])
    assert counts == {"row_conflicts": 1, "row_rejects": 1, "rejects": 1, "conflict_steps": 1}
    assert primary.rejected() == [(1, "UPDATE_ROW", "TRANS_IN_CONFLICT")]
    assert primary.found.lines == {1}


def test_t2_the_whole_transaction() -> None:
    primary = whole()
    primary.rows("t", k4="P's", k5="old")
    primary.line("t", 4)
    assert three(primary.judge([("t", 4, "old", "new"), ("t", 5, "old", "new")])) == (1, 2, 1)


def test_t3_a_transaction_that_depends_on_it() -> None:
    primary = whole()
    primary.rows("t", k1="P's", k3="old")
    primary.line("t", 1)
    counts = primary.judge([("t", 3, "old", "a"), ("t", 1, "old", "a")], [("t", 3, "a", "b"), ("t", 11, None, "b")])
    assert three(counts) == (1, 4, 2)
    assert counts["dependents"] == 1


def test_t4_across_tables() -> None:
    primary = whole("u", u="epoch_trans")
    primary.rows("t", k6="P's")
    primary.line("t", 6)
    first: list[Row] = [("t", 6, "old", "new"), ("u", 1, None, "a"), ("u", 2, None, "a")]
    counts = primary.judge(first, [("u", 2, "a", "b"), ("u", 3, None, "b")])
    assert three(counts) == (1, 5, 2)


def test_t5_not_what_else_is_in_the_step() -> None:
    primary = whole()
    primary.rows("t", k10="P's")
    primary.line("t", 10)
    first: list[Row] = [("t", 10, "old", "new"), ("t", 11, None, "a")]
    counts = primary.judge(first, [("t", key, None, "a") for key in (12, 13, 14)])
    assert three(counts) == (1, 2, 1)
    assert primary.found.lines == {1}


def test_t6_an_ancestor_is_innocent() -> None:
    primary = whole()
    primary.rows("t", k7="P's", k8="old", k9="old")
    primary.line("t", 7)
    first: list[Row] = [("t", 8, "old", "innocent"), ("t", 9, "old", "innocent")]
    counts = primary.judge(first, [("t", 9, "innocent", "x"), ("t", 7, "old", "x")])
    assert three(counts) == (1, 2, 1)
    assert primary.rejected("line, accepted") == [(2, None), (2, 1)] or primary.rejected("line, accepted") == [
        (2, 1),
        (2, None),
    ]


def test_t7_bank() -> None:
    primary = whole("log", log="epoch_trans")
    primary.rows("t", k1="50", k2="50", k3="0", k4="0")
    primary.line("t", 1)
    primary.line("t", 2)

    def payment(entry: int, payee: int, *values: str) -> list[Row]:
        larry, before, after = values
        return [("t", 1, larry, larry + "+"), ("t", payee, before, after), ("log", entry, None, "paid")]

    counts = primary.judge(
        payment(1, 3, "100", "0", "1"), payment(2, 3, "100+", "1", "2"), payment(3, 4, "100++", "0", "1")
    )
    assert three(counts) == (3, 9, 3)
    log = f"SELECT count(*) FROM {verdicts.REJECTED} WHERE place = 1"
    assert primary.connection.execute(log).fetchall() == [(3,)]


def test_t8_tables_of_other_rules_follow_their_transaction() -> None:
    primary = whole("e", "n", e="epoch")
    primary.rows("t", k1="P's")
    primary.rows("e", k1="old")
    primary.rows("n", k1="old")
    primary.line("t", 1)
    counts = primary.judge([("t", 1, "old", "new"), ("e", 1, "old", "new"), ("n", 1, "old", "new")])
    assert counts == {"row_conflicts": 1, "row_rejects": 3, "rejects": 1, "conflict_steps": 1}


def test_t9_a_conflict_in_a_table_of_rule_epoch_rejects_its_row_only() -> None:
    primary = whole("e", "n", e="epoch")
    primary.rows("t", k1="old")
    primary.rows("e", k1="P's")
    primary.rows("n", k1="old")
    primary.line("e", 1)
    counts = primary.judge([("t", 1, "old", "new"), ("e", 1, "old", "new"), ("n", 1, "old", "new")])
    assert counts == {"epoch": 1}
    assert primary.rejected("place, is_whole") == [(1, False)]


def test_dependents_are_found_along_any_chain() -> None:
    primary = whole()
    primary.rows("t", k0="P's", **{f"k{key}": "0" for key in range(1, 13)})
    primary.line("t", 0)
    chain: list[list[Row]] = [[("t", key, "0", "1"), ("t", key + 1, "0", "1")] for key in range(12)]
    assert three(primary.judge(*chain)) == (1, 24, 12)
    assert three(primary.judge(*reversed(chain))) == (1, 2, 1)


def test_a_row_rejected_by_rule_epoch_rejects_later_transactions_that_touch_it_only_in_that_table() -> None:
    primary = whole("e", e="epoch")
    primary.rows("t", k1="old")
    primary.rows("e", k1="P's")
    primary.line("e", 1)
    counts = primary.judge([("e", 1, "old", "a")], [("e", 1, "a", "b"), ("t", 1, "old", "new")])
    assert counts == {"epoch": 2}


# Reads: ndb_rpl_conflict_read_tracking.


@pytest.mark.parametrize("exclusive", [True, False])
def test_r2_a_read_of_a_row_that_the_primary_changed(exclusive: bool) -> None:
    primary = whole("u", u="epoch_trans")
    primary.rows("t", k1="P's")
    primary.rows("u", k3="old")
    primary.line("t", 1)
    counts = primary.judge([("u", 3, "old", "new")], reads=[(1, "t", 1, exclusive)])
    assert three(counts) == (1, 2, 1)
    assert sorted(primary.rejected("op, cause, spoils")) == [
        ("READ_ROW", "TRANS_IN_CONFLICT", False),
        ("UPDATE_ROW", "TRANS_IN_CONFLICT", True),
    ]


def test_r1_r3_reads_that_are_not_tracked_do_not_matter() -> None:
    primary = whole("u", u="epoch_trans")
    primary.rows("t", k1="P's")
    primary.rows("u", k3="old")
    primary.line("t", 1)
    assert primary.judge([("u", 3, "old", "new")]) == {}


def test_a_read_is_judged_by_what_the_site_had_seen_when_the_transaction_began() -> None:
    primary = whole("u", u="epoch_trans")
    primary.rows("t", k1="P's")
    primary.rows("u", k3="old")
    primary.line("t", 1)
    change: list[Row] = [("u", 3, "old", "new")]
    reads = [(1, "t", 1, True)]
    assert primary.judge(change, reads=reads, past=CAUGHT_UP) == {}
    assert primary.judge(change, reads=reads, past=CAUGHT_UP, reads_past=CUT)["rejects"] == 1


def test_a_transaction_that_read_what_a_rejected_one_wrote_depends_on_it() -> None:
    primary = whole()
    primary.rows("t", k1="P's", k2="old")
    primary.line("t", 1)
    counts = primary.judge([("t", 1, "old", "a")], [("t", 2, "old", "new")], reads=[(2, "t", 1, False)])
    assert counts["rejects"] == 2


def test_a_transaction_that_writes_what_a_rejected_one_only_read_is_accepted() -> None:
    primary = whole()
    primary.rows("t", k1="P's", k2="old")
    primary.line("t", 1)
    counts = primary.judge([("t", 1, "old", "a")], [("t", 2, "old", "new")], reads=[(1, "t", 2, True)])
    assert counts["rejects"] == 1
