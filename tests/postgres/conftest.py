"""Fixtures with PostgreSQL: one server for the session, a database for every test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.postgres.cluster import Cluster, new_folder, running

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running server."""
    yield from running(new_folder())


@pytest.fixture
def database_url(cluster: Cluster) -> str:
    """The URL of an empty database."""
    return cluster.create_database()
