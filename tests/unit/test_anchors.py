"""Where a site goes on reading another one's log: by binary search, as a linear scan and 389 Directory Server find it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wlc.farm.anchors import anchor, before, has_seen
from wlc.farm.errors import ExpiredError
from wlc.farm.model import Batch, Origin, Transaction
from wlc.farm.vectors import NO_LINEAGE, Heir, Lineage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The name of a change: its history and its tick.
Change = tuple[str, int]
# A log is a list of batches, and the footer of each says what the site contains after it.
Log = list[list[Change]]


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


def vector(changes: Iterable[Change]) -> dict[str, int]:
    found: dict[str, int] = {}
    for history, tick in changes:
        found[history] = max(found.get(history, 0), tick)
    return found


def sent(log: Log, start: int | None, mine: Mapping[str, int]) -> list[Change]:
    """What is taken from a batch on: every change that is not contained, in the log's order."""
    if start is None:
        return []
    return [change for batch in log[start - 1 :] for change in batch if change[1] > mine.get(change[0], 0)]


def anchor_389(log: Log, mine: Mapping[str, int]) -> int | None:
    """The batch in which 389 begins."""
    numbers = [number for number, batch in enumerate(log, 1) for _ in batch]
    start = start_389([change for batch in log for change in batch], mine)
    return None if start is None else numbers[start]


def start_389(changes: list[Change], mine: Mapping[str, int]) -> int | None:
    """389's algorithm: per replica id a start, and the least of them (`clcache_initial_anchorcsn`)."""
    starts = []
    for history, last in vector(changes).items():
        known = mine.get(history, 0)
        if known >= last:
            continue
        if not known:
            # The consumer does not know the id: from its first change on.
            starts.append(next(place for place, change in enumerate(changes) if change[0] == history))
        else:
            places = [place for place, change in enumerate(changes) if change[0] == history and change[1] <= known]
            starts.append(places[-1] + 1 if places else 0)
    return min(starts, default=None)


def load_389(changes: list[Change], mine: Mapping[str, int], known: int, there: int) -> list[Change]:
    """One load of 389's buffer (`clcache_skip_change`).

    Args:
        changes: The whole log.
        mine: What the consumer contains.
        known: How many changes the supplier's vector covers, which was read before the buffer.
        there: How many there are when the buffer is read.
    """
    stops, sent_so_far, contained = vector(changes[:known]), list[Change](), dict(mine)
    start = start_389(changes[:known], mine)
    beyond = set[str]()
    for history, tick in changes[start:there] if start is not None else ():
        if history not in stops or history in beyond or tick <= contained.get(history, 0):
            # A replica id that is new since, one that is beyond its stop, or what the consumer has.
            continue
        if tick > stops[history]:
            beyond.add(history)
            continue
        sent_so_far.append((history, tick))
        contained[history] = tick
    return sent_so_far


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
def test_binary_search_finds_what_a_linear_scan_and_389_find(drawn: tuple[Log, dict[str, int]]) -> None:
    log, mine = drawn
    missing = [change for batch in log for change in batch if change[1] > mine.get(change[0], 0)]
    first = next((n for n, batch in enumerate(log, 1) if any(c[1] > mine.get(c[0], 0) for c in batch)), None)
    found = Reading(log).anchor(mine)
    assert found == first
    assert sent(log, found, mine) == sent(log, anchor_389(log, mine), mine) == missing


@given(logs(), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=4))
def test_rounds_while_the_log_grows_send_what_389_sends(
    drawn: tuple[Log, dict[str, int]], moments: list[tuple[int, int]]
) -> None:
    """Batches, also of sites that join, appear between looking, fixing the stop and reading (NOTES 1 and 2)."""
    log, mine = drawn
    changes = [change for batch in log for change in batch]
    counts = [0, *(sum(map(len, log[:number])) for number in range(1, len(log) + 1))]
    ours, theirs, floor = list[Change](), list[Change](), 0
    for stop, there in [*sorted((min(m), max(m)) for m in moments), (len(log), len(log))]:
        last, read = min(stop, len(log)), min(there, len(log))
        # Ours reads footers of a log that has grown already, and stops where it began.
        found = anchor(1, last, Reading(log[:read]).footer, vector([*mine.items(), *ours]), before={}, floor=floor)
        ours += sent(log[:last], found, vector([*mine.items(), *ours]))
        theirs += load_389(changes, vector([*mine.items(), *theirs]), counts[last], counts[read])
        floor = last
    missing = [change for change in changes if change[1] > mine.get(change[0], 0)]
    assert ours == missing
    assert sorted(theirs) == sorted(missing)
    for history in "abc":
        assert [each for each in theirs if each[0] == history] == [each for each in missing if each[0] == history]


