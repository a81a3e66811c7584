"""Names that people give to ticks: pruning keeps what is needed to go there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from wlc.farm.clock import parse_age, parse_time
from wlc.farm.did_you_mean import alike
from wlc.farm.document_folder import parted, read_folder
from wlc.farm.documents import Document
from wlc.farm.errors import InvalidError
from wlc.farm.human_form import ForPeople
from wlc.farm.json_fields import TickFrom0
from wlc.farm.paths import TAGS, is_tag_name, parse_tag_path, tag_path
from wlc.farm.store import AlreadyExistsError, MissingError

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase


@dataclass(frozen=True, slots=True)
class Tag(ForPeople):
    """A name for a tick, who gave it (`user@host`), and when."""

    may_have_info: ClassVar = True
    name: str
    tick: TickFrom0
    made: datetime
    actor: str


_DOCUMENT = Document("tag", Tag, name="name", hint="Delete {where}, and tag the tick again: wlc tag")
encode_tag, decode_tag = _DOCUMENT.encode, _DOCUMENT.decode


def check_tag_name(name: str) -> str:
    """Return `name` if it can name a tick.

    Raises:
        InvalidError: It cannot: `--until` must be able to tell it from a time.
    """
    if not is_tag_name(name):
        raise InvalidError(
            f"{name!r} cannot name a tick",
            hint="Use letters, digits, '_', '-' and '.', at most 64, first a letter, digit or '_', last no '.'.",
        )
    if _is_number(name) or _is_time(name):
        kind = "a number" if _is_number(name) else "a time"
        raise InvalidError(f"{name!r} cannot name a tick, for it is {kind} as well", hint=f"Take v-{name}, say.")
    return name


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return re.fullmatch(r"0[box][0-9a-f_]+", text, re.IGNORECASE) is not None
    return True


def _is_time(text: str) -> bool:
    for parse in (parse_time, parse_age):
        try:
            parse(text)
        except InvalidError:
            continue
        return True
    return False


def tags(database: FarmDatabase) -> list[Tag]:
    """Return all tags by tick and name; can be empty.

    Raises:
        CorruptError: One is damaged; the hint says how to go on.
    """
    found, wrong = parted(read_folder(database.store, TAGS, parse_tag_path, decode_tag))
    if wrong:
        raise wrong[0]
    return sorted(found, key=lambda tag: (tag.tick, tag.name))


def find_tag(database: FarmDatabase, name: str) -> Tag:
    """Return the tag of that name.

    Raises:
        InvalidError: There is none; the hint names those there are.
        MissingError: There is no such database in the farm.
        CorruptError: It is damaged.
    """
    if is_tag_name(name):
        try:
            return decode_tag(database.store.read(tag_path(name)), f"{database.url}/{tag_path(name)}")
        except MissingError:
            pass
    known = [tag.name for tag in tags(database)]
    if not known:
        database.config()  # A place that is not there has no tags.
    first = alike(name, known)
    listed = ", ".join([*first, *(other for other in known if other not in first)][:5])
    raise InvalidError(
        f"{database.name} has no tag {name!r}",
        hint=f"its tags are {listed}" if known else f"it has no tags: wlc tag {database.url} NAME --tick N",
    )


def add_tag(database: FarmDatabase, tag: Tag) -> Tag:
    """Create a tag, exclusively; one that names the same tick already stays.

    Raises:
        InvalidError: The name is invalid, or names another tick.
    """
    check_tag_name(tag.name)
    try:
        database.store.create(tag_path(tag.name), encode_tag(tag))
    except AlreadyExistsError:
        present = find_tag(database, tag.name)
        if present.tick != tag.tick:
            raise InvalidError(
                f"tag {tag.name} of {database.name} is at tick {present.tick}",
                hint=f"wlc tag {database.url} {tag.name} --delete removes it.",
            ) from None
        return present
    return tag


def delete_tag(database: FarmDatabase, name: str) -> Tag:
    """Delete a tag, and return what it was.

    Raises:
        InvalidError: There is no such tag.
    """
    tag = find_tag(database, name)
    database.store.delete(tag_path(name))
    return tag
