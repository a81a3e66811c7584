"""The attachment of a reader to its upstream: the choice that a replica or relay stores.

Merges a reader's options with its stored attachment.
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


# Used until the registry's settings are known, and at the end of a process.
_UNTOLD_S = 1.0
_JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Penalty:
    """The penalty of a failed upstream: consecutive failures, and the end of its avoidance."""

    upstream: str
    times: int
    until: datetime


@dataclass(frozen=True, slots=True)
class Attachment:
    """A reader's upstream, and its choice.

    Attributes:
        registry: URL of the database's folder with the registry of upstreams.
        among: URLs to choose from; empty for all registered ones. A single URL is pinned.
        class_name: The reader's class; empty for none.
        upstream: Id of the upstream; empty before the first choice.
        url: The database's folder there.
        slot: The claimed slot; None without a claim.
        chosen: Time of the choice.
        penalties: Failed upstreams.
        registries: URLs of explicit registries; empty if the given place holds the registry. The first is `registry`;
            the reader reports to the others as well.
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
        """URL of the pinned place; empty if there is a choice."""
        return self.among[0] if len(self.among) == 1 else ""


@dataclass(frozen=True, slots=True)
class _Relay:
    """The stored state of a relay."""

    reads: Attachment


_DOCUMENT = Document("attachment", _Relay, hint="Delete {where}.")


@dataclass(frozen=True, slots=True)
class Membership:
    """A reader's membership in a tree of tiers for one round.

    Attributes:
        registry: The place that holds the registry.
        attachment: The reader's attachment.
        keepalive: Renews the registration between rounds; None in a program of one round.
    """

    registry: FarmDatabase
    attachment: Attachment
    keepalive: Keepalive | None = None

    def registries(self) -> list[FarmDatabase]:
        """Return the registry, and the further ones that the reader reports to."""
        return [self.registry, *(place_of(self.registry, url) for url in self.attachment.registries[1:])]


def place_of(database: FarmDatabase, url: str) -> FarmDatabase:
    """Return the database in another place, with the same options."""
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
    """Register a reader with its upstream and in the registries of the tree.

    An unreachable registry does not prevent reading: the last choice holds.

    Returns:
        The registration in the first registry; None if that is unreachable.

    Raises:
        InvalidError: Writing is not permitted: read without registering.
        UnavailableError: The place cannot be reached.
    """
    write = partial(register_versioned, is_level=is_level, failure=failure, is_paused=is_paused)
    if membership is None:
        return write(place, replica)[0]
    alive = membership.keepalive
    replica = replace(
        replica,
        class_name=membership.attachment.class_name,
        place=membership.attachment.pinned,
        interval_s=alive.interval_s if alive else replica.interval_s,
    )
    registrations: dict[str, Registration] = {}
    known = replace(replica, registry="" if place.url == membership.registry.url else membership.registry.url)
    registrations[place.url] = Registration(place, *write(place, known))
    for registry in membership.registries():
        if registry.url in registrations:
            continue
        with suppress(UnavailableError, MissingError):
            if registry.store.exists(CONFIG):  # Do not create an unmounted directory.
                known = _for_registry(replica, registry, membership)
                registrations[registry.url] = Registration(registry, *write(registry, known))
    if alive:
        alive.note(
            [registrations[registry.url] for registry in membership.registries() if registry.url in registrations]
        )
    first = registrations.get(membership.registry.url)
    return first.replica if first else None


def _for_registry(replica: Replica, registry: FarmDatabase, membership: Membership) -> Replica:
    """Return the registration for a registry in another place than the upstream."""
    above, first = membership.attachment.upstream, membership.registry.url
    if registry.url == first:
        return replace(replica, upstream="" if above == ORIGIN else above)
    # Ids of places are the same in every registry, except for the place that holds it.
    return replace(replica, upstream=unregistered_id(first) if above == ORIGIN else above, registry=first)


def unregistered_id(url: str) -> str:
    """Return an id for a place that has not registered."""
    return checksum(url.encode())[:32]


