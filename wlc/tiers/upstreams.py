"""Places that serve a farm database, and who may read from them: registrations, claims and settings of a tree of tiers.

None of this decides what a replica holds: the chain of log files does. A registration that is lost or wrong costs a
better choice, and nothing else.

Who must be served by pushing, because it may not read where the data comes from: entries of a registry.
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
    """A place that serves: what it says about itself. Its position is in its registration as a replica of that id.

    Attributes:
        id: Its id, the same as that of its registration under `replicas/`.
        url: The database's folder there.
        class_name: Its class, such as `prod`; empty for none.
        fanout: How many may read from it; None for the registry's number.
        delay_s: How far it stays behind on purpose.
        first: The first batch that it holds; None if that is not known.
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
    """Return where a place that serves is registered.

    Raises:
        InvalidError: The id is not one.
    """
    path = upstream_path(upstream)
    where = f"{database.url}/{path}"
    return VersionedObject(database.store, path, encode_upstream, lambda data: decode_upstream(data, where))


def change_upstream(database: FarmDatabase, upstream: str, change: Callable[[Upstream | None], Upstream]) -> Upstream:
    """Replace what is registered of a place by what a function makes of it; a damaged registration counts as none."""
    place = upstream_object(database, upstream)
    try:
        return place.change(change)
    except CorruptError:
        database.store.delete(place.path)
        return place.change(change)


def find_upstream(database: FarmDatabase, upstream: str) -> Upstream | None:
    """Return what is registered of a place; None if nothing is, or if that is damaged."""
    try:
        found = upstream_object(database, upstream).load()
    except CorruptError:
        return None
    return found[0] if found else None


def upstreams(database: FarmDatabase) -> list[Upstream]:
    """Return all places that registered, by id; a damaged registration is left out, for it is only a worse choice."""
    return read_upstreams(database)[0]


def read_upstreams(database: FarmDatabase) -> tuple[list[Upstream], list[CorruptError]]:
    """Return all places that registered, by id, and what is wrong with registrations that cannot be read."""
    return parted(read_folder(database.store, UPSTREAMS, parse_upstream_path, decode_upstream))


# Claims --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """The right of one reader to one slot of an upstream, as long as the reader is heard of."""

    upstream: str
    slot: int
    holder: str


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who holds a slot; empty for a slot that was given up."""

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
    """Return who holds a slot, None if nobody does."""
    return _claim(database, upstream, slot)[0]


def take_claim(database: FarmDatabase, upstream: str, slot: int, holder: str, before: str | None) -> bool:
    """Take a slot, exclusively.

    Args:
        database: The registry.
        upstream: Whose slot; `slot`: 0 … .
        slot: Its number.
        holder: Who takes it.
        before: Who must hold it now; None if nobody may.

    Returns:
        Whether it was taken; somebody else may have been faster.
    """
    path = claim_path(upstream, slot)
    data = _CLAIM.encode(_Holder(holder))
    if before is None:
        try:
            database.store.create(path, data)
        except AlreadyExistsError:
            pass  # It may have been given up.
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
    """Give up a slot; nothing happens if somebody else has it.

    No store deletes an object only if it has a certain version, so that the claim stays, without a holder.
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
    """Build the error for an id under which nothing is registered."""
    return InvalidError(
        f"{database.url} knows no upstream or replica {upstream!r}",
        hint=f"wlc tier show {database.url}",
        path=database.url,
    )


@dataclass(frozen=True, slots=True)
class Push:
    """A place that must be filled from above, or a pattern of registered readers whose places must be.

    Attributes:
        id: Letters, digits, '_' and '-'.
        to: URL of the database's folder there; empty where patterns say it.
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
        """Say whether a registered reader is meant; only one that is pinned to a place can be."""
        is_host = not self.host or fnmatchcase(replica.host, self.host)
        is_class = not self.class_name or fnmatchcase(replica.class_name, self.class_name)
        is_site = not self.site or (bool(replica.site) and fnmatchcase(replica.site, self.site))
        return not self.to and bool(replica.place) and is_host and is_class and is_site


_PUSH = Document("push", Push, name="id", hint="Delete {where}.")
encode_push, decode_push = _PUSH.encode, _PUSH.decode


def refuse_absent(registry: FarmDatabase) -> None:
    """Refuse a registry that is away: a directory that is not mounted must not be made anew.

    A place that has a list of whom to push to is there, and waits to be filled.

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
        InvalidError: There is one of that id, or it says nothing.
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
    """Return all entries, by id, and what is wrong with those that cannot be read."""
    return parted(read_folder(database.store, PUSHES, parse_push_path, decode_push))
