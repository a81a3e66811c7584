"""Where a site goes on reading another one's log: by binary search, as a linear scan finds it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wlc.farm.errors import ExpiredError
from wlc.farm.model import Batch, Origin, Transaction
from wlc.farm.vectors import NO_LINEAGE, Heir, Lineage
from wlc.multi_master.anchors import anchor, before, has_seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A history and a tick of it.
Change = tuple[str, int]
# A log is a list of batches, and the footer of each says what the site contains after it.
Log = list[list[Change]]


def vector(changes: Iterable[Change]) -> dict[str, int]:
    """The last tick of each history."""
    found: dict[str, int] = {}
    for history, tick in changes:
        found[history] = max(found.get(history, 0), tick)
    return found


@dataclass
class Reading:
    """One site's log as another one reads it, counting the footers that are read."""

    log: Log
    kept_from: int = 1
    reads: int = 0

    def footer(self, number: int) -> dict[str, int]:
        self.reads += 1
        return vector(change for batch in self.log[:number] for change in batch)

    def anchor(self, mine: Mapping[str, int], *, floor: int = 0, lineage: Lineage = NO_LINEAGE) -> int | None:
        before: dict[str, int] | None = {} if self.kept_from == 1 else None
        return anchor(self.kept_from, len(self.log), self.footer, mine, before=before, floor=floor, lineage=lineage)


def sent(log: Log, start: int | None, mine: Mapping[str, int]) -> list[Change]:
    """What is taken from a batch on: every change that is not contained, in the log's order."""
    if start is None:
        return []
    return [change for batch in log[start - 1 :] for change in batch if change[1] > mine.get(change[0], 0)]


def in_a_row(log: Log) -> list[Change]:
    return [change for batch in log for change in batch]


def lacking(log: Log, mine: Mapping[str, int]) -> list[Change]:
    return [change for change in in_a_row(log) if change[1] > mine.get(change[0], 0)]


@st.composite
def logs(draw: st.DrawFn) -> tuple[Log, dict[str, int]]:
    """A log in which every history's ticks rise, and a reader that contains a prefix of some histories."""
    order = draw(st.lists(st.sampled_from("abc"), max_size=12))
    ticks = dict.fromkeys("abc", 0)
    log: Log = []
    for history in order:
        ticks[history] += draw(st.integers(1, 3))
        if not log or draw(st.booleans()):
            log.append([])
        log[-1].append((history, ticks[history]))
    mine = {history: draw(st.integers(0, tick + 2)) for history, tick in ticks.items() if draw(st.booleans())}
    return log, mine


@given(logs())
def test_binary_search_finds_what_a_linear_scan_finds(drawn: tuple[Log, dict[str, int]]) -> None:
    log, mine = drawn
    first = next((n for n, batch in enumerate(log, 1) if any(c[1] > mine.get(c[0], 0) for c in batch)), None)
    assert Reading(log).anchor(mine) == first


@given(logs(), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=4))
def test_rounds_while_the_log_grows_send_all_that_is_lacking(
    drawn: tuple[Log, dict[str, int]], moments: list[tuple[int, int]]
) -> None:
    """Batches, also of sites that join, appear between looking, fixing the stop and reading; the last anchor is a floor."""
    log, mine = drawn
    taken, floor = list[Change](), 0
    for stop, there in [*sorted((min(m), max(m)) for m in moments), (len(log), len(log))]:
        last, contained = min(stop, len(log)), vector([*mine.items(), *taken])
        # Footers are read of a log that has grown already.
        found = anchor(1, last, Reading(log[:there]).footer, contained, before={}, floor=floor)
        taken += sent(log[:last], found, contained)
        floor = last
    assert taken == lacking(log, mine)


def test_few_footers_are_read() -> None:
    reading = Reading([[("a", tick)] for tick in range(1, 1001)])
    assert reading.anchor({"a": 700}) == 701
    assert reading.reads <= 12


AB = [[("a", 1)], [("b", 1)], [("a", 2)], [("b", 2), ("a", 3)]]


@pytest.mark.parametrize(
    ("mine", "more", "expected"),
    [
        pytest.param({"a": 3, "b": 2}, [], None, id="equal"),
        pytest.param({"a": 2, "b": 2}, [], 4, id="the last batch in part"),
        pytest.param({"a": 3, "b": 2, "c": 5}, [], None, id="the reader knows more"),
        pytest.param({"a": 3}, [], 2, id="nothing of one history"),
        pytest.param({"b": 2, "c": 5}, [], 1, id="mixed"),
        pytest.param({"a": 9, "b": 1}, [], 4, id="its own history needs no special case"),
        pytest.param({"a": 3, "b": 2}, [[("c", 1)]], 5, id="a new history"),
        pytest.param({"a": 3, "b": 2, "d": 2}, [[("d", 1)], [("d", 2)], [("d", 3)]], 7, id="a new one, known in part"),
        pytest.param({"a": 3, "b": 2, "d": 2}, [[("d", 2)], [("a", 4)]], 6, id="a new one that came on another way"),
    ],
)
def test_anchors(mine: dict[str, int], more: Log, expected: int | None) -> None:
    assert Reading(AB + more).anchor(mine) == expected


