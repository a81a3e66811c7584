"""What a feed remembers: what it is of, how far it has come, and where in its output that is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wlc.farm import json_fields as fields
from wlc.farm.attachment import as_attachment, attachment_json
from wlc.farm.beat import BEAT_S
from wlc.farm.clock import format_time
from wlc.farm.documents import decode_document, encode_document
from wlc.farm.model import FORMAT_VERSION, Position

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from wlc.farm.attachment import Attachment

_KIND = "feed"


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
    to: str
    tables: tuple[str, ...]
    format: str
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
    ends: Mapping[int, int] = field(default_factory=dict)
    run: str = ""
    attachment: Attachment | None = None


def paused(state: FeedState | None, is_paused: bool) -> FeedState:
    """Return the state of a feed that is paused, or is not."""
    assert state is not None, "the feed was found just before"
    return replace(state, is_paused=is_paused)


def encode_state(state: FeedState) -> bytes:
    """Write what a feed remembers."""
    content = {
        "format": FORMAT_VERSION,
        "name": state.name,
        "master": state.master,
        # A path need not be Unicode, a document must be.
        "to": state.to.encode(errors="replace").decode(),
        "tables": list(state.tables),
        "form": state.format,
        "position": fields.position_json(state.position) if state.position else None,
        "batch_last": state.batch_last,
        "clock": format_time(state.clock) if state.clock else None,
        "history": state.history,
        "snapshot": state.snapshot,
        "written": list(state.written) if state.written else None,
        "file": state.file,
        "bytes": state.bytes,
        "header": state.header,
        "dropped": state.dropped,
        "verify": state.verify,
        "is_paused": state.is_paused,
        "beat_s": state.beat_s,
        "place": state.place,
        "run": state.run,
    }
    if state.ends:
        content["ends"] = [list(each) for each in sorted(state.ends.items())]
    if state.attachment is not None:
        content["attachment"] = attachment_json(state.attachment)
    return encode_document(_KIND, content)


def decode_state(data: bytes, where: str) -> FeedState:
    """Read what a feed remembers.

    Raises:
        CorruptError: It is damaged or of an unknown version.
    """
    hint = "Put it back from a backup together with the output, or begin a new feed: another --to."
    return decode_document(_KIND, data, where, _state, hint=hint)


def _state(content: dict[str, Any]) -> FeedState:
    known = "name master to tables form position batch_last clock history snapshot written file bytes header dropped"
    fields.known_format(content, f"{known} verify is_paused beat_s place run", "attachment ends")
    return FeedState(
        name=fields.as_text(content["name"]),
        master=fields.as_text(content["master"]),
        to=fields.as_text(content["to"]),
        tables=tuple(map(fields.as_text, fields.as_list(content["tables"]))),
        format=fields.as_text(content["form"]),
        position=None if content["position"] is None else fields.as_position(content["position"]),
        batch_last=fields.as_count(content["batch_last"]),
        clock=None if content["clock"] is None else fields.as_time(content["clock"]),
        history=fields.as_text(content["history"]),
        snapshot=None if content["snapshot"] is None else fields.as_count(content["snapshot"]),
        written=None if content["written"] is None else _pair(content["written"]),
        file=fields.as_count(content["file"]),
        bytes=fields.as_count(content["bytes"]),
        header=fields.as_text(content["header"]),
        dropped=fields.as_count(content["dropped"]),
        verify=fields.as_text(content["verify"]),
        is_paused=fields.as_flag(content["is_paused"]),
        beat_s=fields.as_beat(content["beat_s"]),
        place=fields.as_text(content["place"]),
        ends=dict(map(_pair, fields.as_list(content.get("ends", [])))),
        run=fields.as_text(content["run"]),
        attachment=as_attachment(content["attachment"]) if "attachment" in content else None,
    )


def _pair(value: object) -> tuple[int, int]:
    first, second = map(fields.as_count, fields.as_list(value))
    return first, second
