"""Which ticks of a Parquet replica stay readable, as people say it and as it is decided."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from wlc.farm.errors import InvalidError
from wlr.replay.plan.retention import Keep, keep_ticks, parse_keep

NOW = datetime(2026, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    "text, keep",
    [
        ("", Keep()),
        ("  ", Keep()),
        ("0", Keep(ticks=0)),
        (" 12 ", Keep(ticks=12)),
        ("90s", Keep(age=timedelta(seconds=90))),
        ("5 min", Keep(age=timedelta(minutes=5))),
        ("5m", Keep(age=timedelta(minutes=5))),
        ("1 hour", Keep(age=timedelta(hours=1))),
        ("3 Days", Keep(age=timedelta(days=3))),
        ("2 weeks", Keep(age=timedelta(weeks=2))),
    ],
)
def test_keep_as_people_type_it(text: str, keep: Keep) -> None:
    assert parse_keep(text) == keep


@pytest.mark.parametrize("text", ["-1", "some", "3 months", "1.5 days", "days", "3 days ago", "9" * 20 + " days"])
def test_keep_that_is_none(text: str) -> None:
    with pytest.raises(InvalidError, match=text.strip()):
        parse_keep(text)


def test_ticks_that_stay() -> None:
    made = [(tick, NOW - timedelta(days=10 - tick)) for tick in (1, 2, 5, 8)]
    assert keep_ticks(made, Keep(), NOW) == {1, 2, 5, 8}
    assert keep_ticks(made, Keep(ticks=0), NOW) == {8}
    assert keep_ticks(made, Keep(ticks=2), NOW) == {2, 5, 8}
    assert keep_ticks(made, Keep(ticks=99), NOW) == {1, 2, 5, 8}
    # Tick 2 was the current one until 5 came, five days ago.
    assert keep_ticks(made, Keep(age=timedelta(days=5)), NOW) == {5, 8}
    assert keep_ticks(made, Keep(age=timedelta(days=6)), NOW) == {2, 5, 8}
    assert keep_ticks(made, Keep(age=timedelta(0)), NOW) == {8}
    assert keep_ticks(made[:1], Keep(age=timedelta(0)), NOW) == {1}
