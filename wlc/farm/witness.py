"""A witness: the last position that somebody has seen of each database, kept in a file of the reader's own.

Signatures show who wrote a file, not that it is the newest. A replica that exists notices a farm that ends before its
own position. A reader that begins anew has no position; a witness gives it one.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm import json_fields as fields
from wlc.farm.documents import decode_document, encode_document
from wlc.farm.errors import InvalidError
from wlc.farm.model import FORMAT_VERSION
from wlc.farm.seal.keys import WITNESS
from wlc.farm.store import open_store
from wlc.farm.versioned import VersionedObject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.farm.model import Position

VARIABLE = "WLC_WITNESS_FILE"

Positions = dict[str, "Position"]


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
        return found[0].get(self.url) if found else None

    def note(self, position: Position) -> None:
        """Note a position that was read and verified; an earlier one than the last changes nothing.

        Raises:
            InvalidError: The file cannot be written.
        """

        def noted(present: Positions | None) -> Positions:
            known = dict(present or {})
            last = known.get(self.url)
            if last is None or (last.tick, last.batch) < (position.tick, position.batch):
                known[self.url] = position
            return known

        if position.history:
            self._object.change(noted)

    @property
    def _object(self) -> VersionedObject[Positions]:
        if not self.file.parent.is_dir():
            message = f"there is no folder {self.file.parent} for the witness {self.file}"
            raise InvalidError(message, hint=f"mkdir -p {shlex.quote(str(self.file.parent))}", path=str(self.file))
        store = open_store(str(self.file.parent))
        return VersionedObject(store, self.file.name, _encode, lambda data: _decode(data, str(self.file)))


def witness_of(options: Mapping[str, Any] | None, url: str) -> Witness | None:
    """Return the witness of a database that options or the environment name, None if they name none."""
    file = (options or {}).get(WITNESS) or os.environ.get(VARIABLE)
    if not file:
        return None
    place = url if "://" in url else str(Path(url).absolute())
    return Witness(Path(str(file)).expanduser().absolute(), place)


def _encode(positions: Positions) -> bytes:
    seen = {url: fields.position_json(position) for url, position in sorted(positions.items())}
    return encode_document("witness", {"format": FORMAT_VERSION, "seen": seen})


def _decode(data: bytes, where: str) -> Positions:
    def read(content: dict[str, Any]) -> Positions:
        fields.known_format(content, "seen")
        return {url: fields.as_position(position) for url, position in fields.as_object(content["seen"]).items()}

    hint = f"Restore it, or delete {where} if you are sure that the farm is complete; a new one begins then."
    return decode_document("witness", data, where, read, hint=hint)
