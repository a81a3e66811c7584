"""One database's folder in the farm: publish and read batches and snapshots, configuration included.

A witness: the last position of each database that a reader has seen, in a file of the reader.

Signatures show who wrote a file, not that it is the newest. An existing replica notices a farm that ends before the
replica's position. A new reader has no position; the witness supplies one.

Data files of batches and snapshots in a store: created under an unused name, fetched and verified.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm import newest_batches, paths
from wlc.farm.addresses import absolute
from wlc.farm.config import decode_config, encode_config, first_config, is_behind, with_batch, with_snapshot
from wlc.farm.documents import Document
from wlc.farm.errors import CorruptError, FarmError, FencedError, GapError, InvalidError
from wlc.farm.log import decode_batch, encode_batch, refuse_other_past
from wlc.farm.log_columns import Transactions
from wlc.farm.manifest import decode_manifest, encode_manifest
from wlc.farm.model import Batch, Config, DataFile, Manifest, Position, TableFile
from wlc.farm.seal.checksum import checksum
from wlc.farm.seal.keys import WITNESS, Keys
from wlc.farm.seal.signatures import signed_log, signed_manifest, verify_log, verify_manifest
from wlc.farm.store import AlreadyExistsError, MissingError, OversizedError, Store, join_url, open_store
from wlc.farm.store.encrypted import EncryptedStore
from wlc.farm.typed_names import other_databases
from wlc.farm.versioned import VersionedObject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


VARIABLE = "WLC_WITNESS_FILE"


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last position of each database, by URL."""

    seen: Mapping[str, Position]


_DOCUMENT = Document(
    "witness",
    _Seen,
    hint="Restore it, or delete {where} if you are sure that the farm is complete; a new one begins then.",
)


@dataclass(frozen=True, slots=True)
class Witness:
    """The entry of one database in a witness file.

    Attributes:
        file: The file; it need not exist yet.
        url: URL or path of the database's folder in the farm.
    """

    file: Path
    url: str

    def seen(self) -> Position | None:
        """Return the last position that the reader has seen, None before the first.

        Raises:
            CorruptError: The file is damaged.
            InvalidError: It cannot be read.
        """
        found = self._object.load()
        return found[0].seen.get(self.url) if found else None

    def note(self, position: Position) -> None:
        """Store a position that was read and verified; a position before the stored one changes nothing.

        Raises:
            InvalidError: The file cannot be written.
        """

        def noted(present: _Seen | None) -> _Seen:
            known = dict(present.seen if present else {})
            last = known.get(self.url)
            if last is None or (last.tick, last.batch) < (position.tick, position.batch):
                known[self.url] = position
            return _Seen(dict(sorted(known.items())))

        if position.history:
            self._object.change(noted)

    @property
    def _object(self) -> VersionedObject[_Seen]:
        if not self.file.parent.is_dir():
            message = f"there is no folder {self.file.parent} for the witness {self.file}"
            raise InvalidError(message, hint=f"mkdir -p {shlex.quote(str(self.file.parent))}", path=str(self.file))
        store = open_store(str(self.file.parent))
        return VersionedObject(
            store, self.file.name, _DOCUMENT.encode, lambda data: _DOCUMENT.decode(data, str(self.file))
        )


def witness_of(options: Mapping[str, Any] | None, url: str) -> Witness | None:
    """Return a database's witness as options or the environment specify it, None if they specify none."""
    file = (options or {}).get(WITNESS) or os.environ.get(VARIABLE)
    if not file:
        return None
    return Witness(Path(str(file)).expanduser().absolute(), absolute(url))


_UPLOADS = 8


