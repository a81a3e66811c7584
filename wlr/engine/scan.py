"""What a replica really holds: its rows as images, read by DuckDB wherever they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.digest import sum_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import duckdb

    from wlc.model import Digest, Layout, Name
    from wlr.engine import State


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
    state: State
    layouts: Mapping[Name, Layout]
    images: Callable[[Name], AbstractContextManager[str]]

    def digest(self, name: Name) -> Digest:
        """Read all rows of a table, and say what it holds."""
        with self.images(name) as query:
            return sum_rows(self.connection, self.layouts[name], f"({query})")
