"""Whether another program may have written a master's file since the last session that captured.

DuckDB numbers the checkpoints of a file, in its header. The last thing that a session writes is the number of its own
last checkpoint. If the file has another number, or a write-ahead log is left, another program has written the file, or
the session died. Then a table is in doubt until it was compared with what was captured, which happens before the first
commit that removes or changes rows of the table: the images of rows that the log does not know would stop each replica.

A program that writes the file through DuckDB alone, while the same process captures, is not noticed.
"""

from __future__ import annotations

import json
import shlex
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from wlc.capture.duckdb import unpublished
from wlc.dialect.duckdb import snapshot
from wlc.dialect.duckdb.opening import has_log
from wlc.farm import json_fields as fields
from wlc.farm.digest import differing
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wlc.capture.duckdb.shared import Shared

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


def watch(shared: Shared, *, is_new: bool = False) -> None:
    """Find out which tables are in doubt, when a file was just opened, or has become a master: none then."""
    if is_new or shared.is_master:
        shared.opened = shared.opened or shared.file.open("rb")
        last = checkpoints(shared.opened)
        shared.doubt = Doubt() if is_new else decode(shared.written, last, has_log=has_log(shared.file))


def note(shared: Shared) -> None:
    """Note which checkpoint will be the last one of this session, which is about to close the file: the next one."""
    if shared.is_master and shared.opened is not None:
        last = checkpoints(shared.opened)
        if has_log(shared.file) or encode(last, shared.doubt) != shared.written:
            shared.write({KEY: encode(last + 1, shared.doubt)})


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


def changed(shared: Shared, tables: Iterable[Name]) -> list[Name]:
    """Compare the tables that are in doubt, and return those that hold other rows than were captured."""
    if not (doubtful := shared.doubt.of(tables)):
        return []
    with shared.reading() as connection:
        expected = unpublished.expected_digests(connection, shared.catalog, shared.work)
        held = snapshot.digests(connection, shared.catalog, doubtful)
    found = differing(held, expected)
    shared.doubt.compared.update(held.keys() - set(found))
    return found


def refuse_changed(shared: Shared, tables: Iterable[Name]) -> None:
    """Refuse to publish removed or changed rows of tables that hold other rows than were captured.

    Raises:
        UnsupportedError: There is such a table.
    """
    if found := changed(shared, tables):
        raise UnsupportedError(
            f"rows of {', '.join(map(str, found))} were changed without wlc.connect(), and replicas do not have them",
            hint=f"wlc repair {shlex.quote(shared.path)}",
            path=shared.path,
        )
