"""Dataclasses as JSON objects and back: a field's type defines its JSON form and its validation.

A key has its field's name, is always written, and is required; `JsonKey`, `Omitted` and `Later` are the exceptions. A
class whose attribute `may_have_info` is true allows a key `info`, which readers ignore. A class with a property
`problem` says what is wrong with an instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from wlc.farm.clock import format_time
from wlc.farm.errors import FarmError
from wlc.farm.json_fields import (
    FieldError,
    JsonForm,
    JsonKey,
    Must,
    Presence,
    as_beat,
    as_count,
    as_flag,
    as_list,
    as_object,
    as_text,
    as_time,
    refuse_unknown,
    short,
)

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_PLAIN: Mapping[Any, JsonForm] = {
    str: JsonForm(as_text),
    bool: JsonForm(as_flag),
    int: JsonForm(as_count),
    float: JsonForm(as_beat),
    datetime: JsonForm(as_time, format_time),
}


_REFUSALS = (ValueError, KeyError, FarmError)


@dataclass(frozen=True, slots=True)
class RecordField:
    """A field of a record."""

    name: str
    key: str
    presence: Presence
    form: JsonForm
    default: Any

    def read(self, content: dict[str, Any]) -> Any:
        """Return the field's value from an object."""
        if self.presence is Presence.INLINE:
            return self.form.read(content)
        if self.key in content:
            try:
                return self.form.read(content[self.key])
            except _REFUSALS as error:
                raise FieldError(f"{self.key}: {problem_of(error)}") from error
        if self.presence is Presence.NEEDED:
            raise FieldError(f"no {self.key!r}")
        return self.default

    @property
    def reading(self) -> str:
        """Return Python source that does the same and raises as `form.read` does."""
        match self.presence:
            case Presence.ABSENT:
                return f"default_{self.name}"
            case Presence.INLINE:
                return f"read_{self.name}(content)"
            case Presence.NEEDED:
                return f"read_{self.name}(content[{self.key!r}])"
            case _:
                return f"read_{self.name}(content[{self.key!r}]) if {self.key!r} in content else default_{self.name}"

    @property
    def writing(self) -> str:
        """Return Python source that writes a value as items of a dictionary."""
        value = f"value.{self.name}"
        written = value if self.form.write is None else f"write_{self.name}({value})"
        match self.presence:
            case Presence.ABSENT:
                return ""
            case Presence.INLINE:
                return f"**{written},"
            case Presence.OMITTED:
                return f"**({{{self.key!r}: {written}}} if {value} != default_{self.name} else {{}}),"
            case _:
                return f"{self.key!r}: {written},"


class Record(Generic[T]):
    """A dataclass as a JSON object.

    Args:
        cls: The class.
        members: All fields that its constructor takes, in order.
    """

    def __init__(self, cls: type[T], members: tuple[RecordField, ...]) -> None:
        self.keys = [each.key for each in members if each.presence not in (Presence.ABSENT, Presence.INLINE)]
        self.known = frozenset(self.keys).union(*(each.form.keys for each in members))
        if getattr(cls, "may_have_info", False):
            self.known |= {"info"}
        self._class = cls
        self.members = members
        scope: dict[str, Any] = {"cls": cls} | {f"default_{each.name}": each.default for each in members}
        scope |= {f"read_{each.name}": each.form.read for each in members}
        scope |= {f"write_{each.name}": each.form.write for each in members}
        # Generated from the names of fields, as in `dataclasses`: loops over the fields take up to three times as long.
        self._read = eval(f"lambda content: cls({', '.join(each.reading for each in members)})", scope)  # noqa: S307
        self.write: Callable[[Any], dict[str, Any]]
        self.write = eval(f"lambda value: {{{' '.join(each.writing for each in members)}}}", scope)  # noqa: S307

    def read(self, value: object) -> T:
        """Return the instance that a JSON object describes.

        Raises:
            FieldError: The object is invalid; the message names the key.
        """
        content = as_object(value)
        found = self.read_among(content)
        # Checked after the values: one of them may be the version of a format with other keys.
        refuse_unknown(content, self.known)
        return found

    def read_among(self, content: dict[str, Any]) -> T:
        """Return the instance that an object describes; the object may also hold keys of an enclosing record."""
        try:
            found: T = self._read(content)
        except _REFUSALS:
            # Read again, field by field, to name the key.
            found = self._class(*[each.read(content) for each in self.members])
        if problem := getattr(found, "problem", None):
            raise FieldError(problem)
        return found


def problem_of(error: Exception) -> str:
    """Return the text of a validation error."""
    if isinstance(error, FarmError):
        return error.message
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def record_of(cls: type[T], without: frozenset[str] = frozenset()) -> Record[T]:
    """Return the record of a dataclass; fields in `without` are not written and have their defaults."""
    record: Record[T] = _compiled(cls, without)  # type: ignore[arg-type]
    return record


