"""A store whose objects are encrypted before they leave this machine, around any other store.

An encrypted object is a header (magic, id of the key, salt) and chunks of AES-256-GCM, bound to the object's place in
the farm: a truncated, changed or moved object is not decrypted. `wlc.config`, the retention policy, tags, and the
registrations of replicas and relays stay readable, so that operators can inspect a farm without its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.paths import (
    ATTACHMENT,
    CIRCLE,
    CLAIMS,
    CONFIG,
    FEEDS,
    HEALTH,
    PRUNING,
    PUSHES,
    REPLICAS,
    RETENTION,
    SNAPSHOT_LEASE,
    TAGS,
    TIERS,
    UPSTREAMS,
)
from wlc.farm.seal import cipher
from wlc.farm.store.bucket import Downloads
from wlc.farm.store.contract import PROBE, Store, StoredObjects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from wlc.farm.seal.keys import Key, Keys

# No log file, manifest or Parquet file begins like this.
MAGIC = b"dbfarm\x00encrypted\x001"
_ID_BYTES = 16
_HEADER_BYTES = len(MAGIC) + _ID_BYTES + cipher.SALT_BYTES
_SEALED_BYTES = cipher.CHUNK_BYTES + cipher.TAG_BYTES


def is_encrypted(data: bytes) -> bool:
    """Say whether an object, as it lies in a store, is encrypted."""
    return data.startswith(MAGIC)


def refuse_encrypted(data: bytes, where: str) -> None:
    """Refuse an encrypted object if the reader has no key.

    Raises:
        InvalidError: It is.
    """
    if is_encrypted(data):
        key = data[len(MAGIC) :][:_ID_BYTES].decode("ascii", "replace")
        message = f"{where} is encrypted with key {key}, and no encryption key is given"
        hint = "Set WLC_ENCRYPTION_KEY or WLC_ENCRYPTION_KEY_FILE, or add --storage-option encryption_key_file=FILE."
        raise InvalidError(message, hint=hint, path=where)


class EncryptedStore(Store):
    """Encrypts created objects and decrypts read ones.

    Args:
        inner: The store of the encrypted objects; listings give its sizes.
        place: Base of the paths, independent of the farm's URL: objects are bound to it.
        keys: Encryption keys.
    """

    def __init__(self, inner: Store, place: str, keys: Keys) -> None:
        self.inner = inner
        self.url = inner.url
        self.seeks, self.is_remote, self.unused_version = inner.seeks, inner.is_remote, inner.unused_version
        self._place = place
        self._keys = keys
        self._downloads = Downloads()

    @property
    def raw(self) -> Store:
        return self.inner

    def read(self, path: str) -> bytes:
        return self.opened(path, self.inner.read(path))

    def opened(self, path: str, data: bytes) -> bytes:
        if _is_plain(path) or self._is_allowed_plain(data[:_HEADER_BYTES], path):
            return data
        chunks = (data[at : at + _SEALED_BYTES] for at in range(_HEADER_BYTES, len(data), _SEALED_BYTES))
        return b"".join(self._opened(data[:_HEADER_BYTES], path, chunks))

    def opened_chunks(self, path: str, file: Path) -> Iterator[bytes]:
        with file.open("rb") as source:
            header = source.read(_HEADER_BYTES)
            if not _is_plain(path) and not self._is_allowed_plain(header, path):
                yield from self._opened(header, path, _chunks(source, _SEALED_BYTES))
                return
        yield from self.inner.opened_chunks(path, file)

    def raw_bytes(self, path: str, count: int) -> int:
        if _is_plain(path):
            return count
        chunks = max(1, -(-count // cipher.CHUNK_BYTES))
        return _HEADER_BYTES + count + chunks * cipher.TAG_BYTES

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        # Only readable objects are replaced.
        return self.inner.read_versioned(path)

    def fetch(self, path: str, bytes_max: int | None = None) -> Path:
        found = self.inner.fetch(path, None if bytes_max is None else self.raw_bytes(path, bytes_max))
        if _is_plain(path):
            return found
        with found.open("rb") as source:
            header = source.read(_HEADER_BYTES)
            if self._is_allowed_plain(header, path):
                return found
            target = self._downloads.new_file(path)
            try:
                target.touch(mode=0o600)
                _write(target, self._opened(header, path, _chunks(source, _SEALED_BYTES)))
            except BaseException:
                self._downloads.release(target)
                raise
            finally:
                self.inner.release(found)
        return target

    def release(self, file: Path) -> None:
        self._downloads.release(file)
        self.inner.release(file)

    def list(self, prefix: str = "", *, recursive: bool = True, after: str = "") -> StoredObjects:
        return self.inner.list(prefix, recursive=recursive, after=after)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def create(self, path: str, data: bytes | Path) -> None:
        if _is_plain(path):
            self.inner.create(path, data)
        elif isinstance(data, bytes):
            chunks = (data[at : at + cipher.CHUNK_BYTES] for at in range(0, len(data), cipher.CHUNK_BYTES))
            self.inner.create(path, b"".join(self._sealed(path, chunks)))
        else:
            target = self._downloads.new_file(path)
            try:
                with data.open("rb") as source:
                    _write(target, self._sealed(path, _chunks(source, cipher.CHUNK_BYTES)))
                self.inner.create(path, target)
            finally:
                self._downloads.release(target)

    def replace(self, path: str, data: bytes, version: str | None) -> str:
        assert _is_plain(path), f"{path} is encrypted, and never replaced"
        return self.inner.replace(path, data, version)

    def delete(self, path: str) -> None:
        self.inner.delete(path)

    def prepare(self) -> None:
        self.inner.prepare()

    def sweep(self, age_s: float) -> None:
        self.inner.sweep(age_s)

    def folders(self, prefix: str = "") -> Sequence[str]:
        return self.inner.folders(prefix)

    def probe(self) -> None:
        self.inner.probe()

    def _sealed(self, path: str, chunks: Iterable[bytes]) -> Iterator[bytes]:
        key, salt = self._keys.encryption[0], cipher.random_bytes(cipher.SALT_BYTES)
        header = MAGIC + key.id.encode() + salt
        yield header
        yield from cipher.sealed(key.content, salt, self._context(header, path), _at_least_one(chunks))

    def _opened(self, header: bytes, path: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
        key, salt = self._key(header, path), header[-cipher.SALT_BYTES :]
        try:
            yield from cipher.opened(key.content, salt, self._context(header, path), _at_least_one(chunks))
        except cipher.ForgedError as error:
            where = f"{self.url}/{path}"
            message = f"{where} cannot be decrypted: it is damaged, cut off, or not what was published there"
            raise CorruptError(message, path=where) from error

    def _context(self, header: bytes, path: str) -> bytes:
        return header + f"{self._place}/{path}".encode()

    def _key(self, header: bytes, path: str) -> Key:
        id_ = header[len(MAGIC) :][:_ID_BYTES].decode("ascii", "replace")
        where, known = f"{self.url}/{path}", self._keys.encryption
        for key in known:
            if key.id == id_ and len(header) == _HEADER_BYTES:
                return key
        given = ", ".join(key.id for key in known)
        message = f"{where} is encrypted with key {id_}, which is not among those given ({given})"
        raise InvalidError(message, hint="Add that key to the key file, behind the one that writes.", path=where)

    def _is_allowed_plain(self, header: bytes, path: str) -> bool:
        """Say whether an object is not encrypted.

        Raises:
            CorruptError: It is not, and must be.
        """
        if is_encrypted(header):
            return False
        if self._keys.allows_unencrypted:
            return True
        where = f"{self.url}/{path}"
        hint = (
            "Another writer put it there. If it is older than the farm's encryption: "
            "--storage-option allow_unencrypted=true, or set WLC_ALLOW_UNENCRYPTED=1."
        )
        raise CorruptError(f"{where} must be encrypted, and is not", hint=hint, path=where)


def _is_plain(path: str) -> bool:
    return path in (CONFIG, CIRCLE, TIERS, ATTACHMENT, RETENTION, HEALTH, SNAPSHOT_LEASE) or path.startswith(
        (REPLICAS, FEEDS, UPSTREAMS, CLAIMS, PUSHES, TAGS, PRUNING, PROBE)
    )


def _at_least_one(chunks: Iterable[bytes]) -> Iterator[bytes]:
    found = iter(chunks)
    yield next(found, b"")
    yield from found


def _chunks(source: BinaryIO, size: int) -> Iterator[bytes]:
    while chunk := source.read(size):
        yield chunk


def _write(target: Path, chunks: Iterable[bytes]) -> None:
    with target.open("wb") as handle:
        for chunk in chunks:
            handle.write(chunk)
