"""Where a replica or relay reads that chooses its upstream: what it remembers of the choice.

Turn what a reader is told of its upstream, and what it remembers of it, into what it is to remember.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

from wlc.farm.database import open_database
from wlc.farm.documents import Document
from wlc.farm.errors import FarmError, InvalidError, UnavailableError
from wlc.farm.json_fields import JsonKey, Omitted
from wlc.farm.paths import ATTACHMENT, CONFIG
from wlc.farm.registry import keep_alive, register_versioned
from wlc.farm.seal.checksum import checksum
from wlc.farm.store import MissingError
from wlc.farm.versioned import VersionedObject
from wlc.tiers.upstreams import ORIGIN, Claim, release_claim

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wlc.farm.database import FarmDatabase
    from wlc.farm.registry import Replica


# While nothing is known of the registry's settings, and at the end of a process.
_UNTOLD_S = 1.0
_JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Penalty:
    """An upstream that failed: how often in a row, and until when it is avoided."""

    upstream: str
    times: int
    until: datetime


@dataclass(frozen=True, slots=True)
class Attachment:
    """Which upstream somebody reads, and how that was chosen.

    Attributes:
        registry: URL of the database's folder whose registry knows the upstreams.
        among: URLs to choose from; empty for all that are registered, and a single one is read whatever is known of it.
        class_name: The reader's class; empty for none.
        upstream: Id of the upstream; empty before the first choice.
        url: The database's folder there.
        slot: The slot that is claimed there; None without a claim.
        chosen: When it was chosen.
        penalties: Upstreams that failed.
        registries: URLs of the registries that were given; empty where the place that was given holds it. The first is
            `registry`; the reader reports to the others as well.
    """

    registry: str
    among: tuple[str, ...] = ()
    class_name: Annotated[str, JsonKey("class")] = ""
    upstream: str = ""
    url: str = ""
    slot: int | None = None
    chosen: datetime | None = None
    penalties: tuple[Penalty, ...] = ()
    registries: Omitted[tuple[str, ...]] = ()

    @property
    def pinned(self) -> str:
        """URL of the one place that is read; empty where there is a choice."""
        return self.among[0] if len(self.among) == 1 else ""


@dataclass(frozen=True, slots=True)
class _Relay:
    """What a relay remembers."""

    reads: Attachment


_DOCUMENT = Document("attachment", _Relay, hint="Delete {where}.")


@dataclass(frozen=True, slots=True)
class Membership:
    """The part that somebody has in a tree of tiers in one round.

    Attributes:
        registry: The place that holds the registry.
        attachment: Which upstream is read.
        keepalive: Says that the process is there between rounds; None in a program of one round.
    """

    registry: FarmDatabase
    attachment: Attachment
    keepalive: Keepalive | None = None

    def registries(self) -> list[FarmDatabase]:
        """Return the registry, and the others that the reader reports to."""
        return [self.registry, *(place_of(self.registry, url) for url in self.attachment.registries[1:])]


def place_of(database: FarmDatabase, url: str) -> FarmDatabase:
    """Return the database in another place, read with the same options."""
    return database if url == database.url else open_database(url, storage_options=database.storage_options)


def register_reader(
    place: FarmDatabase,
    replica: Replica,
    membership: Membership | None,
    *,
    is_level: bool = False,
    failure: str = "",
    is_paused: bool = False,
) -> Replica | None:
    """Make somebody known at the place that is read, and in the registries of the tree.

    A registry that is away is no reason not to read: the last choice holds.

    Returns:
        What the first registry holds now; None if it is away.

    Raises:
        InvalidError: Writing is not permitted: read without registering.
        UnavailableError: The place cannot be reached.
    """
    said_so = partial(register_versioned, is_level=is_level, failure=failure, is_paused=is_paused)
    if membership is None:
        return said_so(place, replica)[0]
    alive = membership.keepalive
    replica = replace(
        replica,
        class_name=membership.attachment.class_name,
        place=membership.attachment.pinned,
        interval_s=alive.interval_s if alive else replica.interval_s,
    )
    said: dict[str, Said] = {}
    known = replace(replica, registry="" if place.url == membership.registry.url else membership.registry.url)
    said[place.url] = Said(place, *said_so(place, known))
    for registry in membership.registries():
        if registry.url in said:
            continue
        with suppress(UnavailableError, MissingError):
            if registry.store.exists(CONFIG):  # A directory that is not mounted must not be made anew.
                known = _as_told(replica, registry, membership)
                said[registry.url] = Said(registry, *said_so(registry, known))
    if alive:
        alive.note([said[registry.url] for registry in membership.registries() if registry.url in said])
    first = said.get(membership.registry.url)
    return first.replica if first else None


def _as_told(replica: Replica, registry: FarmDatabase, membership: Membership) -> Replica:
    """Return what somebody says in a registry of the place that it reads, which is another one."""
    above, first = membership.attachment.upstream, membership.registry.url
    if registry.url == first:
        return replace(replica, upstream="" if above == ORIGIN else above)
    # Ids of places are the same in every registry, but for the one that holds it.
    return replace(replica, upstream=unregistered_id(first) if above == ORIGIN else above, registry=first)


def unregistered_id(url: str) -> str:
    """Return an id for a place that has not registered."""
    return checksum(url.encode())[:32]


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody says in a registry, and its version there; None where that is not known any more."""

    registry: FarmDatabase
    replica: Replica
    version: str | None

    def again(self) -> Said:
        """Say it once more; what others have written meanwhile is looked up the next time."""
        known = None if self.version is None else (self.replica, self.version)
        try:
            known = keep_alive(self.registry, self.replica.id, known)
        except FarmError:
            known = None
        return replace(self, replica=known[0], version=known[1]) if known else replace(self, version=None)


