"""A witness: the last position that somebody has seen of each database, kept in a file of the reader's own.

Signatures show who wrote a file, not that it is the newest. A replica that exists notices a farm that ends before its
own position. A reader that begins anew has no position; a witness gives it one.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wlc.farm.documents import Document
from wlc.farm.errors import InvalidError
from wlc.farm.model import Position
from wlc.farm.seal.keys import WITNESS
from wlc.farm.store import open_store
from wlc.farm.versioned import VersionedObject

VARIABLE = "WLC_WITNESS_FILE"


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last position of each database, by URL."""

    seen: Mapping[str, Position]


_DOCUMENT = Document(
    "witness",
    _Seen,
    hint="Restore it, or delete {where} if you are sure that the farm is complete; a new one begins then.",
)


@dataclass(frozen=True, slots=True)
class Witness:
    """What a file says of one database.

    Attributes:
        file: The file; it need not exist yet.
        url: URL or path of the database's folder in the farm.
    """

    file: Path
    url: str

    def seen(self) -> Position | None:
        """Return the last position that was seen, None before the first.

        Raises:
            CorruptError: The file is damaged.
            InvalidError: It cannot be read.
        """
        found = self._object.load()
        return found[0].seen.get(self.url) if found else None

    def note(self, position: Position) -> None:
        """Note a position that was read and verified; an earlier one than the last changes nothing.

        Raises:
            InvalidError: The file cannot be written.
        """

        def noted(present: _Seen | None) -> _Seen:
            known = dict(present.seen if present else {})
            last = known.get(self.url)
            if last is None or (last.tick, last.batch) < (position.tick, position.batch):
                known[self.url] = position
            return _Seen(dict(sorted(known.items())))

        if position.history:
            self._object.change(noted)

    @property
    def _object(self) -> VersionedObject[_Seen]:
        if not self.file.parent.is_dir():
            message = f"there is no folder {self.file.parent} for the witness {self.file}"
            raise InvalidError(message, hint=f"mkdir -p {shlex.quote(str(self.file.parent))}", path=str(self.file))
        store = open_store(str(self.file.parent))
        return VersionedObject(
            store, self.file.name, _DOCUMENT.encode, lambda data: _DOCUMENT.decode(data, str(self.file))
        )


def witness_of(options: Mapping[str, Any] | None, url: str) -> Witness | None:
    """Return the witness of a database that options or the environment name, None if they name none."""
    file = (options or {}).get(WITNESS) or os.environ.get(VARIABLE)
    if not file:
        return None
    place = url if "://" in url else str(Path(url).absolute())
    return Witness(Path(str(file)).expanduser().absolute(), place)
