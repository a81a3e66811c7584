from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wlc.farm.clock import (
    format_local,
    format_short,
    format_time,
    parse_age,
    parse_moment,
    parse_tick,
    parse_time,
    parse_until,
    read_time,
    zone_of,
)
from wlc.farm.errors import InvalidError

NOW = datetime(2026, 11, 20, 12, 0, 0, 7, UTC)


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_are_read_back_as_written(moment: datetime) -> None:
    assert read_time(format_time(moment)) == moment
    assert parse_time(format_time(moment)) == moment


def test_times_are_written_in_utc_with_microseconds() -> None:
    there = datetime(2026, 11, 20, 14, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert format_time(there) == "2026-11-20T08:30:00.000000Z"


@pytest.mark.parametrize(
    "text",
    ["2026-11-20T10:00:00Z", "2026-11-20 10:00:00.000001Z", "2026-11-20T10:00:00.000001", "2026-02-30T10:00:00.000001Z"]
    + ["2026-11-20T10:00:00.000001+00:00", "", "２026-11-20T10:00:00.000001Z"],
)
def test_the_farm_has_one_form_of_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a time of the farm|day is out of range"):
        read_time(text)


@pytest.mark.parametrize(
    "text, seconds",
    [("now", 0), ("-2h", 7200), ("2 hours ago", 7200), ("- 30 min", 1800), ("1.5 days ago", 129600), ("-1w", 604800)]
    + [("90 SECONDS AGO", 90), (" -5m ", 300), ("1 minute ago", 60), ("10m ago", 600)],
)
def test_distances_go_back_from_now(text: str, seconds: float) -> None:
    assert parse_time(text, NOW) == NOW - timedelta(seconds=seconds)


def test_a_time_without_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert parse_time("2026-11-20 14:30") == datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
        assert parse_time("2026-11-20") == datetime(2026, 11, 19, 18, 30, tzinfo=UTC)
        assert parse_time("9:00", NOW) == datetime(2026, 11, 20, 3, 30, tzinfo=UTC)
        assert parse_time("09:00:00.5", NOW) == datetime(2026, 11, 20, 3, 30, 0, 500000, tzinfo=UTC)
        assert parse_time("Yesterday 14:30", NOW) == datetime(2026, 11, 19, 9, 0, tzinfo=UTC)
        assert parse_time("today", NOW) == datetime(2026, 11, 19, 18, 30, tzinfo=UTC)
        assert parse_time("yesterday", NOW + timedelta(hours=7)) == datetime(2026, 11, 19, 18, 30, tzinfo=UTC)
        assert parse_time("2026-11-20 9:05", NOW) == datetime(2026, 11, 20, 3, 35, tzinfo=UTC)
        assert parse_time("2026-11-20T14:30:00+02:00") == datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "ages, texts",
    [
        ((0, 3600), ["17:30:00", "16:30:00"]),
        ((0, 86400), ["11-20 17:30:00", "11-19 17:30:00"]),
        ((0, 86400 * 365), ["2026-11-20 17:30:00", "2025-11-20 17:30:00"]),
        ((), []),
    ],
)
def test_short_times_leave_out_what_all_share_with_now(ages, texts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert format_short([NOW - timedelta(seconds=age) for age in ages], NOW) == texts
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("monday", 16), ("Tuesday", 17), ("last thursday", 19), ("friday", 13), ("last friday", 13), ("sunday 9:00", 15),
        ("saturday 23:59:59", 14),
    ],
)  # fmt: skip
def test_a_day_of_the_week_is_the_last_one_before_today(text: str, day: int) -> None:
    assert NOW.astimezone().strftime("%A") == "Friday"
    assert parse_time(text, NOW).astimezone().day == day


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("2026-11-28 08:18:53", "08:18:53.999999"), ("2026-11-28T08:18:53Z", "08:18:53.999999"),
        ("8:18:53", "08:18:53.999999"), ("2026-11-28 08:18:53.5", "08:18:53.500000"),
        ("2026-11-28 08:18", "08:18:00"), ("2026-11-28", "00:00:00"),
    ],
)  # fmt: skip
def test_a_second_that_is_typed_is_the_whole_second(text: str, end: str) -> None:
    assert parse_until(text, NOW).astimezone().time().isoformat() in (end, parse_until(text).time().isoformat())
    assert parse_until(text, NOW).microsecond == int(end[9:] or 0)
    assert parse_until(NOW) == NOW


def test_times_that_are_shown_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = NOW + timedelta(microseconds=570_171)
    try:
        for zone in ("UTC", "Asia/Kolkata", "America/New_York"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            later = NOW + timedelta(days=3)
            for shown in (format_local(commit), *format_short([commit], NOW)):
                assert commit <= parse_until(shown, NOW) < commit + timedelta(seconds=1)
            (shown,) = format_short([commit], later)
            assert commit <= parse_until(shown, later) < commit + timedelta(seconds=1)
            assert zone_of([commit]) == {"UTC": "Z", "Asia/Kolkata": "+05:30", "America/New_York": "-05:00"}[zone]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text, hour",
    [("9:00 Europe/Berlin", 8), ("2026-11-20 9:00 Europe/Berlin", 8), ("2026-07-20 9:00 Europe/Berlin", 7)]
    + [("2026-11-20T14:30 UTC", 14), ("yesterday 20:00 America/New_York", 1), ("2026-11-20 America/New_York", 5)],
)
def test_a_zone_may_be_named(text: str, hour: int) -> None:
    assert parse_time(text, NOW).hour == hour


@pytest.mark.parametrize(
    "text",
    ["25:00", "9:0", "9:00 Mars/Olympus", "9:00 ../etc", "yesterday 9", "9", "UTC", "today now"]
    + ["", "yesterday-ish", "2026-13-01", "-2 parsecs", "3h", "-9e99d", "-99999999999 weeks"],
)
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidError, match="is not a time") as caught:
        parse_time(text, NOW)
    assert "'2 hours ago'" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["500ms", "3hs", "2ds", "1 ss"])
def test_units_have_no_false_plural(text: str):
    with pytest.raises(InvalidError):
        parse_age(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("2026-10-25 02:30 Europe/Berlin", "2026-10-25T00:30:00.000000Z or 2026-10-25T01:30:00.000000Z"),
        ("2026-03-29 02:30 Europe/Berlin", "2026-03-29T00:30:00.000000Z or 2026-03-29T01:30:00.000000Z"),
    ],
)
def test_a_time_that_is_there_twice_or_never_is_refused(text: str, hint: str):
    with pytest.raises(InvalidError, match="is not one time") as refused:
        parse_time(text)
    assert hint in (refused.value.hint or "")
    assert parse_time(text.replace("02:30", "04:30")).tzinfo is UTC


def test_a_date_is_its_first_moment() -> None:
    assert parse_time(date(2026, 11, 20)) == parse_time("2026-11-20")
    assert parse_until(date(2026, 11, 20)) == parse_until("2026-11-20")


@pytest.mark.parametrize("given", [3, "3", " 3 ", np.int64(3)])
def test_ticks_of_a_program(given: int | str) -> None:
    assert parse_tick(given) == parse_moment(given, "since") == 3


@pytest.mark.parametrize("given", [-1, "-1", 1.5, "x", "", True, b"3", [3]])
def test_what_is_no_tick_is_refused(given: Any) -> None:
    with pytest.raises(InvalidError, match="first: .* is not a tick"):
        parse_tick(given, "first")
