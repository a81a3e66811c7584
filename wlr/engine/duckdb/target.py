"""A DuckDB file as a target. Reading its position imports few modules; the others are imported on first use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.opening import wal_of
from wlc.farm.errors import InvalidError
from wlr.engine.contract import DELETE_PLACE, DatabaseFile, Guarded, Rebuildable
from wlr.engine.duckdb.replica_file import present_before, work_folder
from wlr.engine.duckdb.wlr_schema import look

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    import duckdb

    from wlc.farm.model import Ddl
    from wlr.engine.contract import Bulk, NewReplica, Scan
    from wlr.engine.duckdb.replica import OpenDuckDB
    from wlr.engine.replica_state import ReplicaState


class DuckDBTarget(DatabaseFile, Guarded, Rebuildable):
    """A DuckDB file that is, or can become, a replica."""

    noun = "a DuckDB file"

    # The catalog name of the file, if known: DuckDB takes long to open a file.
    _catalog: str | None = None

    # The connection that last read the file, for opening it again.
    _spare: duckdb.DuckDBPyConnection | None = None

    # Whether rounds write a second file: the user's wish, and the remembered setting.
    _swaps: bool | None = None
    _did_swap = False
    _was_behind = False
    # Whether a new replica is made inside the existing file.
    _adopts = False

    def find_state(self) -> ReplicaState | None:
        state, self._spare = look(self.place.path, adopts=self._adopts)
        self._catalog = state.catalog if state else None
        self._did_swap = state is not None and state.swaps
        return state

    def is_settled(self) -> bool:
        left = wal_of, work_folder, present_before
        return not any(name(self.place.path).exists() for name in left)

    def expect_round(self) -> None:
        from wlr.engine.calculator import connect_ahead

        # The end of the round must not wait for it.
        threading.Thread(target=connect_ahead).start()

    def adopt(self) -> None:
        self._adopts = True

    def refuse_taken(self, statements: Iterable[Ddl], patterns: tuple[str, ...]) -> None:
        if self._adopts and self._has_content():
            from wlr.engine.duckdb.build import refuse_taken

            refuse_taken(self.place.path, statements, patterns)

    def _has_content(self) -> bool:
        return self.place.path.exists() and self.place.path.stat().st_size > 0

    def build(self, new: NewReplica) -> None:
        if self._adopts and self._has_content():
            from wlr.engine.duckdb.build import adopt

            adopt(self.place.path, new)
        else:
            from wlr.engine.duckdb.build import build

            build(self.place.path, new)
        self._catalog = new.state.catalog

    def rebuild(self, new: NewReplica) -> None:
        from wlr.engine.duckdb.build import build, is_adopted, rebuild

        if self._is_swapped():
            from wlr.engine.duckdb.swapping import rebuild

            rebuild(self.place.path, new)
        elif is_adopted(self.place.path):
            rebuild(self.place.path, new)
        else:
            build(self.place.path, new, replaces=True)
        self._catalog = new.state.catalog

    def check_storage_version(self, version: str) -> None:
        from wlr.engine.duckdb.storage_version import check

        check(self.place.path, version, self.find_state())

    def set_swaps(self, swaps: bool) -> None:
        self._swaps = swaps

    def wants_swaps(self, known: bool) -> bool:
        return known if self._swaps is None else self._swaps

    def _is_swapped(self) -> bool:
        return self._did_swap if self._swaps is None else self._swaps

    def owned(self, statements: Iterable[Ddl]) -> list[str]:
        from wlr.engine.duckdb.build import owned

        return owned(self.place.path, self.read_state().catalog, statements)

    def remove(self) -> None:
        from wlr.engine.duckdb.build import is_adopted, remove

        catalog = self.read_state().catalog
        if not is_adopted(self.place.path):
            message = f"{self} was not made with --adopt, and holds only the replica"
            raise InvalidError(message, hint=DELETE_PLACE, path=str(self))
        remove(self.place.path, catalog)

    def open(self, folders: Sequence[Path] = (), bulk: Bulk | None = None) -> OpenDuckDB:
        return self._open(folders, bulk, rolls=False)

    def open_to_roll(self, folders: Sequence[Path] = (), bulk: Bulk | None = None) -> OpenDuckDB:
        return self._open(folders, bulk, rolls=True)

    def begins_again(self) -> bool:
        from wlr.engine.duckdb.swapping import give_up

        if was_behind := self._was_behind:
            give_up(self.place.path)
        self._was_behind = False
        return was_behind

    def _open(self, folders: Sequence[Path], bulk: Bulk | None, *, rolls: bool) -> OpenDuckDB:
        from wlr.engine.duckdb.replica import open_replica

        if self._catalog is None or not self.place.path.exists():
            self.read_state()
        assert self._catalog is not None
        if self._is_swapped():
            from wlr.engine.duckdb.swapping import open_swapping

            opened = open_swapping(self.place.path, folders, bulk, rolls=rolls)
            self._was_behind = opened.is_behind
            return opened
        if self._did_swap:
            from wlr.engine.duckdb.swapping import end

            end(self.place.path)
        spare, self._spare = self._spare, None
        return open_replica(self.place.path, self._catalog, folders, bulk, spare=spare)

    def scanned(
        self,
        work: Path,
        storage_options: Mapping[str, Any] | None = None,  # noqa: ARG002 - The file knows its types.
    ) -> AbstractContextManager[Scan]:
        from wlr.engine.duckdb.scan import scanned

        return scanned(self.place.path, self.read_state().catalog, work)
