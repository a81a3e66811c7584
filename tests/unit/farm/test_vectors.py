"""Vectors are compared as the sets of ticks that they stand for; the normal form loses nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wlc.farm.model import Origin
from wlc.farm.vectors import Heir, Lineage, VectorOrder, compare, contains, expanded, first_fall, merged, normal

# b grew from a at 5, c from b at 8, z from nothing. r ended at 4, contained from tick 6 of z on; q ended at 2, contained
# from tick 4 of r on.
LINEAGE = Lineage(
    {"b": Origin("a", 5), "c": Origin("b", 8)}, {"r": Heir(Origin("z", 6), 4), "q": Heir(Origin("r", 4), 2)}
)
HISTORIES = ["a", "b", "c", "q", "r", "z"]


@st.composite
def vectors(draw: st.DrawFn) -> dict[str, int]:
    """Vectors as logs have them: a history that grew from another one has greater ticks."""
    return {history: draw(st.integers(0, 12)) for history in draw(st.sets(st.sampled_from(HISTORIES)))}


def ticks(vector: dict[str, int]) -> set[tuple[str, int]]:
    """The simplest model of a vector: every tick that it contains."""
    held = dict(vector)
    if held.get("z", 0) >= 6:
        held["r"] = max(held.get("r", 0), 4)
    if held.get("r", 0) >= 4:
        held["q"] = max(held.get("q", 0), 2)
    if held.get("c"):
        held["b"] = max(held.get("b", 0), 8)
    if held.get("b"):
        held["a"] = max(held.get("a", 0), 5)
    return {(history, tick) for history, last in held.items() for tick in range(1, last + 1)}


@given(vectors(), vectors())
def test_comparing_is_comparing_sets_of_ticks(one: dict[str, int], two: dict[str, int]) -> None:
    assert contains(one, two, LINEAGE) == (ticks(one) >= ticks(two))
    expected = {
        (True, True): VectorOrder.EQUAL,
        (True, False): VectorOrder.COVERS,
        (False, True): VectorOrder.COVERED,
        (False, False): VectorOrder.CONCURRENT,
    }
    assert compare(one, two, LINEAGE) is expected[ticks(one) >= ticks(two), ticks(two) >= ticks(one)]


@given(vectors(), vectors())
def test_merging_is_the_union(one: dict[str, int], two: dict[str, int]) -> None:
    assert ticks(merged(one, two, LINEAGE)) == ticks(one) | ticks(two)
    assert merged(one, two, LINEAGE) == merged(two, one, LINEAGE) == normal(merged(one, two, LINEAGE), LINEAGE)


@given(vectors())
def test_the_normal_form_contains_the_same_and_is_reached_once(vector: dict[str, int]) -> None:
    least = normal(vector, LINEAGE)
    assert ticks(least) == ticks(vector)
    assert compare(least, vector, LINEAGE) is VectorOrder.EQUAL
    assert normal(least, LINEAGE) == least
    assert least.items() <= vector.items()
    assert normal(expanded(vector, LINEAGE), LINEAGE) == least


def test_without_a_lineage_entries_are_compared_one_by_one() -> None:
    assert compare({"a": 1}, {"a": 1}) is VectorOrder.EQUAL
    assert compare({"a": 2}, {"a": 1}) is VectorOrder.COVERS
    assert compare({"a": 1}, {"a": 1, "b": 1}) is VectorOrder.COVERED
    assert compare({"a": 2, "b": 1}, {"a": 1, "b": 2}) is VectorOrder.CONCURRENT
    assert compare({}, {"a": 0}) is VectorOrder.EQUAL
    assert merged({"a": 2, "b": 1}, {"a": 1, "b": 2}) == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    "vector, expected",
    [
        ({"a": 5, "b": 9}, {"b": 9}),  # b grew from all that is contained of a.
        ({"a": 6, "b": 9}, {"a": 6, "b": 9}),  # Tick 6 of a is not in b.
        ({"a": 3, "c": 10}, {"c": 10}),  # Through b.
        ({"a": 5, "b": 0}, {"a": 5}),
        ({"r": 4, "z": 6}, {"z": 6}),  # The site of r has left, and z contains it.
        ({"r": 3, "z": 6}, {"z": 6}),
        ({"r": 4, "z": 5}, {"r": 4, "z": 5}),  # Before z contained all of it.
        ({"r": 5, "z": 6}, {"r": 5, "z": 6}),  # More than anybody was known to have when its site left.
        ({"q": 2, "z": 7}, {"z": 7}),  # Through r.
    ],
)
def test_normal_form(vector: dict[str, int], expected: dict[str, int]) -> None:
    assert normal(vector, LINEAGE) == expected


def test_a_history_that_was_left_out_is_not_0() -> None:
    assert contains({"b": 9}, {"a": 5}, LINEAGE)
    assert not contains({"b": 9}, {"a": 6}, LINEAGE)
    assert contains({"z": 6}, {"r": 4}, LINEAGE)
    assert not contains({"z": 5}, {"r": 1}, LINEAGE)
    assert first_fall([{"r": 4, "z": 6}, {"z": 7}], LINEAGE) is None
    assert first_fall([{"r": 4, "z": 5}, {"z": 5}], LINEAGE) == 1
    assert first_fall([{"a": 5}, {"a": 5, "b": 6}, {"b": 7}, {"c": 9}], LINEAGE) is None


def test_a_fall_is_found() -> None:
    assert first_fall([]) is None
    assert first_fall([{"a": 1}, {"a": 2}, {"a": 2, "b": 1}]) is None
    assert first_fall([{"a": 1}, {"a": 2}, {"a": 1, "b": 1}, {}]) == 2


def test_parents_in_a_circle_end() -> None:
    lineage = Lineage({"a": Origin("b", 1), "b": Origin("a", 2)})
    assert expanded({"a": 3}, lineage) == {"a": 3, "b": 1}
    around = Lineage(heirs={"a": Heir(Origin("b", 1), 2), "b": Heir(Origin("a", 1), 2)})
    assert expanded({"a": 1}, around) == {"a": 2, "b": 2}
    assert expanded(normal({"a": 2, "b": 2}, around), around) == {"a": 2, "b": 2}
