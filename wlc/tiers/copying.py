"""Objects copied byte for byte from one farm to another, each created exclusively and whole.

A limit of bytes per second that several threads share.

Data files of batches and snapshots that a relay lacks, copied ahead, before a reader can see them.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm import paths
from wlc.farm.database import hash_file
from wlc.farm.errors import CorruptError, ExpiredError, InvalidError, UnavailableError
from wlc.farm.read_ahead import in_order
from wlc.farm.seal.checksum import checksum
from wlc.farm.store import AlreadyExistsError, MissingError, OversizedError
from wlc.farm.store.encrypted import is_encrypted

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.human_form import Progress
    from wlc.farm.model import Batch, DataFile, Manifest
    from wlc.farm.store import Store


class RateLimit:
    """Delays threads so that they keep to a limit of bytes per second on average; a single object moves at full speed.

    Args:
        bytes_per_s: None for no limit.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    @property
    def is_bounded(self) -> bool:
        """Whether there is a limit."""
        return self._bytes_per_s is not None

    def of_one_run(self) -> RunLimit:
        """Return this limit for one of the runs that share it."""
        return RunLimit(self)

    def note(self, size: int) -> float:
        """Add `size` bytes, and return the seconds to wait for the bytes added before."""
        if self._bytes_per_s is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + size / self._bytes_per_s
        return begin - now


class RunLimit:
    """The limit of one run, which can be stopped without stopping other runs."""

    def __init__(self, limit: RateLimit) -> None:
        self.is_bounded = limit.is_bounded
        self._limit = limit
        self._is_stopped = threading.Event()

    def spend(self, size: int) -> None:
        """Wait for the bytes spent before, and add `size` more.

        Raises:
            UnavailableError: The run was stopped, with or without a limit.
        """
        if self._is_stopped.wait(self._limit.note(size)):
            raise UnavailableError("copying was stopped", hint="Run it again: it goes on where it stopped.")

    def stop(self) -> None:
        """Release all waiting threads."""
        self._is_stopped.set()


# Concurrent requests; each waits for a disk or a network.
REQUESTS = 8


class Copier:
    """Copies raw objects between two stores, encrypted or not.

    Args:
        source: The store to read.
        target: The store to write.
        limit: Bytes per second for all objects.
        pool: Copies several objects at once.
        checks: Pool that computes checksums meanwhile.
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
        """Copy data files and return their raw sizes.

        Args:
            wanted: By path, the entry in a log file or manifest, or the listed size.
            announced_by: Path of that log file or manifest; without it, no reader uses the files.
            held: Paths of files that an earlier run has created: they are checked, and not copied again.

        Raises:
            ExpiredError: They were deleted meanwhile, as `wlc prune` does.
            CorruptError: A file is missing, or differs from the published one.
        """

        def copy(path: str) -> int:
            expected = wanted[path]
            if path in held and not isinstance(expected, int) and self._holds(path, expected):
                return expected.bytes
            return self._copy_file(path, expected, announced_by)

        sizes = list(self._pool.map(copy, wanted))
        for path in {path.rpartition("/")[0]: path for path in wanted}.values():
            self.target.raw.make_durable(path)
        return sizes

    def copy_folder(self, folder: str, announced_by: str) -> list[int]:
        """Copy the data files of a folder whose log file or manifest cannot be read, as `copy_files` does."""
        listed = self.source.raw.list(folder)
        sizes = self.copy_files({o.path: o.bytes for o in listed if o.path != announced_by}, announced_by)
        # A deletion begins with the log file or manifest, so the list was complete if that still exists.
        if not self.source.raw.exists(announced_by):
            raise self.pruned(announced_by)
        return sizes

    def _holds(self, path: str, expected: DataFile) -> bool:
        """Say whether the target has a file; an encrypted copy does not reveal the bytes of the source."""
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
                # A checksum needs a core, a copy needs a disk.
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
            # A crashed run left it, of a batch or snapshot that was never completed here.
            self.target.raw.delete(path)
            self.create(path, staged)

    def stage(self, path: str, data: bytes | Path) -> bytes | Path:
        """Stage an object that will be created in its turn; the caller releases it."""
        staged = self.target.raw.stage(path, data)
        if isinstance(staged, Path):
            self._staged.add(staged)
        return staged

    def release(self, staged: bytes | Path) -> None:
        """Release a staged object, whether it was created or not."""
        if staged in self._staged:
            self._staged.discard(staged)
            self.target.raw.release(staged)

    def close(self) -> None:
        """Release all staged objects."""
        for staged in list(self._staged):
            self.release(staged)

    def create(self, path: str, data: bytes | Path) -> None:
        """Create an object of the target; an existing one must be equal.

        Raises:
            CorruptError: It differs.
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
                message = f"{where} differs from the file of {self.source.url}: one of them has another past"
                # A relay with a choice tries another upstream; only trying shows that all of them differ from this
                # relay.
                raise CorruptError(
                    message, hint="Keep the right one, delete the other.", path=f"{self.source.url}/{path}"
                ) from error


