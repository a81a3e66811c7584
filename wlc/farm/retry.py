"""Every retry policy: how often something is tried again, and how long between two attempts."""

from __future__ import annotations

# A request to a bucket, including the first attempt; what the client inside it does of its own; and its time-outs.
REQUEST_ATTEMPTS = 4
CLIENT_ATTEMPTS = 2
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60
# A change of an object that several processes write.
CHANGE_ATTEMPTS = 5
# The publication of what a commit could not publish, with a beat of 0.
UNPUBLISHED_S = 1.0
# Rounds that go on for ever (`--follow`, `wlc run`): least pause, whatever the beat, and pauses while a place is away.
PAUSE_LEAST_S = 0.2
# With a beat of 0: how often a server is asked whether its log has grown, and longest time until the next round.
NEWS_FIRST_S = 0.02
NEWS_MOST_S = 5.0
_AWAY_FIRST_S = 1.0
_AWAY_MOST_S = 60.0
# What the service tries again though it does not pass by itself: somebody may mend it.
_WRONG_FIRST_S = 60.0
_WRONG_MOST_S = 3600.0


def longer(wait_s: float) -> float:
    """Return the pause before the next attempt to reach a place that is away: twice the last one, within limits."""
    return min(max(2 * wait_s, _AWAY_FIRST_S), _AWAY_MOST_S)


def much_longer(wait_s: float) -> float:
    """Return the pause before something is tried again that does not pass by itself, or that costs much."""
    return min(max(2 * wait_s, _WRONG_FIRST_S), _WRONG_MOST_S)
