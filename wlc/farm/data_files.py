"""Data files of batches and snapshots in a store: created under a name that is free, fetched and verified."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from wlc.farm import paths
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.store import AlreadyExistsError, MissingError, OversizedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from wlc.farm.model import DataFile
    from wlc.farm.store import Store

_UPLOADS = 8


def hash_file(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, in bounded memory."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def create_all(store: Store, wanted: Sequence[DataFile], files: Mapping[str, Path], folder: str = "") -> dict[str, str]:
    """Create data files, several at once because each waits for a disk or a network, and return their names."""

    def create(file: DataFile) -> str:
        return _create_data(store, file, files, folder)

    # A connection that was not closed publishes while the interpreter ends, when no thread can be started any more.
    if len(wanted) < 2 or not threading.main_thread().is_alive():
        return {file.path: create(file) for file in wanted}
    with ThreadPoolExecutor(_UPLOADS) as pool:
        return {file.path: name for file, name in zip(wanted, pool.map(create, wanted), strict=True)}


def _create_data(store: Store, file: DataFile, files: Mapping[str, Path], folder: str = "") -> str:
    """Create one data file under its plain name, or a stamped one if another file has that, and return the name."""
    local = files[file.path]
    if local.stat().st_size != file.bytes:
        raise InvalidError(f"{local} has {local.stat().st_size} bytes, {file.path} should have {file.bytes}")
    for path in (file.path, paths.with_stamp(file.path, file.sha256[:16])):
        try:
            store.create(folder + path, local)
        except AlreadyExistsError:
            if not _holds(store, folder + path, file):
                continue
        return path
    raise CorruptError(f"{store.url}/{folder}{path} is not what its name says", path=f"{store.url}/{folder}{path}")


def _holds(store: Store, path: str, file: DataFile) -> bool:
    try:
        local = store.fetch(path, file.bytes)
    except OversizedError:
        return False
    try:
        return local.stat().st_size == file.bytes and hash_file(local) == file.sha256
    finally:
        store.release(local)


def fetch_verified(store: Store, file: DataFile, folder: str, *, is_checked: bool = True) -> Path:
    """Return a local copy of a data file, to be released.

    Args:
        store: Where it is.
        file: What the log file or manifest says of it.
        folder: The folder that its path is relative to.
        is_checked: Compare its content with the checksum, and not its size only.

    Raises:
        CorruptError: The file is missing or not what the log file or manifest says.
    """
    path = folder + paths.check_relative(file.path, store.url)
    where = f"{store.url}/{path}"
    try:
        local = store.fetch(path, file.bytes)
    except MissingError as error:
        raise CorruptError(f"data file {where} is missing", path=where) from error
    except OversizedError as error:
        raise CorruptError(f"data file {where} is damaged: {error.message}", path=where) from error
    if local.stat().st_size != file.bytes or (is_checked and hash_file(local) != file.sha256):
        store.release(local)
        raise CorruptError(f"data file {where} is damaged: size or SHA-256 differ from what was published", path=where)
    return local
