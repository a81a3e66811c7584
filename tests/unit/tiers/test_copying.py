"""Bytes per second: as people type them, and kept by several threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wlc.farm.errors import InvalidError, UnavailableError
from wlc.farm.human_form import parse_rate
from wlc.tiers import copying

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500k", 500e3), ("10M", 10e6), ("1.5 GB/s", 1.5e9), ("2MiB", 2e6), ("7", 7.0)],
)
def test_a_rate_is_read(text: str, expected: float):
    assert parse_rate(text) == expected


@pytest.mark.parametrize("text", ["", "0", "fast", "-1M", "1T"])
def test_what_is_no_rate_is_refused(text: str):
    with pytest.raises(InvalidError, match="is not a number of bytes per second"):
        parse_rate(text)


class Clock:
    """A clock that stands still but for waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(copying, "time", clock)
    return clock


def test_bytes_wait_for_those_before_them(clock: Clock):
    limit = copying.RateLimit(100).of_one_run()
    limit._is_stopped = clock  # type: ignore[assignment]
    waits: list[float] = []
    spend: Callable[[int], None] = limit.spend
    for size in (100, 50, 50):
        spend(size)
        waits.append(clock.now)
    assert waits == [0.0, 1.0, 1.5]
    copying.RateLimit(None).of_one_run().spend(10**12)
    assert clock.now == 1.5


def test_stopped_work_waits_no_longer_and_stops_nobody_else(clock: Clock):
    shared = copying.RateLimit(1)
    stopped, other = shared.of_one_run(), shared.of_one_run()
    other._is_stopped = clock  # type: ignore[assignment]
    stopped.spend(3600)
    stopped.stop()
    with pytest.raises(UnavailableError, match="copying was stopped"):
        stopped.spend(1)
    other.spend(1)
    assert clock.now == 3601
    endless = copying.RateLimit(None).of_one_run()
    endless.stop()
    with pytest.raises(UnavailableError, match="copying was stopped"):
        endless.spend(0)