# Maximum number of batches and snapshots that are copied ahead of the next one to publish.
_AHEAD = 16


@dataclass(frozen=True, slots=True)
class Found:
    """The contents of the two places, listed in an order that tolerates concurrent changes."""

    ticks: Sequence[int]
    numbers: Sequence[int]
    held: frozenset[int]
    held_ticks: Sequence[int]

    @property
    def begin(self) -> int:
        """The first batch of the relay's log."""
        return min(self.held, default=self.numbers[0] if self.numbers else 1)

    @property
    def end(self) -> int:
        """The last batch of both logs, 0 without any."""
        return max((*self.held, *self.numbers), default=0)

    @property
    def missing(self) -> list[int]:
        """The batches to be copied."""
        return [number for number in self.numbers if number >= self.begin and number not in self.held]


@dataclass(frozen=True, slots=True)
class CopiedBatch:
    """A batch whose data files are copied, unless it is too young.

    Attributes:
        staged: The staged log file.
        batch: None if the log file is unreadable without a key.
        sizes: Sizes of its data files.
    """

    number: int
    data: bytes
    staged: bytes | Path
    batch: Batch | None
    chain: str
    sizes: Sequence[int]
    is_too_young: bool = False


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """A snapshot that the relay lacks; `manifest` is None if it is unreadable without a key."""

    tick: int
    data: bytes
    manifest: Manifest | None


@dataclass(frozen=True, slots=True)
class CopiedSnapshot:
    """A snapshot whose data files are copied.

    Attributes:
        staged: The staged manifest.
        paths: Paths of the data files in the manifest.
        sizes: Sizes of its data files.
    """

    snapshot: NewSnapshot
    staged: bytes | Path
    paths: frozenset[str]
    sizes: Sequence[int]


def refuse_unreadable(source: FarmDatabase, latest: datetime | None) -> None:
    """Refuse options that need the missing key of an encrypted farm, before a new relay is announced.

    Raises:
        InvalidError: The newest batch or snapshot must be read, for --delay or to verify its signature.
    """
    if source.keys.encrypts or not (latest is not None or source.keys.verifying):
        return
    config = source.config()
    newest = [(source.logs, paths.log_path(source.name, config.batches - 1))] if config.batches > 1 else []
    tick = paths.parse_snapshot_folder(config.snapshot)
    newest += [(source.store, paths.manifest_path(tick))] if tick is not None else []
    for store, path in newest:
        with suppress(MissingError):
            if is_encrypted(store.raw.read(path)):
                raise _unreadable(source, latest)


def _unreadable(source: FarmDatabase, latest: datetime | None) -> InvalidError:
    what = "no commit time is known for --delay" if latest is not None else "no signature can be verified"
    return InvalidError(
        f"{source.url} is encrypted: without the encryption key, {what}",
        hint="Give the encryption key, too, or copy it undecrypted: leave out --delay and the verification keys.",
        path=source.url,
    )


