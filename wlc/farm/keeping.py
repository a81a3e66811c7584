"""The past that a farm database keeps: its owner's retention policy, tags, and announcements of pruning.

How much of the past a farm database keeps, and how often a snapshot is due: one document that its owner sets.

Tags, names of ticks: pruning keeps the files needed to restore them.

Announcements of the ticks that a pruning run will keep, so that no tag names a tick whose files are about to be
deleted.

Pruning announces, then reads the tags; tagging writes the tag, then reads the announcements. So at least one of the two
sees the other.
"""

from __future__ import annotations

import re
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar

from wlc.farm.clock import parse_age, parse_time
from wlc.farm.document_folder import parted, read_folder
from wlc.farm.documents import Document
from wlc.farm.errors import InvalidError
from wlc.farm.human_form import ForPeople
from wlc.farm.json_fields import JsonForm, JsonKey, TickFrom0, as_beat
from wlc.farm.paths import (
    PRUNING,
    RETENTION,
    TAGS,
    is_tag_name,
    parse_pruning_path,
    parse_tag_path,
    pruning_path,
    tag_path,
)
from wlc.farm.reachable_past import Window
from wlc.farm.store import AlreadyExistsError, MissingError
from wlc.farm.typed_names import alike
from wlc.farm.versioned import VersionedObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wlc.farm.database import FarmDatabase


COUNT_MOST = 100_000
# A hundred years: a time before the present one must stay a time.
AGE_MOST = timedelta(days=36_525)
AgeInSeconds = Annotated[timedelta, JsonForm(lambda value: timedelta(seconds=as_beat(value)), timedelta.total_seconds)]


@dataclass(frozen=True, slots=True)
class KeepPolicy(ForPeople):
    """The files that pruning keeps, and when a snapshot is due.

    Attributes:
        keep: Every state of this period stays restorable; None: pruning has no policy.
        keep_daily: Before that, the last snapshot of each of so many days (UTC) that have one.
        keep_weekly: Before those, the last snapshot of each of so many weeks (ISO 8601) that have one.
        snapshot_every: The publisher takes a snapshot when the newest one is this old; None: never.
    """

    may_have_info: ClassVar = True
    keep: Annotated[AgeInSeconds | None, JsonKey("keep_s")] = None
    keep_daily: int = 0
    keep_weekly: int = 0
    snapshot_every: Annotated[AgeInSeconds | None, JsonKey("snapshot_every_s")] = None


def checked(policy: KeepPolicy) -> KeepPolicy:
    """Return the policy if it is valid.

    Raises:
        InvalidError: It is not; the hint names the missing option or the valid values.
    """
    if policy.keep is None and (policy.keep_daily or policy.keep_weekly):
        message = "daily and weekly snapshots are kept of what is older than --keep, which is missing"
        raise InvalidError(message, hint="wlc retention DB --keep 30d --keep-daily 30 --keep-weekly 12")
    for option, age in (("--keep", policy.keep), ("--snapshot-every", policy.snapshot_every)):
        if age is not None and not timedelta(0) <= age <= AGE_MOST:
            raise InvalidError(f"{option} is more than 100 years, or negative", hint=f"{option} 30d")
    if policy.snapshot_every is not None and policy.snapshot_every < timedelta(seconds=1):
        raise InvalidError("--snapshot-every is less than a second", hint="--snapshot-every 1d")
    for option, count in (("--keep-daily", policy.keep_daily), ("--keep-weekly", policy.keep_weekly)):
        if not 0 <= count <= COUNT_MOST:
            raise InvalidError(f"{option} {count} is invalid", hint=f"{option} 30; at most {COUNT_MOST}")
    return policy


_POLICY = Document("retention", KeepPolicy, check=checked, hint="Delete {where}, and set it again: wlc retention")
encode_policy, decode_policy = _POLICY.encode, _POLICY.decode


def read_policy(database: FarmDatabase) -> KeepPolicy | None:
    """Return the policy of a farm database, None if none is set.

    Raises:
        CorruptError: It is damaged. Delete nothing.
    """
    found = _policy_object(database).load()
    return found[0] if found else None


def change_policy(database: FarmDatabase, change: Callable[[KeepPolicy], KeepPolicy]) -> KeepPolicy:
    """Replace the policy with the result of a function, and return it.

    Raises:
        InvalidError: The new policy is invalid. Nothing was changed.
        CorruptError: The present one is damaged.
    """
    return _policy_object(database).change(lambda present: checked(change(present or KeepPolicy())))


