"""A file as the output of a feed: each record is in it once.

Lines are appended and synchronized, and the position beside the file follows.
`FILE.position` says how long the file was when the position was written. What is behind that is a torn tail, which the
next run cuts off. A file that is rotated keeps its name, and the next one is `FILE.000001`, so that no name ever means
another file, and the step to the next file is one replacement of the position.
"""

from __future__ import annotations

import os
import shlex
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy

from wlc.farm.errors import CorruptError, FarmError, InvalidError, UnavailableError
from wlc.farm.paths import check_relative
from wlc.farm.store import open_store
from wlc.farm.versioned import VersionedObject
from wlr.feeds.contract import OpenOutput, Output
from wlr.feeds.state import FeedState, decode_state, encode_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.farm.database import FarmDatabase
    from wlr.feeds.formats import Format
    from wlr.feeds.rendering import FeedPiece

POSITION = ".position"


class FileOutput(Output):
    """A file of the local file system.

    Args:
        path: Where.
        rotate_bytes: A file that has so many bytes is complete; None for one file.
    """

    formats: ClassVar[tuple[str, ...]] = ("json", "debezium", "csv")

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

    def check_new(self) -> None:
        if self.path.exists() and self.path.stat().st_size:
            message = f"{self.path} exists, and no feed wrote it: there is no {self.path.name}{POSITION} beside it"
            raise InvalidError(message, hint="Give another --to, or move the file away.", path=self.shown)

    def open(self, state: FeedState, form: Format, bytes_max: int) -> OpenFile:  # noqa: ARG002 - nothing waits
        return OpenFile(self.path, state, form, self.rotate_bytes)


def position_of(path: Path) -> VersionedObject[FeedState]:
    """Return the object beside a file that holds the position of its feed."""
    path = path.absolute()
    beside = f"{path.name}{POSITION}"
    place = open_store(str(path.parent))
    return VersionedObject(place, beside, encode_state, lambda data: decode_state(data, f"{path}{POSITION}"))


def file_at(path: Path, number: int) -> Path:
    """Return the path of a feed's file, counted from 0."""
    return path.with_name(f"{path.name}.{number:06d}") if number else path


class OpenFile(OpenOutput):
    """The files of a feed, open at their end."""

    def __init__(self, path: Path, state: FeedState, form: Format, rotate_bytes: int | None) -> None:
        self._path = path
        self._form = form
        self._rotate_bytes = rotate_bytes
        self._number, self._bytes, self._header = state.file, state.bytes, state.header
        self._handle = -1
        with _translated(self._file):
            self._repair()
            try:
                self._open()
            except BaseException:
                self.close()
                raise

    @property
    def _file(self) -> Path:
        return file_at(self._path, self._number)

    def write(self, piece: FeedPiece) -> None:
        with _translated(self._file):
            self._begin(piece)
            if piece.is_note and self._header:
                line = self._form.padded(bytes(piece.text).decode(), self._header).encode()
                self._append(memoryview(line))
                return
            for part in self._parts(piece):
                self._append(part)

    def flush(self, state: FeedState) -> FeedState:
        with _translated(self._file):
            os.fsync(self._handle)
        return replace(state, file=self._number, bytes=self._bytes, header=self._header)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _repair(self) -> None:
        """Cut what a run that died has written behind the position."""
        number = self._number + 1
        while (later := file_at(self._path, number)).exists():
            later.unlink()
            number += 1
        found = self._file.stat().st_size if self._file.exists() else 0
        if found < self._bytes:
            raise CorruptError(
                f"{self._file} has {found} bytes, and the feed has written {self._bytes}",
                hint=f"Put it back, or delete it and {shlex.quote(f'{self._path}{POSITION}')} to begin anew.",
                path=str(self._file),
            )

    def _open(self) -> None:
        is_new = not self._file.exists()
        self._handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._handle, self._bytes)
        os.fsync(self._handle)
        if is_new:
            _synchronize(self._file.parent)

    def _begin(self, piece: FeedPiece) -> None:
        """Write the line that a file begins with; begin another file where the columns are others."""
        if not self._form.has_columns or piece.layout is None:
            return
        header = self._form.header(piece.layout)
        if self._bytes and header != self._header:
            self._rotate()
        if not self._bytes:
            self._header = header
            self._append(memoryview(header.encode()))

    def _parts(self, piece: FeedPiece) -> Iterator[memoryview]:
        """Give the text in parts, between which the file is rotated."""
        text = piece.text
        if not self._rotate_bytes:
            yield text
            return
        ends, start = piece.ends, 0
        while start < len(text):
            room = self._rotate_bytes - self._bytes
            fitting = int(numpy.searchsorted(ends, start + room, side="right"))
            end = int(ends[fitting - 1]) if fitting else 0
            if end <= start:
                if self._bytes > len(self._header.encode()):
                    self._rotate()
                    self._begin(piece)
                    continue
                # A record that is larger than a file has one of its own.
                end = int(ends[int(numpy.searchsorted(ends, start, side="right"))])
            yield text[start:end]
            start = end

    def _rotate(self) -> None:
        os.fsync(self._handle)
        self.close()
        self._number, self._bytes, self._header = self._number + 1, 0, ""
        self._open()

    def _append(self, text: memoryview) -> None:
        while text:
            count = os.write(self._handle, text)
            self._bytes += count
            text = text[count:]


def _synchronize(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