def test_few_footers_are_read() -> None:
    reading = Reading([[("a", tick)] for tick in range(1, 1001)])
    assert reading.anchor({"a": 700}) == 701
    assert reading.reads <= 12


AB = [[("a", 1)], [("b", 1)], [("a", 2)], [("b", 2), ("a", 3)]]


@pytest.mark.parametrize(
    ("mine", "expected"),
    [
        pytest.param({"a": 3, "b": 2}, None, id="equal sets, nothing is sent"),
        pytest.param({"a": 2, "b": 2}, 4, id="equal sets, something is sent"),
        pytest.param({"a": 3, "b": 2, "c": 5}, None, id="the consumer knows more"),
        pytest.param({"a": 3}, 2, id="the supplier knows more: from the first tick of what the consumer lacks"),
        pytest.param({"b": 2, "c": 5}, 1, id="mixed"),
        pytest.param({"a": 9, "b": 1}, 4, id="the consumer's own history needs no special case"),
        pytest.param({"a": 1, "b": 2}, 3, id="own ticks after a restore come back like anybody's"),
    ],
)
def test_scenarios_of_the_first_load(mine: dict[str, int], expected: int | None) -> None:
    assert Reading(AB).anchor(mine) == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param([], None, id="1: nothing new"),
        pytest.param([[("a", 4)]], 5, id="2: more of a known history"),
        pytest.param([[("c", 1)]], 5, id="3.1: a new history that the consumer does not have"),
        pytest.param([[("c", 1)], [("a", 4), ("c", 2)]], 5, id="3.1: and more of a known one behind it"),
        pytest.param([[("a", 4)], [("c", 1)]], 5, id="3.1: and more of a known one before it"),
        pytest.param(
            [[("d", 2)]], None, id="3.1: a new history that the consumer has from elsewhere, and nothing else"
        ),
        pytest.param([[("d", 2)], [("a", 4)]], 6, id="3.1: one that it has from elsewhere, and more of a known one"),
        pytest.param([[("d", 1)], [("d", 2)], [("d", 3)]], 7, id="3.1: a new history that the consumer has in part"),
        pytest.param([[("d", 2)], [("d", 3)], [("a", 4)]], 6, id="3.1: in part, and more of a known one behind it"),
        pytest.param([[("a", 4)], [("d", 3)]], 5, id="3.1: in part, and more of a known one before it"),
        pytest.param([[("b", 3)], [("b", 4)]], None, id="3.2: more of a known history that the consumer has by now"),
        pytest.param([[("b", 4)], [("b", 5)]], 6, id="3.2: of which it lacks what came last"),
        pytest.param([[("f", 2)], [("b", 5)]], 5, id="3.2: of which it lacks all that is new, the other one before it"),
    ],
)
def test_scenarios_of_a_reload(more: Log, expected: int | None) -> None:
    """The next round computes everything again; the last anchor is a lower bound."""
    mine = {"a": 3, "b": 4, "d": 2, "f": 1}
    log = AB + more
    assert Reading(log).anchor(mine) == Reading(log).anchor(mine, floor=4) == expected
    missing = [change for batch in log for change in batch if change[1] > mine.get(change[0], 0)]
    assert sent(log, expected, mine) == sent(log, anchor_389(log, mine), mine) == missing


def test_a_batch_that_appears_meanwhile_is_read_in_the_next_round() -> None:
    """NOTES 1 and 2: the newest batch at the start is the stop, whatever comes between looking and reading.

    Also what a site has written that joined in the middle of the round.
    """
    mine = {"a": 1, "b": 1}
    stop = len(AB)
    grown = [*AB, [("c", 1)], [("a", 4)]]
    found = anchor(1, stop, Reading(grown).footer, mine, before={})
    assert found == 3
    taken = vector([*mine.items(), *sent(grown[:stop], found, mine)])
    assert taken == {"a": 3, "b": 2}
    assert sent(grown, Reading(grown).anchor(taken, floor=stop), taken) == [("c", 1), ("a", 4)]


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
