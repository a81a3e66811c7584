"""A DuckDB file as a target. To ask where it stands takes few modules; the others are imported when they are needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from wlr.engine.contract import Target
from wlr.engine.duckdb.connection import work_folder
from wlr.engine.duckdb.state import look, wal_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    import duckdb

    from wlc.farm.model import Ddl
    from wlr.engine.bulk import Bulk
    from wlr.engine.contract import NewReplica
    from wlr.engine.duckdb.replica import OpenDuckDB
    from wlr.engine.scan import Scan
    from wlr.engine.state import ReplicaState


class DuckDBTarget(Target):
    """A DuckDB file that is, or can become, a replica."""

    noun = "a DuckDB file"

    # The name that the file is opened under, once it is known: DuckDB takes long to open a file.
    _catalog: str | None = None

    # What looked into the file last, to open it with.
    _spare: duckdb.DuckDBPyConnection | None = None

    # Whether a new replica is made inside the file that is there.
    _adopts = False

    def find_state(self) -> ReplicaState | None:
        state, self._spare = look(self.place.path, adopts=self._adopts)
        self._catalog = state.catalog if state else None
        return state

    def is_settled(self) -> bool:
        return not (wal_of(self.place.path).exists() or work_folder(self.place.path).exists())

    def expect_round(self) -> None:
        from wlr.engine.calculator import connect_ahead

        # The round that ends must not wait for it.
        threading.Thread(target=connect_ahead).start()

    def adopt(self) -> None:
        self._adopts = True

    def refuse_taken(self, statements: Iterable[Ddl], patterns: tuple[str, ...]) -> None:
        if self._adopts and self._has_content():
            from wlr.engine.duckdb.adoption import refuse_taken

            refuse_taken(self.place.path, statements, patterns)

    def _has_content(self) -> bool:
        return self.place.path.exists() and self.place.path.stat().st_size > 0

    def build(self, new: NewReplica) -> None:
        if self._adopts and self._has_content():
            from wlr.engine.duckdb.adoption import adopt

            adopt(self.place.path, new)
        else:
            from wlr.engine.duckdb.build import build

            build(self.place.path, new)
        self._catalog = new.state.catalog

    def rebuild(self, new: NewReplica) -> None:
        from wlr.engine.duckdb.adoption import is_adopted, make_anew
        from wlr.engine.duckdb.build import build

        if is_adopted(self.place.path):
            make_anew(self.place.path, new)
        else:
            build(self.place.path, new, replaces=True)
        self._catalog = new.state.catalog

    def remove(self) -> None:
        from wlr.engine.duckdb.adoption import is_adopted, remove

        catalog = self.read_state().catalog
        if not is_adopted(self.place.path):
            super().remove()
        remove(self.place.path, catalog)

    def open(self, folders: Sequence[Path] = (), bulk: Bulk | None = None) -> OpenDuckDB:
        from wlr.engine.duckdb.replica import open_replica

        catalog = self._catalog
        if catalog is None or not self.place.path.exists():
            catalog = self.read_state().catalog
        spare, self._spare = self._spare, None
        return open_replica(self.place.path, catalog, folders, bulk, spare=spare)

    def scanned(
        self,
        work: Path,
        storage_options: Mapping[str, Any] | None = None,  # noqa: ARG002 - The file knows its types.
    ) -> AbstractContextManager[Scan]:
        from wlr.engine.duckdb.scan import scanned

        return scanned(self.place.path, self.read_state().catalog, work)
