"""What a master remembers of itself, in its own database: keys and values there, typed fields here.

What its owner wants of a new one decides what it remembers first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from wlc.farm.clock import format_time, read_time, utc_now
from wlc.farm.config import STARTED, format_beat
from wlc.farm.errors import CorruptError
from wlc.farm.json_fields import DECODER, JsonForm, as_text
from wlc.farm.json_records import record_of
from wlc.farm.model import Config, Origin, Position
from wlc.farm.store.options import recalled, remembered

if TYPE_CHECKING:
    from collections.abc import Callable

    from wlc.farm.human_form import Progress
    from wlc.farm.model import Batch
    from wlc.multi_master.circle import Circle
    from wlc.multi_master.circle_place import SiteState


# A state besides those of `wlc.config`: the database claims its place in the farm, or died while it did.
BEGINNING = 0


def _time(text: object) -> datetime | None:
    return read_time(as_text(text)) if text else None


def _time_text(time: datetime | None) -> str:
    return format_time(time) if time else ""


WrittenTime = Annotated[datetime | None, JsonForm(_time, _time_text)]


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a master has published.

    Attributes:
        clock: Commit time of the last published transaction; a time before the next one if there is none.
        vector: Per history the last tick contained.
    """

    position: Position
    clock: datetime
    vector: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Fence:
    """Why a master may not publish any more, and what its owner can do: see `FencedError`.

    Attributes:
        since: When an attempt to publish was first refused; None if none was.
    """

    message: str
    hint: str
    since: WrittenTime = None


