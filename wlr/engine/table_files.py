"""Data files of tables in a folder or bucket, written by this process or by tasks of a cluster."""

from __future__ import annotations

from contextlib import contextmanager
from secrets import token_hex
from typing import TYPE_CHECKING
from urllib.parse import quote

from wlc.farm.database import describe_file, hash_file
from wlc.farm.errors import CorruptError
from wlc.farm.seal.checksum import checksum
from wlc.farm.store import MissingError
from wlr.replay.fold.file_rewrite import Piece
from wlr.replay.fold.files import FilePart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wlc.farm.model import Name
    from wlc.farm.store import Store

DATA = "data/"
# File systems take 255 bytes.
_NAME_MAX = 200


def table_prefix(table: Name, tick: int) -> str:
    """Start of the paths of a table's data files of a tick; a stamp follows."""
    folder = quote(str(table), safe=" ")
    if len(folder) > _NAME_MAX:
        # The name of a folder is never parsed, so a long name is cut; a checksum keeps it unique.
        folder = f"{folder[:_NAME_MAX]}-{checksum(folder.encode())[:12]}"
    return f"{DATA}{folder}/{tick:012d}-"


@contextmanager
def fetched(store: Store, part: FilePart, *, is_checked: bool = True) -> Iterator[Piece]:
    """Provide a part as a verified local file.

    Args:
        store: Its store.
        part: Its entry in the manifest.
        is_checked: Compare the checksum of its content, not only its size.

    Raises:
        CorruptError: It is missing or changed.
    """
    where = f"{store.url}/{part.file.path}"
    try:
        file = store.fetch(part.file.path, part.file.bytes)
    except MissingError as error:
        raise CorruptError(f"{where} is missing", hint="Rebuild the replica.", path=where) from error
    try:
        if file.stat().st_size != part.file.bytes or (is_checked and hash_file(file) != part.file.sha256):
            raise CorruptError(f"{where} was changed after it was written", hint="Rebuild the replica.", path=where)
        yield Piece(file, part.file.rows, part.low, part.high)
    finally:
        store.release(file)


def publish(store: Store, table: Name, tick: int, pieces: Iterable[Piece]) -> tuple[FilePart, ...]:
    """Put new files into the replica under unique names; they become visible when a manifest names them."""
    prefix, stamp = table_prefix(table, tick), token_hex(6)
    parts = []
    for number, piece in enumerate(pieces):
        path = f"{prefix}{stamp}-{number}.parquet"
        part = FilePart(describe_file(piece.path, path, piece.rows), piece.low, piece.high)
        store.create(path, piece.path)
        parts.append(part)
    return tuple(parts)
