"""What a master remembers of itself, in its own database: keys and values there, typed fields here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, TypeVar

from wlc.farm.beat import format_beat
from wlc.farm.circle import Circle, decode_circle, encode_circle
from wlc.farm.clock import format_time, read_time, utc_now
from wlc.farm.config import STARTED
from wlc.farm.errors import CorruptError
from wlc.farm.json_fields import DECODER, JsonForm, Later, Omitted, as_text, as_vector
from wlc.farm.json_records import form_of, record_of
from wlc.farm.model import Batch, Config, Origin, Position, Taken
from wlc.farm.store.options import recalled, remembered

T = TypeVar("T")
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


def _as_circle(text: object) -> Circle:
    return decode_circle(as_text(text).encode(), "the circle")


def _circle_text(circle: Circle) -> str:
    return encode_circle(circle).decode()


# Each with all of its keys.
Proofs = Annotated[
    tuple[Taken, ...],
    JsonForm(lambda value: form_of(tuple[Taken, ...]).read(value), lambda proofs: [*map(asdict, proofs)]),
]


@dataclass(frozen=True, slots=True)
class SiteState:
    """What a master remembers as one of several sites of its database.

    Attributes:
        folder: Where its log is, relative to the founder's folder.
        contained: Per history of others the last tick that the database contains, published here or not.
        proofs: The newest position read in each other site's log.
        published: Those that the last published batch named.
        own: Last published tick that was no other site's and has records, 0 before the first.
        circle: The circle as it was last read; None as long as there is no other site.
        floor: In a mesh, where what the site inherited when it joined begins; None where it inherited nothing.
        led: The last term in which it has taken over as the primary, 0 if none; the founder leads the first one.
    """

    name: str
    folder: str
    contained: Annotated[Mapping[str, int], JsonForm(as_vector, dict)] = field(default_factory=dict)
    proofs: Proofs = ()
    published: Proofs = ()
    own: int = 0
    circle: Annotated[Circle, JsonForm(_as_circle, _circle_text)] | None = None
    led: Later[int] = 0
    floor: Omitted[Annotated[Mapping[str, int], JsonForm(as_vector, dict)] | None] = None

    @property
    def is_leading(self) -> bool:
        """Whether it is the primary, and has judged its own transactions as such: only then it judges others."""
        circle = self.circle
        return circle is not None and circle.primary == self.name and circle.term in (1, self.led)

    @property
    def log_term(self) -> int | None:
        """The term that its log is in: a successor that has not taken over yet is in the term before."""
        circle = self.circle
        if circle is None:
            return None
        return circle.term - 1 if circle.primary == self.name and not self.is_leading else circle.term

    def proof_of(self, site: str) -> Taken | None:
        """Return the newest position read in a site's log, None before the first."""
        return next((proof for proof in self.proofs if proof.site == site), None)

    def after(self, batch: Batch) -> SiteState:
        """Return what to remember once a batch is published."""
        # As long as there is nothing of others, every tick is its own, and batches do not say so.
        own = batch.own or (batch.last if batch.vector.keys() <= {batch.history} else self.own)
        return replace(self, own=own, published=batch.taken)

    def having_taken(self, contained: Mapping[str, int], proof: Taken | None) -> SiteState:
        """Return what to remember once a part of another site's log is taken."""
        return replace(self, contained=dict(contained), proofs=newest_proofs(self.proofs, (proof,) if proof else ()))


def newest_proofs(before: tuple[Taken, ...], later: tuple[Taken, ...]) -> tuple[Taken, ...]:
    """Return the last proof of each site, by its name."""
    found = {proof.site: proof for proof in (*before, *later)}
    return tuple(found[site] for site in sorted(found))


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
    def circle(self) -> Circle | None:
        """The circle of sites, None as long as there is no other site."""
        return self.site.circle if self.site else None

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
        "fence": _text(state.fence),
        "site": _text(state.site),
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
            fence=_recalled(Fence, values.get("fence", "")),
            site=_recalled(SiteState, values.get("site", "")),
        )
    except (KeyError, ValueError, TypeError) as error:
        message = f"what {shown} remembers of itself as a master is damaged: {error}"
        hint = "restore the database from a backup; table wlc.state must be as it was written"
        raise CorruptError(message, hint=hint, path=shown) from error


def _text(record: Fence | SiteState | None) -> str:
    return json.dumps(record_of(type(record)).write(record)) if record else ""


def _recalled(cls: type[T], text: str) -> T | None:
    return record_of(cls).read(DECODER.decode(text)) if text else None
