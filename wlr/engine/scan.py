"""The rows that a replica really holds, as images that DuckDB reads, whatever stores them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.digest_sql import sum_rows
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import duckdb

    from wlc.farm.model import Layout, Name
    from wlr.engine.state import ReplicaState


@dataclass(frozen=True, slots=True)
class StoredTables:
    """The tables of a replica whose rows are in files that never change.

    Attributes:
        tick: As of which they are.
        layouts: Of the tables.
        files: Gives, for as long as it is entered, the local files with all rows of a table as data files hold them;
            their content is compared with its checksum if the second argument says so.
    """

    tick: int
    layouts: Mapping[Name, Layout]
    files: Callable[[Name, bool], AbstractContextManager[list[Path]]]


@dataclass(frozen=True, slots=True)
class Scan:
    """A replica that is open for reading.

    Attributes:
        connection: Where the queries of `images` run; nothing in it belongs to the replica.
        state: What the replica remembers.
        layouts: Of its replicated tables.
        images: Gives, for as long as it is entered, a query that selects all rows of a table in storage types, under
            the names that columns have in data files.
    """

    connection: duckdb.DuckDBPyConnection
    state: ReplicaState
    layouts: Mapping[Name, Layout]
    images: Callable[[Name], AbstractContextManager[str]]

    def is_changed(self, name: Name) -> bool:
        """Say whether a table certainly holds something else than the replay left in it."""
        told = self.state.digests.get(name)
        if not isinstance(told, Digest) or name not in self.layouts:
            return False
        try:
            return self.digest(name) != told
        except UnsupportedError:
            return False

    def digest(self, name: Name) -> Digest:
        """Read all rows of a table and return their digest."""
        with self.images(name) as query:
            return sum_rows(self.connection, self.layouts[name], f"({query})")
