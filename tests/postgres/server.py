"""Fixtures with PostgreSQL: one server for the session, a database for every test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running server."""
    # PostgreSQL's drivers are needed by its tests only.
    from tests.postgres.cluster import new_folder, running

    yield from running(new_folder())


@pytest.fixture
def database_url(cluster: Cluster) -> Iterator[str]:
    """The URL of an empty database; slots that are made in it are dropped afterwards."""
    url = cluster.create_database()
    yield url
    cluster.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        f" WHERE database = '{url.rpartition('/')[2]}' AND NOT active"
    )
