"""Replicas that made themselves known, so that `wlc prune` keeps the log files they still need."""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.farm import json_fields as fields
from wlc.farm.clock import format_time
from wlc.farm.documents import decode_document, encode_document
from wlc.farm.model import FORMAT_VERSION, Position
from wlc.farm.paths import REPLICAS, parse_replica_path, replica_path
from wlc.farm.store import MissingError
from wlc.farm.versioned import VersionedObject

if TYPE_CHECKING:
    from datetime import datetime

    from wlc.farm.database import FarmDatabase

# What can read a farm: a copy of the data, a copy of the farm, or what passes changes on.
REPLICA, RELAY, FEED = "replica", "relay", "feed"
_KINDS = (REPLICA, RELAY, FEED)


@dataclass(frozen=True, slots=True)
class Replica:
    """What a replica says about itself.

    Attributes:
        id: Its random id, letters, digits, '_' and '-'.
        target: Where it is, as its owner calls it; must not contain credentials.
        position: How far it has come, None before it has come anywhere.
        clock: Commit time of the transaction at `position`, None before the first.
        seen: When it said so.
        host: Name of its machine.
        user: Name of its owner.
        kind: `replica`, `relay` or `feed`.
    """

    id: str
    target: str
    position: Position | None
    clock: datetime | None
    seen: datetime
    host: str
    user: str
    kind: str = REPLICA


def this_host() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def this_user() -> str:
    """Return the name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In a container, the user's number may have no name.
        return "unknown"


def register(database: FarmDatabase, replica: Replica) -> None:
    """Make a replica and its position known; later calls with the same id replace what was said before.

    Raises:
        InvalidError: The id is invalid, or writing is not permitted: replicate without registering.
        UnavailableError: The farm cannot be reached. Try again.
    """
    # What was said before does not matter, so a damaged registration is replaced like any other: bytes stay bytes.
    place: VersionedObject[bytes]
    place = VersionedObject(database.store, replica_path(replica.id), encode=bytes, decode=bytes)
    data = encode_replica(replica)
    place.change(lambda _: data)


def unregister(database: FarmDatabase, replica: str) -> None:
    """Forget the replica with that id; nothing happens if it is unknown."""
    database.store.delete(replica_path(replica))


def replicas(database: FarmDatabase) -> list[Replica]:
    """Return all registered replicas, by id; can be empty.

    Raises:
        CorruptError: A registration is damaged; the hint says how to go on.
    """
    found = []
    for entry in database.store.list(REPLICAS):
        if parse_replica_path(entry.path) is None:
            continue
        try:
            found.append(decode_replica(database.store.read(entry.path), f"{database.url}/{entry.path}"))
        except MissingError:
            continue  # Forgotten while we listed.
    return found


def encode_replica(replica: Replica) -> bytes:
    """Write a registration as JSON closed by a checksum."""
    position = replica.position
    content = {
        "format": FORMAT_VERSION,
        "id": replica.id,
        # A path need not be Unicode, a registration must be.
        "target": replica.target.encode(errors="replace").decode(),
        "position": fields.position_json(position) if position else None,
        "clock": format_time(replica.clock) if replica.clock else None,
        "seen": format_time(replica.seen),
        "host": replica.host,
        "user": replica.user,
    }
    if replica.kind != REPLICA:
        content["kind"] = replica.kind
    return encode_document("replica", content)


def decode_replica(data: bytes, path: str) -> Replica:
    """Read a registration.

    Raises:
        CorruptError: It is damaged or of an unknown version.
    """
    # A wrong position could let a prune delete what the replica still needs.
    hint = f"Delete {path}; the replica registers again when it replicates."
    return decode_document("replica", data, path, lambda content: _replica(content, path), hint=hint)


def _replica(content: dict[str, Any], path: str) -> Replica:
    fields.as_format(content["format"], FORMAT_VERSION)
    fields.known(content, "format id target position clock seen host user", "kind info")
    replica = Replica(
        id=fields.as_text(content["id"]),
        target=fields.as_text(content["target"]),
        position=None if content["position"] is None else fields.as_position(content["position"]),
        clock=None if content["clock"] is None else fields.as_time(content["clock"]),
        seen=fields.as_time(content["seen"]),
        host=fields.as_text(content["host"]),
        user=fields.as_text(content["user"]),
        kind=fields.as_text(content.get("kind", REPLICA)),
    )
    if replica.kind not in _KINDS:
        raise fields.FieldError(f"{replica.kind!r} is none of {', '.join(_KINDS)}")
    if not path.endswith(f"/{replica.id}.json"):
        raise fields.FieldError(f"it is the registration of {replica.id!r}")
    return replica
