"""A file as the output of a feed, with each record once.

A run appends lines and syncs the file, then replaces the position beside it. `FILE.position` holds the length of the
file at that moment. Longer content is a torn tail, which the next run cuts off. A rotated file keeps its name, and the
next one is `FILE.000001`: a name never changes its file, and the step to the next file is one replacement of the
position. A run locks `.FILE.lock` while it writes: a lease can expire while its holder is suspended, a kernel lock
cannot.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy

from wlc.farm.errors import CorruptError, FarmError, InvalidError, UnavailableError
from wlc.farm.paths import check_relative
from wlc.farm.store.local import synchronize
from wlr.reading.feeds.contract import OpenOutput, Output
from wlr.reading.feeds.feed_state import POSITION, position_of
from wlr.reading.file_endings import format_of_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from wlc.farm.database import FarmDatabase
    from wlc.farm.versioned import VersionedObject
    from wlr.reading.feeds.feed_state import FeedState
    from wlr.reading.feeds.formats import Format
    from wlr.reading.feeds.rendering import FeedPiece


_JSON = ("json", "debezium")
_ENDINGS = {".jsonl": _JSON, ".json": _JSON, ".ndjson": _JSON, ".csv": ("csv",)}
_OTHER_FILES = "Give another --to, or move the file away."
_ALONE = "Let nothing else write to the file, and run it again."


class FileOutput(Output):
    """A file of the local file system.

    Args:
        path: Its path.
        rotate_bytes: Size at which a file is complete; None for one file.
    """

    formats: ClassVar[tuple[str, ...]] = (*_JSON, "csv")

    def __init__(self, path: Path, rotate_bytes: int | None = None) -> None:
        self.path = path.absolute()
        self.shown = str(self.path)
        self.label = path.name
        self.rotate_bytes = rotate_bytes
        try:
            check_relative(path.name, "")
        except CorruptError as error:
            raise InvalidError(f"{path.name!r} cannot name the file of a feed", hint="Choose another name.") from error

    def memory(self, database: FarmDatabase, name: str) -> VersionedObject[FeedState]:  # noqa: ARG002
        return position_of(self.path)

    def choose_format(self, asked: str | None) -> str:
        return format_of_file(self.path, asked, _ENDINGS, self.formats[0])

    def check_new(self) -> None:
        with _translated(self.path):
            has_content = self.path.exists() and self.path.stat().st_size
            there = [self.path] if has_content else _numbered(self.path)
        if there:
            message = f"{there[0]} exists, and no feed wrote it: there is no {self.path.name}{POSITION} beside it"
            raise InvalidError(message, hint=_OTHER_FILES, path=str(there[0]))

    def check_written(self, state: FeedState) -> None:
        file = file_at(self.path, state.file)
        with _translated(file):
            _check_size(file, state.bytes)

    def open(self, state: FeedState, form: Format, bytes_max: int) -> OpenFile:  # noqa: ARG002 - nothing waits
        return OpenFile(self.path, state, form, self.rotate_bytes)


def file_at(path: Path, number: int) -> Path:
    """Return the path of a feed's file, counted from 0."""
    return path.with_name(f"{path.name}.{number:06d}") if number else path


def _numbered(path: Path) -> list[Path]:
    """Return the existing rotated files of a path, in order."""
    if not path.parent.is_dir():
        return []
    form = re.compile(re.escape(path.name) + r"\.\d{6,}")
    return sorted(file for file in path.parent.iterdir() if form.fullmatch(file.name))


def _check_size(file: Path, written: int) -> int:
    """Return the length of a file, and refuse one that is shorter than the feed has written."""
    found = file.stat().st_size if file.exists() else 0
    if found < written:
        message = f"{file} has {found} bytes, and the feed has written {written}"
        hint = "Restore it from a backup, or begin another feed: another --to."
        raise CorruptError(message, hint=hint, path=str(file))
    return found


