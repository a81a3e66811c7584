"""A folder or bucket of Parquet files as a target: its files, its rows as images, and the pruning of its old ticks."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.sql import quote
from wlc.dialect.types import storage_type
from wlc.farm import typed_names
from wlc.farm.clock import utc_now
from wlc.farm.errors import ExpiredError, InvalidError
from wlc.farm.model import Digest, Manifest, SnapshotTable, file_column
from wlc.farm.paths import snapshot_data_path
from wlc.farm.typed_names import tables_meant
from wlr.engine.calculator import connect
from wlr.engine.contract import Lake, Rebuildable, Scan, StoredTables
from wlr.engine.parquet.build import build, rebuild
from wlr.engine.parquet.folder import LakeFolder, with_version
from wlr.engine.parquet.open_tables import DELTA
from wlr.engine.parquet.replica import open_replica
from wlr.engine.table_files import fetched
from wlr.replay.plan.retention import PrunedTicks, keep_ticks, parse_keep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    from wlc.farm.model import DataFile, Name
    from wlr.engine.contract import Bulk, NewReplica
    from wlr.engine.parquet.folder import LakeTable, Version
    from wlr.engine.parquet.replica import OpenLake
    from wlr.engine.place import Place
    from wlr.engine.replica_state import ReplicaState


# A killed run may have left half-written files. No file takes longer than this to write.
_HALF_WRITTEN_S = 86_400.0


class ParquetTarget(Lake, Rebuildable):
    """A folder or bucket that is, or can become, a replica."""

    noun = "a Parquet replica"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.folder = LakeFolder(place.url, place.storage_options)

    def find_state(self) -> ReplicaState | None:
        found = self.folder.find()
        return None if found is None else with_version(found[0].state, self.folder.read_current(found[0]))

    def build(self, new: NewReplica) -> None:
        build(self.folder, new)

    def rebuild(self, new: NewReplica) -> None:
        rebuild(self.folder, new)

    def open(
        self,
        folders: Sequence[Path] = (),  # noqa: ARG002 - No statement of the farm runs where files are read.
        bulk: Bulk | None = None,
    ) -> OpenLake:
        return open_replica(self.folder, bulk)

    def scanned(
        self,
        work: Path,
        storage_options: Mapping[str, Any] | None = None,  # noqa: ARG002 - The manifest knows the types.
    ) -> AbstractContextManager[Scan]:
        return scanned(self.folder, work)

    def check_keep(self, keep: str) -> None:
        parse_keep(keep)

    def check_open_tables(self, kind: str) -> None:
        if kind not in (DELTA, "none"):
            raise InvalidError(f"tables cannot be open to {kind!r}", hint="--open delta, or --open none")

    def files(self, table: str, tick: int | None = None) -> list[str]:
        tables = {found.table: found for found in self._version(tick).tables}
        if (name := typed_names.find(table, tables)) is not None:
            return [f"{self.folder.url}/{part.file.path}" for part in tables[name].parts]
        raise InvalidError(f"{self} has no table {table}", hint=tables_meant(table, tables), path=str(self))

    def stored_tables(self, tick: int | None = None) -> StoredTables:
        version = self._version(tick)
        tables = {table.table: table for table in version.tables}

        @contextmanager
        def files(name: Name, is_checked: bool) -> Iterator[list[Path]]:
            with ExitStack() as stack:
                parts = (fetched(self.folder.store, part, is_checked=is_checked) for part in tables[name].parts)
                yield [stack.enter_context(part).path for part in parts]

        return StoredTables(version.position.tick, {name: table.layout for name, table in tables.items()}, files)

    def _version(self, tick: int | None) -> Version:
        current = self.folder.read_current(self.folder.require()[0])
        if tick is None or tick == current.position.tick:
            return current
        if tick > current.position.tick:
            message = f"{self} is at tick {current.position.tick}, not yet at {tick}"
            raise InvalidError(message, hint=f"wlr replicate --into {self} --tick {tick}", path=str(self))
        listed = self.folder.manifests(tick)
        # A replica has no readable state between two manifests.
        if not listed or listed[-1][0] != tick:
            ticks = ", ".join(str(known) for known, _ in self.folder.manifests(current.position.tick)[-10:])
            message = f"{self} cannot be read at tick {tick}"
            raise ExpiredError(
                message, hint=f"Readable ticks: {ticks}; others were pruned or passed over.", path=str(self)
            )
        return self.folder.read_version(listed[-1][1])

    def prune(self, keep: str | None = None, *, dry_run: bool = False) -> PrunedTicks:
        if dry_run:
            # This writes nothing, not even a lease, so it works during a run.
            return replace(self._surplus(self.read_state(), keep)[0], is_dry_run=True)
        with self.open() as replica:
            pruned, paths = self._surplus(replica.state, keep)
            replica.remove(paths)
            self.folder.store.sweep(_HALF_WRITTEN_S)
        return pruned

    def _surplus(self, state: ReplicaState, keep: str | None) -> tuple[PrunedTicks, list[str]]:
        """Find unneeded files, and their paths in the order of removal."""
        wanted, current = parse_keep(state.keep if keep is None else keep), state.position.tick
        versions = [(tick, path, self.folder.read_version(path)) for tick, path in self.folder.manifests(current)]
        kept = keep_ticks([(tick, version.made) for tick, _, version in versions], wanted, utc_now())
        gone = [(tick, path) for tick, path, _ in versions if tick not in kept]
        named = {
            part.file.path
            for tick, _, version in versions
            if tick in kept
            for table in version.tables
            for part in table.parts
        }
        # Files of a later tick belong to an active run.
        files = self.folder.data_files()
        unnamed = [(path, size) for tick, path, size in files if tick <= current and path not in named]
        pruned = PrunedTicks(tuple(tick for tick, _ in gone), len(unnamed), sum(size for _, size in unnamed), min(kept))
        # Manifests first: a tick without a manifest does not exist, so its files can go at any time.
        return pruned, [*(path for _, path in gone), *(path for path, _ in unnamed)]

    def as_snapshot(self, database: str) -> tuple[Manifest, dict[str, Path]]:
        version = self._version(None)
        files: dict[str, Path] = {}
        manifest = Manifest(
            database=database,
            position=version.position,
            clock=version.clock or version.made,
            catalog=version.catalog,
            schema=version.schema,
            schema_after=version.schema_after,
            tables=tuple(self._snapshot_table(table, files) for table in version.tables),
            sequences=version.sequences,
            digests={name: digest for name, digest in version.digests.items() if isinstance(digest, Digest)},
        )
        return manifest, files

    def _snapshot_table(self, table: LakeTable, files: dict[str, Path]) -> SnapshotTable:
        listed: list[DataFile] = []
        for part in table.parts:
            path = snapshot_data_path(len(files))
            with fetched(self.folder.store, part) as piece:
                files[path] = piece.path
            listed.append(replace(part.file, path=path))
        return SnapshotTable(table.table, table.layout, tuple(listed))


@contextmanager
def scanned(folder: LakeFolder, work: Path) -> Iterator[Scan]:
    """Open a replica for reading; raises as `wlr.engine.scanned` does."""
    pointer, _ = folder.require()
    version = folder.read_current(pointer)
    tables = {table.table: table for table in version.tables}
    connection = connect(work)

    @contextmanager
    def images(name: Name) -> Iterator[str]:
        with ExitStack() as stack:
            files = [stack.enter_context(fetched(folder.store, part)).path for part in tables[name].parts]
            yield _select(tables[name], files)

    try:
        yield Scan(
            connection,
            with_version(pointer.state, version),
            {name: table.layout for name, table in tables.items()},
            images,
        )
    finally:
        connection.close()


def _select(table: LakeTable, files: list[Path]) -> str:
    if not files:
        columns = (f"CAST(NULL AS {storage_type(c.type)}) AS {quote(file_column(c.name))}" for c in table.layout.stored)
        return f"SELECT {', '.join(columns)} WHERE false"
    columns = (quote(file_column(column.name)) for column in table.layout.stored)
    return f"SELECT {', '.join(columns)} FROM {rows_of(*files)}"
