"""Numbers and times as sentences and tables of a terminal have them."""

from __future__ import annotations

from datetime import datetime, timedelta

from wlc.farm.clock import utc_now
from wlc.farm.human_form import duration, in_words, is_absent


def short(name: str, value: object) -> object:
    """Write a value as `in_words` does, for a cell of a table: of a time only how long ago it was."""
    if isinstance(value, datetime) and (past := utc_now() - value) >= timedelta(0):
        return f"{duration(past)} ago"
    return None if is_absent(value) else in_words(name, value)


def counted(number: int, what: str) -> str:
    """Write a number with its noun, such as `1 batch`."""
    plural = "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{'' if number == 1 else plural}"
