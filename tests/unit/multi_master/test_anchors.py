"""Where a site goes on reading another one's log: by binary search, as a linear scan and 389 Directory Server find it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.supplier_389 import Change, Supplier389, first_start, vector
from wlc.farm.errors import ExpiredError
from wlc.farm.model import Batch, Origin, Transaction
from wlc.farm.vectors import NO_LINEAGE, Heir, Lineage
from wlc.multi_master.anchors import anchor, before, has_seen

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def sent(log: Log, start: int | None, mine: Mapping[str, int]) -> list[Change]:
    """What is taken from a batch on: every change that is not contained, in the log's order."""
    if start is None:
        return []
    return [change for batch in log[start - 1 :] for change in batch if change[1] > mine.get(change[0], 0)]


def anchor_389(log: Log, mine: Mapping[str, int]) -> int | None:
    """The batch in which 389 begins."""
    start = first_start(in_a_row(log), mine)
    return None if start is None else batch_at(log, start)


def in_a_row(log: Log) -> list[Change]:
    return [change for batch in log for change in batch]


def batch_at(log: Log, place: int) -> int:
    return [number for number, batch in enumerate(log, 1) for _ in batch][place]


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
def test_binary_search_finds_what_a_linear_scan_and_389_find(drawn: tuple[Log, dict[str, int]]) -> None:
    log, mine = drawn
    changes, missing = in_a_row(log), lacking(log, mine)
    first = next((n for n, batch in enumerate(log, 1) if any(c[1] > mine.get(c[0], 0) for c in batch)), None)
    found = Reading(log).anchor(mine)
    assert found == first
    assert sent(log, found, mine) == sent(log, anchor_389(log, mine), mine) == missing
    start = first_start(changes, mine)
    if start is None or found is None:
        # Both have nothing to do, or neither.
        assert start is found is None
        return
    begins = anchor_389(log, mine)
    assert begins == batch_at(log, start)
    assert begins <= found
    # What lies between its beginning and the first missing change is contained.
    if changes[start] in missing:
        assert begins == found
    # 389 begins after the last change that the consumer has of an id, or with the first of one that it does not know.
    if start and not mine.get(changes[start][0], 0):
        assert changes[start][0] not in dict(changes[:start])
    elif start:
        assert changes[start - 1] not in missing
    else:
        # Of some id that is lacking, it has nothing in the log.
        assert any(dict(reversed(changes))[history] > mine.get(history, 0) for history, _ in missing)


@given(logs(), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=4), st.integers(1, 12))
def test_rounds_while_the_log_grows_send_what_389_sends(
    drawn: tuple[Log, dict[str, int]], moments: list[tuple[int, int]], size: int
) -> None:
    """Batches, also of sites that join, appear between looking, fixing the stop and reading (NOTES 1 and 2)."""
    log, mine = drawn
    counts = [0, *(sum(map(len, log[:number])) for number in range(1, len(log) + 1))]
    ours, theirs, floor = list[Change](), list[Change](), 0
    supplier = Supplier389(in_a_row(log), dict(mine))
    for stop, there in [*sorted((min(m), max(m)) for m in moments), (len(log), len(log))]:
        last, read = min(stop, len(log)), min(there, len(log))
        # Ours reads footers of a log that has grown already, and stops where it began.
        found = anchor(1, last, Reading(log[:read]).footer, vector([*mine.items(), *ours]), before={}, floor=floor)
        ours += sent(log[:last], found, vector([*mine.items(), *ours]))
        # 389's session goes on, and reads what its buffer holds.
        theirs += supplier.load(counts[last], counts[read], size) or []
        floor = last
    # Nothing changes any more: what its buffer could not hold, and one session more after the one that ends.
    for _ in range(2):
        while (more := supplier.load(counts[-1], counts[-1], size)) is not None:
            theirs += more
    missing = lacking(log, mine)
    assert ours == missing
    assert sorted(theirs) == sorted(missing)
    for history in "abc":
        assert [each for each in theirs if each[0] == history] == [each for each in missing if each[0] == history]


@given(logs(), st.sampled_from("abc"))
def test_own_changes_come_back_as_389_sends_them_where_it_does_not_ignore_them(
    drawn: tuple[Log, dict[str, int]], own: str
) -> None:
    """The reader was restored and lacks what it had written. Ours has no special case for them (`ignoreConsumerRID`)."""
    log, mine = drawn
    changes, missing = in_a_row(log), lacking(log, mine)
    assert sent(log, Reading(log).anchor(mine), mine) == missing
    assert (Supplier389(changes, dict(mine)).load(len(changes), len(changes)) or []) == missing
    ignoring = Supplier389(changes, dict(mine), ignored=own).load(len(changes), len(changes)) or []
    assert ignoring == [change for change in missing if change[0] != own]


def test_389_sends_the_direct_successor_of_what_it_knew_and_nothing_else_beyond() -> None:
    """Ours needs no such exception: what is behind the stop is read in the next round."""
    # Ticks 3, 4 and 5 share a second, and 6 begins the next one.
    log: Log = [[("a", 3)], [("a", 4)], [("b", 4)], [("a", 5)], [("a", 6)], [("b", 7)]]
    supplier = Supplier389(in_a_row(log), {"a": 1, "b": 2})
    assert supplier.load(known=1, there=6) == [("a", 3), ("a", 4), ("a", 5)]
    assert supplier.load(known=6, there=6) == [("b", 4), ("a", 6), ("b", 7)]
    assert supplier.load(known=6, there=6) is None
    # A gap within the second: something may be committed in it.
    gap = Supplier389([("a", 3), ("a", 5)], {"a": 1})
    assert gap.load(known=1, there=2) == [("a", 3)]
    mine = {"a": 1, "b": 2}
    assert sent(log[:1], anchor(1, 1, Reading(log).footer, mine, before={}), mine) == [("a", 3)]


