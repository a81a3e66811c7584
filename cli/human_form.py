"""How a command shows what it found to a person: what is wrong first, units that need no calculating."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from wlc.farm.byte_count import format_bytes
from wlc.farm.clock import format_age, utc_now

from .output import Fields, record

if TYPE_CHECKING:
    from collections.abc import Collection

# Names that end so are of this unit.
_SECONDS, _BYTES = "_s", "bytes"


def for_person(found: Any, wrong: Collection[str], unknown: Collection[str] = ()) -> Fields:
    """Report a dataclass field by field; on a terminal, a person sees it in units, without what is absent.

    Args:
        found: The dataclass.
        wrong: Names of fields that say what is wrong, or out of the ordinary, unless they are absent or false. They
            come first, in this order.
        unknown: Names of fields whose absence says that they could not be found out.
    """
    plain = record(found)

    def shown() -> Fields:
        there = {name: value for name, value in plain.values.items() if not _is_absent(value)}
        first = {name: there[name] for name in wrong if there.get(name)}
        first |= {name: "unknown" for name in unknown if name not in there}
        return Fields({_label(name): _text(name, value) for name, value in (first | there).items()})

    return Fields(plain.values, on_terminal=shown)


def _is_absent(value: object) -> bool:
    return value is None or value is False or (isinstance(value, str | tuple | Mapping) and not value)


def _label(name: str) -> str:
    return name.removesuffix(_SECONDS).removeprefix("is_").replace("_", " ")


def _text(name: str, value: object) -> object:
    if value is True:
        return "yes"
    if isinstance(value, datetime):
        past = utc_now() - value
        ago = f" ({duration(past)} ago)" if past >= timedelta(0) else ""
        return f"{value.astimezone():%Y-%m-%d %H:%M:%S}{ago}"
    if isinstance(value, int | float) and name.endswith(_SECONDS):
        return duration(timedelta(seconds=value))
    if isinstance(value, int) and name.endswith(_BYTES):
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) else value


def duration(length: timedelta) -> str:
    """Write a length of time in its two largest units, such as `3d 4h`; below a minute in seconds with a fraction."""
    seconds = length.total_seconds()
    if seconds < 60:
        return format_age(timedelta(seconds=round(seconds, 1)))
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    first = next(place for place, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)


def counted(number: int, what: str) -> str:
    """Write a number with its noun, such as `1 batch`."""
    plural = "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{'' if number == 1 else plural}"
