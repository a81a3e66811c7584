"""Typed fields of the farm's JSON: values to plain objects and back, with strict validation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

from wlc.farm.clock import read_time
from wlc.farm.paths import check_database_name, is_relative, is_site_name, is_token

if TYPE_CHECKING:
    from datetime import datetime

T = TypeVar("T")
FORMAT_VERSION = 1
TICK_MAX = 10**12 - 1
_INT64 = range(-(2**63), 2**63)
_HALF = re.compile("[\ud800-\udfff]")
_HEX = frozenset("0123456789abcdef")
_LSN = re.compile(r"[0-9A-F]{1,8}/[0-9A-F]{1,8}")


class FieldError(ValueError):
    """A field is missing or invalid; the reader of the file adds the place."""


def _refuse_constant(text: str) -> NoReturn:
    raise FieldError(f"{text} is not a number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise FieldError(f"key {short(key)} is there twice")
            seen.add(key)
    return found


# Readers may differ in which of two values under one key they take.
DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_object)
# `json.dumps` would make one for every text.
ENCODER = json.JSONEncoder(ensure_ascii=False)


def refuse_half_characters(value: object, text: str) -> None:
    """Refuse half of a surrogate pair: an escape can bring it into a text, and it could not be written again.

    Args:
        value: The decoded value.
        text: The source of the value.

    Raises:
        FieldError: There is one; the message names the key.
    """
    if "\\ud" in text or "\\uD" in text:
        _refuse_halves(value, "")


def _refuse_halves(value: object, key: str) -> None:
    if isinstance(value, dict):
        for name, each in value.items():
            _refuse_halves(name, name)
            _refuse_halves(each, name)
    elif isinstance(value, list):
        for each in value:
            _refuse_halves(each, key)
    elif isinstance(value, str) and not value.isascii() and _HALF.search(value):
        raise FieldError(f"{short(key)}: {short(value)} holds half of a character")


def as_object(value: object) -> dict[str, Any]:
    """Return a JSON object."""
    if type(value) is not dict:
        raise FieldError(f"{short(value)} is not an object")
    return value


def known(content: Mapping[str, Any], keys: str, optional: str = "") -> None:
    """Refuse unknown keys; a line or document may also have `info`, which readers ignore.

    Args:
        content: A JSON object; the reader of each key reports one that is missing.
        keys: Names of the keys, separated by blanks.
        optional: Names of keys that need not be there.
    """
    refuse_unknown(content, _allowed(keys, optional))


def refuse_unknown(content: Mapping[str, Any], allowed: frozenset[str]) -> None:
    """Refuse keys of a JSON object that are not allowed."""
    if not content.keys() <= allowed:
        raise FieldError(f"key {short(min(content.keys() - allowed))} is unknown")


@cache
def _allowed(keys: str, optional: str) -> frozenset[str]:
    return frozenset((*keys.split(), *optional.split()))


def as_list(value: object) -> list[Any]:
    """Return a JSON list."""
    if type(value) is not list:
        raise FieldError(f"{short(value)} is not a list")
    return value


def as_text(value: object) -> str:
    """Return a text."""
    if type(value) is not str:
        raise FieldError(f"{short(value)} is not a text")
    return value


def as_flag(value: object) -> bool:
    """Return true or false."""
    if type(value) is not bool:
        raise FieldError(f"{short(value)} is not true or false")
    return value


def as_count(value: object) -> int:
    """Return an integer from 0 on."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise FieldError(f"{short(value)} is not a count")
    return value


def as_tick(value: object, smallest: int = 1) -> int:
    """Return a tick, or another number that the farm counts."""
    if type(value) is not int or not smallest <= value <= TICK_MAX:
        raise FieldError(f"{short(value)} is not a tick or number")
    return value


def as_int64(value: object) -> int:
    """Return an integer of 64 bits."""
    if type(value) is not int or value not in _INT64:
        raise FieldError(f"{short(value)} is not a number of 64 bits")
    return value


def as_history(value: object) -> str:
    """Return the id of a history."""
    if not is_token(as_text(value)):
        raise FieldError(f"{short(value)} is not the id of a history")
    return as_text(value)


def as_sha256(value: object) -> str:
    """Return a SHA-256 in lower-case hexadecimal."""
    text = as_text(value)
    if len(text) != 64 or not _HEX.issuperset(text):
        raise FieldError(f"{short(value)} is not a SHA-256")
    return text


def as_hex64(value: object) -> int:
    """Return a number of 64 bits, from 16 hexadecimal digits."""
    text = as_text(value)
    if len(text) != 16 or not _HEX.issuperset(text):
        raise FieldError(f"{short(value)} is not 16 hexadecimal digits")
    return int(text, 16)


