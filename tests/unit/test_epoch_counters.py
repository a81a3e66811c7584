"""What users see counted of each case of MySQL NDB Cluster's suite ndb_rpl, alone and with the refresh that answers it.

`test_verdicts` says which rows are rejected and why, `test_sites_epoch` runs the cases with real sites.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.handmade_step import HandmadePrimary, Row


@dataclass(frozen=True)
class CountedCase:
    """The site has seen nothing of what the primary did.

    Attributes:
        changed: Tables and keys that the primary has changed, or read exclusively.
        held: Rows of the primary, by table.
        step: Transactions of the site.
        counts: What the counters are then; all others are not there.
        reads: Of the site: number of the transaction, table, key, whether exclusive.
        rule: Of tables t and u.
    """

    changed: tuple[tuple[str, int], ...]
    held: dict[str, dict[str, str]]
    step: list[list[Row]]
    counts: dict[str, int]
    reads: tuple[tuple[int, str, int, bool], ...] = ()
    rules: dict[str, str] = field(default_factory=lambda: {"t": "epoch"})


TRANS = {"t": "epoch_trans", "u": "epoch_trans"}
MIXED = {"t": "epoch_trans", "u": "epoch"}
MANY: list[Row] = [("t", key, None, "x") for key in range(100)]
MORE: list[Row] = [("t", key, None, "x") for key in range(2, 202)]
ONE_REJECTED = {"row_conflicts": 1, "rejects": 1, "conflict_steps": 1}


def read_of_what_was_changed(
    *changed: int, exclusive: bool = True, counts: dict[str, int] | None = None
) -> CountedCase:
    """The site reads row 1 of t, and changes u."""
    return CountedCase(
        changed=tuple(("t", key) for key in changed),
        held={"t": {"k1": "one", "k2": "two"}, "u": {"k3": "x"}},
        step=[[("u", 3, "x", "rome")]],
        reads=((1, "t", 1, exclusive),),
        # The row that was only read needs no refresh.
        counts={**ONE_REJECTED, "row_rejects": 2, "refreshed": 1} if counts is None else counts,
        rules=TRANS,
    )


def payment(entry: int, payee: int, *values: str) -> list[Row]:
    larry, before, after = values
    return [("t", 2, larry, larry + "+"), ("t", payee, before, after), ("u", entry, None, "paid")]


EPOCH_CASES = {
    "e2 e11": CountedCase((), {}, [[("t", 2, None, "a")], [("t", 2, "a", "b")], [("t", 2, "b", None)]], {}),
    "e3": CountedCase(
        (("t", 2),), {"t": {"k2": "Loopy"}}, [[("t", 2, None, "Cloisters")]], {"epoch": 1, "refreshed": 1}
    ),
    "e4": CountedCase(
        (("t", 2),), {"t": {"k2": "Peters Yard"}}, [[("t", 2, "Loopy", "x")]], {"epoch": 1, "refreshed": 1}
    ),
    "e5": CountedCase((("t", 2),), {"t": {"k2": "new"}}, [[("t", 2, "old", None)]], {"epoch": 1, "refreshed": 1}),
    "e6": CountedCase((("t", 2),), {}, [[("t", 2, "old", "new")]], {"epoch": 1, "refreshed": 1}),
    "e7": CountedCase((("t", 2),), {}, [[("t", 2, "old", None)]], {"epoch": 1, "delete_delete": 1}),
    "e8": CountedCase(
        (("t", 3),),
        {},
        [[("t", 3, "old", None)], [("t", 3, None, "Dalriada")]],
        {"epoch": 2, "delete_delete": 1, "refreshed": 1},
    ),
    "e9": CountedCase(
        (("t", 4),),
        {"t": {"k4": "Haymarket"}},
        [[("t", 4, None, "a")], [("t", 4, "a", "b")], [("t", 4, "b", None)]],
        {"epoch": 3, "refreshed": 1},
    ),
    "e10": CountedCase(
        (("t", 4),),
        {"t": {"k4": "Blind poet"}},
        [[("t", 4, "x", None)], [("t", 4, None, "a")], [("t", 4, "a", "b")]],
        {"epoch": 3, "refreshed": 1},
    ),
    "e12": CountedCase(
        (("t", 1),),
        {"t": {"k1": "oslo"}},
        [MANY, [("t", 1, "x", "y")], [("t", 1, "y", None)], [("t", 1, None, "z")]],
        {"epoch": 4, "refreshed": 1},
    ),
    "e13": CountedCase(
        (("t", 1),),
        {},
        [[("t", 1, "x", None), *MORE], [("t", 1, None, "again")]],
        {"epoch": 2, "delete_delete": 1, "refreshed": 1},
    ),
    "e13, the batch that deletes": CountedCase(
        (("t", 1),), {}, [[("t", 1, "x", None), *MORE]], {"epoch": 1, "delete_delete": 1}
    ),
    "e13, the batch that inserts": CountedCase(
        (("t", 1),), {}, [[("t", 1, None, "again")]], {"epoch": 1, "refreshed": 1}
    ),
}

WHOLE_CASES = {
    "t1": CountedCase(
        changed=(("t", 2),),
        held={"t": {"k2": "oslo"}},
        step=[[("t", 2, "x", "rome")]],
        counts={**ONE_REJECTED, "row_rejects": 1, "refreshed": 1},
        rules=TRANS,
    ),
    "t2": CountedCase(
        changed=(("t", 4),),
        held={"t": {"k4": "oslo", "k5": "x"}},
        step=[[("t", 4, "x", "rome"), ("t", 5, "x", "rome")]],
        counts={**ONE_REJECTED, "row_rejects": 2, "refreshed": 2},
        rules=TRANS,
    ),
    "t3": CountedCase(
        changed=(("t", 1),),
        held={"t": {"k1": "oslo", "k3": "x"}},
        step=[[("t", 3, "x", "a"), ("t", 1, "x", "a")], [("t", 3, "a", "b"), ("t", 11, None, "b")]],
        counts={**ONE_REJECTED, "row_rejects": 4, "rejects": 2, "dependents": 1, "refreshed": 3},
        rules=TRANS,
    ),
    "t4": CountedCase(
        changed=(("t", 6),),
        held={"t": {"k6": "oslo"}},
        step=[
            [("t", 6, "x", "rome"), ("u", 1, None, "a"), ("u", 2, None, "a")],
            [("u", 2, "a", "b"), ("u", 3, None, "b")],
        ],
        counts={**ONE_REJECTED, "row_rejects": 5, "rejects": 2, "dependents": 1, "refreshed": 4},
        rules=TRANS,
    ),
    "t5": CountedCase(
        changed=(("t", 10),),
        held={"t": {"k10": "oslo"}},
        step=[[("t", 10, "x", "rome"), ("t", 11, None, "a")], [("t", key, None, "a") for key in (12, 13, 14)]],
        counts={**ONE_REJECTED, "row_rejects": 2, "refreshed": 2},
        rules=TRANS,
    ),
    "t6": CountedCase(
        changed=(("t", 7),),
        held={"t": {"k7": "oslo", "k8": "x", "k9": "x"}},
        step=[
            [("t", 8, "x", "innocent"), ("t", 9, "x", "innocent")],
            [("t", 9, "innocent", "rome"), ("t", 7, "x", "rome")],
        ],
        counts={**ONE_REJECTED, "row_rejects": 2, "refreshed": 2},
        rules=TRANS,
    ),
    # The employer is 1, Larry 2, the dealer 3, the paper 4; the primary has sold the yacht.
    "t7": CountedCase(
        changed=(("t", 2), ("t", 3), ("u", 100)),
        held={"t": {"k1": "0", "k2": "50", "k3": "50", "k4": "0"}, "u": {"k100": "yacht"}},
        step=[payment(1, 1, "100", "0", "-10"), payment(2, 1, "100+", "-10", "-20"), payment(3, 4, "100++", "0", "5")],
        counts={
            "row_conflicts": 3,
            "row_rejects": 9,
            "rejects": 3,
            "conflict_steps": 1,
            # Three accounts, and three entries of which none may stay.
            "refreshed": 6,
        },
        rules=TRANS,
    ),
    "t8": CountedCase(
        changed=(("t", 1),),
        held={table: {"k1": "x"} for table in "tun"},
        step=[[(table, 1, "x", "rome") for table in "tun"]],
        counts={**ONE_REJECTED, "row_rejects": 3, "refreshed": 3},
        rules=MIXED,
    ),
    "t9": CountedCase(
        changed=(("u", 1),),
        held={table: {"k1": "x"} for table in "tun"},
        step=[[(table, 1, "x", "rome") for table in "tun"]],
        counts={"epoch": 1, "refreshed": 1},
        rules=MIXED,
    ),
    "t10": CountedCase(
        changed=(("t", 1),),
        held={"t": {"k1": "o" * 10_000, "k2": "x"}},
        step=[[("t", key, "x", "r" * 10_000) for key in (1, 2)]],
        counts={**ONE_REJECTED, "row_rejects": 2, "refreshed": 2},
        rules=TRANS,
    ),
    "r1": CountedCase(
        changed=(("t", 1), ("t", 2)),
        held={"t": {"k1": "oslo", "k2": "oslo"}, "u": {"k3": "x"}},
        step=[[("u", 3, "x", "rome")]],
        counts={},
        rules=TRANS,
    ),
    # By whatever index or condition a row was found, it is the row that was read.
    "r2 r5 r6 r7": read_of_what_was_changed(1, 2),
    "a read of a row that did not change, beside one that did": read_of_what_was_changed(2, counts={}),
    # An exclusive read of the primary enters its window, and a shared one does not.
    "r4": read_of_what_was_changed(1),
    "r4, shared": read_of_what_was_changed(exclusive=False, counts={}),
}


@pytest.mark.parametrize("name", [*EPOCH_CASES, *WHOLE_CASES])
def test_counters_of_one_case(name: str) -> None:
    case = {**EPOCH_CASES, **WHOLE_CASES}[name]
    primary = HandmadePrimary(names=("t", "u", "n"), rules=case.rules)
    for table, rows in case.held.items():
        primary.rows(table, **rows)
    for table, key in case.changed:
        primary.line(table, key)
    assert primary.count(*case.step, reads=case.reads) == case.counts
