"""Every retry policy: how often something is tried again, and how long between two attempts."""

from __future__ import annotations

# A request to a bucket: attempts including the first, the client's own retries, and its timeouts.
REQUEST_ATTEMPTS = 4
CLIENT_ATTEMPTS = 2
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60
# A change of an object that several processes write.
CHANGE_ATTEMPTS = 5
# Publication after a failed publication at commit, with a beat of 0.
UNPUBLISHED_S = 1.0
# Endless rounds (`--follow`, `wlc run`): least pause, whatever the beat, and pauses while a place is unreachable.
PAUSE_LEAST_S = 0.2
# With a beat of 0: how often to ask a server whether its WAL has grown, and longest time until the next round.
NEWS_FIRST_S = 0.02
NEWS_MOST_S = 5.0
_AWAY_FIRST_S = 1.0
_AWAY_MOST_S = 60.0
# The service also retries after permanent errors: an operator may repair the cause.
_WRONG_FIRST_S = 60.0
_WRONG_MOST_S = 3600.0


def longer(wait_s: float) -> float:
    """Return the pause before the next attempt to reach a place: twice the last pause, within limits."""
    return min(max(2 * wait_s, _AWAY_FIRST_S), _AWAY_MOST_S)


def much_longer(wait_s: float) -> float:
    """Return the pause before retrying after a permanent error, or an expensive operation."""
    return min(max(2 * wait_s, _WRONG_FIRST_S), _WRONG_MOST_S)
