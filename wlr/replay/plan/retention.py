"""Decides which old ticks of a replica stay readable, without touching them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from wlc.farm.clock import unit_s
from wlc.farm.errors import InvalidError
from wlc.farm.human_form import ForPeople

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


_AGE = re.compile(r"([0-9]{1,18})\s*(s|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)")


@dataclass(frozen=True, slots=True)
class Keep:
    """Retention of old ticks: `ticks` before the current one, or those current within `age`; None for all."""

    ticks: int | None = None
    age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class PrunedTicks(ForPeople):
    """The result of a removal, or of a dry run.

    Attributes:
        ticks: Removed ticks, rising.
        files: Data files removed; `bytes`: their size.
        oldest: The oldest readable tick.
    """

    ticks: tuple[int, ...]
    files: int
    bytes: int
    oldest: int
    is_dry_run: bool = False


def parse_keep(text: str) -> Keep:
    """Parse a retention: a number of old ticks, an age such as "3 days", or "" for all.

    Raises:
        InvalidError: The text is none of these.
    """
    if not text.strip():
        return Keep()
    found = _AGE.fullmatch(text.strip().lower())
    is_number = re.fullmatch(r"[0-9]{1,18}", text.strip())
    if found is None and not is_number:
        raise InvalidError(f"{text!r} is neither a number of ticks nor an age", hint="--keep 10 or --keep '3 days'")
    try:
        if found is None:
            return Keep(ticks=int(text))
        return Keep(age=timedelta(seconds=int(found.group(1)) * unit_s(found.group(2))))
    except OverflowError as error:
        raise InvalidError(f"{text!r} is too long an age", hint="Leave --keep out to keep all.") from error


def keep_ticks(made: Sequence[tuple[int, datetime]], keep: Keep, now: datetime) -> set[int]:
    """Decide which ticks stay readable; the last one always does.

    Args:
        made: Every tick and when it became the current one, rising; at least one.
        keep: The retention.
        now: The present.
    """
    if keep.ticks is not None:
        return {tick for tick, _ in made[-keep.ticks - 1 :]}
    if keep.age is None:
        return {tick for tick, _ in made}
    # A tick is current until the next one is made.
    ends = [when for _, when in made[1:]]
    recent = {tick for (tick, _), end in zip(made, ends, strict=False) if now - end < keep.age}
    return recent | {made[-1][0]}
