"""What a feed remembers, found by what its owner calls it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm.addresses import without_password
from wlc.farm.database import open_database
from wlc.farm.errors import InvalidError
from wlc.farm.paths import FEEDS, feed_path, is_feed_name
from wlc.farm.store import open_store
from wlc.farm.versioned import VersionedObject
from wlr.engine.place import is_remote, path_of
from wlr.feeds.state import FeedState, decode_state, encode_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.farm.database import FarmDatabase

# Ends the name of the file that holds the position of a feed to a file.
POSITION = ".position"
_KAFKA = "kafka://"
_IN_THE_FARM = re.compile(rf"(.+)/{FEEDS}([^/]+?)(?:\.json)?")


def position_of(path: Path) -> VersionedObject[FeedState]:
    """Return the object beside a file that holds the position of its feed."""
    path = path.absolute()
    beside = f"{path.name}{POSITION}"
    place = open_store(str(path.parent))
    return VersionedObject(place, beside, encode_state, lambda data: decode_state(data, f"{path}{POSITION}"))


def in_farm(database: FarmDatabase, name: str) -> VersionedObject[FeedState]:
    """Return the object in the farm that holds what a feed remembers."""
    path = feed_path(name)
    where = f"{database.url}/{path}"
    return VersionedObject(database.store, path, encode_state, lambda data: decode_state(data, where))


def feed_at(
    target: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> VersionedObject[FeedState] | None:
    """Return what the feed remembers that writes to a file, or that the farm has as `DB/feeds/NAME`; None if none does.

    Args:
        target: A file that a feed writes, or a path or URL in the farm.
        storage_options: Options of the farm's file system.
    """
    text = os.fspath(target)
    found = _IN_THE_FARM.fullmatch(text)
    if found and is_feed_name(found[2]):
        memory = in_farm(open_database(found[1], storage_options=storage_options), found[2])
        return memory if memory.store.exists(memory.path) else None
    if text.startswith(_KAFKA):
        # What the feed remembers is in the farm, of which this URL says nothing.
        hint = "wlr status FARM/DB/feeds/NAME; wlc tiers DB lists the names behind feed-"
        raise InvalidError(f"{without_password(text)} does not say which feed writes to it", hint=hint)
    if not text.strip() or is_remote(text):
        return None
    path = path_of(text)
    return position_of(path) if Path(f"{path}{POSITION}").is_file() else None
