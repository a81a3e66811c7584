"""Who must be served by pushing, because it may not read where the data comes from: entries of a registry."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar

from wlc.farm.document_folder import parted, read_folder
from wlc.farm.documents import Document
from wlc.farm.errors import InvalidError
from wlc.farm.json_fields import JsonKey, Omitted
from wlc.farm.paths import PUSHES, parse_push_path, push_path
from wlc.farm.store import AlreadyExistsError, MissingError

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.farm.errors import CorruptError
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


_DOCUMENT = Document("push", Push, name="id", hint="Delete {where}.")
encode_push, decode_push = _DOCUMENT.encode, _DOCUMENT.decode


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
