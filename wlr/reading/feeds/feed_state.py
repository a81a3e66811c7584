"""The state of a feed: its source, its position, and the end of its output.

Finding a feed's state by the owner's name of it.

The status of a feed: its position, its lag behind the farm, its dropped records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from wlc.farm.addresses import without_password
from wlc.farm.config import BEAT_S
from wlc.farm.database import open_database
from wlc.farm.documents import Document
from wlc.farm.errors import InvalidError
from wlc.farm.human_form import ForPeople
from wlc.farm.json_fields import JsonForm, JsonKey, Omitted, PathText
from wlc.farm.json_records import form_of
from wlc.farm.model import Position
from wlc.farm.paths import FEEDS, feed_path, is_feed_name
from wlc.farm.store import open_store
from wlc.farm.versioned import VersionedObject
from wlc.tiers.attachment import Attachment
from wlr.care.replica_status import chosen, lag
from wlr.engine.place import is_remote, path_of

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase


def _as_ends(value: object) -> Mapping[int, int]:
    return dict(form_of(tuple[tuple[int, int], ...]).read(value))


# Pairs, rising.
Ends = Annotated[Mapping[int, int], JsonForm(_as_ends, lambda ends: sorted(ends.items()))]


@dataclass(frozen=True, slots=True)
class FeedState:
    """The state of a feed.

    Attributes:
        name: Its name; one run at a time feeds it.
        master: URL of the database's folder.
        to: Its output.
        tables: Patterns of its tables; empty for all.
        format: Name of its format.
        position: All transactions up to it are in the output; None while the first snapshot is read.
        batch_last: Last tick of the position's batch.
        clock: Commit time of the transaction at the position.
        history: History of the position, or of the snapshot.
        snapshot: Tick of the snapshot whose rows are being written; None if none is.
        written: Tick and number of the last record in the output, if it belongs to a transaction after the position, or
            to the snapshot; None if the output ends with the position.
        file: Number of complete files, for an output in files; `bytes`: length of the current file; `header`: its
            header.
        dropped: Number of dropped records.
        verify: Public keys that verify its farm's signatures.
        is_paused: It is paused until it is resumed.
        place: Identity of an output among its namesakes, such as the id of a cluster; "" without one.
        ends: Per written partition of a topic, the offset after the last acknowledged record.
        run: Random id of the last run that wrote; a run that takes over writes its own.
        attachment: The upstream that it reads, chosen or pinned; None if its place is fixed.
    """

    name: str
    master: str
    to: PathText
    tables: tuple[str, ...]
    format: Annotated[str, JsonKey("form")]
    position: Position | None = None
    batch_last: int = 0
    clock: datetime | None = None
    history: str = ""
    snapshot: int | None = None
    written: tuple[int, int] | None = None
    file: int = 0
    bytes: int = 0
    header: str = ""
    dropped: int = 0
    verify: str = ""
    is_paused: bool = False
    beat_s: float = BEAT_S
    place: str = ""
    run: str = ""
    ends: Omitted[Ends] = field(default_factory=dict)
    attachment: Omitted[Attachment | None] = None


_DOCUMENT = Document(
    "feed",
    FeedState,
    hint="Restore it from a backup together with the output, or begin a new feed: another --to.",
)
encode_state, decode_state = _DOCUMENT.encode, _DOCUMENT.decode


def paused(state: FeedState | None, is_paused: bool) -> FeedState:
    """Return the state of a feed, paused or resumed."""
    assert state is not None, "the feed was found just before"
    return replace(state, is_paused=is_paused)


# Suffix of the file with the position of a feed to a file.
POSITION = ".position"
_KAFKA = "kafka://"
_IN_THE_FARM = re.compile(rf"(.+)/{FEEDS}([^/]+?)(?:\.json)?")


def position_of(path: Path) -> VersionedObject[FeedState]:
    """Return the object with the position of a file's feed, beside the file."""
    path = path.absolute()
    beside = f"{path.name}{POSITION}"
    place = open_store(str(path.parent))
    return VersionedObject(place, beside, encode_state, lambda data: decode_state(data, f"{path}{POSITION}"))


def in_farm(database: FarmDatabase, name: str) -> VersionedObject[FeedState]:
    """Return the object in the farm with a feed's state."""
    path = feed_path(name)
    where = f"{database.url}/{path}"
    return VersionedObject(database.store, path, encode_state, lambda data: decode_state(data, where))


def feed_at(
    target: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> VersionedObject[FeedState] | None:
    """Return the state of a file's feed, or of the feed `DB/feeds/NAME` in a farm; None without one.

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
        # The feed's state is in the farm, which this URL does not name.
        hint = "wlr status FARM/DB/feeds/NAME; wlc tier show DB lists the names behind feed-"
        raise InvalidError(f"{without_password(text)} does not identify the feed that writes to it", hint=hint)
    if not text.strip() or is_remote(text):
        return None
    path = path_of(text)
    return position_of(path) if Path(f"{path}{POSITION}").is_file() else None


@dataclass(frozen=True, slots=True)
class FeedStatus(ForPeople):
    """The status of a feed.

    Attributes:
        lag_s: Seconds between the feed's clock and the farm's; None if the farm cannot be read.
        lag_transactions: Ticks between the two; None if the farm cannot be read.
        tables: Patterns of its tables; empty for all.
        dropped: Records that were not written since the feed began.
        is_paused: Its owner has paused it.
        upstream: Id of the upstream that it chose or is pinned to, as `wlc tier show` shows it; empty if its place is
            fixed.
        registries: URLs of the registries from which it chooses; the first one decides. Empty likewise.
    """

    name: str
    master: str
    to: str
    tick: int
    clock: datetime | None
    lag_s: float | None
    lag_transactions: int | None
    tables: tuple[str, ...]
    format: str
    dropped: int
    is_paused: bool
    history: str
    upstream: str = ""
    registries: tuple[str, ...] = ()


def feed_status(
    target: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> FeedStatus | None:
    """Return the status of a feed; None if `target` is no feed.

    Args:
        target: The file that it writes, or its place in the farm, `DB/feeds/NAME`.
        storage_options: Options of the farm's file system.

    Raises:
        CorruptError: Its state is damaged.

    Examples:
        >>> fed = wlr.feed("sales", to="orders.jsonl")
        >>> wlr.feed_status("orders.jsonl").tick
        3
    """
    memory = feed_at(target, storage_options)
    found = memory.load() if memory is not None else None
    if found is None:
        return None
    state, _ = found
    tick = state.position.tick if state.position else 0
    behind = lag(state.master, tick, state.clock, storage_options)
    return FeedStatus(
        state.name,
        state.master,
        state.to,
        tick,
        state.clock,
        *behind,
        state.tables,
        state.format,
        state.dropped,
        state.is_paused,
        state.history,
        *chosen(state.attachment),
    )
