"""Objects copied byte for byte from one farm to another, each created exclusively and whole."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.data_files import hash_file
from wlc.farm.errors import CorruptError, ExpiredError
from wlc.farm.seal.checksum import checksum
from wlc.farm.store import AlreadyExistsError, MissingError, OversizedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from concurrent.futures import ThreadPoolExecutor

    from wlc.farm.model import DataFile
    from wlc.farm.store import Store
    from wlc.tiers.rate import RunLimit

# Requests under way at once; each waits for a disk or a network.
REQUESTS = 8


class Copier:
    """Copies objects between two stores that may encrypt, as they lie there.

    Args:
        source: Where the objects are read.
        target: Where they are created.
        limit: Bytes per second of all together.
        pool: Copies several objects at once.
        checks: Computes checksums meanwhile.
    """

    def __init__(
        self, source: Store, target: Store, limit: RunLimit, pool: ThreadPoolExecutor, checks: ThreadPoolExecutor
    ) -> None:
        self.source = source
        self.target = target
        self._limit = limit
        self._pool = pool
        self._checks = checks
        self._staged: set[Path] = set()

    def copy_files(
        self, wanted: Mapping[str, DataFile | int], announced_by: str, held: Collection[str] = ()
    ) -> list[int]:
        """Copy data files and return their sizes as they lie there.

        Args:
            wanted: For each path what a log file or manifest says of it, or the size that was listed.
            announced_by: Path of that log file or manifest, without which the files are nothing.
            held: Paths of files that a run before this one has created: they are checked, and not copied again.

        Raises:
            ExpiredError: They were deleted meanwhile, as `wlc prune` does.
            CorruptError: A file is missing, or not what was published.
        """

        def copy(path: str) -> int:
            expected = wanted[path]
            if path in held and not isinstance(expected, int) and self._holds(path, expected):
                return expected.bytes
            return self._copy_file(path, expected, announced_by)

        sizes = list(self._pool.map(copy, wanted))
        for path in {path.rpartition("/")[0]: path for path in wanted}.values():
            self.target.raw.settle(path)
        return sizes

    def copy_folder(self, folder: str, announced_by: str) -> list[int]:
        """Copy the data files of a folder that cannot be read, as `copy_files` does."""
        listed = self.source.raw.list(folder)
        sizes = self.copy_files({o.path: o.bytes for o in listed if o.path != announced_by}, announced_by)
        # Whoever deletes begins with what announces them, so that the list was whole if that is still there.
        if not self.source.raw.exists(announced_by):
            raise self.pruned(announced_by)
        return sizes

    def _holds(self, path: str, expected: DataFile) -> bool:
        """Say whether the target has a file; one that is encrypted says nothing of the bytes that it has elsewhere."""
        self._limit.spend(0)
        if self.source.raw is not self.source:
            return False
        try:
            local = self.target.raw.fetch(path, expected.bytes)
        except (MissingError, OversizedError):
            return False
        try:
            return self._checks.submit(self._is, path, local, expected).result()
        finally:
            self.target.raw.release(local)

    def _copy_file(self, path: str, expected: DataFile | int, announced_by: str) -> int:
        where = f"{self.source.url}/{path}"
        bytes_max = expected if isinstance(expected, int) else self.source.raw_bytes(path, expected.bytes)
        self._limit.spend(bytes_max)
        try:
            local = self.source.raw.fetch(path, bytes_max)
        except MissingError as error:
            if not self.source.raw.exists(announced_by):
                raise self.pruned(announced_by) from error
            raise CorruptError(f"data file {where} is missing", hint="Put it back.", path=where) from error
        except OversizedError as error:
            raise CorruptError(f"data file {where} is damaged: {error.message}", path=where) from error
        try:
            size = local.stat().st_size
            if isinstance(expected, int):
                is_right = Future[bool]()
                is_right.set_result(size == expected)
            else:
                # A checksum needs a core, and a copy a disk.
                is_right = self._checks.submit(self._is, path, local, expected)
            staged = self.stage(path, local)
            try:
                if not is_right.result():
                    raise CorruptError(f"data file {where} is damaged: it is not what was published there", path=where)
                self._create_file(path, staged, announced_by)
            finally:
                self.release(staged)
            return size
        finally:
            self.source.raw.release(local)

    def pruned(self, path: str) -> ExpiredError:
        """Build the error for an object that was deleted while it was copied."""
        where = f"{self.source.url}/{path}"
        return ExpiredError(f"{where} was pruned while it was copied", hint="Run it again.", path=where)

    def _is(self, path: str, local: Path, expected: DataFile) -> bool:
        """Say whether a raw object is the data file that was published."""
        found, size = hashlib.sha256(), 0
        for chunk in self.source.opened_chunks(path, local):
            found.update(chunk)
            size += len(chunk)
        return size == expected.bytes and found.hexdigest() == expected.sha256

    def _create_file(self, path: str, staged: bytes | Path, announced_by: str) -> None:
        try:
            self.create(path, staged)
        except CorruptError:
            if self.target.raw.exists(announced_by):
                raise
            # A run that died left it, of a batch or snapshot that never came to be here.
            self.target.raw.delete(path)
            self.create(path, staged)

    def stage(self, path: str, data: bytes | Path) -> bytes | Path:
        """Prepare an object that is going to be created in its turn, to be released."""
        staged = self.target.raw.stage(path, data)
        if isinstance(staged, Path):
            self._staged.add(staged)
        return staged

    def release(self, staged: bytes | Path) -> None:
        """Give up what was staged, whether it was created or not."""
        if staged in self._staged:
            self._staged.discard(staged)
            self.target.raw.release(staged)

    def close(self) -> None:
        """Give up all that was staged."""
        for staged in list(self._staged):
            self.release(staged)

    def create(self, path: str, data: bytes | Path) -> None:
        """Create an object of the target; one that is there already must be the same.

        Raises:
            CorruptError: It is another one.
        """
        store = self.target.raw
        try:
            store.create(path, data)
        except AlreadyExistsError as error:
            present = store.fetch(path)
            try:
                is_same = hash_file(present) == (checksum(data) if isinstance(data, bytes) else hash_file(data))
            finally:
                store.release(present)
            if not is_same:
                where = f"{store.url}/{path}"
                message = f"{where} is not what {self.source.url} has there: one of them has another past"
                # Whoever may choose reads another place; that all of them differ from this one is found out by trying.
                raise CorruptError(
                    message, hint="Keep the one that is right, delete the other.", path=f"{self.source.url}/{path}"
                ) from error
