"""A master with a DuckDB and a Parquet replica, to which things happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.fault.trial import check_log
from tests.lake import lake_contents, surplus
from tests.oracle import file_contents, published
from wlc.farm.database import open_database

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Bank:
    """Where everything lies, and what its users do; a test says by `place` where."""

    def __init__(self, seed: str, place: dict[str, Path]) -> None:
        self.source, self.replica = place["source"] / "bank.duckdb", place["replica"] / "replica.duckdb"
        self.farm, self.lake = place["farm"], place["lake"]
        for folder in (place["source"], place["replica"]):
            folder.mkdir(parents=True)
        with duckdb.connect(str(self.source)) as connection:
            connection.execute(seed)
        wlc.master(self.source, farm=str(self.farm))

    def commit(self, statements: Iterable[str]) -> None:
        """Commit, without publishing."""
        with pytest.MonkeyPatch.context() as patch, wlc.connect(self.source) as connection:
            patch.setattr("wlc.masters.background.Publisher.try_publish", lambda shared: None)
            for statement in statements:
                connection.execute(statement)

    def flush(self) -> None:
        wlc.flush(self.source)

    def snapshot(self) -> None:
        wlc.snapshot(self.source)

    def replicate(self) -> None:
        wlr.replicate("bank", farm=str(self.farm), into=self.replica)

    def rewrite(self) -> None:
        wlr.replicate("bank", farm=str(self.farm), into=self.lake, engine="local")

    def check(self) -> None:
        """Nothing is lost, nothing is there twice, and everybody goes on."""
        self.flush()
        check_log(open_database("bank", str(self.farm)))
        present = file_contents(self.source)
        assert published(str(self.farm / "bank")) == present
        self.replicate()
        self.rewrite()
        assert file_contents(self.replica) == lake_contents(self.lake) == present
        assert surplus(self.lake) == []
        assert [path.name for path in self.replica.parent.iterdir()] == [self.replica.name]
