"""What a farm database says of another one that is derived from it: where that is, and what passes.

It is kept with the first database, which readers of the derived one cannot read, and encrypted as its log is:
conditions and names of columns tell what is kept back. Documents are numbered and never changed; the newest one counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from wlc.farm.documents import Document
from wlc.farm.errors import UnavailableError
from wlc.farm.json_fields import History, JsonForm, Sha256, as_count, as_object, as_text, known
from wlc.farm.model import Parent
from wlc.farm.paths import DERIVED, derived_path, parse_derived_path
from wlc.farm.store import AlreadyExistsError
from wlr.derivation.choice import InlineChoice
from wlr.engine.state import StartOrPosition

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase

_BEHIND = ("batch", "chain")


def _as_behind(value: object) -> tuple[int, str]:
    content = as_object(value)
    known(content, " ".join(_BEHIND))
    return as_count(content["batch"]), as_text(content["chain"])


Behind = Annotated[tuple[int, str], JsonForm(_as_behind, lambda behind: dict(zip(_BEHIND, behind, strict=True)))]


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

    may_have_info: ClassVar = True
    url: str
    history: History
    start: StartOrPosition
    mark: Sha256
    parent: Parent | None
    behind: Behind
    choice: InlineChoice


_DOCUMENT = Document("derived", Derivation, hint="Put it back from a backup, or derive another database.")


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
    return _DOCUMENT.decode(database.store.read(path), f"{database.url}/{path}"), number


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
        database.store.create(derived_path(name, number), _DOCUMENT.encode(said))
    except AlreadyExistsError as error:
        found = find_derivation(database, name)
        # The answer to our own request may have been lost.
        if found is None or found != (said, number):
            message = f"{said.url} was derived by somebody else meanwhile"
            raise UnavailableError(message, hint="Try again.") from error
    return said