@pytest.mark.parametrize(
    ("first", "second", "size", "start", "more"),
    [
        pytest.param((3, 3), (6, 6), 2, 2, [("b", 1), ("a", 3)], id="1: what was known is not loaded yet"),
        pytest.param((3, 6), (3, 6), 4, None, [], id="2: nothing new is known"),
        pytest.param((2, 4), (6, 6), 9, 2, [("b", 1), ("a", 3), ("b", 2), ("a", 6)], id="3.1: a new id, unknown there"),
        pytest.param((3, 4), (6, 6), 9, 2, [("a", 3), ("b", 2), ("a", 6)], id="3.2: more of an id that it has in part"),
    ],
)
def test_reloads_of_389(
    first: tuple[int, int], second: tuple[int, int], size: int, start: int | None, more: list[Change]
) -> None:
    """`clcache_adjust_anchorcsn`: how many changes are known and there in two loads, and where the second one begins."""
    log: Log = [[("a", 1)], [("a", 2)], [("b", 1)], [("a", 3)], [("b", 2)], [("a", 6)]]
    begun, expected = Supplier389(in_a_row(log), {}), Supplier389(in_a_row(log), {})
    before = begun.load(*first, size)
    assert before
    expected.load(*first, size)
    expected._refresh(second[0])
    assert expected.anchor() == start
    assert (begun.load(*second, size) or []) == more
    # Ours computes everything again.
    mine = vector(before)
    found = anchor(1, second[0], Reading(log).footer, mine, before={})
    ours = sent(log[: second[0]], found, mine)
    assert ours[: len(more)] == more


def test_few_footers_are_read() -> None:
    reading = Reading([[("a", tick)] for tick in range(1, 1001)])
    assert reading.anchor({"a": 700}) == 701
    assert reading.reads <= 12


AB = [[("a", 1)], [("b", 1)], [("a", 2)], [("b", 2), ("a", 3)]]


@pytest.mark.parametrize(
    ("mine", "expected", "of_389"),
    [
        pytest.param({"a": 3, "b": 2}, None, None, id="equal sets, nothing is sent"),
        pytest.param({"a": 2, "b": 2}, 4, 4, id="equal sets, something is sent"),
        pytest.param({"a": 3, "b": 2, "c": 5}, None, None, id="the consumer knows more"),
        pytest.param({"a": 3}, 2, 2, id="the supplier knows more: from the first tick of what the consumer lacks"),
        pytest.param({"b": 2, "c": 5}, 1, 1, id="mixed"),
        # 389 begins after the last change of b that the consumer has, and skips what it has of a.
        pytest.param({"a": 9, "b": 1}, 4, 3, id="the consumer's own history needs no special case"),
        pytest.param({"a": 1, "b": 2}, 3, 2, id="own ticks after a restore come back like anybody's"),
    ],
)
def test_scenarios_of_the_first_load(mine: dict[str, int], expected: int | None, of_389: int | None) -> None:
    assert Reading(AB).anchor(mine) == expected
    assert anchor_389(AB, mine) == of_389


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
    assert sent(log, expected, mine) == sent(log, anchor_389(log, mine), mine) == lacking(log, mine)


MOMENTS = ("before the stop is fixed", "before the anchor is computed", "before anything is read", "afterwards")


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    "appears",
    [
        pytest.param([[("a", 4)]], id="of a known site"),
        pytest.param([[("c", 1)]], id="of a site that has joined"),
        pytest.param([[("c", 1), ("a", 4)], [("b", 3)]], id="several batches of both"),
        pytest.param([[("d", 2)]], id="of a site whose changes came on another way"),
    ],
)
@pytest.mark.parametrize(
    "mine",
    [pytest.param({"a": 1, "b": 1, "d": 2}, id="something missing"), pytest.param({"a": 3, "b": 2, "d": 2}, id="none")],
)
def test_a_batch_that_appears_meanwhile_is_read_in_this_round_or_in_the_next_one(
    mine: dict[str, int], appears: Log, moment: str
) -> None:
    """NOTES 1 and 2: what comes after the stop was fixed changes neither the anchor nor what is read."""
    log, contained, rounds = [*AB], dict(mine), list[list[Change]]()

    def at(now: str) -> None:
        if now == moment and not rounds:
            log.extend(appears)

    for floor in (0, len(AB)):
        at(MOMENTS[0])
        stop = len(log)
        at(MOMENTS[1])
        found = anchor(1, stop, Reading(log).footer, contained, before={}, floor=floor)
        at(MOMENTS[2])
        taken = sent(log[:stop], found, contained)
        at(MOMENTS[3])
        contained = vector([*contained.items(), *taken])
        rounds.append(taken)
    is_early = moment == MOMENTS[0]
    assert rounds[0] == lacking([*AB, *appears] if is_early else AB, mine)
    assert rounds[1] == ([] if is_early else lacking(appears, mine))
    assert contained == vector([*mine.items(), *in_a_row(log)])


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