def test_what_was_pruned_is_refused_and_not_lost() -> None:
    reading = Reading(AB, kept_from=3)
    with pytest.raises(ExpiredError, match="before batch 3"):
        reading.anchor({"a": 1})
    # What is missing may begin right at the oldest batch; only who has read up to it knows.
    assert reading.anchor({"a": 1, "b": 1}, floor=2) == 3
    assert reading.anchor({"a": 2, "b": 1}) == 4


def test_histories_that_vectors_leave_out_are_contained() -> None:
    log = [[("a", 1), ("a", 2)], [("b", 3)]]
    assert Reading(log).anchor({"b": 3}) == 1
    assert Reading(log).anchor({"b": 3}, lineage=Lineage({"b": Origin("a", 2)})) is None


@pytest.mark.parametrize(
    ("known", "vector", "own", "expected"),
    [
        ({"a": 9}, {"a": 9}, None, True),
        ({"a": 8}, {"a": 9}, None, False),
        ({"a": 5, "b": 3}, {"a": 9, "b": 3}, 5, True),
        ({"a": 4, "b": 3}, {"a": 9, "b": 3}, 5, False),
        ({"a": 5, "b": 2}, {"a": 9, "b": 3}, 5, False),
        # It has taken, and written nothing: nothing of its own is missing.
        ({"b": 3}, {"a": 9, "b": 3}, None, True),
        ({"b": 2}, {"a": 9, "b": 3}, None, False),
        # But what its history grew from.
        ({"b": 3}, {"new": 9, "b": 3}, None, False),
        ({"b": 3, "old": 7}, {"new": 9, "b": 3}, None, True),
    ],
)
def test_whoever_takes_only_echoes_has_seen_the_log(
    known: dict[str, int], vector: dict[str, int], own: int | None, *, expected: bool
) -> None:
    history = "new" if "new" in vector else "a"
    batch = Batch("sales", 3, history, 8, 9, "", "sales", (), (), vector, own=own)
    assert has_seen(known, batch, Lineage({"new": Origin("old", 7)})) is expected


def batch_of(taken: list[Origin], vector: dict[str, int], *, first: int = 11) -> Batch:
    """A batch of the history `own` with transactions of others."""
    now = datetime(2026, 11, 20, tzinfo=UTC)
    transactions = tuple(Transaction(first + place, "u", now, now, origin=each) for place, each in enumerate(taken))
    last = first + len(taken) - 1
    return Batch("d", 4, "own", first, last, "", "d", transactions, vector={"own": last, **vector})


def test_before_a_batch_that_holds_a_history_and_what_it_grew_from_nothing_of_the_later_one_was_contained() -> None:
    lineage = Lineage({"later": Origin("first", 3)})
    taken = [Origin("other", 7), Origin("first", 3), Origin("later", 5), Origin("later", 6)]
    vector = {"later": 6, "other": 7, "far": 2}
    assert before(batch_of(taken, vector), lineage) == {"own": 10, "first": 2, "other": 6, "far": 2}
    # Without that, ticks of a history come without gaps.
    assert before(batch_of(taken[2:], vector), lineage) == {"own": 10, "first": 3, "later": 4, "other": 7, "far": 2}


def test_before_the_first_batch_of_a_history_nothing_of_it_was_contained_but_what_it_grew_from() -> None:
    batch = replace(batch_of([Origin("old", 8), Origin("other", 7)], {"other": 7}), parent=Origin("old", 7))
    assert before(batch, Lineage({"own": Origin("old", 7)})) == {"old": 7, "other": 6}


@pytest.mark.parametrize(
    ("taken", "vector", "expected"),
    [
        # What the site that left had written came with the tick before: nothing that implies it was contained.
        ([Origin("left", 1), Origin("primary", 3)], {"primary": 3}, {"own": 10, "primary": 1}),
        ([Origin("left", 1), Origin("primary", 3)], {"primary": 3, "left": 1}, {"own": 10, "primary": 1}),
        ([Origin("left", 1), Origin("later", 5)], {"later": 5}, {"own": 10, "primary": 1}),
        # It was contained already.
        ([Origin("primary", 3)], {"primary": 3}, {"own": 10, "primary": 2, "left": 1}),
        ([Origin("primary", 2), Origin("primary", 3)], {"primary": 3}, {"own": 10, "primary": 1, "left": 1}),
        # A later tick of it may come any time.
        ([Origin("left", 2)], {"primary": 3, "left": 2}, {"own": 10, "primary": 3, "left": 1}),
    ],
)
def test_before_a_batch_that_holds_what_a_site_that_left_had_written_nothing_implied_it(
    taken: list[Origin], vector: dict[str, int], expected: dict[str, int]
) -> None:
    lineage = Lineage({"later": Origin("primary", 2)}, {"left": Heir(Origin("primary", 2), 1)})
    assert before(batch_of(taken, vector), lineage) == expected
