"""The contract of every store, and the one test of whether a store fulfils it."""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from wlc.farm.errors import CorruptError, FarmError, InvalidError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


# Start of the names of objects that only test the store.
PROBE = "wlc_probe_"


# Documents and log files are read into memory whole, so a larger one is refused before it is read.
READ_LIMIT_VARIABLE = "WLC_READ_LIMIT_BYTES"
_READ_LIMIT_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 20


class MissingError(InvalidError):
    """There is no such object in the store."""


class OversizedError(CorruptError):
    """The object has more bytes than it may have; it was not read."""


class AlreadyExistsError(FarmError):
    """Another process created the object; it is unchanged."""


class ConflictError(UnavailableError):
    """Another process replaced the object since it was read: read it again, then retry."""


@dataclass(frozen=True, order=True, slots=True)
class StoredObject:
    """An object of a store.

    Attributes:
        path: Relative to the store.
        bytes: Its size.
        arrived: When it was written, by the store's own clock.
    """

    path: str
    bytes: int
    arrived: datetime = field(default=datetime.min.replace(tzinfo=UTC), compare=False)


# The method of the same name hides the type inside the class.
StoredObjects: TypeAlias = list[StoredObject]


class Store(ABC):
    """Immutable objects under relative paths, plus compare-and-swap for the few that change.

    A batch is published by one `create`: exclusive, and all or nothing. If the answer is lost, the store reads the
    object back and never guesses. The same holds for `replace`.

    Attributes:
        url: Where the store is, without a slash at its end and without credentials.
        seeks: Whether `list` goes to `after` at once; a directory is read whole.
        is_remote: Whether a request takes long, so that several at once take less time.
        unused_version: A version that no object has, in the quotes of an ETag.
    """

    url: str
    seeks: bool = True
    is_remote: bool = False
    unused_version: str = f'"{"0" * 32}"'

    @property
    def raw(self) -> Store:
        """The store of the stored bytes: itself, unless it encrypts."""
        return self

    def opened(self, path: str, data: bytes) -> bytes:  # noqa: ARG002 - an encrypting store binds objects to paths
        """Return the result of `read` for an object with these bytes in the raw store.

        Raises:
            CorruptError: The bytes are damaged or belong to another object.
        """
        return data

    def opened_chunks(self, path: str, file: Path) -> Iterator[bytes]:  # noqa: ARG002
        """Yield the same in pieces for an object whose raw bytes are in a local file."""
        with file.open("rb") as handle:
            while chunk := handle.read(_CHUNK_BYTES):
                yield chunk

    def raw_bytes(self, path: str, count: int) -> int:  # noqa: ARG002
        """Return the greatest size in the raw store of an object of `count` bytes."""
        return count

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the object's bytes.

        Raises:
            MissingError: There is no such object.
            CorruptError: It is not an ordinary object, or exceeds the limit of bytes in memory.
        """

    @abstractmethod
    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Return the object's bytes and its version, for `replace`.

        Raises:
            MissingError: There is no such object.
        """

    @abstractmethod
    def fetch(self, path: str, bytes_max: int | None = None) -> Path:
        """Return a local file with the object's bytes; callers only read it.

        A local store returns the file itself; any other downloads it to a folder that lives as long as the store,
        or until `release`.

        Args:
            path: Where.
            bytes_max: Maximum size of the object in bytes; None for no limit.

        Raises:
            MissingError: There is no such object.
            OversizedError: It has more than `bytes_max`. It was not downloaded.
        """

    @abstractmethod
    def release(self, file: Path) -> None:
        """Release a file that `fetch` returned, so that downloads do not accumulate."""

    @abstractmethod
    def list(self, prefix: str = "", *, recursive: bool = True, after: str = "") -> StoredObjects:
        """List objects whose path starts with `prefix`, sorted by path; can be empty.

        Args:
            prefix: Any start of a path, not only a folder.
            recursive: Whether to list objects in folders below the prefix's folder.
            after: List only paths greater than this one.
        """

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders right below a folder, given with a slash at its end, sorted."""
        names = (entry.path[len(prefix) :].split("/") for entry in self.list(prefix))
        return sorted({first for first, *rest in names if rest})

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Say whether there is such an object."""

    @abstractmethod
    def create(self, path: str, data: bytes | Path) -> None:
        """Create the object, exclusively and whole.

        Args:
            path: Where.
            data: Its bytes, or a file with them. The file may become the object: do not write to it afterwards.

        Raises:
            AlreadyExistsError: There is one. It is unchanged, even if its bytes are the same.
            UnavailableError: The outcome is unknown. Retry: an object that this call created is then reported as
                existing.
        """

    def stage(self, path: str, data: bytes | Path) -> bytes | Path:  # noqa: ARG002
        """Prepare an object, so that many objects that must be created in order wait for the disk in parallel.

        Returns:
            The `data` argument of `create` for this path. `create` then makes the object visible at once, whole and
            exclusively; it is durable when `make_durable` returns. Release it if it is not created. An input
            file is not changed.
        """
        return data

    def make_durable(self, path: str) -> None:  # noqa: B027 - most stores create durable objects
        """Make objects durable that were staged and created beside `path`."""

    @abstractmethod
    def replace(self, path: str, data: bytes, version: str | None) -> str:
        """Replace the object if it still has `version` (None: if there is none) and return its new version.

        Raises:
            ConflictError: It has another version. Read again and retry.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete the object; nothing happens if there is none."""

    def place(self) -> object:
        """Return a key that identifies this store in the process; None if testing it again is free."""
        return None

    def prepare(self) -> None:  # noqa: B027 - most stores need no folder to be there
        """Create the folder for the objects, so that a missing folder later means that it was moved away."""

    def sweep(self, age_s: float) -> None:  # noqa: B027 - a store whose writers leave nothing has nothing to do
        """Remove temporary files that killed writers have left, older than `age_s` seconds."""

    def probe(self) -> None:
        """Test whether the store honours preconditions. Nothing is left behind if the user may delete objects.

        Raises:
            UnsupportedError: It does not; a farm on it could lose transactions.
        """
        path = f"{PROBE}{secrets.token_hex(8)}"
        try:
            self._probe(path)
        finally:
            # A user with the right to add but not to delete leaves this object behind.
            with suppress(InvalidError):
                self.delete(path)

    def _probe(self, path: str) -> None:
        self.create(path, b"first")
        for attempt in (lambda: self.create(path, b"second"), lambda: self.replace(path, b"second", None)):
            try:
                attempt()
            except (AlreadyExistsError, ConflictError):
                continue
            raise self.refusal("overwrites an object that must be created exclusively")
        data, stale = self.read_versioned(path)
        if data != b"first":
            raise self.refusal("does not return what was written")
        try:
            self.replace(path, b"third", stale)
        except InvalidError:
            # The user has no right to replace this object; `wlc.config` and the like may still be replaced.
            return
        try:
            self.replace(path, b"fourth", stale)
        except ConflictError:
            return
        raise self.refusal("replaces an object that has another version")

    def refusal(self, defect: str) -> UnsupportedError:
        """Build the error for a store that violates the contract."""
        return UnsupportedError(
            f"{self.url} cannot hold a farm or a replica: it {defect}",
            hint="Use a store that honours If-None-Match and If-Match (AWS S3, recent MinIO, Ceph), or a directory.",
            path=self.url,
        )

    def refuse_oversized(self, path: str, size: int) -> None:
        """Refuse to read an object into memory if `size` exceeds the limit.

        Raises:
            CorruptError: It is.
        """
        text = os.environ.get(READ_LIMIT_VARIABLE, "")
        limit = int(text) if text.isdecimal() else _READ_LIMIT_BYTES
        if size > limit:
            where = f"{self.url}/{path}"
            message = f"{where} has {size} bytes, at most {limit} are read into memory"
            raise CorruptError(message, hint=f"export {READ_LIMIT_VARIABLE}={size} reads it", path=where)

    def refuse_more(self, path: str, size: int, bytes_max: int | None) -> None:
        """Refuse an object of `size` bytes that may have `bytes_max`.

        Raises:
            OversizedError: It has more.
        """
        if bytes_max is not None and size > bytes_max:
            where = f"{self.url}/{path}"
            raise OversizedError(f"{where} has {size} bytes, at most {bytes_max} were published", path=where)

    def missing(self, path: str) -> MissingError:
        """Build the error for a missing object."""
        return MissingError(f"there is no {self.url}/{path}", path=f"{self.url}/{path}")

    def already_exists(self, path: str) -> AlreadyExistsError:
        """Build the error for an existing object."""
        return AlreadyExistsError(f"{self.url}/{path} exists already", path=f"{self.url}/{path}")

    def conflict(self, path: str) -> ConflictError:
        """Build the error for an object that changed meanwhile."""
        return ConflictError(
            f"{self.url}/{path} was changed by another process", hint="Try again.", path=f"{self.url}/{path}"
        )
