"""What a farm database says of another one that is derived from it: where that is, and what passes.

It is kept with the first database, which readers of the derived one cannot read, and encrypted as its log is:
conditions and names of columns tell what is kept back. Documents are numbered and never changed; the newest one counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.farm import json_fields as fields
from wlc.farm.documents import decode_document, encode_document
from wlc.farm.errors import UnavailableError
from wlc.farm.model import FORMAT_VERSION, Origin, Position
from wlc.farm.paths import DERIVED, derived_path, parse_derived_path
from wlc.farm.store import AlreadyExistsError
from wlr.derivation.choice import ChosenTables, as_choice, choice_json

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase

_KIND = "derived"


@dataclass(frozen=True, slots=True)
class Derivation:
    """A derived database, as the one says from which it is derived.

    Attributes:
        url: URL of the derived database's folder.
        history: Its present history.
        start: Where in the first database that history begins.
        parent: What it grew from, None for the first one.
        behind: Batch of the derived database behind which it begins, and its chain hash; 0 and "" for the first one.
        choice: What passes.
    """

    url: str
    history: str
    start: Position
    choice: ChosenTables
    mark: str
    parent: Origin | None = None
    behind: tuple[int, str] = (0, "")


def find_derivation(database: FarmDatabase, name: str) -> tuple[Derivation, int] | None:
    """Return what a database says of one that is derived from it, and the number of that document; None if nothing.

    Raises:
        CorruptError: The newest document is damaged.
    """
    listed = (parse_derived_path(entry.path) for entry in database.store.list(f"{DERIVED}{name}/"))
    number = max((parsed[1] for parsed in listed if parsed), default=0)
    if not number:
        return None
    path = derived_path(name, number)
    return _decode(database.store.read(path), f"{database.url}/{path}"), number


def add_derivation(database: FarmDatabase, name: str, number: int, said: Derivation) -> Derivation:
    """Say something new of a derived database; nothing that was said before is changed.

    Args:
        database: From which it is derived.
        name: Its name.
        number: Of the new document, one more than that of the last.
        said: What to say.

    Raises:
        UnavailableError: Somebody else was faster.
    """
    try:
        database.store.create(derived_path(name, number), _encode(said))
    except AlreadyExistsError as error:
        found = find_derivation(database, name)
        # The answer to our own request may have been lost.
        if found is None or found != (said, number):
            message = f"{said.url} was derived by somebody else meanwhile"
            raise UnavailableError(message, hint="Try again.") from error
    return said


def _encode(found: Derivation) -> bytes:
    number, chain = found.behind
    return encode_document(
        _KIND,
        {
            "format": FORMAT_VERSION,
            "url": found.url,
            "history": found.history,
            "start": fields.position_json(found.start) if found.start.history else None,
            "mark": found.mark,
            "parent": fields.origin_json(found.parent),
            "behind": {"batch": number, "chain": chain},
            **choice_json(found.choice),
        },
    )


def _decode(data: bytes, where: str) -> Derivation:
    return decode_document(_KIND, data, where, _read, hint="Put it back from a backup, or derive another database.")


def _read(content: dict[str, Any]) -> Derivation:
    fields.known_format(content, "url history start mark parent behind filters tables", "info")
    behind = fields.as_object(content["behind"])
    return Derivation(
        url=fields.as_text(content["url"]),
        history=fields.as_history(content["history"]),
        start=Position("", 0) if content["start"] is None else fields.as_position(content["start"]),
        choice=as_choice({"filters": content["filters"], "tables": content["tables"]}),
        mark=fields.as_sha256(content["mark"]),
        parent=fields.as_parent(content["parent"]),
        behind=(fields.as_count(behind["batch"]), fields.as_text(behind["chain"])),
    )
