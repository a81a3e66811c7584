"""Choosing an upstream, tiers, what is stuck: a table for each test of Comdb2 that the functions answer to."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wlc.farm.errors import InvalidError
from wlc.farm.registry import INACTIVE, PENDING, STUCK
from wlc.tiers.choice import (
    NOWHERE,
    Choice,
    Node,
    Reader,
    ancestors,
    choose,
    is_stuck,
    keepalive_interval_s,
    penalized,
    tiers_of,
)
from wlc.tiers.tier_settings import DEFAULTS, decode_settings, encode_settings, with_setting
from wlc.tiers.upstreams import ORIGIN

if TYPE_CHECKING:
    from wlc.tiers.attachment import Penalty

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TOP = Node(ORIGIN, parent="", last=40, tick=400)
ME = Reader("me", 30, "c" * 64)


def relay(name: str, **fields: object) -> Node:
    return replace(Node(name, first=1, last=40, tick=400, interval_s=10), **fields)  # type: ignore[arg-type]


def chosen(*nodes: Node, me: Reader = ME, **options: object) -> Choice:
    children = options.pop("children", {})
    penalties = options.pop("penalties", ())
    return choose(nodes, children, me, penalties, NOW, **options)  # type: ignore[arg-type]


# match_overlap: the reader's position against the range of a source. A batch never goes away again, so that there is no
# rollback to allow for: what lies before the position is never needed.
@pytest.mark.parametrize(
    ("first", "last", "is_match"),
    [
        (1, 20, False),  # all of it is before the reader
        (1, 30, True),  # it ends where the reader stands
        (1, 40, True),  # the reader is inside
        (31, 40, True),  # it begins with the next batch
        (32, 40, False),  # all of it is after the reader: a batch is missing
        (30, 30, True),  # the one batch
    ],
)
def test_match_overlap(first: int, last: int, is_match: bool) -> None:
    found = chosen(relay("a", first=first, last=last))
    assert bool(found.candidates) == is_match
    # A new replica begins anywhere.
    assert chosen(relay("a", first=first, last=last), me=Reader("me")).candidates == ("a",)


def test_phys_rep_nomatch() -> None:
    far = [relay("a", first=100, last=140), relay("b", first=100, last=140)]
    assert chosen(TOP, *far).candidates == (ORIGIN,)
    # The `wlc.config` of a master that died lags behind its log.
    assert chosen(replace(TOP, last=20), *far).candidates == (ORIGIN,)
    found = chosen(relay("c", last=20), *far)
    assert found.candidates == ()
    assert found.rejected["c"].why == "it ends with batch 20, before the reader's batch 30"
    assert found.rejected["a"].why == "it begins with batch 100, after the reader's batch 30"
    assert [name for name, refused in found.rejected.items() if refused.is_expired] == ["a", "b"]


@pytest.mark.parametrize(("age_s", "interval_s", "is_recent"), [(59, 10, True), (61, 10, False), (9000, 3600, True)])
def test_require_recent_heartbeat(age_s: float, interval_s: float, is_recent: bool) -> None:
    found = chosen(relay("a", age_s=age_s, interval_s=interval_s))
    assert bool(found.candidates) == is_recent
    assert is_recent or found.rejected["a"].why == "it was last seen 61 s ago"


def test_verify_fanout_overrides() -> None:
    narrow, wide = relay("a", fanout=1), relay("b", fanout=3, parent="a")
    assert chosen(narrow, wide, TOP, children={"a": 1, ORIGIN: 8}).candidates == ("b",)
    # A place without children has a slot even if it has only one.
    assert chosen(narrow, wide, children={"b": 3}).candidates == ("a",)
    # With all slots taken, the fan-out does not count, and the nearest to the origin is asked first.
    full = chosen(narrow, wide, TOP, children={"a": 1, "b": 3, ORIGIN: 8})
    assert (full.candidates, full.is_over_fanout) == ((ORIGIN, "a", "b"), True)
    assert chosen(relay("a", fanout=0), TOP).candidates == (ORIGIN,)


@pytest.mark.parametrize(
    ("mine", "its", "is_allowed"),
    [
        ("beta", "test", False),
        ("beta", "alpha", False),
        ("beta", "beta", True),
        ("beta", "uat", True),
        ("beta", "prod", True),
        ("prod", "uat", False),
        ("", "test", True),
        ("beta", "", False),
        ("own", "own", True),
        ("own", "prod", False),
    ],
)
def test_physrep_allowed_source_by_class(mine: str, its: str, is_allowed: bool) -> None:
    found = chosen(relay("a", class_name=its), me=replace(ME, class_name=mine))
    assert bool(found.candidates) == is_allowed
    assert chosen(TOP, me=replace(ME, class_name=mine)).candidates == (ORIGIN,)


def whys(found: Choice) -> dict[str, str]:
    return {name: refused.why for name, refused in found.rejected.items()}


def test_physrep_allowed_source_is_neither_the_reader_nor_below_it_nor_marked_down() -> None:
    nodes = [
        relay("me"),
        relay("child", parent="me"),
        relay("grandchild", parent="child"),
        relay("down", state=INACTIVE),
        relay("away", state=PENDING),
        relay("late", state=STUCK),
    ]
    found = chosen(*nodes)
    assert found.candidates == ("late",)
    assert whys(found) == {
        "me": "it is the reader itself",
        "child": "it reads from the reader",
        "grandchild": "it reads from the reader",
        "down": "it is inactive",
        "away": "it is pending",
    }
    assert [name for name, refused in found.rejected.items() if not refused.is_lasting] == ["away"]


def test_physrep_max_pending() -> None:
    pending = [relay(f"p{number}", state=PENDING, last=None, first=None) for number in range(100)]
    assert chosen(TOP, *pending, relay("a"), me=Reader("p101")).candidates == (ORIGIN, "a")


def test_a_delayed_place_serves_those_who_are_delayed_as_much() -> None:
    assert whys(chosen(relay("a", delay_s=60.0))) == {"a": "it stays 60 s behind on purpose"}
    assert chosen(relay("a", delay_s=60.0), me=replace(ME, delay_s=60.0)).candidates == ("a",)


def test_another_past_is_no_candidate() -> None:
    assert whys(chosen(relay("a", last=30, chain="d" * 64))) == {"a": "it has another past"}
    assert chosen(relay("a", last=30, chain=ME.chain)).candidates == ("a",)


def test_an_unknown_range_is_a_last_resort() -> None:
    unknown = relay("a", first=None, last=None)
    assert chosen(TOP, unknown).candidates == (ORIGIN,)
    assert chosen(unknown) == Choice(("a",), True, {})


def test_the_order_is_tier_then_children_then_chance() -> None:
    nodes = [TOP, relay("a"), relay("b"), relay("c", parent="a"), relay("d", parent="c")]
    found = chosen(*nodes, children={"a": 2, "b": 1})
    assert found.candidates == (ORIGIN, "b", "a", "c", "d")
    equals = [relay(name) for name in "abcdefghi"]
    orders = {chosen(*equals, seed=seed).candidates for seed in range(20)}
    assert len(orders) > 10
    assert {len(order) for order in orders} == {6}
    assert chosen(*equals, seed=3) == chosen(*reversed(equals), seed=3)


def test_penalties_double_up_to_five_minutes_and_pass() -> None:
    penalties: tuple[Penalty, ...] = ()
    lengths = []
    for _ in range(8):
        penalties = penalized(penalties, "a", NOW, DEFAULTS)
        lengths.append((penalties[0].until - NOW).total_seconds())
    assert lengths == [5, 10, 20, 40, 80, 160, 300, 300]
    assert whys(chosen(relay("a"), penalties=penalties)) == {"a": "it failed a short time ago"}
    assert choose([relay("a")], {}, ME, penalties, NOW + timedelta(minutes=6)).candidates == ("a",)


# Defects of the original -------------------------------------------------------------------------------------------


def test_defect_a_a_fan_out_of_one_admits_one() -> None:
    assert chosen(relay("a", fanout=1), children={}).is_over_fanout is False
    assert chosen(relay("a", fanout=1), children={"a": 1}).is_over_fanout is True


def test_defect_b_tiers_begin_with_the_origin_and_end_in_circles() -> None:
    nodes = [
        TOP,
        relay("a"),
        relay("b", parent="a"),
        relay("x", parent="y"),
        relay("y", parent="x"),
        relay("z", parent="?"),
    ]
    assert tiers_of(nodes) == {ORIGIN: 0, "a": 1, "b": 2, "x": NOWHERE, "y": NOWHERE, "z": NOWHERE}
    assert ancestors("x", {node.id: node for node in nodes}) == ["y", "x"]


@pytest.mark.parametrize(
    ("last", "tick", "ahead", "idle_s", "expected"),
    [
        (5, 900, (6, 10), 61, True),  # a later batch, though its tick is smaller than …
        (6, 10, (5, 900), 61, False),  # … that of a reader who is ahead already
        (6, 10, (6, 10), 9999, False),
        (6, 9, (6, 10), 61, True),
        (6, 9, (6, 10), 59, False),
        (6, 9, None, 9999, False),
        (None, 0, (6, 10), 9999, False),
    ],
)
def test_defect_c_stuck_compares_positions_as_tuples(
    last: int | None, tick: int, ahead: tuple[int, int] | None, idle_s: float, expected: bool
) -> None:
    assert is_stuck(relay("a", last=last, tick=tick), ahead, idle_s, beat_s=0) is expected


def test_a_long_beat_makes_nobody_stuck() -> None:
    behind = relay("a", last=1, tick=1)
    assert not is_stuck(behind, (2, 2), 500, beat_s=300)
    assert is_stuck(behind, (2, 2), 601, beat_s=300)


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["origin", *"abcdef"]), min_size=1))
def test_whoever_follows_a_choice_makes_no_circle(parents: dict[str, str]) -> None:
    nodes = [TOP, *(relay(name, parent=parent) for name, parent in parents.items())]
    before = tiers_of(nodes)
    for name in parents:
        for upstream in chosen(*nodes, me=Reader(name, 30)).candidates:
            moved = [replace(node, parent=upstream) if node.id == name else node for node in nodes]
            assert before[upstream] == NOWHERE or tiers_of(moved)[name] == before[upstream] + 1


# Settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting_s", "beat_s", "registries", "expected_s"),
    [
        # 30 requests in 5 minutes, 16 of them for the round.
        (10, 300, 1, 300 / 14),
        (10, 3600, 1, 3600 / 344),
        (10, 300, 2, 60),
        (30, 300, 1, 30),
        # Rounds alone come as often as that, or cost as much.
        (10, 60, 1, 60),
        (10, 165, 1, 165),
        (10, 1, 1, 10),
        (10, 0, 1, 10),
        # Whoever wants it more often gets it.
        (5, 300, 1, 5),
        (0.05, 0, 1, 0.05),
    ],
)
def test_keepalives_and_rounds_of_an_idle_process_keep_their_bound(
    setting_s: float, beat_s: float, registries: int, expected_s: float
) -> None:
    settings = replace(DEFAULTS, keepalive_s=float(setting_s))
    assert keepalive_interval_s(settings, beat_s, registries) == pytest.approx(expected_s)


def test_settings_come_back_and_wrong_ones_are_refused() -> None:
    changed = with_setting(with_setting(with_setting(DEFAULTS, "fanout=3"), "penalty_s=0.5"), "classes=low<high=top")
    assert decode_settings(encode_settings(replace(changed, fanouts={"a": 1})), "x").fanouts == {"a": 1}
    assert (changed.fanout, changed.penalty_s, changed.rank("top"), changed.rank("prod")) == (3, 0.5, 1, None)
    for pair in (
        "fanout=x",
        "fanout=-1",
        "penalty_s=inf",
        "candidates=0",
        "nothing=1",
        "fanouts=1",
        "fanout",
        "classes=a<a",
    ):
        with pytest.raises(InvalidError, match="sets nothing|is no value of"):
            with_setting(DEFAULTS, pair)