def hash_file(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, in bounded memory."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def create_all(store: Store, wanted: Sequence[DataFile], files: Mapping[str, Path], folder: str = "") -> dict[str, str]:
    """Create data files, several at once because each waits for a disk or a network, and return their names."""

    def create(file: DataFile) -> str:
        return _create_data(store, file, files, folder)

    # A connection that was not closed publishes during interpreter shutdown, when no thread can be started.
    if len(wanted) < 2 or not threading.main_thread().is_alive():
        return {file.path: create(file) for file in wanted}
    with ThreadPoolExecutor(_UPLOADS) as pool:
        return {file.path: name for file, name in zip(wanted, pool.map(create, wanted), strict=True)}


def _create_data(store: Store, file: DataFile, files: Mapping[str, Path], folder: str = "") -> str:
    """Create one data file under its plain name, or a stamped one if the plain name is taken, and return the name."""
    local = files[file.path]
    if local.stat().st_size != file.bytes:
        raise InvalidError(f"{local} has {local.stat().st_size} bytes, {file.path} should have {file.bytes}")
    for path in (file.path, paths.with_stamp(file.path, file.sha256[:16])):
        try:
            store.create(folder + path, local)
        except AlreadyExistsError:
            if not _holds(store, folder + path, file):
                continue
        return path
    raise CorruptError(f"{store.url}/{folder}{path} is not what its name says", path=f"{store.url}/{folder}{path}")


def _holds(store: Store, path: str, file: DataFile) -> bool:
    try:
        local = store.fetch(path, file.bytes)
    except OversizedError:
        return False
    try:
        return local.stat().st_size == file.bytes and hash_file(local) == file.sha256
    finally:
        store.release(local)


def fetch_verified(store: Store, file: DataFile, folder: str, *, is_checked: bool = True) -> Path:
    """Return a local copy of a data file; the caller releases it.

    Args:
        store: Where it is.
        file: Its entry in the log file or manifest.
        folder: The folder that its path is relative to.
        is_checked: Verify its checksum and not only its size.

    Raises:
        CorruptError: The file is missing or differs from its entry in the log file or manifest.
    """
    path = folder + paths.check_relative(file.path, store.url)
    where = f"{store.url}/{path}"
    try:
        local = store.fetch(path, file.bytes)
    except MissingError as error:
        raise CorruptError(f"data file {where} is missing", path=where) from error
    except OversizedError as error:
        raise CorruptError(f"data file {where} is damaged: {error.message}", path=where) from error
    if local.stat().st_size != file.bytes or (is_checked and hash_file(local) != file.sha256):
        store.release(local)
        raise CorruptError(f"data file {where} is damaged: size or SHA-256 differ from what was published", path=where)
    return local


_GONE = "Put it back; or wlc stop SOURCE, then wlc master SOURCE, which starts a new history."


def open_database(
    db: str, farm: str | os.PathLike[str] | None = None, storage_options: Mapping[str, Any] | None = None
) -> FarmDatabase:
    """Open the folder of one database in a farm; nothing is read or written yet.

    Args:
        db: URL or path of the database's folder, or its bare name in `farm`.
        farm: URL or path of the farm; the environment variable WLC_FARM when omitted.
        storage_options: For S3, what `s3fs.S3FileSystem` takes; and keys, see `wlc.farm.seal.keys`.

    Raises:
        InvalidError: The name or URL is invalid, or a bare name is given without a farm.
    """
    farm = os.fspath(farm or os.environ.get("WLC_FARM") or "")
    if "/" in db or db.startswith((".", "~")):
        url = db
    elif farm:
        url = join_url(farm, paths.check_database_name(db))
    elif (Path(paths.check_database_name(db)) / paths.CONFIG).is_file():
        url = f"./{db}"
    else:
        raise InvalidError(f"no farm is given for database {db!r}", hint="Name it with --farm URL or set WLC_FARM.")
    store = open_store(url, storage_options)
    name = paths.check_database_name(store.url.rstrip("/").rpartition("/")[2])
    return FarmDatabase(name, store, storage_options)


def describe_file(file: Path, path: str, rows: int) -> DataFile:
    """Describe a local Parquet file of `rows` rows that will be published under `path`."""
    return DataFile(path, rows, file.stat().st_size, hash_file(file))


class FarmDatabase:
    """One database's folder in a farm.

    Attributes:
        name: The database's name, which is also the folder's.
        store: The store at that folder.
        storage_options: Options of its file system; they may hold secrets.
        keys: The keys among them, or those of the environment.
        witness: The last position that this reader has seen of the database; None if no file keeps it.
    """

    def __init__(self, name: str, store: Store, storage_options: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.keys = Keys(storage_options)
        self.witness = witness_of(storage_options, store.url)
        self.store = self._encrypted(store, "")
        self.storage_options = storage_options
        self._logs: Store | None = None
        self._logs_place = ""

    @property
    def url(self) -> str:
        """URL or path of the database's folder."""
        return self.store.url

    @property
    def logs(self) -> Store:
        """The store at the log directory, which the configuration may put elsewhere."""
        if self._logs is None:
            try:
                return self._open_logs(self.config().logs)
            except MissingError:
                return self._open_logs(paths.LOGS)
        return self._logs

    def probe_logs(self, logs: str) -> None:
        """Refuse an unsuitable place for log files before the configuration names it."""
        self._open_logs(logs).probe()

    def _open_logs(self, logs: str) -> Store:
        # Keep the open store: fetched files live as long as the store.
        if self._logs is None or self._logs_place != logs:
            opened = open_store(join_url(self.url, logs), self.storage_options)
            self._logs, self._logs_place = self._encrypted(opened, paths.LOGS), logs
        return self._logs

    def _encrypted(self, store: Store, folder: str) -> Store:
        """Return a store that encrypts if there are keys; objects are bound to the database, not to the store's URL."""
        return EncryptedStore(store, f"{self.name}/{folder}", self.keys) if self.keys.encrypts else store

    def _place(self, path: str) -> str:
        return f"{self.url}/{path}"

    # Configuration

    def config(self) -> Config:
        """Return the content of `wlc.config`.

        Raises:
            MissingError: There is no such database in the farm.
            CorruptError: The file is damaged; `rebuild_config` makes it anew.
        """
        found = self._config.load()
        if found is None:
            raise self._no_config()
        return found[0]

    @property
    def _config(self) -> VersionedObject[Config]:
        return VersionedObject(self.store, paths.CONFIG, encode_config, self._decoded_config)

    def _decoded_config(self, data: bytes) -> Config:
        where = self._place(paths.CONFIG)
        config = decode_config(data, where)
        if config.name != self.name:
            raise CorruptError(f"{where} is of database {config.name!r}, not {self.name!r}", path=where)
        self._open_logs(config.logs)
        return config

    def _no_config(self) -> MissingError:
        return MissingError(
            f"there is no database {self.name!r} in the farm: no {self._place(paths.CONFIG)}",
            hint=other_databases(self.url, self.name),
            path=self._place(paths.CONFIG),
        )

    def create_config(self, config: Config) -> None:
        """Write the first configuration, exclusively.

        Raises:
            AlreadyExistsError: The farm holds a database of this name.
        """
        self.store.create(paths.CONFIG, encode_config(config))
        self._open_logs(config.logs).prepare()

    def change_config(self, change: Callable[[Config], Config]) -> Config:
        """Replace the configuration with the result of a function; retry if another process writes in between.

        Args:
            change: Pure function from the present configuration to the new one. It returns its argument to leave the
                configuration alone, and raises FencedError where that belongs to another master.

        Returns:
            The configuration after the change.

        Raises:
            MissingError: There is no such database in the farm.
            CorruptError: The file is damaged; `rebuild_config` makes it anew.
            UnavailableError: Others keep changing it: try again.
        """

        def changed(present: Config | None) -> Config:
            if present is None:
                raise self._no_config()
            return change(present)

        config = self._config.change(changed)
        self._open_logs(config.logs)
        return config

    def rebuild_config(self, known: Config | None = None) -> Config:
        """Bring the configuration up to the newest log file and snapshot, and return it.

        Args:
            known: The master's knowledge of the configuration. Beat, log directory and state are only in `wlc.config`;
                if it is lost or damaged and `known` is omitted, they become 300 seconds, the default directory and
                started.

        Raises:
            MissingError: There is neither a configuration nor a log file nor a snapshot.
            GapError: The newest batch that the master has published is not there.
            UnavailableError: Others keep changing it: try again.
        """
        config = self._config_or_damage.change(lambda present: self._rebuilt(present, known))
        assert config is not None, "a rebuilt configuration is one"
        self._open_logs(config.logs)
        return config

    @property
    def _config_or_damage(self) -> VersionedObject[Config | None]:
        """`wlc.config`, or None in its place if it is damaged."""

        def decoded(data: bytes) -> Config | None:
            with suppress(CorruptError):
                return self._decoded_config(data)
            return None

        def encoded(config: Config | None) -> bytes:
            assert config is not None, "damage is not written"
            return encode_config(config)

        return VersionedObject(self.store, paths.CONFIG, encoded, decoded)

    def repair_config(self, batches: Sequence[int], snapshots: Sequence[int]) -> None:
        """Rebuild the configuration if it is behind the listed files, see `is_behind`; skip it in a read-only farm."""
        with suppress(FarmError, OSError):
            if is_behind(self.config(), batches, snapshots):
                self.rebuild_config()

    def _rebuilt(self, present: Config | None, known: Config | None) -> Config:
        if present is None:
            self._open_logs(known.logs if known else paths.LOGS)
        numbers, ticks = self.batch_numbers(), self.snapshot_ticks()
        if present is None and not numbers and not ticks:
            raise MissingError(f"{self.url} holds no database", hint=_GONE)
        if present is None and known and known.batches > 1 and known.batches - 1 not in numbers:
            raise GapError(f"batch {known.batches - 1} of {self.name} is missing", hint="Put the farm back.")
        batch = self.read_batch(numbers[-1])[0] if numbers else None
        manifest = self.read_manifest(ticks[-1]) if ticks else None
        config = present or known or first_config(self.name)
        # A batch of another history ends the history before the present one.
        if batch and batch.number >= config.batches and (present is None or batch.history == present.history):
            config = with_batch(config, batch)
        if manifest and (present is None or manifest.position.history == config.history):
            config = with_snapshot(config, manifest)
        return config

    # Batches

    def batch_numbers(self, after: int = 0) -> list[int]:
        """Return the numbers of the published batches greater than `after`, rising; can be empty."""
        start = paths.log_path(self.name, after) if after else ""
        entries = self.logs.list(f"{self.name}_", recursive=False, after=start)
        numbers = (paths.parse_log_path(self.name, entry.path) for entry in entries)
        return sorted(number for number in numbers if number is not None)

    def read_batch(self, number: int, previous: str | None = None, *, is_own: bool = False) -> tuple[Batch, str]:
        """Read one batch.

        Args:
            number: Its number, 1 or more.
            previous: Chain hash of the batch before it; None skips the check of the chain.
            is_own: The caller is the publisher of this batch: if the caller signs, the batch must carry its signature.

        Returns:
            The batch and its own chain hash.

        Raises:
            GapError: It is missing while later ones exist.
            MissingError: Neither it nor a later one exists.
            CorruptError: It is damaged, belongs to another database, or its chain is broken. Apply nothing of it.
        """
        data = newest_batches.read_log_file(self, number)
        return self.decoded_batch(number, data, previous, is_own=is_own)

    def decoded_batch(
        self, number: int, data: bytes, previous: str | None = None, *, is_own: bool = False
    ) -> tuple[Batch, str]:
        """Check the bytes of a log file and decode them; arguments, result and errors as in `read_batch`."""
        where = f"{self.logs.url}/{paths.log_path(self.name, number)}"
        verify_log(data, where, self.keys, is_own=is_own)
        batch = decode_batch(data, where)
        if batch.database != self.name or batch.number != number:
            raise CorruptError(f"{where} is batch {batch.number} of {batch.database}", path=where)
        if previous is not None:
            refuse_other_past(batch, previous, where)
        return batch, checksum(data)

    def publish(self, batch: Batch, files: Mapping[str, Path]) -> str:
        """Make `batch` visible to replicas, all or nothing; publishing the same batch again changes nothing.

        The log file, created last and exclusively, is the commit point. No data file is ever overwritten: if a failed
        attempt or a competing master left a file of the same name, the new file gets a stamp in its name.

        Args:
            batch: Ticks rise and start after the last published one.
            files: For each path in `batch.files` the local file.

        Returns:
            Chain hash of the log file.

        Raises:
            FencedError: Another master published a batch of this number. Stop; do not retry.
            GapError: The batch before it is missing.
            UnavailableError: The outcome is unknown. Retry: publishing is idempotent.
        """
        # Refuse an inconsistent batch before anything is written.
        data = signed_log(encode_batch(batch), self.keys)
        path = paths.log_path(self.name, batch.number)
        if self.logs.exists(path):
            return self._published(batch)
        self._check_place(batch.number)
        renamed = create_all(self.logs, [file.file for file in batch.files], files)
        stamped = _with_paths(batch, renamed)
        if stamped is not batch:
            data = signed_log(encode_batch(stamped), self.keys)
        try:
            self.logs.create(path, data)
        except AlreadyExistsError:
            return self._published(batch)
        # If the farm was moved away during the write, the batch is in another place.
        self._check_place(batch.number)
        return checksum(data)

    def _check_place(self, number: int) -> None:
        """Refuse to publish if the previous batch is missing."""
        if number > 1 and not self.logs.exists(paths.log_path(self.name, number - 1)):
            raise GapError(
                f"cannot publish batch {number} of {self.name}: batch {number - 1} is missing",
                hint=_GONE,
                path=self.logs.url,
            )

    def _published(self, batch: Batch) -> str:
        """Return the chain hash of the existing log file if its content equals `batch`."""
        present, chain = self.read_batch(batch.number, is_own=True)
        if _without_stamps(present) != _without_stamps(batch):
            raise FencedError(
                f"batch {batch.number} of {self.name} was published by another master",
                hint="Stop this master. Exactly one process may write the database.",
                path=f"{self.logs.url}/{paths.log_path(self.name, batch.number)}",
            )
        return chain

    def fetch(self, file: TableFile | DataFile, *, is_checked: bool = True) -> Path:
        """Return a local copy of a batch's data file; the caller releases it. Unless `is_checked`, verify only size.

        Raises:
            CorruptError: The file is missing or differs from its entry in the log file.
        """
        file = file.file if isinstance(file, TableFile) else file
        return fetch_verified(self.logs, file, "", is_checked=is_checked)

    def release(self, file: Path) -> None:
        """Give up a file from `fetch` or `fetch_snapshot`, so that downloads do not pile up."""
        self.logs.release(file)
        self.store.release(file)

    def delete_batch(self, number: int) -> None:
        """Delete a batch, its log file first: without the log file, no reader uses the data files. Can be repeated."""
        data = [entry.path for entry in self.logs.list(paths.data_folder(self.name, number))]
        for path in (paths.log_path(self.name, number), *data):
            self.logs.delete(path)

    def leftover_numbers(self) -> list[int]:
        """Return the numbers below the newest batch that have data files but no log file, rising.

        An interrupted deletion leaves them. Above the newest batch, the data files may belong to a publication in
        progress.
        """
        numbers = self.batch_numbers()
        entries = self.logs.list(f"{self.name}_") if numbers else []
        found = {parsed[0] for entry in entries if (parsed := paths.parse_data_path(self.name, entry.path))}
        return sorted(number for number in found - set(numbers) if number < numbers[-1])

    def log_bytes(self) -> int:
        """Return the size of all log and data files of the batches."""
        return sum(self.batch_bytes().values())

    def batch_bytes(self) -> dict[int, int]:
        """Return the size of each batch, its log file and its data files."""
        sizes: dict[int, int] = {}
        for entry in self.logs.list(f"{self.name}_"):
            data = paths.parse_data_path(self.name, entry.path)
            if number := data[0] if data else paths.parse_log_path(self.name, entry.path):
                sizes[number] = sizes.get(number, 0) + entry.bytes
        return sizes

    # Snapshots

    def snapshot_ticks(self) -> list[int]:
        """Return the ticks of all snapshots, rising; can be empty."""
        listed = (paths.parse_manifest_path(entry.path) for entry in self.store.list(paths.SNAPSHOTS))
        ticks = {tick for tick in listed if tick is not None}
        # Where listings lag, find a new snapshot by its name. Otherwise the log would seem to begin with an empty
        # database.
        named = self._named_snapshot()
        if named is not None and named not in ticks and self.store.exists(paths.manifest_path(named)):
            ticks.add(named)
        return sorted(ticks)

    def _named_snapshot(self) -> int | None:
        try:
            return paths.parse_snapshot_folder(self.config().snapshot)
        except (MissingError, CorruptError):
            return None

    def leftover_snapshots(self) -> list[int]:
        """Return the ticks before the first snapshot that have data files but no manifest, rising.

        A snapshot that failed before its manifest leaves them. At later ticks, they may belong to a snapshot in
        progress.
        """
        ticks = self.snapshot_ticks()
        folders = (entry.path.rpartition("/")[0] for entry in self.store.list(paths.SNAPSHOTS)) if ticks else ()
        found = {tick for folder in folders if (tick := paths.parse_snapshot_folder(folder)) is not None}
        return sorted(tick for tick in found if tick < ticks[0])

    def read_manifest(self, tick: int) -> Manifest:
        """Read the manifest of the snapshot at `tick`.

        Raises:
            MissingError: There is no snapshot at that tick.
            CorruptError: It is damaged or belongs to another snapshot.
        """
        return self.decoded_manifest(tick, self.store.read(paths.manifest_path(tick)))

    def decoded_manifest(self, tick: int, data: bytes) -> Manifest:
        """Check the bytes of a manifest and decode them; raises CorruptError as `read_manifest` does."""
        path = paths.manifest_path(tick)
        verify_manifest(data, self._place(path), self.keys)
        manifest = decode_manifest(data, self._place(path))
        if manifest.database != self.name or manifest.position.tick != tick:
            message = f"{self._place(path)} is of {manifest.database} at {manifest.position}"
            raise CorruptError(message, path=self._place(path))
        return manifest

    def publish_snapshot(self, manifest: Manifest, files: Mapping[str, Path]) -> Manifest:
        """Make a snapshot visible, all or nothing: data files first, the manifest last.

        Args:
            manifest: Its files are named 0.parquet, 1.parquet … .
            files: For each path in the manifest the local file.

        Returns:
            The manifest in the farm. An existing snapshot at the same position is equivalent and stays.

        Raises:
            FencedError: A snapshot of another history exists at this tick.
            UnavailableError: The outcome is unknown. Retry.
        """
        encode_manifest(manifest)
        path = paths.manifest_path(manifest.position.tick)
        if self.store.exists(path):
            return self._published_snapshot(manifest)
        folder = paths.snapshot_folder(manifest.position.tick) + "/"
        renamed = create_all(self.store, [file for table in manifest.tables for file in table.files], files, folder)
        tables = tuple(
            replace(table, files=tuple(replace(file, path=renamed[file.path]) for file in table.files))
            for table in manifest.tables
        )
        manifest = replace(manifest, tables=tables)
        try:
            self.store.create(path, signed_manifest(encode_manifest(manifest), self.keys))
        except AlreadyExistsError:
            return self._published_snapshot(manifest)
        return manifest

    def _published_snapshot(self, manifest: Manifest) -> Manifest:
        present = self.read_manifest(manifest.position.tick)
        if present.position != manifest.position:
            raise FencedError(
                f"there is another snapshot of {self.name} at {present.position}, not at {manifest.position}",
                hint="Stop this master if another one writes the database.",
                path=self._place(paths.manifest_path(manifest.position.tick)),
            )
        return present

    def fetch_snapshot(self, manifest: Manifest, file: DataFile, *, is_checked: bool = True) -> Path:
        """Return a local copy of a snapshot's data file; see `fetch`."""
        folder = f"{paths.snapshot_folder(manifest.position.tick)}/"
        return fetch_verified(self.store, file, folder, is_checked=is_checked)

    def delete_snapshot(self, tick: int) -> None:
        """Delete a snapshot, its manifest first: without it, no reader uses the data files. Can be repeated."""
        listed = [entry.path for entry in self.store.list(paths.snapshot_folder(tick) + "/")]
        for path in dict.fromkeys((paths.manifest_path(tick), *listed)):
            self.store.delete(path)


def _without_stamps(batch: Batch) -> Batch:
    return _with_paths(batch, {file.file.path: paths.with_stamp(file.file.path, "") for file in batch.files})


def _with_paths(batch: Batch, renamed: Mapping[str, str]) -> Batch:
    if all(old == new for old, new in renamed.items()):
        return batch
    files = tuple(replace(file, file=replace(file.file, path=renamed[file.file.path])) for file in batch.files)
    return replace(batch, files=files, transactions=Transactions.of(batch.transactions).with_paths(renamed))