class Unpublished:
    """Copies data files ahead of the log files and manifests that name them.

    Attributes:
        logs: Copies data files of batches, and creates log files.
        store: Copies data files of snapshots, and creates manifests.
        is_verified: False once an object was copied without decryption.
    """

    logs: Copier
    store: Copier

    def __init__(
        self,
        source: FarmDatabase,
        target: FarmDatabase,
        latest: datetime | None,
        limit: RateLimit,
        progress: Progress | None,
    ) -> None:
        self.is_verified = True
        self._source = source
        self._target = target
        self._latest = latest
        self._limit = limit
        self._progress = progress

    def in_order(self, found: Found, known: int) -> Generator[CopiedBatch | CopiedSnapshot]:
        """Yield batches and snapshots in publishing order, with data files copied; the caller closes the generator.

        Args:
            found: The contents of the two places.
            known: The batch that the relay's `wlc.config` expects next.
        """
        most = _AHEAD if self._latest is None else 1
        limit = self._limit.of_one_run()
        with (
            ThreadPoolExecutor(os.cpu_count()) as checks,
            ThreadPoolExecutor(REQUESTS) as files,
            # A snapshot's large files need not wait for the files of all batches.
            ThreadPoolExecutor(1) as checks_of_snapshots,
            ThreadPoolExecutor(REQUESTS) as files_of_snapshots,
            ThreadPoolExecutor(_AHEAD) as steps,
        ):
            self.logs = Copier(self._source.logs, self._target.logs, limit, files, checks)
            self.store = Copier(self._source.store, self._target.store, limit, files_of_snapshots, checks_of_snapshots)
            wanted = self._steps(found, known)
            # Under a rate limit, a snapshot waits for its turn, so that batches do not wait for later files.
            copied = partial(self._copied, found=found, with_snapshots=not limit.is_bounded)
            try:
                with closing(in_order(steps, copied, wanted, lambda: most)) as ahead:
                    for step in ahead:
                        yield self._copied_snapshot(step) if isinstance(step, NewSnapshot) else step
            finally:
                limit.stop()
                # Running copies end before their staged objects are released.
                steps.shutdown()
                self.logs.close()
                self.store.close()

    def _steps(self, found: Found, known: int) -> Iterator[int | NewSnapshot]:
        """Yield numbers of batches and new snapshots in publishing order: a snapshot follows its batch."""
        missing = found.missing
        # Start with the batch before the first one to copy, or the first one that `wlc.config` does not know yet.
        start = min([number - 1 for number in missing[:1]] + [known])
        waiting = deque(self._new_snapshots(found))
        for number in sorted(n for n in {*found.held, *missing} if n >= start):
            # Without a key, the batch before a snapshot is unknown.
            while waiting and waiting[0].manifest is not None and waiting[0].manifest.position.batch < number:
                yield waiting.popleft()
            yield number
        yield from waiting

    def _copied(
        self, step: int | NewSnapshot, *, found: Found, with_snapshots: bool
    ) -> CopiedBatch | CopiedSnapshot | NewSnapshot:
        if isinstance(step, NewSnapshot):
            return self._copied_snapshot(step) if with_snapshots else step
        return self._held(step) if step in found.held else self._copied_batch(step)

    # Batches ---------------------------------------------------------------------------------------------------------

    def _held(self, number: int) -> CopiedBatch:
        """Read a batch that the relay has."""
        data = self._target.logs.raw.read(paths.log_path(self._source.name, number))
        return CopiedBatch(number, data, data, *self._decoded(number, data), ())

    def _copied_batch(self, number: int) -> CopiedBatch:
        """Copy the data files of a batch, which readers do not see before its log file exists."""
        path = paths.log_path(self._source.name, number)
        try:
            data = self._source.logs.raw.read(path)
        except MissingError as error:
            raise self.logs.pruned(path) from error
        batch, chain = self._decoded(number, data)
        if batch is None:
            sizes = self.logs.copy_folder(paths.data_folder(self._source.name, number), path)
        elif self._is_too_young(batch.clock):
            return CopiedBatch(number, data, data, batch, chain, (), is_too_young=True)
        else:
            sizes = self.logs.copy_files({file.file.path: file.file for file in batch.files}, path)
        return CopiedBatch(number, data, self.logs.stage(path, data), batch, chain, sizes)

    def _decoded(self, number: int, data: bytes) -> tuple[Batch | None, str]:
        if self.is_sealed(data):
            return None, ""
        path = paths.log_path(self._source.name, number)
        return self._source.decoded_batch(number, self._source.logs.opened(path, data))

    def is_sealed(self, data: bytes) -> bool:
        """Say whether an object is encrypted and there is no key to read it.

        Raises:
            InvalidError: It must be read, for --delay or to verify its signature.
        """
        if not is_encrypted(data) or self._source.keys.encrypts:
            return False
        if self._latest is not None or self._source.keys.verifying:
            raise _unreadable(self._source, self._latest)
        self.is_verified = False
        return True

    def _is_too_young(self, clock: datetime | None) -> bool:
        return self._latest is not None and clock is not None and clock > self._latest

    # Snapshots -------------------------------------------------------------------------------------------------------

    def _new_snapshots(self, found: Found) -> Iterator[NewSnapshot]:
        """Read the snapshots after the relay's newest one, in the order of their ticks."""
        newest = found.held_ticks[-1] if found.held_ticks else -1
        for tick in found.ticks:
            if tick <= newest:
                continue
            path = paths.manifest_path(tick)
            try:
                data = self._source.store.raw.read(path)
            except MissingError:
                continue  # It was pruned during the listing.
            manifest = None
            if not self.is_sealed(data):
                manifest = self._source.decoded_manifest(tick, self._source.store.opened(path, data))
                if self._is_too_young(manifest.clock) or manifest.position.batch > found.end:
                    # The listing of the log lacks the batch before the snapshot: readers of the relay would miss that
                    # batch.
                    return
            yield NewSnapshot(tick, data, manifest)

    def _copied_snapshot(self, snapshot: NewSnapshot) -> CopiedSnapshot:
        """Copy the data files of a snapshot, which readers do not see before its manifest exists."""
        folder, path = paths.snapshot_folder(snapshot.tick) + "/", paths.manifest_path(snapshot.tick)
        if self._progress:
            self._progress(0, 1, f"copying snapshot {snapshot.tick}")
        wanted: dict[str, DataFile | int] = {}
        if snapshot.manifest is None:
            sizes = self.store.copy_folder(folder, path)
        else:
            wanted = {folder + file.path: file for table in snapshot.manifest.tables for file in table.files}
            # A run that was killed may have copied most of a large snapshot.
            held = {entry.path for entry in self._target.store.raw.list(folder)}
            sizes = self.store.copy_files(wanted, path, held)
        return CopiedSnapshot(snapshot, self.store.stage(path, snapshot.data), frozenset(wanted), sizes)
