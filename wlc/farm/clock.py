"""Time: now, as text in the farm, and as people type it; and ticks, which stand where a time can."""

from __future__ import annotations

import operator
import re
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, overload

from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_EXAMPLES = (
    "for example 9:00, 'yesterday 14:30', monday, 2026-11-20, '2026-11-20 14:30 Europe/Berlin',"
    " 2026-11-20T14:30:00.000001Z, -2h, '10m ago', '2 hours ago', now, or to come: '+10m' or 'in 2 hours'"
)
_EXACT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
_RELATIVE = re.compile(r"(?:(-|\+|in\s)\s*(\d+(?:\.\d+)?)\s*([a-z]+)|(\d+(?:\.\d+)?)\s*([a-z]+)\s+ago)")
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_ON_A_DAY = re.compile(
    rf"(?P<day>today|yesterday|(?:last )?(?:{'|'.join(_DAYS)})|(?:\d{{4}}-)?\d\d-\d\d)?"
    r"(?:(?:^|[ T]+)(?P<hour>\d{1,2})(?P<rest>:\d\d(?::\d\d(?:\.\d{1,6})?)?))?"
    r"(?: +(?P<zone>[A-Za-z][\w+/-]*))?",
    re.ASCII | re.IGNORECASE,
)
# A time to the second, without its fraction.
_WHOLE_SECOND = re.compile(r"(?:^|[ tT])\d{1,2}:\d\d:\d\d(?![.\d])", re.ASCII)
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.ASCII)
_UNIT_S = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
_UNIT_S |= {"d": 86400, "day": 86400, "w": 604800, "week": 604800}


def utc_now() -> datetime:
    """Return the time of this machine's clock in UTC."""
    return datetime.now(UTC)


def format_time(time: datetime) -> str:
    """Write an aware time as the farm does: UTC, always six digits of microseconds, `Z`."""
    if time.tzinfo is not UTC:
        time = time.astimezone(UTC)
    return time.isoformat(timespec="microseconds")[:-6] + "Z"


def format_local(time: datetime) -> str:
    """Write a time for a person: local, to the second, with its zone, as `parse_time` reads it."""
    return time.astimezone().isoformat(" ", "seconds").replace("+00:00", "Z")


def format_short(times: Sequence[datetime], now: datetime | None = None) -> list[str]:
    """Write times for a person: local, to the second, without the date or year that all of them share with now.

    Args:
        times: Aware times.
        now: The machine's clock when omitted.

    Returns:
        One text for each: all have the time of the day, and, unless all are of today, the day, with the year if needed.
        `parse_time` reads them; `zone_of` says where they are local.
    """
    local, today = [time.astimezone() for time in times], (now or utc_now()).astimezone().date()
    form = "%Y-%m-%d %H:%M:%S"
    if all(time.date() == today for time in local):
        form = "%H:%M:%S"
    elif all(time.year == today.year for time in local):
        form = "%m-%d %H:%M:%S"
    return [time.strftime(form) for time in local]


def zone_of(times: Sequence[datetime]) -> str:
    """Return the zone that local times are in, such as `+01:00` or `Z`; of several all of them."""
    return "/".join(dict.fromkeys(format_local(time)[19:] for time in times))


def read_time(text: str) -> datetime:
    """Read a time as `format_time` writes it and in no other form.

    Raises:
        ValueError: The text is anything else.
    """
    if not _EXACT.fullmatch(text):
        raise ValueError(f"{text!r} is not a time of the farm")
    return datetime.fromisoformat(text)


def parse_until(given: str | date, now: datetime | None = None) -> datetime:
    """Read an upper limit in time as `parse_time` does.

    A text with whole seconds means the end of that second, because times are shown without fractions.
    """
    moment = parse_time(given, now)
    is_second = isinstance(given, str) and _WHOLE_SECOND.search(given) is not None
    return moment.replace(microsecond=999_999) if is_second else moment


@overload
def parse_tick(given: int | str, option: str = "tick") -> int: ...
@overload
def parse_tick(given: int | str | None, option: str = "tick") -> int | None: ...
def parse_tick(given: int | str | None, option: str = "tick") -> int | None:
    """Read the number of a transaction that a program gives, or digits; None stays None.

    Args:
        given: The number; one of NumPy is one, too.
        option: The parameter, for the message.

    Raises:
        InvalidError: It is not a whole number from 0 on.
    """
    if given is None:
        return None
    with suppress(TypeError, ValueError):
        tick = int(given) if isinstance(given, str) else operator.index(given)
        if tick >= 0 and not isinstance(given, bool):
            return tick
    raise InvalidError(f"{option}: {given!r} is not a tick", hint=f"A tick is a number from 0 on: {option}=0.")


