"""Upstreams of a farm database and the slots of their readers: registrations, claims and settings of a tree of tiers.

The content of a replica does not depend on them but on the chain of log files. A lost or wrong registration only leads
to a worse choice.

Push entries of a registry: places that must be served by pushing, because they may not read the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar

from wlc.farm.document_folder import parted, read_folder
from wlc.farm.documents import Document
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.json_fields import JsonKey, Omitted, PathText, Tick
from wlc.farm.paths import (
    CLAIMS,
    PUSHES,
    UPSTREAMS,
    claim_path,
    parse_claim_path,
    parse_push_path,
    parse_upstream_path,
    push_path,
    upstream_path,
)
from wlc.farm.registry import PENDING, RELAY, Transition
from wlc.farm.store import AlreadyExistsError, ConflictError, MissingError
from wlc.farm.versioned import VersionedObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from wlc.farm.database import FarmDatabase
    from wlc.farm.registry import Replica


# Id of the place that holds the registry itself.
ORIGIN = "origin"


@dataclass(frozen=True, slots=True)
class Upstream:
    """An upstream's registration. Its position is in its registration as a replica of that id.

    Attributes:
        id: Its id, the same as that of its registration under `replicas/`.
        url: The database's folder there.
        class_name: Its class, such as `prod`; empty for none.
        fanout: Maximum number of its readers; None for the registry's number.
        delay_s: Its configured delay.
        first: The first batch that it holds; None if unknown.
        transitions: Its last changes of state, oldest first.
    """

    may_have_info: ClassVar = True
    id: str
    url: PathText
    host: str
    user: str
    kind: str = RELAY
    class_name: Annotated[str, JsonKey("class")] = ""
    fanout: int | None = None
    delay_s: float = 0.0
    first: Tick | None = None
    transitions: tuple[Transition, ...] = ()

    @property
    def state(self) -> str:
        """Pending, active, inactive or stuck."""
        return self.transitions[-1].state if self.transitions else PENDING


_UPSTREAM = Document(
    "upstream", Upstream, name="id", hint="Delete {where}; the place registers again with its next wlc tier ship."
)
encode_upstream, decode_upstream = _UPSTREAM.encode, _UPSTREAM.decode


def upstream_object(database: FarmDatabase, upstream: str) -> VersionedObject[Upstream]:
    """Return the object of an upstream's registration.

    Raises:
        InvalidError: The id is not one.
    """
    path = upstream_path(upstream)
    where = f"{database.url}/{path}"
    return VersionedObject(database.store, path, encode_upstream, lambda data: decode_upstream(data, where))


def change_upstream(database: FarmDatabase, upstream: str, change: Callable[[Upstream | None], Upstream]) -> Upstream:
    """Replace an upstream's registration with the result of a function; a damaged registration counts as none."""
    place = upstream_object(database, upstream)
    try:
        return place.change(change)
    except CorruptError:
        database.store.delete(place.path)
        return place.change(change)


def find_upstream(database: FarmDatabase, upstream: str) -> Upstream | None:
    """Return an upstream's registration; None if it is missing or damaged."""
    try:
        found = upstream_object(database, upstream).load()
    except CorruptError:
        return None
    return found[0] if found else None


def upstreams(database: FarmDatabase) -> list[Upstream]:
    """Return all registered upstreams, by id, without damaged registrations: they only lead to a worse choice."""
    return read_upstreams(database)[0]


def read_upstreams(database: FarmDatabase) -> tuple[list[Upstream], list[CorruptError]]:
    """Return all registered upstreams, by id, and the errors of unreadable registrations."""
    return parted(read_folder(database.store, UPSTREAMS, parse_upstream_path, decode_upstream))


# Claims --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """The right of one reader to one slot of an upstream while the reader is not silent."""

    upstream: str
    slot: int
    holder: str


@dataclass(frozen=True, slots=True)
class _Holder:
    """The holder of a slot; empty for a released slot."""

    holder: str


_CLAIM = Document("claim", _Holder)


def claims(database: FarmDatabase) -> list[Claim]:
    """Return all claims, by upstream and slot; damaged ones have no holder."""
    found = []
    for path, (_, holder) in read_folder(database.store, CLAIMS, parse_claim_path, _CLAIM.decode).items():
        name = "" if isinstance(holder, CorruptError) else holder.holder
        if (name or isinstance(holder, CorruptError)) and (parsed := parse_claim_path(path)):
            found.append(Claim(*parsed, name))
    return sorted(found, key=lambda claim: (claim.upstream, claim.slot))


def read_claim(database: FarmDatabase, upstream: str, slot: int) -> Claim | None:
    """Return the holder of a slot, None for a free one."""
    return _claim(database, upstream, slot)[0]


