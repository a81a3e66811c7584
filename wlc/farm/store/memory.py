"""A store in this process's memory, for tests and trials; the same URL is the same store."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

from wlc.farm.clock import utc_now
from wlc.farm.paths import check_relative
from wlc.farm.store.bucket import Downloads
from wlc.farm.store.contract import Store, StoredObject, StoredObjects

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from datetime import datetime
    from pathlib import Path

_objects: dict[str, bytes] = {}
_arrivals: dict[str, datetime] = {}
_BEGIN = utc_now()
_lock = threading.Lock()


class MemoryStore(Store):
    """Objects are in one dictionary of the process under their full URL."""

    def __init__(self, url: str, objects: MutableMapping[str, bytes] = _objects) -> None:
        self.url = url
        self._objects = objects
        self._downloads = Downloads()

    def read(self, path: str) -> bytes:
        try:
            return self._objects[self._key(path)]
        except KeyError as error:
            raise self.missing(path) from error

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        data = self.read(path)
        return data, _version(data)

    def fetch(self, path: str, bytes_max: int | None = None) -> Path:
        data = self.read(path)
        self.refuse_more(path, len(data), bytes_max)
        file = self._downloads.new_file(path)
        file.write_bytes(data)
        return file

    def release(self, file: Path) -> None:
        self._downloads.release(file)

    def list(self, prefix: str = "", *, recursive: bool = True, after: str = "") -> StoredObjects:
        start = len(self.url) + 1
        folder = prefix.rpartition("/")[0]
        depth = folder.count("/") + 1 if folder else 0
        with _lock:
            every = [
                StoredObject(key[start:], len(data), _arrivals.get(key, _BEGIN))
                for key, data in self._objects.items()
                if self._holds(key, prefix)
            ]
        return sorted(e for e in every if e.path > after and (recursive or e.path.count("/") == depth))

    def exists(self, path: str) -> bool:
        return self._key(path) in self._objects

    def create(self, path: str, data: bytes | Path) -> None:
        content = data if isinstance(data, bytes) else data.read_bytes()
        with _lock:
            if self._key(path) in self._objects:
                raise self.already_exists(path)
            self._put(path, content)

    def replace(self, path: str, data: bytes, version: str | None) -> str:
        with _lock:
            present = self._objects.get(self._key(path))
            if (None if present is None else _version(present)) != version:
                raise self.conflict(path)
            self._put(path, data)
        return _version(data)

    def delete(self, path: str) -> None:
        with _lock:
            self._objects.pop(self._key(path), None)

    def _put(self, path: str, data: bytes) -> None:
        self._objects[self._key(path)] = data
        _arrivals[self._key(path)] = utc_now()

    def _key(self, path: str) -> str:
        return f"{self.url}/{check_relative(path, self.url)}"

    def _holds(self, key: str, prefix: str) -> bool:
        return key.startswith(f"{self.url}/{prefix}")


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
