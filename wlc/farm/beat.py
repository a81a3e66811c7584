"""The beat: longest wait of a committed transaction until it is published, in seconds."""

from __future__ import annotations

import math

from wlc.farm.clock import parse_age
from wlc.farm.errors import InvalidError

# The default.
BEAT_S = 300.0
BEAT_MOST_S = 10**12 - 1


def format_beat(beat_s: float) -> str:
    """Write a beat in seconds without a needless fraction."""
    return str(int(beat_s)) if float(beat_s).is_integer() else repr(float(beat_s))


def parse_beat(text: str) -> float:
    """Read a beat in seconds.

    Raises:
        InvalidError: It is not a number of seconds, 0 or more.
    """
    try:
        beat_s = float(text)
    except ValueError as error:
        raise InvalidError(f"{text!r} is not a beat", hint="Give seconds, 0 for one batch per transaction.") from error
    if not (math.isfinite(beat_s) and 0 <= beat_s <= BEAT_MOST_S):
        raise InvalidError(f"{text!r} is not a beat", hint="Give seconds, 0 for one batch per transaction.")
    return beat_s


def typed_beat(text: str) -> float:
    """Read a beat as people type it: seconds, or a length of time such as `5m`; returns seconds.

    Raises:
        InvalidError: It is neither.
    """
    try:
        return parse_beat(text if _is_number(text) else str(parse_age(text).total_seconds()))
    except InvalidError as error:
        hint = "Write seconds, such as 60, or a length of time, such as 90s or 5m."
        raise InvalidError(f"{text!r} is not a beat", hint=hint) from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