@dataclass(frozen=True, slots=True)
class Registration:
    """A registration in a registry and its version there; None if the version is unknown."""

    registry: FarmDatabase
    replica: Replica
    version: str | None

    def renewed(self) -> Registration:
        """Renew the registration; after a conflict, the next call reads the present version."""
        known = None if self.version is None else (self.replica, self.version)
        try:
            known = keep_alive(self.registry, self.replica.id, known)
        except FarmError:
            known = None
        return replace(self, replica=known[0], version=known[1]) if known else replace(self, version=None)


class Keepalive:
    """Renews a process's registrations between rounds and during long ones.

    Use it as a context: its thread ends with it.

    Examples:
        >>> with wlc.Keepalive() as keepalive:
        ...     wlr.replicate(into="copy.duckdb", keepalive=keepalive).tick
        3
    """

    def __init__(self) -> None:
        self.interval_s: float | None = None
        self._registrations: tuple[Registration, ...] = ()
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

    def note(self, registrations: Iterable[Registration]) -> None:
        """Store the last registration, to renew it after the interval."""
        new = {each.registry.url: each for each in registrations}
        with self._lock:
            # A registry that was unreachable gets its last known registration renewed.
            kept = (each for each in self._registrations if each.registry.url not in new)
            self._registrations, self._last = (*kept, *new.values()), time.monotonic()

    def _go_on(self) -> None:
        while not self._is_over.wait(self._left_s()):
            if self._left_s() > 0:
                continue  # A round has registered meanwhile.
            with self._lock:
                registrations, self._last = self._registrations, time.monotonic()
            renewed = tuple(each.renewed() for each in registrations)
            with self._lock:
                if self._registrations is registrations:
                    self._registrations = renewed

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
    """Return the attachment that a reader must store.

    Args:
        database: The given place, which holds the registry unless `registries` names others.
        before: The stored attachment; None if it reads the given place.
        upstream: "auto" for a choice among all registered upstreams, URLs to choose from, one URL to pin, "none" for no
            upstream; None for the stored value.
        class_name: Its class; None for the stored value.
        registries: URLs of the registries, the deciding one first; empty for the given place, None for the stored
            value. A reader with registries chooses.
        reads: URL of its present upstream, or its first one while the registry is unreachable.

    Raises:
        InvalidError: The options contradict each other, or a URL is of another database.
    """
    known = before.registries if before else ()
    named = [registries] if isinstance(registries, str) else registries
    urls = known if named is None else tuple(_url_of(database, url) for url in named)
    wanted = [upstream] if isinstance(upstream, str) else list(upstream or ())
    if wanted == ["none"]:
        if registries:
            raise InvalidError("a registry is of no use without an upstream", hint="Leave out --upstream none")
        return None
    if before is None and not wanted and not urls:
        if class_name is not None:
            raise InvalidError(f"class {class_name} is of no use without an upstream", hint="--upstream auto")
        return None
    among = before.among if before and not wanted else ()
    if wanted not in ([], ["auto"]):
        among = tuple(_url_of(database, url) for url in wanted)
    name = class_name if class_name is not None else before.class_name if before else ""
    present = _with_registries(before or Attachment(database.url, url=reads), database, urls)
    is_moved = before is not None and bool(wanted) and before.registry != present.registry
    if (present.among, present.class_name) == (among, name) and not is_moved:
        return present
    # The present claim is released after the new choice.
    return replace(present, among=among, class_name=name, chosen=None)


def _with_registries(before: Attachment, database: FarmDatabase, urls: tuple[str, ...]) -> Attachment:
    """Change a reader's stored registries; until the next choice, it reads the same place."""
    registry = urls[0] if urls else database.url
    if urls == before.registries:
        # The farm may have been moved.
        return replace(before, registry=registry)
    if registry == before.registry and before.upstream:
        return replace(before, registries=urls)
    name = ORIGIN if before.url == registry else unregistered_id(before.url) if before.url else ""
    return replace(before, registry=registry, registries=urls, upstream=name, slot=None, chosen=None)


def detach(database: FarmDatabase, before: Attachment | None, now: Attachment | None, reader: str) -> None:
    """Release a reader's claims in registries that it leaves; nothing happens if the first is unreachable."""
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
