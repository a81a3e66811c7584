"""Results for people: names in words, readable units, tables in a notebook.

Numbers of bytes as people type them.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any

from wlc.farm.clock import format_age, format_local, utc_now
from wlc.farm.errors import InvalidError

_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def format_bytes(count: int) -> str:
    """Write a number of bytes for people, such as `1.5 GB`."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def parse_bytes(given: str | float) -> float:
    """Read a number of bytes such as `500k`, `10M` or `1.5 GB`; a letter is a power of 1,000. A number is returned.

    Raises:
        InvalidError: The text is not such a number.
    """
    if not isinstance(given, str):
        return given
    found = _COUNT.fullmatch(given.strip())
    if found is None:
        raise InvalidError(f"{given!r} is not a number of bytes", hint="Write 500k, 10M or 1G.")
    return float(found.group(1)) * _UNITS[found.group(2).lower()]


def parse_rate(given: str | float) -> float:
    """Read bytes per second as people type them: `500k`, `10M`, `1.5 GB/s`; a letter is a power of 1,000.

    A number is returned.

    Raises:
        InvalidError: The text is not a rate above 0.
    """
    if not isinstance(given, str):
        return given
    try:
        if (rate := parse_bytes(given.strip().removesuffix("/s"))) > 0:
            return rate
    except InvalidError as error:
        raise _no_rate(given) from error
    raise _no_rate(given)


def _no_rate(text: str) -> InvalidError:
    return InvalidError(f"{text!r} is not a number of bytes per second", hint="Write 500k, 10M or 1G.")


# Units of fields by the end of their name.
_SECONDS, _BYTES = "_s", "bytes"


# Called with units done, units in total, and the current activity.
Progress = Callable[[int, int, str], None]


class Doing(str):
    """The current activity of a long operation, for a function that shows progress.

    Attributes:
        rows: Rows done since the operation began; `bytes`: bytes; None if not counted.
    """

    rows: int | None
    bytes: int | None

    def __new__(cls, text: str, rows: int | None = None, bytes: int | None = None) -> Doing:  # noqa: A002
        """Return a text with its amounts."""
        made = super().__new__(cls, text)
        made.rows, made.bytes = rows, bytes
        return made


class ForPeople:
    """A frozen dataclass that notebooks show as a table, and rich as a list of names and values."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<table>{''.join(_row(name, value) for name, value in _present(self))}</table>"

    def __rich_repr__(self) -> Iterator[tuple[str, object]]:
        for name, value in _present(self):
            yield name, in_words(name, value)


def _present(found: Any) -> Iterator[tuple[str, object]]:
    values = ((field.name, getattr(found, field.name)) for field in fields(found))
    return ((name, value) for name, value in values if not is_absent(value))


def _row(name: str, value: object) -> str:
    return f'<tr><th style="text-align: left">{_escaped(label(name))}</th><td>{_cell(name, value)}</td></tr>'


def _cell(name: str, value: object) -> str:
    if isinstance(value, list | tuple) and value and all(is_dataclass(each) for each in value):
        return _rows_of(value)
    if is_dataclass(value):
        return _rows_of([value])
    if isinstance(value, Mapping):
        return f"<table>{''.join(_row(str(key), inner) for key, inner in value.items())}</table>"
    if isinstance(value, list | tuple):
        return "<br>".join(_escaped(in_words(name, each)) for each in value)
    return _escaped(in_words(name, value))


def _rows_of(found: list[Any] | tuple[Any, ...]) -> str:
    """Write several values of one class as a table with a header; columns without any value are left out."""
    names = [field.name for field in fields(found[0])]
    names = [name for name in names if not all(is_absent(getattr(each, name, None)) for each in found)]
    head = "".join(f"<th>{_escaped(label(name))}</th>" for name in names)
    lines = ("".join(f"<td>{_cell(name, getattr(each, name, None))}</td>" for name in names) for each in found)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _escaped(value: object) -> str:
    # Content of a farm or a table must not become markup.
    return "" if value is None else html.escape(str(value))


def is_absent(value: object) -> bool:
    """Say whether this value is hidden from people."""
    return value is None or value is False or (isinstance(value, str | tuple | Mapping) and not value)


def label(name: str) -> str:
    """Write the name of a field in words."""
    return name.removesuffix(_SECONDS).removeprefix("is_").replace("_", " ")


def in_words(name: str, value: object) -> object:
    """Write the value of the field `name` in readable units; other values are returned unchanged."""
    if value is True:
        return "yes"
    if isinstance(value, datetime):
        past = utc_now() - value
        ago = f" ({duration(past)} ago)" if past >= timedelta(0) else ""
        return f"{format_local(value)}{ago}"
    if isinstance(value, int | float) and name.endswith(_SECONDS):
        return duration(timedelta(seconds=value))
    if isinstance(value, int) and name.endswith(_BYTES):
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) else value


def longest_unit(length: timedelta) -> str:
    """Write a length of time in its largest unit alone, such as `3d`, for a table; a time to come is `0s`."""
    return duration(timedelta(seconds=max(int(length.total_seconds()), 0))).partition(" ")[0]


def ago(time: datetime, now: datetime) -> str:
    """Write how long ago a time is, such as `3d 4h ago`; a time to come is `0s ago`."""
    return f"{duration(whole_seconds(now - time))} ago"


def whole_seconds(length: timedelta) -> timedelta:
    """Round a length of time; a negative one, as from differing clocks, becomes zero."""
    return timedelta(seconds=max(round(length.total_seconds()), 0))


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
