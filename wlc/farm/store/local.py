"""A directory as a store: exclusive creation by hard link, durable before it is visible."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import time
from contextlib import contextmanager, suppress
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.errors import CorruptError, FarmError, InvalidError, UnavailableError, UnsupportedError
from wlc.farm.paths import check_relative
from wlc.farm.store.contract import AlreadyExistsError, Store, StoredObject, StoredObjects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LOCK = ".wlc.lock"
_FULL = {errno.ENOSPC, errno.EDQUOT}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalStore(Store):
    """Objects are files below one directory; names that start with a dot are the store's own."""

    seeks = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)
        self._was_there = False
        self._staged: set[Path] = set()
        self._is_durable = True

    def read(self, path: str) -> bytes:
        with self._translated(path):
            data = self._bytes(path)
        self._was_there = True
        return data

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        data = self.read(path)
        return data, _version(data)

    def fetch(self, path: str, bytes_max: int | None = None) -> Path:
        if not self.exists(path):
            raise self.missing(path)
        file = self._file(path)
        with self._translated(path):
            self.refuse_more(path, file.stat().st_size, bytes_max)
        return file

    def release(self, file: Path) -> None:
        """Keep a file that is the object itself."""
        if file in self._staged:
            self._staged.discard(file)
            file.unlink(missing_ok=True)

    def list(self, prefix: str = "", *, recursive: bool = True, after: str = "") -> StoredObjects:
        folder = self.root / prefix.rpartition("/")[0]
        with self._translated(prefix):
            entries = _files(self.root, folder, prefix, recursive=recursive)
            return sorted(entry for entry in entries if entry.path > after)

    def folders(self, prefix: str = "") -> Sequence[str]:
        folder = self.root / prefix
        with self._translated(prefix):
            return sorted(found.name for found in folder.iterdir() if found.is_dir()) if folder.is_dir() else []

    def exists(self, path: str) -> bool:
        self._was_there = self._was_there or self.root.is_dir()
        with self._translated(path):
            return self._file(path).is_file()

    def create(self, path: str, data: bytes | Path) -> None:
        target = self._file(path)
        with self._translated(path):
            if isinstance(data, Path) and data in self._staged:
                self._link(data, target, path)
                self.release(data)
                return
            with self._temporary(target, data) as temporary:
                self._link(temporary, target, path)
                self._synchronize(target.parent)

    def _link(self, temporary: Path, target: Path, path: str) -> None:
        try:
            os.link(temporary, target)
        except OSError as error:
            # A network file system can lose the answer to a link that it made.
            if not _is_same_file(temporary, target):
                if isinstance(error, FileExistsError):
                    raise self.already_exists(path) from error
                if error.errno in _NO_LINKS:
                    raise self.refusal("has no hard links") from error
                raise

    def stage(self, path: str, data: bytes | Path) -> Path:
        target = self._file(path)
        with self._translated(path):
            # Two farms must not share a file.
            file = self._write_beside(target, data, links=False)
        self._staged.add(file)
        return file

    def settle(self, path: str) -> None:
        folder = self._file(path).parent
        with self._translated(path):
            if folder.is_dir():
                synchronize(folder)

    def replace(self, path: str, data: bytes, version: str | None) -> str:
        if version is None:
            try:
                # A link cannot take the place of what another process creates meanwhile.
                self.create(path, data)
            except AlreadyExistsError as error:
                raise self.conflict(path) from error
            return _version(data)
        target = self._file(path)
        with self._translated(path), self._locked(target):
            if not target.exists() or _version(self._bytes(path)) != version:
                raise self.conflict(path)
            with self._temporary(target, data) as temporary:
                temporary.replace(target)
            self._synchronize(target.parent)
        return _version(data)

    def delete(self, path: str) -> None:
        target = self._file(path)
        with self._translated(path):
            if not os.path.lexists(target):
                return
            was_there = (target.parent / _LOCK).exists()
            # Without the lock, a change that was just compared could take the place of an object created anew.
            with self._locked(target, is_needed=False) as lock:
                target.unlink(missing_ok=True)
                if not was_there:
                    # It would keep the folder; whoever waits for it notices that it is gone.
                    lock.unlink(missing_ok=True)
            _remove_empty_folders(target.parent, self.root)

    @contextmanager
    def _locked(self, target: Path, *, is_needed: bool = True) -> Iterator[Path]:
        """Hold the lock of an object's folder exclusively; the kernel releases it when the process dies.

        Args:
            target: The object.
            is_needed: Whether to fail where the lock cannot be made; on a full disk objects can still be deleted.
        """
        lock = target.parent / _LOCK
        while True:
            self._make_folder(target.parent)
            try:
                descriptor = _open_lock(lock)
            except FileNotFoundError:
                # Another process deleted the last object of the folder, and the folder with it, in between.
                continue
            except OSError as error:
                if is_needed or error.errno not in _FULL:
                    raise
                # Nobody else can have made it either.
                yield lock
                return
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if _is_still(lock, descriptor):
                    yield lock
                    return
            finally:
                os.close(descriptor)

    def prepare(self) -> None:
        with self._translated(""):
            _make_folder(self.root)

    def probe(self) -> None:
        # What only tests the file system need not survive a loss of power.
        tested = copy(self)
        tested._is_durable = False
        super(LocalStore, tested).probe()

    def _synchronize(self, path: Path) -> None:
        if self._is_durable:
            synchronize(path)

    def sweep(self, age_s: float) -> None:
        before = time.time() - age_s
        for file in self.root.rglob(".*.tmp"):
            with self._translated(file.name), suppress(FileNotFoundError):
                if file.stat().st_mtime < before:
                    file.unlink()

    def _file(self, path: str) -> Path:
        return self.root / check_relative(path, self.url)

    def _bytes(self, path: str) -> bytes:
        # A pipe or a device in the place of a file would block, or never end.
        descriptor = os.open(self._file(path), os.O_RDONLY | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not stat.S_ISREG(found.st_mode):
                where = f"{self.url}/{path}"
                raise CorruptError(f"{where} is not a regular file", hint="Remove it.", path=where)
            self.refuse_oversized(path, found.st_size)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(descriptor)

    @contextmanager
    def _temporary(self, target: Path, data: bytes | Path) -> Iterator[Path]:
        """Write `data` durably beside `target`, and remove it afterwards."""
        temporary = self._write_beside(target, data)
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _write_beside(self, target: Path, data: bytes | Path, *, links: bool = True) -> Path:
        """Write `data` durably to a temporary file beside `target`, readable as the umask allows."""
        temporary = target.parent / f".{secrets.token_hex(16)}.tmp"
        try:
            for attempt in (1, 2):
                self._make_folder(target.parent)
                try:
                    if not (links and isinstance(data, Path) and _link(data, temporary)):
                        _write(temporary, data)
                    self._synchronize(temporary)
                    break
                except FileNotFoundError:
                    # Another process deleted the last object of the folder, and the folder with it, in between.
                    if attempt == 2 or (isinstance(data, Path) and not data.exists()):
                        raise
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _make_folder(self, folder: Path) -> None:
        """Create a folder of the store, durably.

        The store's own folder is not created again if it was there before: somebody moved it away, or its disk is not
        mounted, and a second one in its place would split the farm.
        """
        if folder != self.root:
            self._make_folder(folder.parent)
            _make_one(folder)
        elif not self._was_there:
            _make_folder(folder)

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        where = f"{self.url}/{path}"
        try:
            yield
        except FarmError:
            raise
        except FileNotFoundError as error:
            raise self.missing(path) from error
        except PermissionError as error:
            raise InvalidError(f"no permission for {where}", hint="Check owner and mode.", path=where) from error
        except (NotADirectoryError, IsADirectoryError) as error:
            raise InvalidError(f"{where}: {error.strerror}", hint="Choose another path.", path=where) from error
        except OSError as error:
            raise UnavailableError(f"{where}: {error.strerror}", hint="Try again later.", path=where) from error

    def refusal(self, defect: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.url} cannot hold a farm or a replica: its file system {defect}",
            hint="Use a directory on a file system with hard links and locks, or an S3 bucket.",
            path=self.url,
        )


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(file: Path, data: bytes | Path) -> None:
    if isinstance(data, Path):
        # The kernel moves the bytes.
        shutil.copyfile(data, file)
    else:
        file.write_bytes(data)


