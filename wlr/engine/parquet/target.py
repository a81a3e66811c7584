"""A folder or bucket of Parquet files as a target."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.farm.errors import InvalidError, UnsupportedError
from wlr.engine.contract import Target
from wlr.engine.parquet.build import build, rebuild
from wlr.engine.parquet.folder import LakeFolder, with_version
from wlr.engine.parquet.open_tables import DELTA
from wlr.engine.parquet.past import files_of, stored_tables, surplus
from wlr.engine.parquet.replica import open_replica
from wlr.engine.parquet.scan import scanned
from wlr.engine.parquet.snapshot import as_snapshot
from wlr.plan.retention import parse_keep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    from wlc.farm.model import Manifest
    from wlr.engine.bulk import Bulk
    from wlr.engine.contract import NewReplica
    from wlr.engine.parquet.replica import OpenLake
    from wlr.engine.place import Place
    from wlr.engine.scan import Scan, StoredTables
    from wlr.engine.state import ReplicaState
    from wlr.plan.retention import PrunedTicks

# A run that was killed may have left half-written files. No file takes longer than this to write.
_HALF_WRITTEN_S = 86_400.0


class ParquetTarget(Target):
    """A folder or bucket that is, or can become, a replica."""

    noun = "a Parquet replica"
    has_quarantine = False

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

    def _set_unlocked(self, is_unlocked: bool) -> None:  # noqa: ARG002
        raise UnsupportedError(f"{self} is a Parquet replica, whose files are never written to: it has no lock")

    def check_keep(self, keep: str) -> None:
        parse_keep(keep)

    def check_open_tables(self, kind: str) -> None:
        if kind not in (DELTA, "none"):
            raise InvalidError(f"tables cannot be open to {kind!r}", hint="--open delta, or --open none")

    def check_prune(self) -> None:
        pass

    def files(self, table: str, tick: int | None = None) -> list[str]:
        return files_of(self.folder, table, tick)

    def stored_tables(self, tick: int | None = None) -> StoredTables:
        return stored_tables(self.folder, tick)

    def as_snapshot(self, database: str) -> tuple[Manifest, dict[str, Path]]:
        return as_snapshot(self.folder, database)

    def prune(self, keep: str | None = None, *, dry_run: bool = False) -> PrunedTicks:
        if dry_run:
            # This writes nothing, not even a lease, so that it works while a run is under way.
            state = self.read_state()
            pruned, _ = surplus(self.folder, state.position.tick, state.keep if keep is None else keep)
            return replace(pruned, is_dry_run=True)
        with self.open() as replica:
            state = replica.state
            pruned, paths = surplus(self.folder, state.position.tick, state.keep if keep is None else keep)
            replica.remove(paths)
            self.folder.store.sweep(_HALF_WRITTEN_S)
        return pruned
