"""Whether another program may have written a master's file since the last session that captured.

DuckDB numbers the checkpoints of a file, in its header. The last thing that a session writes is the number of its own
last checkpoint. If the file has another number, or a write-ahead log is left, another program has written the file, or
the session died. Then a table is in doubt until it was compared with what was captured, which happens before the first
commit that removes or changes rows of the table: the images of rows that the log does not know would stop each replica.

A program that writes the file through DuckDB alone, while the same process captures, is not noticed.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from wlc.dialect.duckdb.opening import has_log
from wlc.farm import json_fields as fields
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Key of `wlc.state`.
KEY = "written"
_HEADER_BYTES = 4096


@dataclass(slots=True)
class Doubt:
    """Which tables may hold rows that were not captured.

    Attributes:
        is_open: All tables, but for those that were compared.
        compared: Tables that were compared since the doubt arose.
    """

    is_open: bool = False
    compared: set[Name] = field(default_factory=set)

    def of(self, tables: Iterable[Name]) -> list[Name]:
        """Return the tables that are in doubt."""
        return [name for name in tables if name not in self.compared] if self.is_open else []


def checkpoints(file: BinaryIO) -> int:
    """Return how many checkpoints a database file has had: the greater number of its two headers, which take turns."""
    file.seek(0)
    data = file.read(3 * _HEADER_BYTES).ljust(3 * _HEADER_BYTES, b"\0")
    # A header begins with its checksum.
    numbers = (struct.unpack_from("<Q", data, place * _HEADER_BYTES + 8)[0] for place in (1, 2))
    return int(max(numbers))


def found(file: BinaryIO, path: Path, written: str | None) -> Doubt:
    """Return what is in doubt when a file was just opened; `written` is what `to_note` gave last."""
    return decode(written, checkpoints(file), has_log=has_log(path))


def to_note(file: BinaryIO, path: Path, doubt: Doubt, written: str | None) -> dict[str, str]:
    """Return what to write to `wlc.state` before a file is closed: the next checkpoint is the session's last one.

    It is empty if nothing was written since the last note.
    """
    last = checkpoints(file)
    is_noted = not has_log(path) and encode(last, doubt) == written
    return {} if is_noted else {KEY: encode(last + 1, doubt)}


def encode(checkpoint: int, doubt: Doubt) -> str:
    """Write what the next session has to know, as JSON."""
    compared = [[name.schema, name.name] for name in sorted(doubt.compared)] if doubt.is_open else None
    return json.dumps({"checkpoint": checkpoint, "compared": compared})


def decode(text: str | None, checkpoint: int, *, has_log: bool) -> Doubt:
    """Return what is in doubt when a file is opened.

    Args:
        text: What `encode` wrote, None if nothing.
        checkpoint: Number of the file's last checkpoint.
        has_log: A write-ahead log was left.
    """
    try:
        values = fields.as_object(fields.DECODER.decode(text or ""))
        if has_log or values["checkpoint"] != checkpoint:
            return Doubt(is_open=True)
        if (compared := values["compared"]) is None:
            return Doubt()
        names = (map(fields.as_text, fields.as_list(each)) for each in fields.as_list(compared))
        return Doubt(is_open=True, compared={Name(*name) for name in names})
    except (ValueError, KeyError, TypeError):
        return Doubt(is_open=True)