def _link(data: Path, file: Path) -> bool:
    """Let a file on the same disk be the object's instead of a copy of it."""
    try:
        file.hardlink_to(data)
    except OSError:
        return False
    return True


def _make_folder(folder: Path) -> None:
    """Create `folder` and those above it, each durable in the one above."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    _make_one(folder)


def _make_one(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        synchronize(folder.parent)


def synchronize(path: Path) -> None:
    """Write a file, or the names in a folder, through to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_lock(file: Path) -> int:
    """Open a lock file, one of another user too, who may let us read it only."""
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        return os.open(file, os.O_RDONLY)


def _is_still(file: Path, descriptor: int) -> bool:
    """Say whether an open file still has its name."""
    try:
        return os.path.samestat(file.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _files(root: Path, folder: Path, prefix: str, *, recursive: bool) -> Iterator[StoredObject]:
    try:
        found = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for item in found:
        path = Path(item.path).relative_to(root).as_posix()
        if item.name.startswith(".") or not (path.startswith(prefix) or prefix.startswith(f"{path}/")):
            continue
        if item.is_dir():
            if recursive:
                yield from _files(root, Path(item.path), prefix, recursive=True)
            continue
        try:
            status = item.stat()
        except FileNotFoundError:
            continue  # Deleted while we listed.
        yield StoredObject(path, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


def _remove_empty_folders(folder: Path, root: Path) -> None:
    while folder != root and root in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
