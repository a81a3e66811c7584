"""The engines that the suite of sources runs against, as users of their databases see them.

A new engine is one more class here and one more entry of `ENGINES` in the suite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar
from unittest.mock import patch

import duckdb

import wlc
from tests.postgres.cluster import Cluster, execute
from tests.postgres.held import Held, held_by_duckdb, held_by_postgres
from wlc.masters.background import Publisher

if TYPE_CHECKING:
    from pathlib import Path


class Engine(ABC):
    """One engine.

    Attributes:
        always_has_a_snapshot: A master that began empty has a snapshot, too.
        other_type: A statement that gives column v of table t the type INTEGER, of values that are numbers.
        has_merge: There is a MERGE statement.
        has_sites: Its databases can be sites of several.
    """

    always_has_a_snapshot: ClassVar[bool] = False
    other_type: ClassVar[str]
    has_merge: bool = True
    has_sites: ClassVar[bool] = True

    @abstractmethod
    def new(self) -> str:
        """Return the path or URL of an empty database that is no master."""

    @abstractmethod
    def execute(self, source: str, *statements: str) -> None:
        """Run statements as a user does, each a transaction of its own unless it says otherwise; nothing is published."""

    @abstractmethod
    def execute_plainly(self, source: str, *statements: str) -> None:
        """Run statements in a database that is no master."""

    @abstractmethod
    def held(self, source: str) -> Held:
        """Every row of every table."""


class DuckDBEngine(Engine):
    other_type = "ALTER TABLE t ALTER v TYPE INTEGER"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0

    def new(self) -> str:
        self.made += 1
        path = self.folder / f"source{self.made}.duckdb"
        duckdb.connect(str(path)).close()
        return str(path)

    def execute(self, source: str, *statements: str) -> None:
        # A connection publishes when it is closed, unless its process dies before.
        with patch.object(Publisher, "try_publish"), wlc.connect(source) as connection:
            for statement in statements:
                connection.execute(statement)

    def execute_plainly(self, source: str, *statements: str) -> None:
        with duckdb.connect(source) as connection:
            for statement in statements:
                connection.execute(statement)

    def held(self, source: str) -> Held:
        return held_by_duckdb(self.folder / source)


class PostgresEngine(Engine):
    always_has_a_snapshot = True
    has_sites = False
    other_type = "ALTER TABLE t ALTER v TYPE INTEGER USING v::integer"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.has_merge = cluster.major >= 15

    def new(self) -> str:
        return self.cluster.create_database()

    def execute(self, source: str, *statements: str) -> None:
        execute(source, *statements)

    def execute_plainly(self, source: str, *statements: str) -> None:
        execute(source, *statements)

    def held(self, source: str) -> Held:
        return held_by_postgres(source, main="")