def take_claim(database: FarmDatabase, upstream: str, slot: int, holder: str, before: str | None) -> bool:
    """Take a slot, exclusively.

    Args:
        database: The registry.
        upstream: The upstream.
        slot: Number of the slot, 0 … .
        holder: The reader that takes it.
        before: The required present holder; None for a free slot.

    Returns:
        Whether it was taken; another reader may have been faster.
    """
    path = claim_path(upstream, slot)
    data = _CLAIM.encode(_Holder(holder))
    if before is None:
        try:
            database.store.create(path, data)
        except AlreadyExistsError:
            pass  # It may have been released.
        else:
            return True
    claim, version = _claim(database, upstream, slot)
    if not version or (claim.holder if claim else None) != before:
        return False
    return _replaced_claim(database, path, data, version)


def _replaced_claim(database: FarmDatabase, path: str, data: bytes, version: str) -> bool:
    place: VersionedObject[bytes] = VersionedObject(database.store, path, encode=bytes, decode=bytes)
    try:
        place.replace(data, version)
    except ConflictError:
        return False
    return True


def release_claim(database: FarmDatabase, claim: Claim) -> None:
    """Release a slot; nothing happens if another reader holds it.

    Stores cannot delete an object conditionally, so the claim stays, without a holder.
    """
    present, version = _claim(database, claim.upstream, claim.slot)
    if present == claim:
        data = _CLAIM.encode(_Holder(""))
        _replaced_claim(database, claim_path(claim.upstream, claim.slot), data, version)


def _claim(database: FarmDatabase, upstream: str, slot: int) -> tuple[Claim | None, str]:
    path = claim_path(upstream, slot)
    try:
        data, version = database.store.read_versioned(path)
    except MissingError:
        return None, ""
    try:
        holder = _CLAIM.decode(data, path).holder
    except CorruptError:
        return Claim(upstream, slot, ""), version
    return Claim(upstream, slot, holder) if holder else None, version


def unknown_upstream(database: FarmDatabase, upstream: str) -> InvalidError:
    """Build the error for an unregistered id."""
    return InvalidError(
        f"{database.url} knows no upstream or replica {upstream!r}",
        hint=f"wlc tier show {database.url}",
        path=database.url,
    )


@dataclass(frozen=True, slots=True)
class Push:
    """An entry of the push list: a place to fill, or a pattern of registered readers whose places to fill.

    Attributes:
        id: Letters, digits, '_' and '-'.
        to: URL of the database's folder there; empty for an entry with patterns.
        host: Pattern of hosts of registered readers, such as `edge-*`; empty for any.
        class_name: Pattern of their classes; empty for any.
        site: Pattern of their sites; empty for any.
    """

    may_have_info: ClassVar = True
    id: str
    to: str = ""
    host: str = ""
    class_name: Annotated[str, JsonKey("class")] = ""
    site: Omitted[str] = ""

    def matches(self, replica: Replica) -> bool:
        """Say whether the entry matches a registered reader; only readers pinned to a place can match."""
        is_host = not self.host or fnmatchcase(replica.host, self.host)
        is_class = not self.class_name or fnmatchcase(replica.class_name, self.class_name)
        is_site = not self.site or (bool(replica.site) and fnmatchcase(replica.site, self.site))
        return not self.to and bool(replica.place) and is_host and is_class and is_site


_PUSH = Document("push", Push, name="id", hint="Delete {where}.")
encode_push, decode_push = _PUSH.encode, _PUSH.decode


def refuse_absent(registry: FarmDatabase) -> None:
    """Refuse an unreachable registry, so that an unmounted directory is not created.

    A place with a push list exists, and waits to be filled.

    Raises:
        MissingError: There is neither a database nor a list.
    """
    try:
        registry.config()
    except MissingError:
        if not registry.store.list(PUSHES):
            raise


def add_push(database: FarmDatabase, push: Push) -> None:
    """Add an entry.

    Raises:
        InvalidError: There is one of that id, or the entry is empty.
    """
    if bool(push.to) == bool(push.host or push.class_name or push.site):
        hint = "--to URL, or --host, --class or --site"
        raise InvalidError("an entry names either a place or a pattern", hint=hint)
    try:
        database.store.create(push_path(push.id), encode_push(push))
    except AlreadyExistsError as error:
        message = f"{database.url} has an entry {push.id!r} already"
        raise InvalidError(message, hint=f"wlc tier push {database.url} remove {push.id}") from error


def remove_push(database: FarmDatabase, push: str) -> None:
    """Remove an entry.

    Raises:
        InvalidError: There is none of that id.
    """
    if not database.store.exists(push_path(push)):
        raise InvalidError(f"{database.url} has no entry {push!r}", hint=f"wlc tier push {database.url} list")
    database.store.delete(push_path(push))


def pushes(database: FarmDatabase) -> tuple[list[Push], list[CorruptError]]:
    """Return all entries, by id, and the errors of unreadable ones."""
    return parted(read_folder(database.store, PUSHES, parse_push_path, decode_push))
