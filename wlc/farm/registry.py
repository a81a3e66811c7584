"""Registered replicas, so that `wlc prune` keeps the log files they still need."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, ClassVar

from wlc.farm.clock import utc_now
from wlc.farm.document_folder import parted, read_folder
from wlc.farm.documents import Document
from wlc.farm.errors import CorruptError
from wlc.farm.json_fields import JsonKey, Omitted, PathText, one_of
from wlc.farm.model import Position
from wlc.farm.paths import REPLICAS, parse_replica_path, replica_path
from wlc.farm.versioned import VersionedObject

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.farm.store import StoredObject

# Kinds of readers: a copy of the data, a copy of the farm, another master, a file or topic of changes.
REPLICA, RELAY, SITE, FEED = "replica", "relay", "site", "feed"
KINDS = (REPLICA, RELAY, SITE, FEED)

# States of a registered reader or upstream: has nothing yet; reads or serves; was paused or removed from service by its
# owner; cannot continue.
PENDING, ACTIVE, INACTIVE, STUCK = "pending", "active", "inactive", "stuck"
STATES = (PENDING, ACTIVE, INACTIVE, STUCK)
_TRANSITIONS_MOST = 16
# Assumed interval of a reader after its first visit.
FIRST_INTERVAL_S = 3600.0


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of state: the new state, the reason, the actor (`user@host`) and the time."""

    state: Annotated[str, one_of(*STATES)]
    cause: str
    actor: str
    time: datetime


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica's registration.

    Attributes:
        id: Its random id, letters, digits, '_' and '-'.
        target: Where it is, in its owner's words; must not contain credentials.
        position: Its position, None before the first.
        clock: Commit time of the transaction at `position`, None before the first.
        seen: When it last registered.
        host: Name of its machine.
        user: Name of its owner.
        kind: `replica`, `relay`, `site` or `feed`.
        upstream: Id of the upstream that it reads, if another one holds this registration.
        place: URL of the upstream that it is pinned to; empty for none.
        registry: URL of the registry from which it chooses upstreams, if another place holds this registration.
        class_name: Its class, such as `prod`; empty for none.
        site: Name of its site; empty for none.
        delay_s: Its configured delay.
        tables: Patterns of its tables, `!` before patterns of ignored ones; empty for all.
        interval_s: How often it registers, seconds; None if unknown.
        progressed: When it last advanced or was up to date.
        transitions: Its last changes of state, oldest first; empty in registrations of older versions.
        counters: A site's conflict counters, by `site rule name`, about changes of the folder's site and about its own.
    """

    may_have_info: ClassVar = True
    id: str
    target: PathText
    position: Position | None
    clock: datetime | None
    seen: datetime
    host: str
    user: str
    kind: Omitted[Annotated[str, one_of(*KINDS)]] = REPLICA
    upstream: Omitted[str] = ""
    place: Omitted[str] = ""
    registry: Omitted[str] = ""
    class_name: Omitted[Annotated[str, JsonKey("class")]] = ""
    site: Omitted[str] = ""
    delay_s: Omitted[float] = 0.0
    tables: Omitted[tuple[str, ...]] = ()
    interval_s: Omitted[float | None] = None
    progressed: Omitted[datetime | None] = None
    transitions: Omitted[tuple[Transition, ...]] = ()
    counters: Omitted[Mapping[str, int]] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """Pending, active, inactive or stuck."""
        if self.transitions:
            return self.transitions[-1].state
        return ACTIVE if self.position else PENDING


# A wrong position could let a prune delete what the replica still needs.
_DOCUMENT = Document(
    "replica", Replica, name="id", hint="Delete {where}; the replica registers again when it replicates."
)
encode_replica, decode_replica = _DOCUMENT.encode, _DOCUMENT.decode


def moved_to(
    transitions: tuple[Transition, ...], state: str, cause: str, now: datetime, actor: str = ""
) -> tuple[Transition, ...]:
    """Append a change of state unless the state is unchanged; the oldest entries are dropped."""
    if transitions and transitions[-1].state == state:
        return transitions
    return (*transitions, Transition(state, cause, actor or this_actor(), now))[-_TRANSITIONS_MOST:]


def this_actor() -> str:
    """Return the user and host of this process, as `user@host`."""
    return f"{this_user()}@{this_host()}"


def this_host() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def this_user() -> str:
    """Return the name of the user who runs this process."""
    try:
        import getpass

        return getpass.getuser()
    except (KeyError, OSError):
        # In a container, the user's number may have no name.
        return "unknown"


def register(
    database: FarmDatabase, replica: Replica, *, is_level: bool = False, failure: str = "", is_paused: bool = False
) -> Replica:
    """Register a replica and its position; a later call with the same id replaces the registration.

    Args:
        database: The upstream that it reads, or the registry of its tree.
        replica: The registration. Interval, transitions and time of progress follow from the previous registration.
        is_level: It is up to date.
        failure: Why it cannot continue.
        is_paused: Its owner has paused it.

    Returns:
        The registration as written.

    Raises:
        InvalidError: The id is invalid, or writing is not permitted: replicate without registering.
        UnavailableError: The farm cannot be reached. Try again.
    """
    return register_versioned(database, replica, is_level=is_level, failure=failure, is_paused=is_paused)[0]


def register_versioned(
    database: FarmDatabase, replica: Replica, *, is_level: bool = False, failure: str = "", is_paused: bool = False
) -> tuple[Replica, str]:
    """Do the same as `register`, and also return the version of the written object."""
    # Replacing needs no previous content, so a damaged registration is replaced like any other: its bytes are not
    # decoded.
    place: VersionedObject[bytes]
    place = VersionedObject(database.store, replica_path(replica.id), encode=bytes, decode=bytes)
    written = replica

    def change(data: bytes | None) -> bytes:
        nonlocal written
        before = None
        with suppress(CorruptError):
            before = None if data is None else decode_replica(data, place.path)
        written = _following(replica, before, is_level=is_level, failure=failure, is_paused=is_paused)
        return encode_replica(written)

    version = place.change_versioned(change)[1]
    assert version is not None, "something was written"
    return written, version


def _following(replica: Replica, before: Replica | None, *, is_level: bool, failure: str, is_paused: bool) -> Replica:
    """Complete a registration from the previous one."""
    is_still = before is not None and before.position == replica.position and not is_level
    progressed = before.progressed if before and is_still else replica.seen
    transitions, actor = before.transitions if before else (), f"{replica.user}@{replica.host}"
    if is_paused:
        transitions = moved_to(transitions, INACTIVE, "paused", replica.seen, actor)
    elif failure:
        transitions = moved_to(transitions, STUCK, failure, replica.seen, actor)
    elif replica.position is None:
        if not transitions or transitions[-1].state == INACTIVE:
            cause = "goes on" if transitions else "registered"
            transitions = moved_to(transitions, PENDING, cause, replica.seen, actor)
    elif not transitions or transitions[-1].state != STUCK or not is_still:
        cause = "holds a position" if before is None or before.position is None else "goes on"
        transitions = moved_to(transitions, ACTIVE, cause, replica.seen, actor)
    interval_s = replica.interval_s if replica.interval_s is not None else _interval_s(replica, before)
    return replace(replica, progressed=progressed, transitions=transitions, interval_s=interval_s)


def _interval_s(replica: Replica, before: Replica | None) -> float:
    """Estimate the interval of a reader that does not state it.

    A round registers several times, and the pause comes after it: the estimate falls with the time in which no pause of
    that length occurred, not with the number of visits.
    """
    if before is None:
        return FIRST_INTERVAL_S
    known_s = FIRST_INTERVAL_S if before.interval_s is None else before.interval_s
    pause_s = max((replica.seen - before.seen).total_seconds(), 0.0)
    return max(pause_s, known_s - pause_s)


def keep_alive(database: FarmDatabase, replica: str, known: tuple[Replica, str] | None) -> tuple[Replica, str] | None:
    """Renew a registration; one request if no other process has written since the last call.

    Args:
        database: The registry.
        replica: Its id.
        known: Result of the previous call; None without one.

    Returns:
        The registration as written, and its version; None if it was deleted: only the next round registers again.

    Raises:
        ConflictError: Another process has written since: call again without `known`.
    """
    place = VersionedObject(
        database.store, replica_path(replica), encode_replica, lambda data: decode_replica(data, replica_path(replica))
    )
    known = known or place.load()
    if known is None:
        return None
    again = replace(known[0], seen=max(known[0].seen, utc_now()))
    return again, place.replace(again, known[1])


def unregister(database: FarmDatabase, replica: str) -> None:
    """Delete the registration with that id; nothing happens if there is none."""
    database.store.delete(replica_path(replica))


def is_registered(database: FarmDatabase, replica: str) -> bool:
    """Say whether the replica with that id is known."""
    return database.store.exists(replica_path(replica))


def replicas(database: FarmDatabase) -> list[Replica]:
    """Return all registered replicas, by id; can be empty.

    Raises:
        CorruptError: A registration is damaged; the hint says how to go on.
    """
    found, wrong = known_replicas(database)
    if wrong:
        raise wrong[0]
    return found


def known_replicas(
    database: FarmDatabase, before: dict[str, tuple[StoredObject, Replica | CorruptError]] | None = None
) -> tuple[list[Replica], list[CorruptError]]:
    """Return all registered replicas by id, and the errors of unreadable registrations.

    `seen` is the time at which the store received the registration: the clocks of the readers' machines may be wrong.

    Args:
        database: The place.
        before: Registrations read by the previous call, by path; updated in place. Only registrations that arrived
            since are read.
    """
    now = read_folder(database.store, REPLICAS, parse_replica_path, decode_replica, before)
    if before is not None:
        before.clear()
        before.update(now)
    known = ((entry, found) for entry, found in now.values() if not isinstance(found, CorruptError))
    return [replace(replica, seen=entry.arrived) for entry, replica in known], parted(now)[1]
