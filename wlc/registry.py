"""Replicas that made themselves known, so that `wlc prune` keeps the log files they still need."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc import fields
from wlc.clock import format_time
from wlc.errors import CorruptError, UnavailableError
from wlc.log import digest, seal_problem
from wlc.model import FORMAT_VERSION, Position
from wlc.paths import REPLICAS, parse_replica_path, replica_path
from wlc.store import ConflictError, MissingError

if TYPE_CHECKING:
    from datetime import datetime

    from wlc.farm import FarmDatabase

_ATTEMPTS = 5
_START = b'{"replica":\n'
_SEAL_START = b',"sha256":"'


@dataclass(frozen=True, slots=True)
class Replica:
    """What a replica says about itself.

    Attributes:
        id: Its random id, letters, digits, '_' and '-'.
        target: Where it lies, as its owner calls it; must hold no credentials.
        position: How far it has come, None before it has come anywhere.
        clock: Commit time of the transaction at `position`, None before the first.
        seen: When it said so.
        host: Name of its machine.
        user: Name of its owner.
    """

    id: str
    target: str
    position: Position | None
    clock: datetime | None
    seen: datetime
    host: str
    user: str


def register(database: FarmDatabase, replica: Replica) -> None:
    """Make a replica and its position known; later calls with the same id replace what was said before.

    Raises:
        InvalidError: The id is none, or there is no permission to write: replicate without registering.
        UnavailableError: The farm cannot be reached. Try again.
    """
    path = replica_path(replica.id)
    data = encode_replica(replica)
    for _ in range(_ATTEMPTS):
        try:
            version = database.store.read_versioned(path)[1]
        except MissingError:
            version = None
        try:
            database.store.replace(path, data, version)
        except ConflictError:
            continue
        return
    raise UnavailableError(f"registration of replica {replica.id} keeps changing", hint="Try again.", path=path)


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
        "target": replica.target,
        "position": fields.position_json(position) if position else None,
        "clock": format_time(replica.clock) if replica.clock else None,
        "seen": format_time(replica.seen),
        "host": replica.host,
        "user": replica.user,
    }
    body = _START + json.dumps(content, indent=1).encode() + b"\n"
    return body + _SEAL_START + digest(body).encode() + b'"}\n'


def decode_replica(data: bytes, path: str) -> Replica:
    """Read a registration.

    Raises:
        CorruptError: It is damaged or of an unknown version.
    """
    hint = f"Delete {path}; the replica registers again when it replicates."
    # A position that is another than was written could let a prune delete what the replica still needs.
    if problem := seal_problem(data, _SEAL_START):
        raise CorruptError(f"{path}: {problem}", hint=hint, path=path)
    try:
        document = fields.as_object(fields.DECODER.decode(data.decode()))
        json.dumps(document, ensure_ascii=False).encode()  # Refuses lone halves of surrogate pairs.
        return _replica(fields.as_object(document["replica"]), path)
    except KeyError as error:
        raise CorruptError(f"{path}: no {error.args[0]!r}", hint=hint, path=path) from error
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{path}: {error}", hint=hint, path=path) from error


def _replica(content: dict[str, Any], path: str) -> Replica:
    fields.as_format(content["format"], FORMAT_VERSION)
    replica = Replica(
        id=fields.as_text(content["id"]),
        target=fields.as_text(content["target"]),
        position=None if content["position"] is None else fields.as_position(content["position"]),
        clock=None if content["clock"] is None else fields.as_time(content["clock"]),
        seen=fields.as_time(content["seen"]),
        host=fields.as_text(content["host"]),
        user=fields.as_text(content["user"]),
    )
    if not path.endswith(f"/{replica.id}.json"):
        raise fields.FieldError(f"it is the registration of {replica.id!r}")
    return replica
