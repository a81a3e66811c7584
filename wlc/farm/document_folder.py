"""All documents of one kind in a folder of a store; a damaged document is represented by its error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from wlc.farm.errors import CorruptError
from wlc.farm.store import MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wlc.farm.store import Store, StoredObject

Content = TypeVar("Content")

# Requests at once to a store that is far away.
_AT_ONCE = 8


def read_folder(
    store: Store,
    prefix: str,
    parse: Callable[[str], object | None],
    decode: Callable[[bytes, str], Content],
    before: Mapping[str, tuple[StoredObject, Content | CorruptError]] | None = None,
) -> dict[str, tuple[StoredObject, Content | CorruptError]]:
    """Return the documents of a folder by path, in order: the listed object, and its content or its error.

    Args:
        store: Where they are.
        prefix: The folder, with a slash at its end.
        parse: Returns None for the path of any other object.
        decode: Reads a document, given its bytes and its URL.
        before: Result of the previous call; only objects that arrived since are read.
    """

    def read(entry: StoredObject) -> Content | CorruptError | None:
        try:
            return decode(store.read(entry.path), f"{store.url}/{entry.path}")
        except MissingError:
            return None  # Deleted by another process after the listing.
        except CorruptError as error:
            return error

    listed = [entry for entry in store.list(prefix) if parse(entry.path) is not None]
    found = {}
    for entry in listed:
        known = (before or {}).get(entry.path)
        if known is not None and (known[0].arrived, known[0].bytes) == (entry.arrived, entry.bytes):
            found[entry.path] = known
    new = [entry for entry in listed if entry.path not in found]
    if store.is_remote and len(new) > 1:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            contents = list(pool.map(read, new))
    else:
        contents = list(map(read, new))
    found |= {entry.path: (entry, content) for entry, content in zip(new, contents, strict=True) if content is not None}
    return dict(sorted(found.items()))


def parted(
    found: Mapping[str, tuple[StoredObject, Content | CorruptError]],
) -> tuple[list[Content], list[CorruptError]]:
    """Split the result of `read_folder` into contents and errors."""
    contents, wrong = [], []
    for _, content in found.values():
        if isinstance(content, CorruptError):
            wrong.append(content)
        else:
            contents.append(content)
    return contents, wrong