@cache
def _compiled(cls: Any, without: frozenset[str]) -> Record[Any]:
    hints = get_type_hints(cls, include_extras=True)
    return Record(cls, tuple(_member(each, hints[each.name], without) for each in fields(cls) if each.init))


def null_for(empty: T, is_empty: Callable[[T], bool]) -> JsonForm:
    """Return the form of a dataclass that is null in place of an empty instance."""
    record = record_of(type(empty))
    return JsonForm(
        lambda value: empty if value is None else record.read(value),
        lambda value: None if is_empty(value) else record.write(value),
    )


def _member(field: Field[Any], hint: Any, without: frozenset[str]) -> RecordField:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    key = next((mark.name for mark in marks if isinstance(mark, JsonKey)), field.name)
    presence = next((mark for mark in marks if isinstance(mark, Presence)), Presence.NEEDED)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    if field.name in without or presence is Presence.ABSENT:
        return RecordField(field.name, "", Presence.ABSENT, JsonForm(as_text), default)
    form = form_of(hint)
    if presence is Presence.OMITTED and default is None:
        # The key is left out, and never null.
        form = _union(*(each for each in get_args(get_args(hint)[0]) if each is not NoneType))
    if presence is Presence.INLINE:
        return RecordField(field.name, "", presence, form if form.keys else _inline(get_args(hint)[0]), default)
    return RecordField(field.name, key, presence, JsonForm(form.read, form.write), default)


def _inline(cls: type[Any]) -> JsonForm:
    record = record_of(cls)
    return JsonForm(record.read_among, record.write, record.known)


@cache
def form_of(hint: Any) -> JsonForm:
    """Return the JSON form of a type's values."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        record = record_of(hint)
        return JsonForm(record.read, record.write)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(*arguments)
    if origin in (Union, UnionType):
        return _union(*arguments)
    return _collection(origin, arguments)


def _annotated(hint: Any, *marks: Any) -> JsonForm:
    form = next((mark for mark in marks if isinstance(mark, JsonForm)), None) or form_of(hint)
    for must in (mark for mark in marks if isinstance(mark, Must)):
        form = JsonForm(_checked(form.read, must.problem), form.write)
    return form


def _checked(read: Callable[[Any], Any], problem: Callable[[Any], str | None]) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        found = read(value)
        if wrong := problem(found):
            raise FieldError(wrong)
        return found

    return checked


def _union(*hints: Any) -> JsonForm:
    forms = {hint: form_of(hint) for hint in hints if hint is not NoneType}
    form = next(iter(forms.values())) if len(forms) == 1 else _either(forms)
    if NoneType not in hints:
        return form
    read, write = form.read, form.write
    return JsonForm(
        lambda value: None if value is None else read(value),
        None if write is None else lambda value: None if value is None else write(value),
    )


def _either(forms: Mapping[Any, JsonForm]) -> JsonForm:
    """One of several dataclasses, distinguished by their first keys."""
    by_key = {record_of(cls).keys[0]: form.read for cls, form in forms.items()}

    def read(value: object) -> Any:
        content = as_object(value)
        key = next((key for key in by_key if key in content), None)
        if key is None:
            raise FieldError(f"{short(value)} has none of the keys {', '.join(by_key)}")
        return by_key[key](content)

    return JsonForm(read, lambda value: record_of(type(value)).write(value))


def _collection(origin: Any, arguments: tuple[Any, ...]) -> JsonForm:
    forms = [form_of(each) for each in arguments if each is not ...]
    read, write = forms[-1].read, forms[-1].write
    if origin is frozenset:
        return JsonForm(lambda value: frozenset(map(read, as_list(value))), sorted)
    if origin is tuple and ... in arguments:
        return JsonForm(
            lambda value: tuple(map(read, as_list(value))),
            list if write is None else lambda values: [write(each) for each in values],
        )
    if origin is tuple:
        return _fixed([each.read for each in forms])
    key = forms[0].read
    return JsonForm(
        lambda value: {key(name): read(each) for name, each in as_object(value).items()},
        dict if write is None else lambda values: {name: write(each) for name, each in values.items()},
    )


def _fixed(reads: list[Callable[[Any], Any]]) -> JsonForm:
    """A tuple of so many plain values, as a list."""

    def read(value: object) -> Any:
        listed = as_list(value)
        if len(listed) != len(reads):
            raise FieldError(f"{short(value)} is not a list of {len(reads)}")
        return tuple(read(each) for read, each in zip(reads, listed, strict=True))

    return JsonForm(read, list)