@dataclass(frozen=True, slots=True)
class MasterState:
    """Where a master publishes, and how far it has come.

    Attributes:
        farm: URL of the farm.
        name: Name of the database in the farm.
        batch: Number of the last published batch, 0 before the first.
        tick: Last published tick.
        chain: Chain hash of the last published batch, "" before the first.
        clock: Commit time of the last published transaction, None before the first.
        vector: Per history the last tick contained.
        parent: Where the history grew from, until its first batch has said so.
        beat_s: Longest wait of a committed transaction, seconds.
        logs: URL of the log directory.
        options: Options of the farm's file system, without secrets.
        state: BEGINNING, STARTED or STOPPED.
        began: No commit of the history is earlier; None where the source gives out commit times itself.
        fence: Why the last attempt to publish was refused; None unless another master took the place in the farm.
        site: What it is among several masters; None if it is the only one.
    """

    farm: str
    name: str
    history: str
    batch: int
    tick: int
    chain: str
    clock: datetime | None
    vector: Mapping[str, int]
    parent: Origin | None
    beat_s: float
    logs: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    state: int = BEGINNING
    began: datetime | None = None
    fence: Fence | None = None
    site: SiteState | None = None

    @property
    def member(self) -> SiteState:
        """What it is among several masters, of one that is not the only one."""
        assert self.site is not None
        return self.site

    @property
    def circle(self) -> Circle | None:
        """The circle of sites, None as long as there is no other site."""
        return self.site.circle if self.site else None

    @property
    def has_ended(self) -> bool:
        """Whether a handover ended the history."""
        return self.circle is not None and self.circle.has_ended(self.history)

    @property
    def is_master(self) -> bool:
        """Whether changes are captured now."""
        return self.state == STARTED

    def config(self) -> Config:
        """Return the config as this master would write it."""
        return Config(
            snapshot="",
            logs=self.logs,
            state=STARTED,
            batches=self.batch + 1,
            beat_s=self.beat_s,
            write=self.clock,
            name=self.name,
            history=self.history,
            tick=self.tick,
            parent=self.parent,
        )

    def after(self, batch: Batch, chain: str) -> MasterState:
        """Return what to remember once a batch is published."""
        return replace(
            self,
            batch=batch.number,
            tick=batch.last,
            chain=chain,
            parent=None,
            vector=dict(batch.vector),
            clock=batch.clock or self.clock,
            site=self.site.after(batch) if self.site else None,
        )

    def reached(self) -> Reached:
        """Return what a snapshot says of the moment at which everything is published."""
        position = Position(self.history, self.tick, self.batch, self.chain)
        vector = {**self.vector, self.history: self.tick} if self.tick else self.vector
        return Reached(position, self.clock or self.began or utc_now(), vector)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user wants of a new master; None leaves it to what was before, or to the default.

    Attributes:
        is_moved: The source takes the place of the master of which it is a copy.
        membership: What it becomes among several masters; None if it is the only one.
        progress: Hears how far the first snapshot is.
    """

    farm: str | None = None
    name: str | None = None
    logs: str | None = None
    beat_s: float | None = None
    is_moved: bool = False
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    membership: SiteMembership | None = None
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class SiteMembership:
    """What a new master becomes among several sites.

    Attributes:
        site: What it remembers of that from the start.
        announce: Makes it known to the others, given the master's new state, and returns what it remembers then; can be
            repeated.
        is_replica: It has been a replica of another site until now, or an attempt to make it a site was broken off.
        announced: The history by which others know it since such an attempt; "" if they do not know it.
        not_before: No commit gets an earlier time than this, whatever the clock says; None for any time.
    """

    site: SiteState
    announce: Callable[[MasterState], SiteState]
    is_replica: bool = False
    announced: str = ""
    not_before: datetime | None = None


def encode(state: MasterState) -> dict[str, str]:
    """Write a state as keys and values."""
    return {
        "farm": state.farm,
        "name": state.name,
        "history": state.history,
        "batch": str(state.batch),
        "tick": str(state.tick),
        "chain": state.chain,
        "clock": _time_text(state.clock),
        "vector": json.dumps(dict(state.vector)),
        "parent": json.dumps(asdict(state.parent)) if state.parent else "",
        "beat_s": format_beat(state.beat_s),
        "logs": state.logs,
        "options": remembered(state.options),
        "state": str(state.state),
        "began": _time_text(state.began),
        "fence": json.dumps(record_of(Fence).write(state.fence)) if state.fence else "",
        "site": state.site.encoded() if state.site else "",
    }


def changes(old: MasterState | None, new: MasterState) -> dict[str, str]:
    """Return the keys and values in which two states differ."""
    before = encode(old) if old else {}
    return {key: value for key, value in encode(new).items() if before.get(key) != value}


def decode(values: Mapping[str, str], shown: str) -> MasterState | None:
    """Read what `encode` wrote; None if there is nothing, since the database has never been a master.

    Args:
        values: Keys and values; those of a source's own are ignored.
        shown: The source, for messages.

    Raises:
        CorruptError: A value is missing or invalid.
    """
    if not values:
        return None
    try:
        parent = json.loads(values["parent"] or "null")
        return MasterState(
            farm=values["farm"],
            name=values["name"],
            history=values["history"],
            batch=int(values["batch"]),
            tick=int(values["tick"]),
            chain=values["chain"],
            clock=_time(values["clock"]),
            vector=json.loads(values["vector"]),
            parent=Origin(**parent) if parent else None,
            beat_s=float(values["beat_s"]),
            logs=values["logs"],
            options=recalled(values["options"]),
            state=int(values["state"]),
            began=_time(values["began"]),
            fence=record_of(Fence).read(DECODER.decode(values["fence"])) if values.get("fence") else None,
            site=_site(values.get("site")),
        )
    except (KeyError, ValueError, TypeError) as error:
        message = f"what {shown} remembers of itself as a master is damaged: {error}"
        hint = "restore the database from a backup; table wlc.state must be as it was written"
        raise CorruptError(message, hint=hint, path=shown) from error


def _site(text: str | None) -> SiteState | None:
    if not text:
        return None
    from wlc.multi_master.circle_place import decode_site  # A plain master never loads what only sites need.

    return decode_site(text)
