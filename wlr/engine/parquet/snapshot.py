"""A Parquet replica as a snapshot of the farm: its files become the snapshot's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.model import Digest, Manifest, SnapshotTable
from wlc.farm.paths import snapshot_data_path
from wlr.engine.table_files import fetched

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.farm.model import DataFile
    from wlr.engine.parquet.folder import LakeFolder
    from wlr.engine.parquet.version import LakeTable


def as_snapshot(folder: LakeFolder, database: str) -> tuple[Manifest, dict[str, Path]]:
    """Describe a replica on a local disk as a snapshot; see `Target.as_snapshot`."""
    version = folder.read_current(folder.require()[0])
    files: dict[str, Path] = {}
    manifest = Manifest(
        database=database,
        position=version.position,
        clock=version.clock or version.made,
        catalog=version.catalog,
        schema=version.schema,
        schema_after=version.schema_after,
        tables=tuple(_table(folder, table, files) for table in version.tables),
        sequences=version.sequences,
        digests={name: digest for name, digest in version.digests.items() if isinstance(digest, Digest)},
    )
    return manifest, files


def _table(folder: LakeFolder, table: LakeTable, files: dict[str, Path]) -> SnapshotTable:
    listed: list[DataFile] = []
    for part in table.parts:
        path = snapshot_data_path(len(files))
        with fetched(folder.store, part) as piece:
            files[path] = piece.path
        listed.append(replace(part.file, path=path))
    return SnapshotTable(table.table, table.layout, tuple(listed))