def parse_moment(
    given: int | str | date, option: str, parse: Callable[[str | date], datetime] = parse_until
) -> int | datetime:
    """Read a tick as `parse_tick` does; anything that is no number and no digits is a time, read by `parse`."""
    if isinstance(given, date) or (isinstance(given, str) and not given.strip().isdecimal()):
        return parse(given)
    return parse_tick(given, option)


def parse_time(given: str | date, now: datetime | None = None) -> datetime:
    """Read a time as a person types it or a program gives it.

    Args:
        given: A date or time. As text: an ISO date or time, `now`, a distance from now such as `-2h`, `2 hours ago` or
            `in 10m`, or a time of the day, which is today's, or that of `yesterday`, or of a day of the week: the last
            one before today. The name of a time zone may follow a date or a time; without a zone it is local time. A
            day alone is its first moment.
        now: What `now` and distances refer to; the machine's clock when omitted.

    Returns:
        The time in UTC.

    Raises:
        InvalidError: The text is not a time; the message shows the valid forms.
    """
    if isinstance(given, date):
        return _utc(given if isinstance(given, datetime) else datetime.combine(given, datetime.min.time()))
    if not isinstance(given, str):
        raise InvalidError(f"{given!r} is not a time", hint=f"Give a date, a datetime or a text, {_EXAMPLES}.")
    wanted = given.strip()
    try:
        if wanted.lower() == "now":
            return _utc(now or utc_now())
        if relative := _RELATIVE.fullmatch(wanted.lower()):
            amount, unit = relative.group(2) or relative.group(4), relative.group(3) or relative.group(5)
            length = _length(amount, unit)
            return _utc(now or utc_now()) + (-length if relative.group(1) in (None, "-") else length)
        time = _on_a_day(wanted, now or utc_now()) or datetime.fromisoformat(wanted)
        earlier, later = sorted(_utc(time.replace(fold=fold)) for fold in (0, 1))
    except (ValueError, OverflowError, KeyError, OSError) as error:
        raise InvalidError(f"{given!r} is not a time", hint=f"Write a time, {_EXAMPLES}.") from error
    if earlier < later:
        hint = f"Write {format_time(earlier)} or {format_time(later)}."
        raise InvalidError(f"{given!r} is not one time: clocks were set forward or back then", hint=hint)
    return later


def _on_a_day(text: str, now: datetime) -> datetime | None:
    """Read a day, a time of the day, or both; None for any other form."""
    found = _ON_A_DAY.fullmatch(text)
    if found is None or not (found["day"] or found["hour"]):
        return None
    zone = None
    if found["zone"]:
        # zoneinfo is a tenth of the import time of every command, and few times name a zone.
        from zoneinfo import ZoneInfo

        zone = ZoneInfo(found["zone"])
    day = (found["day"] or "today").lower()
    if not day[0].isdigit():
        today = now.astimezone(zone).date()
        named = day.removeprefix("last ")
        back = (today.weekday() - _DAYS.index(named) - 1) % 7 + 1 if named in _DAYS else int(day == "yesterday")
        day = (today - timedelta(days=back)).isoformat()
    elif len(day) == len("11-20"):
        day = f"{now.astimezone(zone).year}-{day}"
    time = f"{int(found['hour']):02}{found['rest']}" if found["hour"] else "00:00"
    return datetime.fromisoformat(f"{day}T{time}").replace(tzinfo=zone)


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC)


@overload
def parse_age(given: str | timedelta) -> timedelta: ...
@overload
def parse_age(given: None) -> None: ...
def parse_age(given: str | timedelta | None) -> timedelta | None:
    """Read a length of time as people type it, such as `90s`, `1h` or `2 days`, or as a program gives it.

    Raises:
        InvalidError: The text is not a number and a unit.
    """
    if given is None or isinstance(given, timedelta):
        return given
    found = _AGE.fullmatch(given.strip().lower())
    try:
        if found is None:
            raise ValueError(given)
        return _length(*found.groups())
    except (ValueError, KeyError, OverflowError) as error:
        raise InvalidError(f"{given!r} is not a length of time", hint="Write 90s, 15m, 1h or '2 days'.") from error


def format_age(age: timedelta) -> str:
    """Write a length of time as `parse_age` reads it, in the largest unit that needs no fraction."""
    for unit in ("d", "h", "m"):
        count, rest = divmod(age, timedelta(seconds=_UNIT_S[unit]))
        if count and not rest:
            return f"{count}{unit}"
    return f"{age.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"


def _length(amount: str, unit: str) -> timedelta:
    return timedelta(seconds=float(amount) * unit_s(unit))


def unit_s(unit: str) -> int:
    """Return the seconds of a unit as people name it, such as `h`, `min` or `hours`.

    Raises:
        KeyError: The unit is unknown.
    """
    # Words have a plural, and letters have none: `ms` is not minutes.
    return _UNIT_S[unit.removesuffix("s") if len(unit) > 2 else unit]
