"""Bytes per second: as people type them, and kept by several threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wlc.farm.errors import UnavailableError
from wlc.tiers import copying

if TYPE_CHECKING:
    from collections.abc import Callable


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
