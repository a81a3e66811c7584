"""What pruning is about to leave: announced before anything goes, so that a tag is not made of what is going.

Whoever prunes announces, then reads the tags; whoever tags writes the tag, then reads the announcements. So at least
one of the two sees the other.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from wlc.farm.document_folder import parted, read_folder
from wlc.farm.documents import Document
from wlc.farm.json_fields import TickFrom0
from wlc.farm.paths import PRUNING, parse_pruning_path, pruning_path
from wlc.farm.reachable_past import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.farm.database import FarmDatabase

# No pruning takes a day.
_DEAD = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _Announcement:
    """What is left: this tick and all later ones, and single ones before it."""

    may_have_info: ClassVar = True
    tick: TickFrom0 | None
    older: tuple[TickFrom0, ...]


_DOCUMENT = Document("pruning", _Announcement, hint="If nobody prunes at present, delete {where}.")


def encode_window(window: Window) -> bytes:
    """Write what will be left as JSON closed by a checksum."""
    return _DOCUMENT.encode(_Announcement(window.tick, window.older))


def decode_window(data: bytes, where: str) -> Window:
    """Read what will be left.

    Raises:
        CorruptError: It is damaged or of an unknown version.
    """
    found = _DOCUMENT.decode(data, where)
    return Window(found.tick, None, found.older)


@contextmanager
def announced(database: FarmDatabase, window: Window) -> Iterator[None]:
    """Announce what will be left while the body deletes the rest.

    The announcement of a process that dies stays for a day: the next one deletes what is left to delete.
    """
    path = pruning_path(secrets.token_hex(8))
    database.store.create(path, encode_window(window))
    _forget_dead(database, path)
    yield
    database.store.delete(path)


def announced_windows(database: FarmDatabase) -> list[Window]:
    """Return what each process that prunes at present is about to leave; can be empty.

    Raises:
        CorruptError: An announcement is damaged; the hint says how to go on.
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
