"""Files below a folder, found name by name: a symbolic link among the names is an error, wherever it leads."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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
    """Open the folder that has the last name of `path` in `folder`; raises as `open_folder` does."""
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
    """Open the file that has the last name of `path` in `folder`, as `os.open` does.

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
    """Create the file that has the last name of `path` in `folder`, with bytes or a copy of a file; return it open."""
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
    """Give a file another name in `folder`; say whether that was possible, as on the same disk."""
    try:
        os.link(file, name, dst_dir_fd=folder)
    except OSError:
        return False
    return True


def look(folder: int, path: str) -> os.stat_result | None:
    """Return what is known of the file that has the last name of `path` in `folder`, None if there is none.

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
