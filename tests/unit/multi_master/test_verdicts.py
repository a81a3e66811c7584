"""What the primary rejects of another site's step, counts and refreshes, over relations that a table spells out.

The names of MySQL NDB Cluster's cases are those of its suite ndb_rpl; `tests/scenario/test_sites_conflicts.py` runs some of
them with real sites.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.handmade_step import CAUGHT_UP, CUT, HandmadePrimary, P, Row
from wlc.farm.model import Name
from wlc.multi_master.duckdb import conflict_window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Past = Mapping[str, int] | Sequence[Mapping[str, int]]

INSERTED, UPDATED, DELETED = (
    ("WRITE_ROW", "ROW_ALREADY_EXISTS"),
    ("UPDATE_ROW", "DATA_IN_CONFLICT"),
    ("DELETE_ROW", "DATA_IN_CONFLICT"),
)
UPDATED_GONE, DELETED_GONE = ("UPDATE_ROW", "ROW_DOES_NOT_EXIST"), ("DELETE_ROW", "ROW_DOES_NOT_EXIST")
WHOLE = {"t": "epoch_trans", "u": "epoch_trans"}
MIXED = {"t": "epoch_trans", "u": "epoch"}
MANY: list[Row] = [("t", key, None, "x") for key in range(100)]
MORE: list[Row] = [("t", key, None, "x") for key in range(2, 202)]
GONE: list[Row] = [("t", 3, "old", None)]
AGAIN: list[Row] = [("t", 3, None, "Dalriada")]
TUN: list[Row] = [(table, 1, "x", "rome") for table in "tun"]
ROME, RESTORED = "r" * 32, "n" * 32


@dataclass(frozen=True)
class Case:
    """A step, of whose lines the site has seen nothing unless `past` says so.

    Attributes:
        step: Transactions of the site.
        counts: What users see counted; all other counters are not there.
        rejected: Columns of the rejected rows, and what they are.
        held: Rows of the primary, by table.
        lines: Keys that the primary has changed, or read exclusively: table, key, and tick and history if they matter.
        reads: Of the site: number of the transaction, table, key, whether exclusive.
        rules: Of the tables t, u and n.
    """

    step: list[list[Row]]
    counts: dict[str, int]
    rejected: tuple[str, list[tuple[object, ...]]] | None = None
    held: dict[str, dict[str, str]] = field(default_factory=dict)
    lines: tuple[tuple[Any, ...], ...] = ()
    reads: tuple[tuple[int, str, int, bool], ...] = ()
    past: Past = field(default_factory=lambda: CUT)
    reads_past: Past | None = None
    rules: dict[str, str] = field(default_factory=lambda: {"t": "epoch"})


def row(
    key: int,
    held: str | None,
    *step: list[Row],
    refreshed: int = 1,
    gone: int = 0,
    rejected: tuple[tuple[str, str], ...] = (),
) -> Case:
    """The primary has changed one row of t, whose rule is epoch; all transactions of the step change it."""
    counts = {"epoch": len(rejected) or len(step), "refreshed": refreshed, "delete_delete": gone}
    return Case(
        list(step),
        {name: count for name, count in counts.items() if count},
        ("line, op, cause", [(line, *each) for line, each in enumerate(rejected, start=1)]) if rejected else None,
        {"t": {f"k{key}": held}} if held else {},
        (("t", key),),
    )


def whole(rows: int, refreshed: int, rejects: int = 1, dependents: int = 0, conflicts: int = 1) -> dict[str, int]:
    """What is counted of whole transactions."""
    counts = {"row_conflicts": conflicts, "row_rejects": rows, "rejects": rejects, "conflict_steps": 1}
    return counts | {"refreshed": refreshed} | ({"dependents": dependents} if dependents else {})


def reading(*lines: int, exclusive: bool = True, counts: dict[str, int] | None = None) -> Case:
    """The site reads row 1 of t, and changes u; the row that was only read needs no refresh."""
    return Case(
        step=[[("u", 3, "x", "rome")]],
        counts=whole(2, 1) if counts is None else counts,
        held={"t": {"k1": "one", "k2": "two"}, "u": {"k3": "x"}},
        lines=tuple(("t", key) for key in lines),
        reads=((1, "t", 1, exclusive),),
        rules=WHOLE,
    )


def payment(entry: int, payee: int, *values: str) -> list[Row]:
    larry, before, after = values
    return [("t", 2, larry, larry + "+"), ("t", payee, before, after), ("u", entry, None, "paid")]


CASES = {
    "e1": Case(
        [[("t", 1, "Metropole", "Favourite")], [("t", 1, "Favourite", "a")], [("t", 1, "a", "b")]],
        {},
        held={"t": {"k1": "Metropole"}},
        lines=(("t", 1),),
        past=CAUGHT_UP,
    ),
    "e2 e11": Case([[("t", 2, None, "a")], [("t", 2, "a", "b")], [("t", 2, "b", None)]], {}),
    "e3": row(2, "Loopy", [("t", 2, None, "Cloisters")], rejected=(INSERTED,)),
    "e4": row(2, "Peters Yard", [("t", 2, "Loopy", "x")], rejected=(UPDATED,)),
    "e5": row(2, "new", [("t", 2, "old", None)], rejected=(DELETED,)),
    "e6": row(2, None, [("t", 2, "old", "new")], rejected=(UPDATED_GONE,)),
    "e7": row(2, None, [("t", 2, "old", None)], refreshed=0, gone=1, rejected=(DELETED_GONE,)),
    "e8": row(3, None, GONE, AGAIN, gone=1, rejected=(DELETED_GONE, ("WRITE_ROW", "DATA_IN_CONFLICT"))),
    "e8, seen between": Case([GONE, AGAIN], {"epoch": 1, "delete_delete": 1}, lines=(("t", 3),), past=[CUT, CAUGHT_UP]),
    "e8, seen before the second step": Case([AGAIN], {}, lines=(("t", 3),), past=CAUGHT_UP),
    "e9": row(
        4,
        "Haymarket",
        [("t", 4, None, "a")],
        [("t", 4, "a", "b")],
        [("t", 4, "b", None)],
        rejected=(INSERTED, UPDATED, DELETED),
    ),
    "e10": row(
        4,
        "Blind poet",
        [("t", 4, "x", None)],
        [("t", 4, None, "a")],
        [("t", 4, "a", "b")],
        rejected=(DELETED, INSERTED, UPDATED),
    ),
    "e12": row(
        1,
        "oslo",
        MANY,
        [("t", 1, "x", "y")],
        [("t", 1, "y", None)],
        [("t", 1, None, "z")],
        rejected=(INSERTED, UPDATED, DELETED, INSERTED),
    ),
    "e13": row(1, None, [("t", 1, "x", None), *MORE], [("t", 1, None, "again")], gone=1),
    "e13, the batch that deletes": row(1, None, [("t", 1, "x", None), *MORE], refreshed=0, gone=1),
    "e13, the batch that inserts": row(1, None, [("t", 1, None, "again")]),
    "e15, the first of two was seen": Case(
        [[("t", 1, "first", "x")]],
        {"epoch": 1, "refreshed": 1},
        held={"t": {"k1": "second"}},
        lines=(("t", 1, 11, P), ("t", 1, 12, P)),
        past={P: 11},
    ),
    "e15, both were seen": Case(
        [[("t", 1, "second", "x")]],
        {},
        held={"t": {"k1": "second"}},
        lines=(("t", 1, 11, P), ("t", 1, 12, P)),
        past={P: 12},
    ),
    "a rejected change spoils the next one, which had seen what it met": Case(
        [[("t", 1, "old", "a")], [("t", 1, "P's", "b")]],
        {"epoch": 2, "refreshed": 1},
        ("line, direct", [(1, True), (2, False)]),
        {"t": {"k1": "P's"}},
        (("t", 1),),
        past=[CUT, CAUGHT_UP],
    ),
    **{
        f"a line of a third site, of which {seen} was seen": Case(
            [[("t", 1, "x", "y")]], counts, held={"t": {"k1": "x"}}, lines=(("t", 1, 5, ROME),), past=seen
        )
        for seen, counts in (
            ({P: 100}, {"epoch": 1, "refreshed": 1}),
            ({P: 100, ROME: 4}, {"epoch": 1, "refreshed": 1}),
            ({ROME: 5}, {}),
        )
    },
    "accepted before its site was restored": Case(
        [[("t", 1, "w", "y")]],
        {"epoch": 1, "refreshed": 1},
        held={"t": {"k1": "x"}},
        lines=(("t", 1, 5, RESTORED),),
        past={P: 20, RESTORED: 3},
    ),
    "no rule": Case([[("t", 1, "old", "new")]], {}, held={"t": {"k1": "old"}}, lines=(("t", 1),), rules={}),
    "t1": Case(
        [[("t", 2, "x", "rome")]],
        whole(1, 1),
        ("line, op, cause", [(1, "UPDATE_ROW", "TRANS_IN_CONFLICT")]),
        {"t": {"k2": "oslo"}},
        (("t", 2),),
        rules=WHOLE,
    ),
    "t2": Case(
        [[("t", 4, "x", "rome"), ("t", 5, "x", "rome")]],
        whole(2, 2),
        held={"t": {"k4": "oslo", "k5": "x"}},
        lines=(("t", 4),),
        rules=WHOLE,
    ),
    "t3": Case(
        [[("t", 3, "x", "a"), ("t", 1, "x", "a")], [("t", 3, "a", "b"), ("t", 11, None, "b")]],
        whole(4, 3, 2, 1),
        held={"t": {"k1": "oslo", "k3": "x"}},
        lines=(("t", 1),),
        rules=WHOLE,
    ),
    "t4": Case(
        [[("t", 6, "x", "rome"), ("u", 1, None, "a"), ("u", 2, None, "a")], [("u", 2, "a", "b"), ("u", 3, None, "b")]],
        whole(5, 4, 2, 1),
        held={"t": {"k6": "oslo"}},
        lines=(("t", 6),),
        rules=WHOLE,
    ),
    "t5": Case(
        [[("t", 10, "x", "rome"), ("t", 11, None, "a")], [("t", key, None, "a") for key in (12, 13, 14)]],
        whole(2, 2),
        ("DISTINCT line", [(1,)]),
        {"t": {"k10": "oslo"}},
        (("t", 10),),
        rules=WHOLE,
    ),
    "t6": Case(
        [
            [("t", 8, "x", "innocent"), ("t", 9, "x", "innocent")],
            [("t", 9, "innocent", "rome"), ("t", 7, "x", "rome")],
        ],
        whole(2, 2),
        ("line, accepted", [(2, None), (2, 1)]),
        {"t": {"k7": "oslo", "k8": "x", "k9": "x"}},
        (("t", 7),),
        rules=WHOLE,
    ),
    # The employer is 1, Larry 2, the dealer 3, the paper 4; the primary has sold the yacht. Three accounts are refreshed,
    # and three entries of which none may stay.
    "t7": Case(
        [payment(1, 1, "100", "0", "-10"), payment(2, 1, "100+", "-10", "-20"), payment(3, 4, "100++", "0", "5")],
        whole(9, 6, 3, conflicts=3),
        held={"t": {"k1": "0", "k2": "50", "k3": "50", "k4": "0"}, "u": {"k100": "yacht"}},
        lines=(("t", 2), ("t", 3), ("u", 100)),
        rules=WHOLE,
    ),
    "t8": Case([TUN], whole(3, 3), held={table: {"k1": "x"} for table in "tun"}, lines=(("t", 1),), rules=MIXED),
    "t9": Case(
        [TUN],
        {"epoch": 1, "refreshed": 1},
        ("place, is_whole", [(1, False)]),
        {table: {"k1": "x"} for table in "tun"},
        (("u", 1),),
        rules=MIXED,
    ),
    "t10": Case(
        [[("t", key, "x", "r" * 10_000) for key in (1, 2)]],
        whole(2, 2),
        held={"t": {"k1": "o" * 10_000, "k2": "x"}},
        lines=(("t", 1),),
        rules=WHOLE,
    ),
    "a row rejected by rule epoch rejects what touches it later in its table only": Case(
        [[("u", 1, "old", "a")], [("u", 1, "a", "b"), ("t", 1, "old", "new")]],
        {"epoch": 2, "refreshed": 1},
        held={"t": {"k1": "old"}, "u": {"k1": "P's"}},
        lines=(("u", 1),),
        rules=MIXED,
    ),
    "a dependent that is in conflict by rule epoch, too": Case(
        [[("t", 1, "x", "a"), ("t", 2, "x", "a")], [("t", 2, "a", "b"), ("u", 1, "x", "b")]],
        whole(4, 3, 2, 1),
        held={"t": {"k1": "oslo", "k2": "x"}, "u": {"k1": "oslo"}},
        lines=(("t", 1), ("u", 1)),
        rules=MIXED,
    ),
    "r1 r3, not tracked": Case(
        [[("u", 3, "x", "rome")]],
        {},
        held={"t": {"k1": "oslo", "k2": "oslo"}, "u": {"k3": "x"}},
        lines=(("t", 1), ("t", 2)),
        rules=WHOLE,
    ),
    # By whatever index or condition a row was found, it is the row that was read; an exclusive read of the primary is a line.
    "r2 r4 r5 r6 r7": reading(1, 2),
    "r2, of a shared read": reading(1, exclusive=False),
    "r4, shared": reading(exclusive=False, counts={}),
    "a read of a row that did not change, beside one that did": reading(2, counts={}),
    **{
        f"a read that {what} when its transaction began": Case(
            [[("u", 3, "old", "new")]],
            counts,
            held={"t": {"k1": "P's"}, "u": {"k3": "old"}},
            lines=(("t", 1),),
            reads=((1, "t", 1, True),),
            past=CAUGHT_UP,
            reads_past=seen,
            rules=WHOLE,
        )
        for what, seen, counts in (("saw the change", None, {}), ("did not see it", CUT, whole(2, 1)))
    },
    "a transaction that read what a rejected one wrote depends on it": Case(
        [[("t", 1, "old", "a")], [("t", 2, "old", "new")]],
        whole(3, 2, 2, conflicts=2),
        held={"t": {"k1": "P's", "k2": "old"}},
        lines=(("t", 1),),
        reads=((2, "t", 1, False),),
        rules=WHOLE,
    ),
    "a transaction that writes what a rejected one only read does not": Case(
        [[("t", 1, "old", "a")], [("t", 2, "old", "new")]],
        whole(2, 1),
        held={"t": {"k1": "P's", "k2": "old"}},
        lines=(("t", 1),),
        reads=((1, "t", 2, True),),
        rules=WHOLE,
    ),
}


def primary_of(case: Case) -> HandmadePrimary:
    primary = HandmadePrimary(names=("t", "u", "n"), rules=case.rules)
    for table, rows in case.held.items():
        primary.rows(table, **rows)
    for table, key, tick, history in ((*each, 20, P)[:4] for each in case.lines):
        primary.line(table, key, tick=tick, history=history)
    return primary


@pytest.mark.parametrize("name", CASES)
def test_what_is_rejected_and_what_users_see_counted(name: str) -> None:
    case = CASES[name]
    primary = primary_of(case)
    decided = primary.judge(*case.step, past=case.past, reads=case.reads, reads_past=case.reads_past)
    assert decided == {counter: value for counter, value in case.counts.items() if counter != "refreshed"}
    if case.rejected is not None:
        columns, rows = case.rejected
        assert sorted(primary.rejected(columns), key=repr) == sorted(rows, key=repr)
    counted = primary.count(*case.step, past=case.past, reads=case.reads, reads_past=case.reads_past)
    assert counted == case.counts


@pytest.mark.parametrize("name, spoils", [("e5", [True]), ("e7", [False]), ("r2 r4 r5 r6 r7", [False, True])])
def test_only_a_change_that_is_not_one_of_nothing_needs_a_refresh(name: str, spoils: list[bool]) -> None:
    case = CASES[name]
    primary = primary_of(case)
    primary.judge(*case.step, reads=case.reads)
    assert sorted(primary.rejected("spoils")) == [(each,) for each in spoils]


def test_a_cleared_table_is_in_conflict_as_a_whole() -> None:
    primary = HandmadePrimary(names=("t", "u"), rules={"t": "epoch", "u": "epoch"})
    number = conflict_window.key_sql(Name("main", "t"), (), ())
    primary.connection.execute(
        f"INSERT INTO {conflict_window.WINDOW} BY NAME SELECT {number} AS key, '{P}' AS history, 20 AS tick"
    )
    assert primary.judge([("t", 1, None, "a"), ("u", 1, None, "a")]) == {"epoch": 1}


def test_dependents_are_found_along_any_chain() -> None:
    held = {"k0": "P's", **{f"k{key}": "0" for key in range(1, 13)}}
    primary = primary_of(Case([], {}, held={"t": held}, lines=(("t", 0),), rules=WHOLE))
    chain: list[list[Row]] = [[("t", key, "0", "1"), ("t", key + 1, "0", "1")] for key in range(12)]
    for step, rows, rejects in ((chain, 24, 12), (chain[::-1], 2, 1)):
        counts = primary.judge(*step)
        assert (counts["row_conflicts"], counts["row_rejects"], counts["rejects"]) == (1, rows, rejects)
