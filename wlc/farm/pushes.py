"""Who must be served by pushing, because it may not read where the data comes from: entries of a registry."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from wlc.farm import json_fields as fields
from wlc.farm.document_folder import parted, read_folder
from wlc.farm.documents import decode_document, encode_document
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.model import FORMAT_VERSION
from wlc.farm.paths import PUSHES, parse_push_path, push_path
from wlc.farm.store import AlreadyExistsError, MissingError

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.farm.registry import Replica


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

    id: str
    to: str = ""
    host: str = ""
    class_name: str = ""
    site: str = ""

    def matches(self, replica: Replica) -> bool:
        """Say whether a registered reader is meant; only one that is pinned to a place can be."""
        is_host = not self.host or fnmatchcase(replica.host, self.host)
        is_class = not self.class_name or fnmatchcase(replica.class_name, self.class_name)
        is_site = not self.site or (bool(replica.site) and fnmatchcase(replica.site, self.site))
        return not self.to and bool(replica.place) and is_host and is_class and is_site


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
    content = {"format": FORMAT_VERSION, "id": push.id, "to": push.to, "host": push.host, "class": push.class_name}
    content |= {"site": push.site} if push.site else {}
    try:
        database.store.create(push_path(push.id), encode_document("push", content))
    except AlreadyExistsError as error:
        message = f"{database.url} has an entry {push.id!r} already"
        raise InvalidError(message, hint=f"wlc push {database.url} remove {push.id}") from error


def remove_push(database: FarmDatabase, push: str) -> None:
    """Remove an entry.

    Raises:
        InvalidError: There is none of that id.
    """
    if not database.store.exists(push_path(push)):
        raise InvalidError(f"{database.url} has no entry {push!r}", hint=f"wlc push {database.url} list")
    database.store.delete(push_path(push))


def pushes(database: FarmDatabase) -> tuple[list[Push], list[CorruptError]]:
    """Return all entries, by id, and what is wrong with those that cannot be read."""
    return parted(read_folder(database.store, PUSHES, parse_push_path, decode_push))


def decode_push(data: bytes, where: str) -> Push:
    """Read an entry.

    Raises:
        CorruptError: It is damaged or of an unknown version.
    """
    return decode_document("push", data, where, lambda content: _push(content, where), hint=f"Delete {where}.")


def _push(content: dict[str, Any], where: str) -> Push:
    fields.known_format(content, "id to host class", "site info")
    said = (content["id"], content["to"], content["host"], content["class"], content.get("site", ""))
    push = Push(*map(fields.as_text, said))
    if not where.endswith(f"/{push.id}.json"):
        raise fields.FieldError(f"it is the entry {push.id!r}")
    return push
