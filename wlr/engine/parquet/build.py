"""A new Parquet replica: the snapshot's rows cut into files, then the first manifest and the pointer."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.fold import TargetTable
from wlc.farm.clock import utc_now
from wlc.farm.errors import FarmError, UnavailableError
from wlc.farm.lease import Lease
from wlr.engine.contract import NewReplica, loading
from wlr.engine.parquet.catalog import LakeCatalog
from wlr.engine.parquet.executor import LocalExecutor
from wlr.engine.parquet.folder import LEASE, LakeTable, Pointer, TakenOverError, Version, work_folder
from wlr.engine.parquet.open_tables import OpenTables

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.farm.model import SnapshotTable
    from wlr.engine.parquet.folder import LakeFolder
    from wlr.replay.fold.files import Executor


_HINT = "The snapshot was made by another version."


def build(folder: LakeFolder, new: NewReplica) -> None:
    """Make a new replica; see `wlr.engine.contract.Target.build`."""
    _refuse_made(folder)
    lease = Lease(folder.store, LEASE)
    try:
        _refuse_made(folder)
        path, sha256, files = _written(folder, new, lease)
        made = [path, *files]
        try:
            pointed = folder.replace_pointer(Pointer(path, sha256, lease.run, new.state), None)
        except TakenOverError:
            _remove(folder, made)
            raise
        # Not earlier: a slow run might have committed a pointer to these files.
        with suppress(FarmError):
            folder.sweep(-1, pointed, made)
    finally:
        lease.release()


def rebuild(folder: LakeFolder, new: NewReplica) -> None:
    """Rebuild a replica in its place; see `wlr.engine.contract.Rebuildable`. Its old ticks are gone."""
    lease = Lease(folder.store, LEASE)
    try:
        pointer, version = folder.require()
        version = folder.replace_pointer(replace(pointer, run=lease.run), version)
        before = [*folder.all_manifests(), *(path for _, path, _ in folder.data_files())]
        # In another history, the same ticks are other transactions: they must never find an old manifest.
        folder.remove([path for path in folder.all_manifests() if path != pointer.manifest], version)
        path, sha256, _ = _written(folder, new, lease)
        pointed = folder.commit_pointer(pointer := Pointer(path, sha256, lease.run, new.state))
        if new.state.open_tables:
            # Before removing the files that the logs name.
            OpenTables(folder, lease.run).level(folder.read_current(pointer), path)
        # If this fails, `wlr lake prune` removes the rest once the replica has reached that tick.
        with suppress(FarmError):
            folder.remove(before, pointed)
    finally:
        lease.release()


def _refuse_made(folder: LakeFolder) -> None:
    if folder.find() is not None:
        raise UnavailableError(f"another process made {folder.url}", path=folder.url)


def _remove(folder: LakeFolder, paths: list[str]) -> None:
    """Remove the files of this failed run, as far as possible."""
    with suppress(FarmError):
        for path in paths:
            folder.store.delete(path)


def _written(folder: LakeFolder, new: NewReplica, lease: Lease) -> tuple[str, str, list[str]]:
    """Write the files of the first version; return its path, its checksum, and the paths of the files."""
    executor = LocalExecutor(folder.store, work_folder(folder, lease))
    try:
        version = _load(folder, new, executor)
    except BaseException:
        _remove(folder, executor.published)
        raise
    finally:
        executor.close()
    return *folder.write_version(version, lease.run), executor.published


def _load(folder: LakeFolder, new: NewReplica, executor: Executor) -> Version:
    state, loaded = new.state, []

    def load_table(table: SnapshotTable, files: list[Path]) -> int:
        described = TargetTable(table.table, table.table.sql, table.layout)
        with loading(f"table {table.table}", _HINT):
            parts = executor.split(described, files, state.position.tick)
        loaded.append(LakeTable(table.table, table.layout, parts))
        return loaded[-1].rows

    catalog = LakeCatalog(state.catalog, state.tables, folder.url)
    try:
        if new.manifest is not None:
            catalog.load((*new.manifest.schema, *new.manifest.schema_after), new.manifest.sequences)
        new.load(load_table)
        schema, schema_after = catalog.statements()
        return Version(
            position=state.position,
            batch_last=state.batch_last,
            clock=state.clock,
            made=utc_now(),
            catalog=state.catalog,
            schema=schema,
            schema_after=schema_after,
            sequences=catalog.sequences(),
            tables=tuple(loaded),
            digests=state.digests,
            contained=state.contained,
        )
    finally:
        catalog.close()