def as_lsn(value: object) -> str:
    """Return a place in PostgreSQL's log."""
    if not _LSN.fullmatch(as_text(value)):
        raise FieldError(f"{short(value)} is not a place in a log")
    return as_text(value)


def as_time(value: object) -> datetime:
    """Return a time in the farm's one form."""
    try:
        return read_time(as_text(value))
    except (ValueError, OverflowError) as error:
        raise FieldError(f"{short(value)} is not a time") from error


def as_format(value: object, known: int) -> int:
    """Return the version of a format."""
    if type(value) is not int or value != known:
        raise FieldError(f"format {short(value)} is unknown, this version reads {known}")
    return value


def as_beat(value: object) -> float:
    """Return a number of seconds, 0 or more."""
    if type(value) not in (int, float) or not 0 <= value <= TICK_MAX:  # type: ignore[operator]
        raise FieldError(f"{short(value)} is not a beat")
    return float(value)  # type: ignore[arg-type]


def as_vector(value: object) -> dict[str, int]:
    """Return per history a tick."""
    return {as_history(history): as_tick(tick, 0) for history, tick in as_object(value).items()}


def as_relative(value: object) -> str:
    """Return a path relative to the folder of the file that names it."""
    if not is_relative(as_text(value)):
        raise FieldError(f"{value!r} is not a path inside the farm")
    return as_text(value)


def as_site(value: object) -> str:
    """Return the name of a site."""
    if not is_site_name(as_text(value)):
        raise FieldError(f"{short(value)} is not the name of a site")
    return as_text(value)


def vector_json(vector: Mapping[str, int]) -> dict[str, int]:
    """Write a vector, sorted so that equal vectors are equal bytes."""
    return dict(sorted(vector.items()))


def short(value: object) -> str:
    """Return a value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


# Types of fields -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JsonForm:
    """The JSON form of a value.

    Attributes:
        read: Raises ValueError, KeyError or FarmError for an invalid value.
        write: None if the value is written as it is.
        keys: Keys of an inline value's object.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None = None
    keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class JsonKey:
    """The key of a field if it differs from the field's name."""

    name: str


@dataclass(frozen=True, slots=True)
class Must:
    """A condition on a value besides its type.

    Attributes:
        problem: Returns why a value is invalid, None if it is valid.
    """

    problem: Callable[[Any], str | None]


class Presence(Enum):
    """When a field's key is written; see the types below."""

    NEEDED = "needed"
    OMITTED = "omitted"
    LATER = "later"
    INLINE = "inline"
    ABSENT = "absent"


def one_of(*allowed: str) -> JsonForm:
    """Return the form of one of several texts."""

    def read(value: object) -> str:
        if as_text(value) not in allowed:
            raise FieldError(f"{short(value)} is none of {', '.join(allowed)}")
        return as_text(value)

    return JsonForm(read)


# The key is left out where the value is the default.
Omitted = Annotated[T, Presence.OMITTED]
# The key is always written; files of earlier versions lack it and get the default.
Later = Annotated[T, Presence.LATER]
# The keys of this record are part of the enclosing record's object.
Inline = Annotated[T, Presence.INLINE]
# The field is not written; it has its default when it is read.
Absent = Annotated[T, Presence.ABSENT]

_FILLED = Must(lambda value: None if value else "it is empty")

Tick = Annotated[int, JsonForm(as_tick)]
TickFrom0 = Annotated[int, JsonForm(lambda value: as_tick(value, 0))]
Int64 = Annotated[int, JsonForm(as_int64)]
FormatVersion = Annotated[int, JsonForm(lambda value: as_format(value, FORMAT_VERSION))]
History = Annotated[str, JsonForm(as_history)]
Sha256 = Annotated[str, JsonForm(as_sha256)]
Sha256OrEmpty = Annotated[str, JsonForm(lambda value: value if value == "" else as_sha256(value))]
Hex64 = Annotated[int, JsonForm(as_hex64, "{:016x}".format)]
Lsn = Annotated[str, JsonForm(as_lsn)]
Site = Annotated[str, JsonForm(as_site)]
DatabaseName = Annotated[str, JsonForm(lambda value: check_database_name(as_text(value)))]
RelativePath = Annotated[str, JsonForm(as_relative)]
FilledText = Annotated[str, _FILLED]
Filled = Annotated[tuple[T, ...], _FILLED]
# A path need not be Unicode, a document must be.
PathText = Annotated[str, JsonForm(as_text, lambda text: text.encode(errors="replace").decode())]
# Per history a tick.
Ticks = Annotated[Mapping[str, int], JsonForm(as_vector, vector_json)]
