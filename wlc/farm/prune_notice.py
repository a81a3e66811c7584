"""What pruning is about to leave: announced before anything goes, so that a tag is not made of what is going.

Whoever prunes announces, then reads the tags; whoever tags writes the tag, then reads the announcements. So at least
one of the two sees the other.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from wlc.farm import json_fields as fields
from wlc.farm.document_folder import parted, read_folder
from wlc.farm.documents import decode_document, encode_document
from wlc.farm.model import FORMAT_VERSION
from wlc.farm.paths import PRUNING, parse_pruning_path, pruning_path
from wlc.farm.reachable_past import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.farm.database import FarmDatabase

# No pruning takes a day.
_DEAD = timedelta(days=1)


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


def encode_window(window: Window) -> bytes:
    """Write what will be left as JSON closed by a checksum."""
    return encode_document("pruning", {"format": FORMAT_VERSION, "tick": window.tick, "older": list(window.older)})


def decode_window(data: bytes, where: str) -> Window:
    """Read what will be left.

    Raises:
        CorruptError: It is damaged or of an unknown version.
    """
    return decode_document("pruning", data, where, _window, hint=f"If nobody prunes at present, delete {where}.")


def _window(content: dict[str, Any]) -> Window:
    fields.known_format(content, "tick older", "info")
    tick = None if content["tick"] is None else fields.as_tick(content["tick"], 0)
    return Window(tick, None, tuple(fields.as_tick(each, 0) for each in fields.as_list(content["older"])))
