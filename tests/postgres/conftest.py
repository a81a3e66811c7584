"""Fixtures that tests of PostgreSQL share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres.cluster import Cluster


@pytest.fixture
def farm(tmp_path: Path) -> str:
    """Where a farm may be."""
    return str(tmp_path / "farm")


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """A server that tests may stop, and whose settings they may change."""
    from tests.postgres.cluster import new_folder, running

    yield from running(new_folder())
