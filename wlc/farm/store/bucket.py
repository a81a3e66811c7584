"""Common code of cloud stores: objects below a prefix, and conditional writes whose answer may be lost.

Local copies of remote objects, deleted with their store.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import weakref
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from wlc.farm.errors import FarmError, InvalidError
from wlc.farm.paths import check_relative
from wlc.farm.retry import REQUEST_ATTEMPTS
from wlc.farm.store.contract import Store, StoredObjects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Downloads:
    """A folder for local copies, created at first use and removed with its store."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def new_file(self, path: str) -> Path:
        """Return an unused file name; its ending is that of `path`."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="dbfarm_"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder / f"{secrets.token_hex(8)}_{path.rpartition('/')[2]}"

    def release(self, file: Path) -> None:
        """Remove a copy early."""
        if file.parent == self._folder:
            file.unlink(missing_ok=True)


# Name of a piece of metadata of every object that dbfarm writes.
STAMP = "wlc-attempt"
Answer = TypeVar("Answer")


def reason_of(error: Exception) -> str:
    """Say why there was no answer, without drivers' texts, which can hold credentials."""
    return str(error) if isinstance(error, NoAnswerError) else type(error).__name__


class NoAnswerError(OSError):
    """The answer is not from the service but, for example, a proxy's login page: the outcome is unknown.

    A store accepts only answers that have the service's marks.
    """

    def __init__(self, status: object, content_type: object, lacks: str) -> None:
        super().__init__(f"the answer is not from a store: {status} {str(content_type or '')[:40]} without {lacks}")


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """Metadata of an object as the service reports it.

    Attributes:
        version: The value that a conditional write compares: an ETag or a generation.
        stamp: The random stamp of the write that made it, empty if another program made it.
        bytes: Its size.
    """

    version: str
    stamp: str
    bytes: int


class BucketStore(Store):
    """Objects below one prefix of a bucket.

    Every conditional write carries a random stamp in the object's metadata. When its answer is lost or ambiguous (a
    retry inside the client finds what its first attempt wrote), the stamp in the object says whether this write created
    it.

    Attributes:
        driver_errors: Exceptions of the client.
        refused: HTTP statuses after which the same request fails again.
    """

    is_remote = True
    driver_errors: tuple[type[Exception], ...]
    refused = frozenset({"400", "401", "403", "405", "501"})

    def __init__(self, scheme: str, location: str) -> None:
        self.bucket, _, self._prefix = location.partition("/")
        if not self.bucket:
            raise InvalidError(f"the URL {scheme}:// names no bucket", hint=f"Write {scheme}://bucket/folder.")
        self.url = f"{scheme}://{location}"
        self._downloads = Downloads()

    def read(self, path: str) -> bytes:
        return self.read_versioned(path)[0]

    def release(self, file: Path) -> None:
        self._downloads.release(file)

    def exists(self, path: str) -> bool:
        return self._head(path) is not None

    def create(self, path: str, data: bytes | Path) -> None:
        self._write(path, data, None, self.already_exists)

    def replace(self, path: str, data: bytes, version: str | None) -> str:
        return self._write(path, data, version, self.conflict)

    def list(self, prefix: str = "", *, recursive: bool = True, after: str = "") -> StoredObjects:
        # Services list in UTF-8 order, but do not guarantee it.
        return sorted(self._listed(prefix, recursive=recursive, after=after)[0])

    def folders(self, prefix: str = "") -> Sequence[str]:
        start = len(self._below(prefix))
        return sorted({name[start:].strip("/") for name in self._listed(prefix, recursive=False)[1]} - {""})

    @abstractmethod
    def _listed(self, prefix: str, *, recursive: bool, after: str = "") -> tuple[StoredObjects, Sequence[str]]:
        """Return the objects, in any order, and the full names of the folders that were not entered."""

    @abstractmethod
    def _head(self, path: str) -> ObjectHead | None:
        """Return an object's metadata, None if there is no object."""

    @abstractmethod
    def _put(self, path: str, data: bytes | Path, stamp: str, version: str | None) -> str:
        """Write if the object has `version` (None: if it does not exist) and return its new version, once."""

    @abstractmethod
    def _status(self, error: Exception) -> str:
        """Return the HTTP status of the answer that led to `error`, empty if there was none."""

    @abstractmethod
    def _raise(self, error: Exception, path: str) -> NoReturn:
        """Translate the client's exception; its text can hold credentials, so only codes and names pass."""

    def _write(self, path: str, data: bytes | Path, version: str | None, refusal: Callable[[str], FarmError]) -> str:
        """Write if the object has `version` (None: if it does not exist). After a lost answer, read the object back."""
        stamp = secrets.token_hex(16)
        for attempt in range(1, REQUEST_ATTEMPTS + 1):
            try:
                return self._put(path, data, stamp, version)
            except FarmError:
                # Some are ValueErrors, as are some of the drivers'.
                raise
            except self.driver_errors as error:
                status = self._status(error)
                if status in self.refused or self._is_no_bucket(error):
                    self._raise(error, path)
                present = self._head(path)
                if present is not None and present.stamp == stamp:
                    return present.version
                has_version = version == (present.version if present else None)
                if status == "412" or not has_version:
                    raise refusal(path) from error
                # 409 and the version still there: a competing write was under way and failed.
                if status != "409" or attempt == REQUEST_ATTEMPTS:
                    self._raise(error, path)
        raise AssertionError("the last attempt returns or raises")

    def _is_no_bucket(self, error: Exception) -> bool:  # noqa: ARG002 - some services say it by a status alone
        return False

    def _below(self, path: str) -> str:
        return f"{self._prefix}/{path}" if self._prefix else path

    def _key(self, path: str) -> str:
        return self._below(check_relative(path, self.url))

    def _name(self, key: str) -> str:
        """Return the path of the object with this key."""
        return key[len(self._below("")) :]

    def _do(self, path: str, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except FarmError:
            raise
        except self.driver_errors as error:
            self._raise(error, path)
