"""Copy a farm database byte for byte to another farm: a relay, which serves replicas as the original does.

Objects are created in the order in which a master publishes them: data files, then the log file or the manifest. So a
relay that was killed holds whole batches and snapshots only, and the next run goes on behind them.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm import paths
from wlc.farm.clock import parse_age, utc_now
from wlc.farm.config import first_config, with_batch, with_snapshot
from wlc.farm.database import FarmDatabase
from wlc.farm.errors import CorruptError, ExpiredError, InvalidError
from wlc.farm.model import Position
from wlc.farm.registry import RELAY, Replica, register, this_host, this_user
from wlc.farm.seal.checksum import checksum
from wlc.farm.store import AlreadyExistsError, MissingError, join_url, open_store
from wlc.farm.store.encrypted import is_encrypted
from wlc.masters.lookup import resolve
from wlc.tiers.rate import RateLimit, parse_rate

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from wlc.farm.model import Batch, Config, DataFile, Manifest
    from wlc.farm.store import Store

_REQUESTS = 8
# So many batches are copied ahead of the one whose log file is created next.
_AHEAD = 16
# `wlc.config` follows at least so often; what came after it is compared, not trusted, if the run dies.
_NOTE_EVERY = 32


@dataclass(frozen=True, slots=True)
class Shipped:
    """What one round copied, and where the relay stands.

    Attributes:
        url: The relay's folder of the database.
        tick: Last tick that the relay holds.
        batches: Batches copied in this round; `snapshots`, `files` and `bytes` likewise.
        is_verified: False if the farm is encrypted and there is no key: sizes were compared, and nothing else.
    """

    url: str
    tick: int
    batches: int
    snapshots: int
    files: int
    bytes: int
    is_verified: bool


def ship(
    db: str | os.PathLike[str],
    *,
    to: str,
    farm: str | None = None,
    delay: timedelta | str | None = None,
    rate: float | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    registers: bool = True,
    progress: Callable[[int, int, str], None] | None = None,
) -> Shipped:
    """Copy what a farm database has and a relay lacks: snapshots and batches, byte for byte.

    Signatures, encryption and the chain of log files stay valid, so that a replica may change between the two places.
    Everything is verified on the way. Without its key an encrypted farm is copied, too, and only sizes are compared.

    Args:
        db: Name in the farm, URL of the database's folder (another relay's, too), or a source that knows its farm.
        to: URL or path of the relay's farm. The database gets a folder of its name there.
        farm: URL of the farm, for a bare name; WLC_FARM if omitted.
        delay: Leave out what was committed less than this before now; as text, for example `1h` or `2 days`.
        rate: Most bytes per second, no limit if omitted; as text, for example `500k` or `10M`.
        storage_options: Options of the farm's file system.
        target_options: Options of the relay's file system.
        registers: Make the relay known where it reads, so that `wlc prune` there keeps what it has not copied yet.
        progress: Called with batches done, batches in all, and what is being done.

    Raises:
        InvalidError: There is no such database, nothing of it is old enough, or an argument cannot be read.
        ExpiredError: The log was pruned behind the relay's position.
        CorruptError: A file is damaged, or the farm and its relay have different pasts. Nothing of it was copied.
        UnavailableError: A place cannot be reached. Try again: the next run goes on.
    """
    age = parse_age(delay) if isinstance(delay, str) else delay
    limit = RateLimit(parse_rate(rate) if isinstance(rate, str) else rate)
    source = resolve(db, farm, storage_options=storage_options)
    target = FarmDatabase(source.name, open_store(join_url(to, source.name), target_options), target_options)
    if target.url == source.url:
        raise InvalidError(f"{to} is the farm that {source.name} is in", hint="Give --to another farm.", path=to)
    latest = utc_now() - age if age is not None else None
    return _Shipping(source, target, latest, limit, progress).run(registers=registers)


@dataclass(frozen=True, slots=True)
class _CopiedBatch:
    """A batch whose data files are copied; `batch` is None where the log file cannot be read without a key."""

    number: int
    data: bytes
    batch: Batch | None
    chain: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _NewSnapshot:
    """A snapshot that the relay lacks; `manifest` is None where it cannot be read without a key."""

    tick: int
    data: bytes
    manifest: Manifest | None

    @property
    def batch(self) -> int:
        """The batch that it follows."""
        return self.manifest.position.batch if self.manifest else 0


class _Shipping:
    """One round of copying; `now` is what the relay's `wlc.config` is going to say."""

    def __init__(
        self,
        source: FarmDatabase,
        target: FarmDatabase,
        latest: datetime | None,
        limit: RateLimit,
        progress: Callable[[int, int, str], None] | None,
    ) -> None:
        self._source = source
        self._target = target
        self._latest = latest
        self._limit = limit
        self._progress = progress
        self._batches = self._snapshots = self._files = self._bytes = 0
        self._is_verified = True
        self._is_new = False
        self._now = first_config(source.name)
        self._chain = ""
        self._pool = ThreadPoolExecutor(_REQUESTS)

    def run(self, *, registers: bool) -> Shipped:
        """Copy what is missing; safe to repeat, whatever a run before it did last."""
        wanted = self._source.config()
        try:
            self._now = self._target.config()
        except MissingError:
            self._is_new = True
            self._target.store.raw.probe()
        if not self._is_level(wanted):
            self._refuse_other_past(wanted)
            with self._pool:
                self._copy()
            self._settle(wanted)
        if registers:
            self._register()
        return Shipped(
            self._target.url,
            self._now.tick,
            self._batches,
            self._snapshots,
            self._files,
            self._bytes,
            self._is_verified,
        )

    def _is_level(self, wanted: Config) -> bool:
        """Say whether there is nothing to copy, which a constant number of requests finds out."""
        if self._is_new or self._now != replace(wanted, logs=self._now.logs):
            return False
        return not self._source.logs.exists(paths.log_path(self._source.name, wanted.batches))

    def _refuse_other_past(self, wanted: Config) -> None:
        """Check that the relay's newest batch is the farm's, and learn its chain hash."""
        last = self._now.batches - 1
        if self._is_new or last == 0:
            return
        path = paths.log_path(self._source.name, last)
        try:
            ours = self._target.logs.raw.read(path)
        except MissingError:
            # A relay that was made of a snapshot has no batch yet.
            return
        try:
            theirs = self._source.logs.raw.read(path)
        except MissingError:
            if wanted.batches <= last:
                raise self._other_past(f"ends at tick {wanted.tick}, the relay at tick {self._now.tick}") from None
            theirs = ours  # Pruned there; the next batch says what it follows.
        if ours != theirs:
            raise self._other_past(f"has another batch {last} than the relay")
        self._chain = self._decoded(last, ours)[1]

    def _other_past(self, difference: str) -> CorruptError:
        return CorruptError(
            f"{self._source.url} {difference}: it was restored or made anew, or the relay belongs to another one",
            hint=f"If the farm is right, delete {self._target.url} and ship again.",
            path=self._target.url,
        )

    # Copying ---------------------------------------------------------------------------------------------------------

    def _copy(self) -> None:
        numbers = [number for number in self._source.batch_numbers() if self._is_new or number >= self._now.batches]
        if numbers and not self._is_new and numbers[0] > self._now.batches:
            raise ExpiredError(
                f"batch {self._now.batches} of {self._source.url} was pruned before the relay had copied it",
                hint=f"Delete {self._target.url} and ship again: it begins with the newest snapshot then.",
                path=self._source.url,
            )
        ticks = self._source.snapshot_ticks()
        with ThreadPoolExecutor(_REQUESTS) as ahead:
            waiting = deque(self._new_snapshots(ticks))
            if self._is_new and ticks:
                if not waiting:
                    raise self._too_young()
                self._copy_snapshot(waiting.popleft())
            for copied in _in_order(ahead, self._copied_files, numbers):
                if copied.batch is not None and self._is_too_young(copied.batch.clock):
                    break
                while waiting and waiting[0].batch < copied.number:
                    self._copy_snapshot(waiting.popleft())
                self._create_batch(copied, len(numbers))
            else:
                for snapshot in waiting:
                    self._copy_snapshot(snapshot)
        if self._is_new and self._latest is not None and not self._batches:
            raise self._too_young()

    def _too_young(self) -> InvalidError:
        return InvalidError(
            f"nothing of {self._source.url} is old enough to be copied yet",
            hint="Run it again later, or with a shorter --delay.",
            path=self._source.url,
        )

    def _create_batch(self, copied: _CopiedBatch, total: int) -> None:
        batch, number = copied.batch, copied.number
        if batch is not None and self._chain and batch.previous != self._chain:
            raise self._other_past(f"has a batch {number} that does not follow batch {number - 1} of the relay")
        self._create(self._target.logs.raw, paths.log_path(self._source.name, number), copied.data)
        self._chain = copied.chain
        self._batches += 1
        self._files += copied.files
        self._bytes += copied.bytes + len(copied.data)
        if batch is None:
            self._now = replace(self._now, batches=max(number + 1, self._now.batches))
        elif number >= self._now.batches or (number + 1 == self._now.batches and batch.history == self._now.history):
            self._now = with_batch(self._now, batch)
        if self._progress:
            self._progress(self._batches, total, f"copying batch {number}")
        if self._is_new or self._batches % _NOTE_EVERY == 0:
            self._note()

    def _copied_files(self, number: int) -> _CopiedBatch:
        """Copy the data files of a batch, which nobody sees before its log file is there."""
        data = self._source.logs.raw.read(paths.log_path(self._source.name, number))
        batch, chain = self._decoded(number, data)
        logs = self._source.logs, self._target.logs
        if batch is None:
            sizes = self._copy_folder(*logs, paths.data_folder(self._source.name, number))
        else:
            sizes = self._copy_files(*logs, {file.file.path: file.file for file in batch.files})
        return _CopiedBatch(number, data, batch, chain, len(sizes), sum(sizes))

    def _decoded(self, number: int, data: bytes) -> tuple[Batch | None, str]:
        if self._is_sealed(data):
            return None, ""
        path = paths.log_path(self._source.name, number)
        return self._source.decoded_batch(number, self._source.logs.opened(path, data))

    def _is_sealed(self, data: bytes) -> bool:
        """Say whether an object is encrypted and there is no key to read it."""
        if not is_encrypted(data) or self._source.keys.encrypts:
            return False
        if self._latest is not None:
            message = f"{self._source.url} is encrypted: without a key, no commit time is known for --delay"
            raise InvalidError(message, hint="Give the key, or leave --delay out.", path=self._source.url)
        self._is_verified = False
        return True

    def _is_too_young(self, clock: datetime | None) -> bool:
        return self._latest is not None and clock is not None and clock > self._latest

    # Snapshots -------------------------------------------------------------------------------------------------------

    def _new_snapshots(self, ticks: Sequence[int]) -> Iterator[_NewSnapshot]:
        """Read the snapshots after the relay's newest one, in the order of their ticks."""
        present = paths.parse_snapshot_folder(self._now.snapshot) if self._now.snapshot else None
        for tick in ticks:
            if present is not None and tick <= present:
                continue
            path = paths.manifest_path(tick)
            data = self._source.store.raw.read(path)
            manifest = None
            if not self._is_sealed(data):
                manifest = self._source.decoded_manifest(tick, self._source.store.opened(path, data))
                if self._is_too_young(manifest.clock):
                    return
            yield _NewSnapshot(tick, data, manifest)

    def _copy_snapshot(self, snapshot: _NewSnapshot) -> None:
        folder = paths.snapshot_folder(snapshot.tick) + "/"
        stores = self._source.store, self._target.store
        if self._progress:
            self._progress(0, 1, f"copying snapshot {snapshot.tick}")
        if snapshot.manifest is None:
            sizes = self._copy_folder(*stores, folder)
        else:
            files = (file for table in snapshot.manifest.tables for file in table.files)
            sizes = self._copy_files(*stores, {folder + file.path: file for file in files})
        self._create(self._target.store.raw, paths.manifest_path(snapshot.tick), snapshot.data)
        self._snapshots += 1
        self._files += len(sizes)
        self._bytes += sum(sizes) + len(snapshot.data)
        if snapshot.manifest is None:
            self._now = replace(self._now, snapshot=folder.rstrip("/"))
        else:
            self._now = with_snapshot(self._now, snapshot.manifest)
        self._note()

    # Objects ---------------------------------------------------------------------------------------------------------

    def _copy_folder(self, source: Store, target: Store, folder: str) -> list[int]:
        """Copy objects that cannot be read: all that are in a folder, but the one that makes them visible."""
        listed = source.raw.list(folder)
        return self._copy_files(
            source, target, {entry.path: entry.bytes for entry in listed if not entry.path.endswith(paths.MANIFEST)}
        )

    def _copy_files(self, source: Store, target: Store, wanted: Mapping[str, DataFile | int]) -> list[int]:
        """Copy data files, several at once, and return their sizes as they lie there."""
        return list(self._pool.map(lambda path: self._copy_file(source, target, path, wanted[path]), wanted))

    def _copy_file(self, source: Store, target: Store, path: str, expected: DataFile | int) -> int:
        """Copy one data file, which must be what the log file or manifest says, or have the size that was listed."""
        where = f"{source.url}/{path}"
        try:
            local = source.raw.fetch(path)
        except MissingError as error:
            raise CorruptError(f"data file {where} is missing", path=where) from error
        try:
            size = local.stat().st_size
            is_right = size == expected if isinstance(expected, int) else _is(source, path, local, expected)
            if not is_right:
                raise CorruptError(f"data file {where} is damaged: it is not what was published there", path=where)
            self._limit.spend(size)
            with _own(local, source.raw.url, target.raw.url) as own:
                self._create(target.raw, path, own)
            return size
        finally:
            source.raw.release(local)

    def _create(self, store: Store, path: str, data: bytes | Path) -> None:
        """Create an object of the relay; one that is there already must be the same."""
        try:
            store.create(path, data)
        except AlreadyExistsError:
            present = store.fetch(path)
            try:
                is_same = _sha256(present) == (checksum(data) if isinstance(data, bytes) else _sha256(data))
            finally:
                store.release(present)
            if not is_same:
                raise self._other_past(f"has another {path} than {store.url}") from None

    # What others see -------------------------------------------------------------------------------------------------

    def _note(self, *, is_level: bool = False) -> None:
        """Bring the relay's `wlc.config` up to what it holds; without a key, only the farm's own says what that is."""
        if not (self._is_verified or is_level):
            return
        if self._is_new:
            self._target.create_config(self._now)
            self._is_new = False
        else:
            self._target.change_config(lambda _: self._now)

    def _settle(self, wanted: Config) -> None:
        """Note what only `wlc.config` says, once everything is there: beat, state and the history's parent."""
        is_level = (self._now.batches, self._now.tick) == (wanted.batches, wanted.tick) or not self._is_verified
        known = wanted if is_level else replace(self._now, beat_s=wanted.beat_s)
        self._now = replace(known, logs=self._now.logs, snapshot=self._now.snapshot)
        self._note(is_level=True)

    def _register(self) -> None:
        if not self._now.history or (self._now.batches == 1 and not self._now.snapshot):
            return
        position = Position(self._now.history, self._now.tick, self._now.batches - 1, self._chain)
        url = self._target.url
        # The same relay has the same id in every run, and nothing has to be remembered for it.
        id_ = checksum(f"{'' if '://' in url else this_host()} {url}".encode())[:32]
        register(
            self._source,
            Replica(id_, url, position, self._now.write, utc_now(), this_host(), this_user(), kind=RELAY),
        )