def end_policy(database: FarmDatabase) -> None:
    """Delete the policy; pruning then needs explicit options, and no snapshots are due."""
    database.store.delete(RETENTION)


def _policy_object(database: FarmDatabase) -> VersionedObject[KeepPolicy]:
    where = f"{database.url}/{RETENTION}"
    return VersionedObject(database.store, RETENTION, encode_policy, lambda data: decode_policy(data, where))


@dataclass(frozen=True, slots=True)
class Tag(ForPeople):
    """A name for a tick, its author (`user@host`) and its time."""

    may_have_info: ClassVar = True
    name: str
    tick: TickFrom0
    made: datetime
    actor: str


_TAG = Document("tag", Tag, name="name", hint="Delete {where}, and tag the tick again: wlc farm tag")
encode_tag, decode_tag = _TAG.encode, _TAG.decode


def check_tag_name(name: str) -> str:
    """Return `name` if it can name a tick.

    Raises:
        InvalidError: It cannot: `--until` must distinguish a tag from a time.
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
    """Return all tags, ordered by tick and name; can be empty.

    Raises:
        CorruptError: One is damaged; the hint says how to continue.
    """
    found, wrong = parted(read_folder(database.store, TAGS, parse_tag_path, decode_tag))
    if wrong:
        raise wrong[0]
    return sorted(found, key=lambda tag: (tag.tick, tag.name))


def find_tag(database: FarmDatabase, name: str) -> Tag:
    """Return the tag of that name.

    Raises:
        InvalidError: There is none; the hint lists the existing tags.
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
        database.config()  # A missing place has no tags.
    first = alike(name, known)
    listed = ", ".join([*first, *(other for other in known if other not in first)][:5])
    raise InvalidError(
        f"{database.name} has no tag {name!r}",
        hint=f"its tags are {listed}" if known else f"it has no tags: wlc farm tag {database.url} NAME --tick N",
    )


def add_tag(database: FarmDatabase, tag: Tag) -> Tag:
    """Create a tag, exclusively; an existing tag of the same tick stays.

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
                hint=f"wlc farm tag {database.url} {tag.name} --delete removes it.",
            ) from None
        return present
    return tag


def delete_tag(database: FarmDatabase, name: str) -> Tag:
    """Delete a tag, and return it.

    Raises:
        InvalidError: There is no such tag.
    """
    tag = find_tag(database, name)
    database.store.delete(tag_path(name))
    return tag


# No pruning takes a day.
_DEAD = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _Announcement:
    """The ticks that a pruning run keeps: this tick and all later ones, and single ones before it."""

    may_have_info: ClassVar = True
    tick: TickFrom0 | None
    older: tuple[TickFrom0, ...]


_NOTICE = Document("pruning", _Announcement, hint="If no pruning runs at present, delete {where}.")


def encode_window(window: Window) -> bytes:
    """Encode an announcement as JSON closed by a checksum."""
    return _NOTICE.encode(_Announcement(window.tick, window.older))


def decode_window(data: bytes, where: str) -> Window:
    """Decode an announcement.

    Raises:
        CorruptError: It is damaged or of an unknown version.
    """
    found = _NOTICE.decode(data, where)
    return Window(found.tick, None, found.older)


@contextmanager
def announced(database: FarmDatabase, window: Window) -> Iterator[None]:
    """Announce the kept ticks while the body deletes the rest.

    The announcement of a process that dies stays for a day: the next pruning deletes the remaining files.
    """
    path = pruning_path(secrets.token_hex(8))
    database.store.create(path, encode_window(window))
    _forget_dead(database, path)
    yield
    database.store.delete(path)


def announced_windows(database: FarmDatabase) -> list[Window]:
    """Return the announcements of all pruning runs in progress; can be empty.

    Raises:
        CorruptError: An announcement is damaged; the hint says how to continue.
    """
    found, wrong = parted(read_folder(database.store, PRUNING, parse_pruning_path, decode_window))
    if wrong:
        raise wrong[0]
    return found


def _forget_dead(database: FarmDatabase, mine: str) -> None:
    arrived = {entry.path: entry.arrived for entry in database.store.list(PRUNING)}
    for path, time in arrived.items():
        # By the store's own clock.
        if mine in arrived and arrived[mine] - time > _DEAD and parse_pruning_path(path) is not None:
            database.store.delete(path)
