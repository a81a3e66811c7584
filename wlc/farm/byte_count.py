"""Numbers of bytes as people type them."""

from __future__ import annotations

import re

from wlc.farm.errors import InvalidError

_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def format_bytes(count: int) -> str:
    """Write a number of bytes for people, such as `1.5 GB`."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def parse_bytes(text: str) -> float:
    """Read a number of bytes such as `500k`, `10M` or `1.5 GB`; a letter is a power of 1,000.

    Raises:
        InvalidError: The text is not such a number.
    """
    found = _COUNT.fullmatch(text.strip())
    if found is None:
        raise InvalidError(f"{text!r} is not a number of bytes", hint="Write 500k, 10M or 1G.")
    return float(found.group(1)) * _UNITS[found.group(2).lower()]


def parse_rate(text: str) -> float:
    """Read bytes per second as people type them: `500k`, `10M`, `1.5 GB/s`; a letter is a power of 1,000.

    Raises:
        InvalidError: The text is not a rate above 0.
    """
    try:
        if (rate := parse_bytes(text.strip().removesuffix("/s"))) > 0:
            return rate
    except InvalidError as error:
        raise _no_rate(text) from error
    raise _no_rate(text)


def _no_rate(text: str) -> InvalidError:
    return InvalidError(f"{text!r} is not a number of bytes per second", hint="Write 500k, 10M or 1G.")
