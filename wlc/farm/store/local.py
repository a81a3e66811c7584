"""A directory as a store: exclusive creation by hard link, durable before it is visible.

Files below a folder, found name by name: a symbolic link among the names is an error, wherever it leads.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import sys
import time
from contextlib import contextmanager, suppress
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from wlc.farm.errors import CorruptError, FarmError, InvalidError, UnavailableError, UnsupportedError
from wlc.farm.paths import check_relative
from wlc.farm.store.contract import AlreadyExistsError, Store, StoredObject, StoredObjects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# Linux opens a folder for its names alone if its files may be used, but not listed.
_FOLDER = os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)


class LinkError(Exception):
    """A symbolic link is in the place of a file or a folder.

    Attributes:
        path: Its path below the root.
        target: Where it leads.
    """

    def __init__(self, path: str, target: str) -> None:
        super().__init__(path)
        self.path = path
        self.target = target


def open_folder(root: str | os.PathLike[str], path: str, *, makes: bool = False) -> int:
    """Open a folder and return its descriptor, which other calls take as `dir_fd`.

    Args:
        root: May itself be a symbolic link.
        path: Path of the folder below the root, empty for the root.
        makes: Whether to create the folders that are missing, durably.

    Raises:
        LinkError: The path leads through a link.
        OSError: There is no such folder, or it cannot be opened.
    """
    folder = os.open(root, _FOLDER)
    at = ""
    for name in path.split("/") if path else ():
        at = f"{at}/{name}" if at else name
        outer = folder
        try:
            folder = _made(outer, at) if makes else enter(outer, at)
        finally:
            os.close(outer)
    return folder


def enter(folder: int, path: str) -> int:
    """Open the folder named by the last part of `path` in `folder`; raises as `open_folder` does."""
    return open_file(folder, path, _FOLDER)


def _made(folder: int, path: str) -> int:
    while True:
        try:
            return enter(folder, path)
        except FileNotFoundError:
            # Another process may create the folder, or delete it while it is empty.
            with suppress(FileExistsError):
                os.mkdir(_name(path), dir_fd=folder)
            synchronize_folder(folder)


def open_file(folder: int, path: str, flags: int, mode: int = 0o666) -> int:
    """Open the file named by the last part of `path` in `folder`, as `os.open` does.

    Raises:
        LinkError: It is a link.
    """
    try:
        return os.open(_name(path), flags | os.O_NOFOLLOW, mode, dir_fd=folder)
    except OSError:
        # Systems report a link as ELOOP, EMLINK or ENOTDIR.
        look(folder, path)
        raise


def write_file(folder: int, path: str, data: bytes | Path) -> int:
    """Create the file named by the last part of `path` in `folder` from bytes or a file's copy; return it open."""
    descriptor = open_file(folder, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as target:
            if isinstance(data, bytes):
                target.write(data)
                return descriptor
            with data.open("rb", buffering=0) as source:
                if sys.platform == "linux":
                    # The kernel moves the bytes, if both file systems let it.
                    with suppress(OSError):
                        while os.sendfile(descriptor, source.fileno(), None, 1 << 30):
                            pass
                shutil.copyfileobj(source, target, 1 << 20)
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def link_file(file: Path, folder: int, name: str) -> bool:
    """Hard-link a file into `folder`; say whether that was possible, as on the same disk."""
    try:
        os.link(file, name, dst_dir_fd=folder)
    except OSError:
        return False
    return True


def look(folder: int, path: str) -> os.stat_result | None:
    """Return the status of the file named by the last part of `path` in `folder`, None if there is none.

    Raises:
        LinkError: It is a link.
    """
    try:
        found = os.stat(_name(path), dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        raise LinkError(path, os.readlink(_name(path), dir_fd=folder))
    return found


def readable(folder: int) -> int:
    """Open a folder again, for its list of names."""
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)


def synchronize_folder(folder: int) -> None:
    """Write the names in a folder through to the disk."""
    descriptor = readable(folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


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
        with self._translated(path), self._beside(path) as (folder, _):
            return self._bytes(folder, path)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        data = self.read(path)
        return data, _version(data)

    def fetch(self, path: str, bytes_max: int | None = None) -> Path:
        with self._translated(path):
            found = self._status(path)
            if found is None or not stat.S_ISREG(found.st_mode):
                raise self.missing(path)
            self.refuse_more(path, found.st_size, bytes_max)
        return self.root / path

    def release(self, file: Path) -> None:
        """Do nothing: the file is the object itself."""
        if file in self._staged:
            self._staged.discard(file)
            with suppress(FileNotFoundError), self._beside(file.relative_to(self.root).as_posix()) as (folder, name):
                os.unlink(name, dir_fd=folder)

    def list(self, prefix: str = "", *, recursive: bool = True, after: str = "") -> StoredObjects:
        at = prefix.rpartition("/")[0]
        with self._translated(prefix), suppress(FileNotFoundError, NotADirectoryError), self._folder(at) as folder:
            entries = _files(folder, at, prefix, recursive=recursive)
            return sorted(entry for entry in entries if entry.path > after)
        return []

    def folders(self, prefix: str = "") -> Sequence[str]:
        at = prefix.rstrip("/")
        with self._translated(prefix), suppress(FileNotFoundError, NotADirectoryError), self._names(at) as found:
            # A link to a folder is one of them: it can be the root of another store.
            return sorted(item.name for item in found if item.is_dir())
        return []

    def exists(self, path: str) -> bool:
        with self._translated(path):
            found = self._status(path)
            return found is not None and stat.S_ISREG(found.st_mode)

    def create(self, path: str, data: bytes | Path) -> None:
        with self._translated(path):
            if isinstance(data, Path) and data in self._staged:
                with self._beside(path) as (folder, _):
                    self._link(folder, data.name, path)
                self.release(data)
                return
            with self._temporary(path, data) as (folder, temporary):
                self._link(folder, temporary, path)
                self._synchronize(folder)

    def _link(self, folder: int, temporary: str, path: str) -> None:
        name = path.rpartition("/")[2]
        try:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            # A network file system can lose the answer to a link that it made.
            if not _is_same_file(folder, temporary, path):
                if isinstance(error, FileExistsError):
                    raise self.already_exists(path) from error
                if error.errno in _NO_LINKS:
                    raise self.refusal("has no hard links") from error
                raise

    def stage(self, path: str, data: bytes | Path) -> Path:
        with self._translated(path):
            # Two farms must not share a file.
            folder, name = self._write_beside(path, data, links=False)
            os.close(folder)
        file = (self.root / path).with_name(name)
        self._staged.add(file)
        return file

    def make_durable(self, path: str) -> None:
        with self._translated(path), suppress(FileNotFoundError), self._beside(path) as (folder, _):
            synchronize_folder(folder)

    def replace(self, path: str, data: bytes, version: str | None) -> str:
        if version is None:
            try:
                # A link cannot take the place of what another process creates meanwhile.
                self.create(path, data)
            except AlreadyExistsError as error:
                raise self.conflict(path) from error
            return _version(data)
        with self._translated(path), self._locked(path) as (folder, name):
            if look(folder, path) is None or _version(self._bytes(folder, path)) != version:
                raise self.conflict(path)
            with self._temporary(path, data) as (beside, temporary):
                os.replace(temporary, name, src_dir_fd=beside, dst_dir_fd=folder)
            self._synchronize(folder)
        return _version(data)

    def delete(self, path: str) -> None:
        with self._translated(path):
            if self._status(path) is None:
                return
            was_there = self._status(_lock_of(path)) is not None
            # Without the lock, a change after its comparison could replace a newly created object.
            with self._locked(path, is_needed=False) as (folder, name):
                for unneeded in (name,) if was_there else (name, _LOCK):
                    # A lock file would keep the folder; a process that waits for the lock notices that it is gone.
                    with suppress(FileNotFoundError):
                        os.unlink(unneeded, dir_fd=folder)
            self._remove_empty_folders(path)

    def _remove_empty_folders(self, path: str) -> None:
        while path := path.rpartition("/")[0]:
            try:
                with self._beside(path) as (folder, name):
                    os.rmdir(name, dir_fd=folder)
            except OSError:
                return

    @contextmanager
    def _locked(self, path: str, *, is_needed: bool = True) -> Iterator[tuple[int, str]]:
        """Hold the lock of an object's folder exclusively; the kernel releases it when the process dies.

        Args:
            path: The object.
            is_needed: Whether to fail if the lock cannot be made; on a full disk objects can still be deleted.

        Returns:
            The folder, open, and the object's name in it.
        """
        while True:
            with self._beside(path, makes=True) as (folder, name):
                try:
                    descriptor = _open_lock(folder, path)
                except FileNotFoundError:
                    # Another process deleted the last object of the folder, and the folder with it, in between.
                    continue
                except OSError as error:
                    if is_needed or error.errno not in _FULL:
                        raise
                    # No other process can have made it either.
                    yield folder, name
                    return
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    if _is_still(folder, _lock_of(path), descriptor):
                        yield folder, name
                        return
                finally:
                    os.close(descriptor)

    def prepare(self) -> None:
        with self._translated(""):
            _make_folder(self.root)

    def probe(self) -> None:
        # Objects that only test the file system need not survive a power failure.
        tested = copy(self)
        tested._is_durable = False
        super(LocalStore, tested).probe()

    def _synchronize(self, folder: int) -> None:
        if self._is_durable:
            synchronize_folder(folder)

    def sweep(self, age_s: float) -> None:
        before = time.time() - age_s
        with self._translated(""), suppress(FileNotFoundError), self._folder("") as root:
            for at, _, names, folder in os.fwalk(".", dir_fd=root):
                for name in names:
                    if name.startswith(".") and name.endswith(".tmp"):
                        with self._translated(f"{at}/{name}".removeprefix("./")), suppress(FileNotFoundError):
                            _remove_old(folder, name, before)

    @contextmanager
    def _folder(self, path: str) -> Iterator[int]:
        folder = self._opened(path and check_relative(path, self.url))
        try:
            yield folder
        finally:
            os.close(folder)

    def _opened(self, path: str, *, makes: bool = False) -> int:
        """Open a folder of the store; with `makes`, create missing folders durably.

        The store's own folder is not created again if it existed before: it was moved away, or its disk is not mounted,
        and a second folder in its place would split the farm.
        """
        try:
            folder = open_folder(self.root, path, makes=makes)
        except FileNotFoundError:
            if self._was_there or not makes:
                raise
            _make_folder(self.root)
            folder = open_folder(self.root, path, makes=makes)
        self._was_there = True
        return folder

    @contextmanager
    def _beside(self, path: str, *, makes: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder of an object; yield it with the object's name in it."""
        at, _, name = check_relative(path, self.url).rpartition("/")
        folder = self._opened(at, makes=makes)
        try:
            yield folder, name
        finally:
            os.close(folder)

    @contextmanager
    def _names(self, path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with self._folder(path) as folder:
            descriptor = readable(folder)
            try:
                with os.scandir(descriptor) as found:
                    yield found
            finally:
                os.close(descriptor)

    def _status(self, path: str) -> os.stat_result | None:
        """Return what is known of a file, None if there is none."""
        with suppress(FileNotFoundError, NotADirectoryError), self._beside(path) as (folder, _):
            return look(folder, path)
        return None

    def _bytes(self, folder: int, path: str) -> bytes:
        # A pipe or a device in the place of a file would block, or never end.
        descriptor = open_file(folder, path, os.O_RDONLY | os.O_NONBLOCK)
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
    def _temporary(self, path: str, data: bytes | Path) -> Iterator[tuple[int, str]]:
        """Write `data` durably beside the object, yield the folder and the name, and remove the file afterwards."""
        folder, temporary = self._write_beside(path, data)
        try:
            yield folder, temporary
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            os.close(folder)

    def _write_beside(self, path: str, data: bytes | Path, *, links: bool = True) -> tuple[int, str]:
        """Write `data` durably to a temporary file in the object's folder, readable as the umask allows.

        Returns:
            The folder, open, and the name of the file.
        """
        at = check_relative(path, self.url).rpartition("/")[0]
        try:
            return self._written(at, data, links=links)
        except FileNotFoundError:
            if isinstance(data, Path) and not data.exists():
                raise
            # Another process deleted the last object of the folder, and the folder with it, in between.
            return self._written(at, data, links=links)

    def _written(self, at: str, data: bytes | Path, *, links: bool) -> tuple[int, str]:
        temporary = f".{secrets.token_hex(16)}.tmp"
        folder = self._opened(at, makes=True)
        try:
            if links and isinstance(data, Path) and link_file(data, folder, temporary):
                descriptor = open_file(folder, temporary, os.O_RDONLY)
            else:
                descriptor = write_file(folder, temporary, data)
            try:
                if self._is_durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            os.close(folder)
            raise
        return folder, temporary

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        where = f"{self.url}/{path}"
        try:
            yield
        except FarmError:
            raise
        except LinkError as link:
            raise self._link_found(link) from link
        except FileNotFoundError as error:
            raise self.missing(path) from error
        except PermissionError as error:
            raise InvalidError(f"no permission for {where}", hint="Check owner and mode.", path=where) from error
        except (NotADirectoryError, IsADirectoryError) as error:
            raise InvalidError(f"{where}: {error.strerror}", hint="Choose another path.", path=where) from error
        except OSError as error:
            if error.errno == errno.EROFS:
                message = f"{where} is on a file system that is mounted read-only"
                raise InvalidError(message, hint=f"mount -o remount,rw {_mounted(self.url)}", path=where) from error
            raise UnavailableError(f"{where}: {error.strerror}", hint="Try again later.", path=where) from error

    def _link_found(self, link: LinkError) -> CorruptError:
        where = f"{self.url}/{link.path}"
        target = str(Path(where).parent / link.target)
        return CorruptError(
            f"{where} is a symbolic link to {link.target}; links inside of a farm or a lake are not followed",
            hint=f"rm {quote(where)}, and if it is yours: cp -a {quote(target)} {quote(where)}",
            path=where,
        )

    def refusal(self, defect: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.url} cannot hold a farm or a replica: its file system {defect}",
            hint="Use a directory on a file system with hard links and locks, or an S3 bucket.",
            path=self.url,
        )


def _mounted(place: str) -> str:
    """Return where the file system of a path is mounted, quoted for a shell."""
    there = Path(place).absolute()
    return quote(str(next(folder for folder in (there, *there.parents) if folder.is_mount())))


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _make_folder(folder: Path) -> None:
    """Create `folder` and its parents, each durable in its parent."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    synchronize(folder.parent)


def synchronize(path: Path) -> None:
    """Write a file, or the names in a folder, through to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_lock(folder: int, path: str) -> int:
    """Open the lock file beside an object, even another user's file that is only readable."""
    try:
        return open_file(folder, _lock_of(path), os.O_RDWR | os.O_CREAT)
    except PermissionError:
        return open_file(folder, _lock_of(path), os.O_RDONLY)


def _lock_of(path: str) -> str:
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{_LOCK}"


def _is_still(folder: int, path: str, descriptor: int) -> bool:
    """Say whether an open file still has its name."""
    found = look(folder, path)
    return found is not None and os.path.samestat(found, os.fstat(descriptor))


def _is_same_file(folder: int, one: str, other: str) -> bool:
    first, second = look(folder, one), look(folder, other)
    return first is not None and second is not None and os.path.samestat(first, second)


def _remove_old(folder: int, name: str, before: float) -> None:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISREG(found.st_mode) and found.st_mtime < before:
        os.unlink(name, dir_fd=folder)


def _files(folder: int, at: str, prefix: str, *, recursive: bool) -> Iterator[StoredObject]:
    """Yield the files in an open folder whose path begins with `prefix`."""
    descriptor = readable(folder)
    try:
        with os.scandir(descriptor) as found:
            for item in found:
                path = f"{at}/{item.name}" if at else item.name
                if not item.name.startswith(".") and (path.startswith(prefix) or prefix.startswith(f"{path}/")):
                    # Another process may delete files during the listing.
                    with suppress(FileNotFoundError):
                        yield from _listed(descriptor, path, item, prefix, recursive=recursive)
    finally:
        os.close(descriptor)


def _listed(folder: int, path: str, item: os.DirEntry[str], prefix: str, *, recursive: bool) -> Iterator[StoredObject]:
    if not item.is_dir(follow_symlinks=False):
        # A link can stand for a folder. A listing that does not enter folders gives its name, but it cannot be read.
        found = look(folder, path) if recursive and item.is_symlink() else item.stat(follow_symlinks=False)
        if found is not None:
            yield StoredObject(path, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))
    elif recursive:
        inner = enter(folder, path)
        try:
            yield from _files(inner, path, prefix, recursive=True)
        finally:
            os.close(inner)
