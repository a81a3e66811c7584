"""Whether another program may have written a master's file since the last session that captured.

DuckDB numbers the checkpoints of a file, in its header. The last thing that a session writes is the number of its own
last checkpoint. If the file has another number, or a write-ahead log is left, another program has written the file, or
the session died. Then a table is in doubt until it was compared with what was captured, which happens before the first
commit that removes or changes rows of the table: the images of rows that the log does not know would stop each replica.

A program that writes the file through DuckDB alone, while the same process captures, is not noticed.
"""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.opening import has_log
from wlc.farm import json_fields as fields
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def checkpoints(path: Path) -> int:
    """Return how many checkpoints a database file has had that this process has open; 0 if the file cannot be read.

    DuckDB's own descriptor is read: if a process closes another one, it gives up DuckDB's lock on the file (POSIX).
    """
    data = _headers(path).ljust(3 * _HEADER_BYTES, b"\0")
    # Two headers take turns. Each begins with its checksum.
    numbers = (struct.unpack_from("<Q", data, place * _HEADER_BYTES + 8)[0] for place in (1, 2))
    return int(max(numbers))


def _headers(path: Path) -> bytes:
    wanted = path.stat()
    for descriptor in (int(entry.name) for entry in Path("/dev/fd").iterdir()):
        # The descriptor of the listing itself is closed by now.
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), wanted):
                return os.pread(descriptor, 3 * _HEADER_BYTES, 0)
    return b""


def found(path: Path, written: str | None) -> Doubt:
    """Return what is in doubt when a file was just opened; `written` is what `to_note` gave last."""
    return decode(written, checkpoints(path), has_log=has_log(path))


def to_note(path: Path, doubt: Doubt, written: str | None) -> dict[str, str]:
    """Return what to write to `wlc.state` before a file is closed: the next checkpoint is the session's last one.

    It is empty if nothing was written since the last note.
    """
    last = checkpoints(path)
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
