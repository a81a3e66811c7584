"""In which order a refresh is told."""

from __future__ import annotations

from itertools import chain, combinations, compress, product
from typing import TYPE_CHECKING

import pytest

from wlc.capture.duckdb.journal import JournalledRefresh
from wlc.capture.duckdb.sites.refreshing import Told, in_transactions
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Iterable

A, B, C = (Name("main", name) for name in "abc")


def told(rows: Iterable[tuple[Name, bool, int]]) -> list[Told]:
    return [Told(JournalledRefresh(name, 1, 1, absent), 0, generation) for name, absent, generation in rows]


def order(rows: Iterable[tuple[Name, bool, int]], parents: dict[Name, set[Name]], used: set[Name]) -> list[set]:
    return [{each.rows for each in part} for part in in_transactions(told(rows), parents, used)]


@pytest.mark.parametrize(
    ("rows", "used", "expected"),
    [
        # B refers to A.
        ([(A, True), (B, True)], set(), [{(B, True)}, {(A, True)}]),
        ([(A, True), (B, False)], set(), [{(B, False)}, {(A, True)}]),
        ([(A, False), (B, True)], set(), [{(B, True)}, {(A, False)}]),
        ([(A, False), (B, False)], set(), [{(A, False), (B, False)}]),
        ([(A, True), (A, False), (B, False)], set(), [{(A, False), (B, False)}, {(A, True)}]),
        # A value is used again, so what had it goes first or at once.
        ([(A, True), (A, False), (B, False)], {A}, [{(A, True), (A, False), (B, False)}]),
        ([(A, True), (A, False), (B, True)], {A}, [{(B, True)}, {(A, True), (A, False)}]),
    ],
)
def test_rows_go_after_those_that_referred_to_them(
    rows: list[tuple[Name, bool]], used: set[Name], expected: list[set[tuple[Name, bool]]]
) -> None:
    found = order([(name, absent, 0) for name, absent in rows], {B: {A}}, used)
    assert [{row[:2] for row in part} for part in found] == expected


def test_rows_of_a_tree_go_by_generation_after_those_that_moved() -> None:
    rows = [(A, True, 0), (A, True, 1), (A, True, 2), (A, False, 0)]
    assert order(rows, {A: {A}}, set()) == [{(A, False, 0)}, {(A, True, 0)}, {(A, True, 1)}, {(A, True, 2)}]


def test_whatever_the_tables_are_there_is_an_order() -> None:
    """Rows that go always go after those that go and referred to them."""
    pairs = [(C, B), (C, A), (B, A), (A, A), (B, B)]
    for references in chain.from_iterable(combinations(pairs, size) for size in range(len(pairs) + 1)):
        parents: dict[Name, set[Name]] = {}
        for child, parent in references:
            parents.setdefault(child, set()).add(parent)
        for chosen in product([False, True], repeat=6):
            rows = [(*each, 0) for each in compress(product((A, B, C), (False, True)), chosen)]
            for used in map(set, chain.from_iterable(combinations((A, B, C), size) for size in range(4))):
                found = order(rows, parents, used) if rows else []
                places = {row: place for place, part in enumerate(found) for row in part}
                assert len(places) == len(rows) == sum(map(len, found))
                for child, parent in references:
                    if child != parent and {(child, True, 0), (parent, True, 0)} <= places.keys():
                        assert places[child, True, 0] < places[parent, True, 0]
