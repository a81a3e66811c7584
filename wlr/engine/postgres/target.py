"""A PostgreSQL database as a target."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from wlr.engine.calculator import connect_ahead
from wlr.engine.contract import Guarded, Roles
from wlr.engine.postgres.build import build
from wlr.engine.postgres.replica import open_replica
from wlr.engine.postgres.scan import scanned
from wlr.engine.postgres.wlr_schema import find_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    from wlr.engine.contract import Bulk, NewReplica, Scan
    from wlr.engine.postgres.replica import OpenPostgres
    from wlr.engine.replica_state import ReplicaState


class PostgresTarget(Guarded, Roles):
    """A PostgreSQL database that is, or can become, a replica."""

    noun = "a PostgreSQL database"

    def find_state(self) -> ReplicaState | None:
        return find_state(self.place)

    def expect_round(self) -> None:
        # The end of the round must not wait for it.
        threading.Thread(target=connect_ahead).start()

    def build(self, new: NewReplica) -> None:
        build(self.place, new)

    def open(self, folders: Sequence[Path] = (), bulk: Bulk | None = None) -> OpenPostgres:
        return open_replica(self.place, folders, bulk)

    def scanned(self, work: Path, storage_options: Mapping[str, Any] | None = None) -> AbstractContextManager[Scan]:
        return scanned(self.place, work, storage_options)
