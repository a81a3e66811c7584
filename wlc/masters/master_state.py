"""A master's state, stored in its own database: keys and values there, typed fields here.

The owner's wishes for a new master determine its first state.
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


# A state besides those of `wlc.config`: the database is claiming its place in the farm, or crashed meanwhile.
BEGINNING = 0


def _time(text: object) -> datetime | None:
    return read_time(as_text(text)) if text else None


def _time_text(time: datetime | None) -> str:
    return format_time(time) if time else ""


WrittenTime = Annotated[datetime | None, JsonForm(_time, _time_text)]


@dataclass(frozen=True, slots=True)
class Reached:
    """The published position of a master.

    Attributes:
        clock: Commit time of the last published transaction; before the first, an earlier time.
        vector: Per history the last tick contained.
    """

    position: Position
    clock: datetime
    vector: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Fence:
    """The reason why a master may no longer publish, and the remedy: see `FencedError`.

    Attributes:
        since: When an attempt to publish was first refused; None before the first.
    """

    message: str
    hint: str
    since: WrittenTime = None


@dataclass(frozen=True, slots=True)
class MasterState:
    """The place where a master publishes, and its position.

    Attributes:
        farm: URL of the farm.
        name: Name of the database in the farm.
        batch: Number of the last published batch, 0 before the first.
        tick: Last published tick.
        chain: Chain hash of the last published batch, "" before the first.
        clock: Commit time of the last published transaction, None before the first.
        vector: Per history the last tick contained.
        parent: Where the history grew from, until its first batch states it.
        beat_s: Longest wait of a committed transaction, seconds.
        logs: URL of the log directory.
        options: Options of the farm's file system, without secrets.
        state: BEGINNING, STARTED or STOPPED.
        began: No commit of the history is earlier; None if the source itself assigns commit times.
        fence: The reason why the last attempt to publish was refused; None unless another master took the place in the
            farm.
        site: Its state as one of several masters; None if it is the only one.
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
        """Its state as one of several masters; must not be called for the only one."""
        assert self.site is not None
        return self.site

    @property
    def circle(self) -> Circle | None:
        """The circle of sites, None while there is no other site."""
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
        """Return the position for a snapshot when everything is published."""
        position = Position(self.history, self.tick, self.batch, self.chain)
        vector = {**self.vector, self.history: self.tick} if self.tick else self.vector
        return Reached(position, self.clock or self.began or utc_now(), vector)


@dataclass(frozen=True, slots=True)
class Wish:
    """The user's options for a new master; None keeps the former value or the default.

    Attributes:
        is_moved: The source takes the place of the master of which it is a copy.
        membership: Its role among several masters; None if it is the only one.
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
    """The role of a new master among several sites.

    Attributes:
        site: Its first state as a site.
        announce: Announces it to its peers, given the master's new state, and returns the state afterwards; can be
            repeated.
        is_replica: It was a replica of another site until now, or an attempt to make it a site was interrupted.
        announced: The history by which peers know it since such an attempt; "" if they do not know it.
        not_before: Lower limit of commit times, whatever the clock shows; None for no limit.
    """

    site: SiteState
    announce: Callable[[MasterState], SiteState]
    is_replica: bool = False
    announced: str = ""
    not_before: datetime | None = None


def encode(state: MasterState) -> dict[str, str]:
    """Encode a state as keys and values."""
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
    """Decode a state; None if there is none, because the database has never been a master.

    Args:
        values: Keys and values; an engine's additional keys are ignored.
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
        message = f"the state of {shown} as a master is damaged: {error}"
        hint = "restore the database from a backup; table wlc.state must be unchanged"
        raise CorruptError(message, hint=hint, path=shown) from error


def _site(text: str | None) -> SiteState | None:
    if not text:
        return None
    from wlc.multi_master.circle_place import decode_site  # A plain master never loads the code of sites.

    return decode_site(text)