class Keepalive:
    """Says between rounds, and while one takes long, that a process is there.

    Use it as a context: its thread ends with it.

    Examples:
        >>> with wlc.Keepalive() as keepalive:
        ...     wlr.replicate(into="copy.duckdb", keepalive=keepalive).tick
        3
    """

    def __init__(self) -> None:
        self.interval_s: float | None = None
        self._said: tuple[Said, ...] = ()
        self._last = time.monotonic()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="keepalive", daemon=True)

    def __enter__(self) -> Keepalive:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(timeout=_JOIN_S)

    def note(self, said: Iterable[Said]) -> None:
        """Remember what was said last, to say it again after the interval."""
        new = {each.registry.url: each for each in said}
        with self._lock:
            # A registry that was away hears what it knew already.
            kept = (each for each in self._said if each.registry.url not in new)
            self._said, self._last = (*kept, *new.values()), time.monotonic()

    def _go_on(self) -> None:
        while not self._is_over.wait(self._left_s()):
            if self._left_s() > 0:
                continue  # A round has said it meanwhile.
            with self._lock:
                said, self._last = self._said, time.monotonic()
            again = tuple(each.again() for each in said)
            with self._lock:
                if self._said is said:
                    self._said = again

    def _left_s(self) -> float:
        return max(self._last + (self.interval_s or _UNTOLD_S) - time.monotonic(), 0.0)


def attachment_object(relay: FarmDatabase) -> VersionedObject[Attachment]:
    """Return where a relay keeps its own."""
    where = f"{relay.url}/{ATTACHMENT}"
    return VersionedObject(
        relay.store,
        ATTACHMENT,
        lambda value: _DOCUMENT.encode(_Relay(value)),
        lambda data: _DOCUMENT.decode(data, where).reads,
    )


def attachment_of(
    database: FarmDatabase,
    before: Attachment | None,
    upstream: Sequence[str] | str | None,
    class_name: str | None,
    registries: Sequence[str] | str | None = None,
    reads: str = "",
) -> Attachment | None:
    """Return what a reader is to remember of its upstream.

    Args:
        database: The place that it was given, which holds the registry unless others are named.
        before: What it remembers; None if it reads what it is given.
        upstream: "auto" for a choice among all that are registered, URLs to choose from, one URL to be read, "none" for
            no upstream; None for what is remembered.
        class_name: Its class; None for what is remembered.
        registries: URLs of the registries, the one that decides first; empty for the place that it was given, None for
            what is remembered. A reader that is given some chooses.
        reads: URL of the place that it reads at present, or begins with while the registry is away.

    Raises:
        InvalidError: The options do not go together, or a URL is of another database.
    """
    known = before.registries if before else ()
    named = [registries] if isinstance(registries, str) else registries
    told = known if named is None else tuple(_url_of(database, url) for url in named)
    wanted = [upstream] if isinstance(upstream, str) else list(upstream or ())
    if wanted == ["none"]:
        if registries:
            raise InvalidError("a registry is of no use without an upstream", hint="Leave out --upstream none")
        return None
    if before is None and not wanted and not told:
        if class_name is not None:
            raise InvalidError(f"class {class_name} is of no use without an upstream", hint="--upstream auto")
        return None
    among = before.among if before and not wanted else ()
    if wanted not in ([], ["auto"]):
        among = tuple(_url_of(database, url) for url in wanted)
    name = class_name if class_name is not None else before.class_name if before else ""
    present = _with_registries(before or Attachment(database.url, url=reads), database, told)
    is_moved = before is not None and bool(wanted) and before.registry != present.registry
    if (present.among, present.class_name) == (among, name) and not is_moved:
        return present
    # What is claimed now is released when the new choice is made.
    return replace(present, among=among, class_name=name, chosen=None)


def _with_registries(before: Attachment, database: FarmDatabase, told: tuple[str, ...]) -> Attachment:
    """Change the registries that somebody remembers; until the next choice, it reads the same place."""
    registry = told[0] if told else database.url
    if told == before.registries:
        # The farm may have been moved.
        return replace(before, registry=registry)
    if registry == before.registry and before.upstream:
        return replace(before, registries=told)
    name = ORIGIN if before.url == registry else unregistered_id(before.url) if before.url else ""
    return replace(before, registry=registry, registries=told, upstream=name, slot=None, chosen=None)


def detach(database: FarmDatabase, before: Attachment | None, now: Attachment | None, reader: str) -> None:
    """Give up what a reader has claimed by registries that it leaves; nothing happens where the first is away."""
    if before is None or before.slot is None or (now is not None and now.registries == before.registries):
        return
    with suppress(FarmError):
        release_claim(place_of(database, before.registry), Claim(before.upstream, before.slot, reader))


def _url_of(database: FarmDatabase, url: str) -> str:
    place = open_database(url, storage_options=database.storage_options)
    if place.name != database.name:
        raise InvalidError(
            f"{url} is a place of database {place.name}, not of {database.name}",
            hint=f"Give the database's folder in the other farm, such as URL/{database.name}.",
            path=url,
        )
    return place.url