class OpenFile(OpenOutput):
    """The files of a feed, open at their end."""

    def __init__(self, path: Path, state: FeedState, form: Format, rotate_bytes: int | None) -> None:
        self._path = path
        self._form = form
        self._rotate_bytes = rotate_bytes
        self._number, self._bytes, self._header = state.file, state.bytes, state.header
        self._handle = self._lock = -1
        try:
            with _translated(self._file):
                self._exclude_others()
                self._repair()
                self._open()
        except BaseException:
            self.close()
            raise

    @property
    def _file(self) -> Path:
        return file_at(self._path, self._number)

    def write(self, piece: FeedPiece) -> None:
        with _translated(self._file):
            header = self._header_of(piece)
            self._begin(header)
            text, ends = piece.text, piece.ends
            if piece.is_note and header:
                text = memoryview(self._form.padded(bytes(text).decode(), header).encode())
                ends = numpy.array([len(text)], numpy.int32)
            for part in self._parts(text, ends, header):
                self._append(part)

    def flush(self, state: FeedState) -> FeedState:
        with _translated(self._file):
            self._synchronize()
        return replace(state, file=self._number, bytes=self._bytes, header=self._header)

    def close(self) -> None:
        self._close_file()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _close_file(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _exclude_others(self) -> None:
        lock = self._path.with_name(f".{self._path.name}.lock")
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"another run is writing to {self._path}"
            hint = "Nothing was lost: run it again when that one has ended."
            raise UnavailableError(message, hint=hint, path=str(self._path)) from error

    def _repair(self) -> None:
        """Cut off the lines of a dead run after the position."""
        found = _check_size(self._file, self._bytes)
        later: list[Path] = []
        while (file := file_at(self._path, self._number + 1 + len(later))).exists():
            later.append(file)
        if later and not found:
            # A run begins its next file only after the one before has content.
            raise InvalidError(f"{later[0]} exists, and no feed wrote it", hint=_OTHER_FILES, path=str(later[0]))
        # A run that dies in between leaves no gap in the numbers.
        for file in reversed(later):
            file.unlink()

    def _open(self, *, is_next: bool = False) -> None:
        is_new = not self._file.exists()
        if is_next and not is_new:
            raise InvalidError(f"{self._file} exists, and no feed wrote it", hint=_OTHER_FILES, path=str(self._file))
        self._handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._handle, self._bytes)
        os.fsync(self._handle)
        if is_new:
            synchronize(self._file.parent)

    def _header_of(self, piece: FeedPiece) -> str:
        """Return the header of the file for a piece; a piece without columns fits any file."""
        if piece.layout is None and self._bytes:
            return self._header
        return self._form.header(piece.layout)

    def _begin(self, header: str) -> None:
        """Write the header of a file; begin another file if the columns differ."""
        if self._bytes and header != self._header:
            self._rotate()
        if header and not self._bytes:
            self._header = header
            self._append(memoryview(header.encode()))

    def _parts(self, text: memoryview, ends: NDArray[numpy.int32], header: str) -> Iterator[memoryview]:
        """Split the text of records into parts at which the file rotates."""
        if not self._rotate_bytes:
            yield text
            return
        start = 0
        while start < len(text):
            room = self._rotate_bytes - self._bytes
            fitting = int(numpy.searchsorted(ends, start + room, side="right"))
            end = int(ends[fitting - 1]) if fitting else 0
            if end <= start:
                if self._bytes > len(self._header.encode()):
                    self._rotate()
                    self._begin(header)
                    continue
                # A record that is larger than a file gets a separate file.
                end = int(ends[int(numpy.searchsorted(ends, start, side="right"))])
            yield text[start:end]
            start = end

    def _rotate(self) -> None:
        self._synchronize()
        self._close_file()
        self._number, self._bytes, self._header = self._number + 1, 0, ""
        self._open(is_next=True)

    def _synchronize(self) -> None:
        """Sync the file, after checking that it holds exactly the written bytes."""
        os.fsync(self._handle)
        held, there = os.fstat(self._handle), self._file.stat() if self._file.exists() else None
        if there is None or not os.path.samestat(held, there):
            raise UnavailableError(
                f"{self._file} was moved while a feed wrote to it", hint=_ALONE, path=str(self._file)
            )
        if held.st_size != self._bytes:
            message = f"{self._file} has {held.st_size} bytes, and this run has made it {self._bytes} long"
            raise UnavailableError(message, hint=_ALONE, path=str(self._file))

    def _append(self, text: memoryview) -> None:
        while text:
            count = os.write(self._handle, text)
            self._bytes += count
            text = text[count:]


@contextmanager
def _translated(file: Path) -> Iterator[None]:
    try:
        yield
    except FarmError:
        raise
    except (PermissionError, IsADirectoryError, NotADirectoryError, FileNotFoundError) as error:
        message = f"{file} cannot be written: {error.strerror}"
        raise InvalidError(message, hint="Check the path, its owner and its mode.", path=str(file)) from error
    except OSError as error:
        message = f"writing to {file} failed: {error.strerror}"
        raise UnavailableError(message, hint="Nothing was lost: run it again.", path=str(file)) from error
