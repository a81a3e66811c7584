"""What a feed remembers: what it is of, how far it has come, and where in its output that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated

from wlc.farm.attachment import Attachment
from wlc.farm.beat import BEAT_S
from wlc.farm.documents import Document
from wlc.farm.json_fields import JsonForm, JsonKey, Omitted, PathText
from wlc.farm.json_records import form_of
from wlc.farm.model import Position


def _as_ends(value: object) -> Mapping[int, int]:
    return dict(form_of(tuple[tuple[int, int], ...]).read(value))


# Pairs, rising.
Ends = Annotated[Mapping[int, int], JsonForm(_as_ends, lambda ends: sorted(ends.items()))]


@dataclass(frozen=True, slots=True)
class FeedState:
    """What a feed remembers.

    Attributes:
        name: Its name, one feeder of which works at a time.
        master: URL of the database's folder.
        to: Where it writes.
        tables: Patterns of its tables; empty for all.
        format: Name of its format.
        position: All transactions up to it are in the output; None while the first snapshot is read.
        batch_last: Last tick of the position's batch.
        clock: Commit time of the transaction at the position.
        history: History of the position, or of the snapshot.
        snapshot: Tick of the snapshot whose rows are being written; None if none is.
        written: Tick and number of the last record in the output, if it is of a transaction behind the position, or of
            the snapshot; None if the output ends with the position.
        file: How many files are complete, for an output in files; `bytes`: length of the one being written; `header`:
            the line that it begins with.
        dropped: How many records were dropped.
        verify: Public keys that its farm's signatures are verified with.
        is_paused: It stays where it is until it is resumed.
        place: What tells the place from others of the same name, such as the id of a cluster; "" if nothing does.
        ends: For each partition of a topic that it wrote to, the offset behind the last record that was acknowledged.
        run: Random id of the last run that wrote; whoever takes over writes another one.
        attachment: Which upstream it reads, if it chooses one or was told which; None if it reads what it is given.
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
    hint="Put it back from a backup together with the output, or begin a new feed: another --to.",
)
encode_state, decode_state = _DOCUMENT.encode, _DOCUMENT.decode


def paused(state: FeedState | None, is_paused: bool) -> FeedState:
    """Return the state of a feed that is paused, or is not."""
    assert state is not None, "the feed was found just before"
    return replace(state, is_paused=is_paused)
