"""When the service does what: values and times, no threads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from wlc.farm.errors import CorruptError, FencedError, UnavailableError
from wlc.farm.keeping import KeepPolicy
from wlc.farm.store import MissingError
from wlc.masters.due_snapshots import is_due
from wlr.service.job_states import (
    FAILURE_CLASSES,
    Done,
    Observed,
    ServiceMemory,
    WorkStanding,
    class_of,
    due_in_s,
    is_alarm,
    pause_s,
)

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    "last, expected",
    [
        (None, 0),
        (NOW, 3600),
        (NOW - timedelta(minutes=59), 60),
        (NOW - HOUR, 0),
        (NOW - 9 * HOUR, 0),
    ],
)
def test_what_is_due(last: datetime | None, expected: float) -> None:
    assert due_in_s(last, HOUR, NOW) == expected


def test_no_time_to_come_puts_anything_off(tmp_path: Path) -> None:
    """The clock was days ahead when the work was done, failed or a snapshot arrived, and was set back."""
    key, ahead, later = ("db", "verify"), NOW + timedelta(days=3), NOW + HOUR
    ServiceMemory(tmp_path / "m").note(key, ahead)
    for memory in (ServiceMemory(tmp_path / "m"), ServiceMemory(tmp_path / "m")):
        assert due_in_s(memory.last(key, NOW), HOUR, NOW) == 3600
        assert due_in_s(memory.last(key, later), HOUR, later) == 0
    standing = WorkStanding(*key).after(Done(), ahead)
    assert standing.as_of(NOW).last_success == NOW
    failing = standing.after_failure(UnavailableError("away"), ahead)
    assert failing.as_of(NOW).failing_since == failing.after_failure(UnavailableError("away"), NOW).failing_since == NOW
    assert standing.as_of(ahead + HOUR) == standing
    policy = KeepPolicy(snapshot_every=timedelta(days=1))
    assert is_due(policy, 2, 1, ahead, NOW)
    # A store's clock may be some minutes ahead.
    assert not is_due(policy, 2, 1, NOW + timedelta(minutes=9), NOW)


def pauses(error: Exception, count: int, *, is_heavy: bool = False) -> list[float]:
    found = [0.0]
    for _ in range(count):
        found.append(pause_s(error, found[-1], is_heavy=is_heavy))
    return found[1:]


def test_pauses_grow_up_to_a_limit() -> None:
    assert pauses(UnavailableError("away"), 8) == [1, 2, 4, 8, 16, 32, 60, 60]
    assert pauses(MissingError("not mounted"), 2) == [1, 2]
    assert pauses(CorruptError("damaged"), 8) == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert pauses(UnavailableError("away"), 2, is_heavy=True) == [60, 120]


def test_somebody_is_told_at_once_of_what_does_not_pass_and_later_of_what_may() -> None:
    patience = timedelta(minutes=5)
    assert is_alarm(FencedError("fenced"), NOW, NOW, patience)
    assert not is_alarm(UnavailableError("away"), NOW - timedelta(minutes=4), NOW, patience)
    assert is_alarm(UnavailableError("away"), NOW - patience, NOW, patience)


def test_labels_of_failures_are_bounded() -> None:
    errors = [MissingError("m"), FencedError("m"), PermissionError("m"), KeyError("m"), type("New", (Exception,), {})()]
    assert [class_of(error) for error in errors] == ["UnavailableError", "FencedError", "OSError", "Other", "Other"]
    assert all(class_of(error) in FAILURE_CLASSES for error in errors)


def test_a_standing_after_successes_and_failures() -> None:
    begun = WorkStanding("replicas.copy", "follow", observed=Observed(lag_s=3))
    good = begun.after(Done(4, NOW, 2, 10, 100, {"tick": 4}), NOW).after(Done(), NOW + HOUR)
    assert (good.tick, good.clock, good.transactions, good.rows, good.bytes) == (4, NOW, 2, 10, 100)
    assert (good.last_success, good.observed.lag_s) == (NOW + HOUR, 3)
    bad = good.after_failure(UnavailableError("away"), NOW + HOUR).after_failure(
        CorruptError("damaged"), NOW + 2 * HOUR
    )
    assert bad.failing_since == NOW + HOUR
    assert bad.failures == {"UnavailableError": 1, "CorruptError": 1}
    assert (bad.message, bad.tick, bad.last_success) == ("damaged", 4, NOW + HOUR)
    well = bad.after(Done(), NOW + 3 * HOUR)
    assert (well.failing_since, well.message, well.failures) == (None, "", bad.failures)
