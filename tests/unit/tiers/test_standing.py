"""The verdict on a database: every state, what comes first where several hold, and what each says."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from wlc.farm.config import STOPPED, first_config
from wlc.farm.health import Health, Proof, Sign, is_silent
from wlc.tiers.standing import STATES, WRONG, Facts, judge

NOW = datetime(2026, 11, 28, 3, 0, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
CONFIG = replace(first_config("sales"), history="h1", write=NOW - 2 * HOUR)
SIGN = Sign("h1", NOW - MINUTE, "/srv/sales.duckdb", "ada", "ann")
CLOSED = replace(SIGN, seen=NOW - HOUR, is_closed=True)
OLD = replace(SIGN, seen=NOW - HOUR)
SEEN = "the publisher of /srv/sales.duckdb on ada"


def state_of(*, config=CONFIG, damage="", stuck=None, **health):
    return judge(Facts("sales --farm /srv/farm", config, Health(**health), damage, stuck or {}), NOW)


@pytest.mark.parametrize(
    ("known", "state", "why"),
    [
        ({"publisher": SIGN}, "ok", f"{SEEN} is there"),
        ({"publisher": CLOSED}, "quiet", f"{SEEN} closed 1h ago"),
        ({}, "quiet", "no publisher has reported"),
        ({"publisher": replace(SIGN, history="h0")}, "quiet", "no publisher has reported"),
        ({"publisher": OLD}, "silent", f"{SEEN} has given no sign for 1h, and did not close"),
        ({"publisher": OLD, "sign_every": timedelta(0)}, "ok", f"{SEEN} is there"),
        ({"publisher": OLD, "sign_every": HOUR}, "ok", f"{SEEN} is there"),
        ({"publisher": OLD, "config": replace(CONFIG, write=NOW)}, "ok", f"{SEEN} is there"),
        ({"publisher": replace(SIGN, failure="disk full")}, "failing", f"{SEEN} cannot publish: disk full"),
        (
            {"publisher": replace(OLD, failure="disk full")},
            "silent",
            f"{SEEN} has given no sign for 1h, and did not close; it could not publish: disk full",
        ),
        (
            {"publisher": SIGN, "expect_every": HOUR},
            "late",
            "the last commit was 2h ago, and one is expected every 1h",
        ),
        ({"publisher": CLOSED, "expect_every": 3 * HOUR}, "quiet", f"{SEEN} closed 1h ago"),
        (
            {"expect_every": HOUR, "config": replace(CONFIG, write=None)},
            "late",
            "no transaction was ever published, and one is expected every 1h",
        ),
        (
            {"publisher": SIGN, "stuck": {"replica r1 (copy.duckdb)": "wlr replicate --into copy.duckdb"}},
            "behind",
            "replica r1 (copy.duckdb): no progress",
        ),
        ({"publisher": SIGN, "damage": "batch 3 is missing"}, "damaged", "batch 3 is missing"),
        (
            {"publisher": SIGN, "verified": Proof(NOW - HOUR, 7, "batch 3: cut off")},
            "damaged",
            "wlc farm verify, 1h ago: batch 3: cut off",
        ),
        (
            {"publisher": SIGN, "drilled": Proof(NOW - HOUR, 7, "t differs")},
            "damaged",
            "wlr replica drill, 1h ago: t differs",
        ),
        ({"publisher": SIGN, "verified": Proof(NOW - HOUR, 7)}, "ok", f"{SEEN} is there"),
        ({"publisher": OLD, "config": replace(CONFIG, state=STOPPED)}, "stopped", "its owner stopped it"),
    ],
)
def test_each_fact_has_its_verdict(known, state, why):
    found = state_of(**known)
    assert (found.state, found.why) == (state, why)
    assert found.state in STATES
    assert found.is_wrong == (state in WRONG)


def test_the_worst_comes_first():
    everything = {
        "publisher": replace(OLD, failure="disk full"),
        "expect_every": HOUR,
        "stuck": {"replica r1 (copy.duckdb)": "wlr replicate --into copy.duckdb"},
        "damage": "batch 3 is missing",
    }
    assert state_of(**everything).state == "damaged"
    assert state_of(**everything | {"damage": ""}).state == "silent"
    assert state_of(**everything | {"damage": "", "publisher": replace(SIGN, failure="x")}).state == "failing"
    assert state_of(**everything | {"damage": "", "publisher": SIGN}).state == "late"


def test_remedies_are_commands():
    assert state_of(publisher=OLD).remedy == "on ada: wlc flush /srv/sales.duckdb; then start its program again"
    assert state_of(damage="x").remedy == "wlc farm verify sales --farm /srv/farm"
    assert state_of(stuck={"r": "wlr replicate --into r"}).remedy == "wlr replicate --into r"


@pytest.mark.parametrize(("missing", "expected"), [(2, False), (3, False), (4, True)])
def test_three_signs_may_be_missing(missing, expected):
    health = Health(publisher=replace(SIGN, seen=NOW - missing * MINUTE))
    assert is_silent(health, None, NOW) is expected
