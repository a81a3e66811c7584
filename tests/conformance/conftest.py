"""The kinds of replica, as fixtures of the suite of targets. A new engine is one more entry of `KINDS`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.targets import DuckDBKind, OlderDuckDBKind, ParquetKind, PostgresKind, SwappingKind
from tests.handmade import HandmadeFarm
from tests.postgres.server import OLDEST_REPLICA, OTHER_MAJORS
from tests.selection import engine_params
from wlr.engine.duckdb.target import DuckDBTarget
from wlr.replay import run
from wlr.replay.options import remembered

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.targets import Kind


KINDS = {
    "duckdb": lambda request: DuckDBKind(request.getfixturevalue("tmp_path")),
    "duckdb2": lambda request: SwappingKind(request.getfixturevalue("tmp_path")),
    "duckdb1.4": lambda request: OlderDuckDBKind(request.getfixturevalue("tmp_path")),
    "parquet": lambda request: ParquetKind(request.getfixturevalue("tmp_path")),
    "postgres": lambda request: PostgresKind(request.getfixturevalue("cluster")),
    **{
        f"postgres{major}": lambda request, major=major: PostgresKind(request.getfixturevalue("cluster_of")(major))
        for major in (OLDEST_REPLICA, *OTHER_MAJORS)
    },
}


@pytest.fixture(params=engine_params(KINDS))
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    if request.param == "duckdb2":
        monkeypatch.setattr(DuckDBTarget, "_swaps", True)
    if request.param == "duckdb1.4":
        older = {"storage_version": "v1.4.0"}
        monkeypatch.setattr(run, "remembered", lambda state, options: remembered(state, {**options, **older}))
    return KINDS[request.param](request)


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    return HandmadeFarm(tmp_path / "farm")


@pytest.fixture
def into(kind: Kind) -> str:
    return kind.new()