def _in_order(
    pool: ThreadPoolExecutor, copy: Callable[[int], _CopiedBatch], numbers: Sequence[int]
) -> Iterator[_CopiedBatch]:
    """Copy the data files of several batches at once, and give the batches in their order."""
    waiting = deque(pool.submit(copy, number) for number in numbers[:_AHEAD])
    try:
        for number in (*numbers[_AHEAD:], *(0 for _ in numbers[:_AHEAD])):
            found = waiting.popleft().result()
            if number:
                waiting.append(pool.submit(copy, number))
            yield found
    finally:
        for future in waiting:
            future.cancel()


def _is(store: Store, path: str, local: Path, expected: DataFile) -> bool:
    """Say whether the raw object in a local file is the data file that was published."""
    found, size = hashlib.sha256(), 0
    for chunk in store.opened_chunks(path, local):
        found.update(chunk)
        size += len(chunk)
    return size == expected.bytes and found.hexdigest() == expected.sha256


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextmanager
def _own(local: Path, source: str, target: str) -> Iterator[Path]:
    """Give a file that may become an object of the target: a local store links it, and two farms must not share it."""
    if "://" in source or "://" in target:
        yield local
        return
    # A store sweeps temporary files of this form.
    copy = Path(target) / f".{secrets.token_hex(16)}.tmp"
    copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(local, copy)
        yield copy
    finally:
        copy.unlink(missing_ok=True)
