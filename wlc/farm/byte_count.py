"""Numbers of bytes as people type them."""

from __future__ import annotations

import re

from wlc.farm.errors import InvalidError

_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def parse_bytes(text: str) -> float:
    """Read a number of bytes such as `500k`, `10M` or `1.5 GB`; a letter is a power of 1,000.

    Raises:
        InvalidError: The text is not such a number.
    """
    found = _COUNT.fullmatch(text.strip())
    if found is None:
        raise InvalidError(f"{text!r} is not a number of bytes", hint="Write 500k, 10M or 1G.")
    return float(found.group(1)) * _UNITS[found.group(2).lower()]
