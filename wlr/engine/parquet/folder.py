"""The folder or bucket of a Parquet replica: immutable data files and manifests, and a mutable pointer.

    wlr.pointer                                     the current manifest and the replica's state
    wlr.lease                                       the run that writes now
    manifests/000000000042-4f1c.json                the replica at tick 42
    data/main.orders/000000000042-4f1c-0.parquet    rows as of tick 42 and later, until another file replaces it

A step writes data files, then a manifest, then replaces the pointer by compare-and-swap, which commits it. Files of a
later tick than the pointer's are left over from a run that died. Readers of an older manifest find all of its files
until `prune` removes them.

The content of a Parquet replica at one tick, and the manifest that describes it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from wlc.farm import paths
from wlc.farm.documents import Document
from wlc.farm.errors import CorruptError, InvalidError, UnavailableError
from wlc.farm.json_fields import FORMAT_VERSION, FormatVersion, JsonForm, JsonKey, Later, Presence, RelativePath, Sha256
from wlc.farm.model import Ddl, Layout, SequencePosition
from wlc.farm.names import TableName
from wlc.farm.seal.checksum import checksum
from wlc.farm.store import ConflictError, MissingError, open_store
from wlc.farm.versioned import VersionedObject
from wlr.engine.contract import no_replica
from wlr.engine.replica_state import (
    ReplicaState,
    StartOrPosition,
    WrittenContained,
    as_settings,
    settings_json,
    settings_keys,
)
from wlr.engine.table_files import DATA
from wlr.replay.fold.files import FilePart
from wlr.replay.fold.tally import Tallies

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from wlc.farm.lease import Lease
    from wlc.farm.store import Store


REBUILD = "Rebuild the replica."


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table and its files, which do not overlap; with a key, they are in key order."""

    table: TableName
    layout: Layout
    parts: Annotated[tuple[FilePart, ...], JsonKey("files")]

    @property
    def rows(self) -> int:
        """Number of its rows."""
        return sum(part.file.rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class Version:
    """The replica at one tick.

    Attributes:
        made: When it became current.
        schema: Statements that build the schema on an empty database; `schema_after`: those to run after loading rows.
        digests: Digests of the tables; see `wlr.replay.fold.tally`.
        contained: Its contents, including other sites; see `ReplicaState`.
    """

    position: StartOrPosition
    batch_last: int
    clock: datetime | None
    digests: Tallies
    contained: Later[WrittenContained]
    made: datetime
    catalog: str
    schema: tuple[Ddl, ...]
    schema_after: tuple[Ddl, ...]
    sequences: tuple[SequencePosition, ...]
    tables: tuple[LakeTable, ...]
    format: FormatVersion = FORMAT_VERSION

    @property
    def paths(self) -> set[str]:
        """Paths of the data files that it names."""
        return {part.file.path for table in self.tables for part in table.parts}


_VERSION = Document("manifest", Version, hint=REBUILD)
encode_version, decode_version = _VERSION.encode, _VERSION.decode


POINTER = "wlr.pointer"
LEASE = "wlr.lease"
_MANIFESTS = "manifests/"
_FILE = re.compile(r"(?:data/[^/]+/(\d{12,})-[0-9a-f-]+\.parquet|manifests/(\d{12,})-[0-9a-f]+\.json)")


class TakenOverError(UnavailableError):
    """Another run writes to the replica now; this run has committed nothing since."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """The path of the current manifest, and the rest of the replica's state.

    Attributes:
        manifest: Path of the current manifest; `sha256` of its bytes.
        run: The run that wrote the pointer last; other runs must not write any more.
        state: The state; position, clock and last tick of its batch are those of the manifest.
    """

    manifest: RelativePath
    sha256: Annotated[Sha256, JsonKey("manifest_sha256")]
    run: str
    state: Annotated[ReplicaState, Presence.INLINE, JsonForm(as_settings, settings_json, settings_keys())]


_POINTER = Document("pointer", Pointer, format=None, hint=REBUILD)
encode_pointer, decode_pointer = _POINTER.encode, _POINTER.decode


class LakeFolder:
    """A Parquet replica's place.

    Args:
        url: Path or URL.
        storage_options: Options of its file system.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.store: Store = open_store(url, storage_options)
        self.storage_options = dict(storage_options or {})

    @property
    def url(self) -> str:
        """Path or URL, without a slash at its end."""
        return self.store.url

    # Reading

    def find(self) -> tuple[Pointer, str] | None:
        """Return the pointer and its version, None if there is no replica.

        Raises:
            InvalidError: The place holds something else.
            CorruptError: The pointer is damaged.
        """
        found = self._pointer.load()
        if found is None:
            self._refuse_others()
        return found

    @property
    def _pointer(self) -> VersionedObject[Pointer]:
        # No two runs write the same pointer: it names the run.
        where = f"{self.url}/{POINTER}"
        return VersionedObject(
            self.store, POINTER, encode_pointer, lambda data: decode_pointer(data, where), is_stamped=True
        )

    def require(self) -> tuple[Pointer, str]:
        """Return the pointer and its version; raises as `find` does.

        Raises:
            InvalidError: There is no replica.
        """
        found = self.find()
        if found is None:
            raise no_replica(self.url)
        return found

    def _refuse_others(self) -> None:
        # Ignore files of a run that died while it made a replica.
        own = {folder.rstrip("/") for folder in (DATA, _MANIFESTS)}
        top = [*self.store.folders(), *(entry.path for entry in self.store.list(recursive=False))]
        found = [name for name in top if name not in own and name != LEASE and not name.startswith(".")]
        # Look only into folders with our names: the place may be the root of a disk.
        inner = (entry.path for folder in (DATA, _MANIFESTS) for entry in self.store.list(folder))
        found = found or [path for path in inner if tick_of(path) is None]
        if paths.CONFIG in found:
            raise InvalidError(
                f"{self.url} is a database of a farm, not a replica", hint="Replicate into a new folder."
            )
        if found:
            message = f"{self.url} holds other files, such as {found[0]}, and no replica"
            raise InvalidError(message, hint="Replicate into a folder that does not exist yet.", path=self.url)

    def read_current(self, pointer: Pointer) -> Version:
        """Read the manifest that a pointer names.

        Raises:
            CorruptError: It is missing, damaged, or changed.
        """
        where = f"{self.url}/{pointer.manifest}"
        try:
            data = self.store.read(pointer.manifest)
        except MissingError as error:
            raise CorruptError(f"{where} is missing", hint=REBUILD, path=where) from error
        if checksum(data) != pointer.sha256:
            raise CorruptError(f"{where} was changed after it was written", hint=REBUILD, path=where)
        return decode_version(data, where)

    def read_version(self, path: str) -> Version:
        """Read a manifest by its path.

        Raises:
            CorruptError: It is damaged, or of another tick.
        """
        where = f"{self.url}/{path}"
        version = decode_version(self.store.read(path), where)
        if version.position.tick != tick_of(path):
            raise CorruptError(f"{where} belongs to tick {version.position.tick}", path=where)
        return version

    def manifests(self, last: int) -> list[tuple[int, str]]:
        """Return tick and path of every manifest up to a tick, rising."""
        listed = ((tick_of(entry.path), entry.path) for entry in self.store.list(_MANIFESTS))
        return sorted((tick, path) for tick, path in listed if tick is not None and tick <= last)

    def all_manifests(self) -> list[str]:
        """Return the path of every manifest."""
        return [entry.path for entry in self.store.list(_MANIFESTS) if tick_of(entry.path) is not None]

    def data_files(self) -> list[tuple[int, str, int]]:
        """Return tick, path and bytes of every data file."""
        listed = ((tick_of(entry.path), entry.path, entry.bytes) for entry in self.store.list(DATA))
        return sorted((tick, path, size) for tick, path, size in listed if tick is not None)

    # Writing

    def write_version(self, version: Version, run: str) -> tuple[str, str]:
        """Write a manifest that the pointer does not name yet, and return its path and SHA-256."""
        data = encode_version(version)
        path = f"{_MANIFESTS}{version.position.tick:012d}-{run}.json"
        self.store.create(path, data)
        return path, checksum(data)

    def replace_pointer(self, pointer: Pointer, version: str | None) -> str:
        """Replace the pointer unless another run did, and return its new version.

        Raises:
            TakenOverError: Another run took the replica over and wrote the pointer.
        """
        try:
            return self._pointer.replace(pointer, version)
        except ConflictError as error:
            raise self._taken_over() from error

    def commit_pointer(self, pointer: Pointer) -> str:
        """Replace the pointer as the run that wrote it last, and return its new version.

        Raises:
            TakenOverError: Another run took the replica over and wrote the pointer.
        """

        def committed(present: Pointer | None) -> Pointer:
            if present is None or present.run != pointer.run:
                raise self._taken_over()
            return pointer

        version = self._pointer.change_versioned(committed)[1]
        assert version is not None
        return version

    def refuse_other_run(self, run: str) -> None:
        """Check that a run wrote the pointer last.

        Raises:
            TakenOverError: Another run took the replica over.
        """
        found = self._pointer.load()
        if found is None or found[0].run != run:
            raise self._taken_over()

    def _taken_over(self) -> TakenOverError:
        return TakenOverError(
            f"another run took {self.url} over", hint="Nothing was lost: try again later.", path=self.url
        )

    def sweep(self, last: int, version: str, kept: Collection[str] = ()) -> None:
        """Remove files of dead runs, and files that a replica left when it went back.

        These are all files of a later tick than the last committed one. After going back, old ticks can share files
        that were written for a later tick.

        Args:
            last: The last committed tick.
            version: Version of the pointer, as for `remove`.
            kept: Paths of files to keep.
        """
        found = [entry.path for prefix in (DATA, _MANIFESTS) for entry in self.store.list(prefix)]
        later = [path for path in found if (tick := tick_of(path)) is not None and tick > last]
        later = [path for path in later if path not in kept]
        if any(path.startswith(DATA) for path in later):
            try:
                named = {path for _, manifest in self.manifests(last) for path in self.read_version(manifest).paths}
            except CorruptError:
                # A reader of that tick reports it; until then, the names of its files are unknown.
                named = {path for path in later if path.startswith(DATA)}
            later = [path for path in later if path not in named]
        self.remove(later, version)

    def remove(self, listed: Collection[str], version: str) -> None:
        """Remove files that were listed before, unless another run has taken the replica over.

        A run that takes over changes the pointer before it writes anything: files that existed under our version of
        the pointer are not its files.

        Args:
            listed: Their paths.
            version: Our version of the pointer.

        Raises:
            TakenOverError: Another run has taken over; nothing was removed.
        """
        found = self._pointer.load() if listed else None
        if listed and (found is None or found[1] != version):
            raise self._taken_over()
        for path in listed:
            self.store.delete(path)


def work_folder(folder: LakeFolder, held: Lease) -> Path:
    """Make a folder for temporary files: on a local disk inside the replica, which saves copying.

    Temporary files of dead runs are removed first. The caller holds the lease, so no other run may write; a file that
    was changed after the lease was taken belongs to a run that has not noticed the loss yet, and stays.
    """
    if "://" in folder.url:
        return Path(tempfile.mkdtemp(prefix="wlr-"))
    Path(folder.url).mkdir(parents=True, exist_ok=True)
    folder.store.sweep(held.age_s)
    for left in Path(folder.url).glob(".wlr-*"):
        shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=".wlr-", dir=folder.url))


def tick_of(path: str) -> int | None:
    """Tick that a data file or manifest was written for, None for other files."""
    found = _FILE.fullmatch(path)
    return int(found.group(1) or found.group(2)) if found else None


# The pointer ---------------------------------------------------------------------------------------------------------


def with_version(state: ReplicaState, version: Version) -> ReplicaState:
    """Return a state at the position of a version."""
    return replace(
        state,
        position=version.position,
        batch_last=version.batch_last,
        clock=version.clock,
        digests=version.digests,
        contained=version.contained,
    )
