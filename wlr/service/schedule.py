"""Decides when the service does what: pure functions of values and times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.errors import UnavailableError
from wlc.farm.retry import longer, much_longer
from wlc.farm.rounds import AWAY

if TYPE_CHECKING:
    from datetime import datetime, timedelta

# Labels of metrics are bounded.
FAILURE_CLASSES = (
    *("UnavailableError", "FencedError", "ReplayError", "CorruptError", "GapError", "ExpiredError"),
    *("UnsupportedError", "ExceededError", "InvalidError", "OSError", "Other"),
)


def due_in_s(last: datetime | None, every: timedelta, now: datetime) -> float:
    """Return in how many seconds something is due again, 0 if it is due now.

    Args:
        last: When it was done last, None for never; see `ServiceMemory.last` for a time to come.
        every: How often it is due.
        now: The present.
    """
    if last is None:
        return 0.0
    return max((last + every - now).total_seconds(), 0.0)


def passes(error: Exception) -> bool:
    """Say whether an error goes away by itself: a place that is away, a file in use."""
    return isinstance(error, AWAY)


def pause_s(error: Exception, last_s: float, *, is_heavy: bool = False) -> float:
    """Return how long to wait before something that failed is tried again.

    What passes by itself: 1 s, 2 s, … at most 60 s. Anything else, and what takes long: 1 min, 2 min, … at most 1 h.

    Args:
        error: Why it failed.
        last_s: The last such pause, 0 if it did not fail before.
        is_heavy: It takes long or costs much.
    """
    return longer(last_s) if passes(error) and not is_heavy else much_longer(last_s)


def is_alarm(error: Exception, failing_since: datetime, now: datetime, patience: timedelta) -> bool:
    """Say whether a failure wants somebody's attention: one that does not pass does at once, another after a while."""
    return not passes(error) or now - failing_since >= patience


def class_of(error: BaseException) -> str:
    """Return the class of a failure for a label: one of the error tree, or of the few others."""
    if isinstance(error, AWAY):
        return UnavailableError.__name__
    name = type(error).__name__
    return name if name in FAILURE_CLASSES else "OSError" if isinstance(error, OSError) else "Other"
