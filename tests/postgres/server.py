"""Fixtures with PostgreSQL: one server for the session, a database for every test; servers of other majors."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.postgres.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running server."""
    # PostgreSQL's drivers are needed by its tests only, and pytest loads the plugin itself.
    from tests.postgres.cluster import new_folder, running

    yield from running(new_folder())


# Majors on which a deep run tries the suites of sources and targets, besides the installed server's.
OTHER_MAJORS = (14, 16, 18)
# The oldest one that can be a replica.
OLDEST_REPLICA = 12
# A folder with the programs of other majors: 12/bin, 14/bin, 16/bin, 18/bin.
MAJORS_VARIABLE = "DBFARM_POSTGRES_MAJORS"


@pytest.fixture(scope="session")
def cluster_of() -> Iterator[Callable[[int], Cluster]]:
    """Give a running server of a major version; the test is skipped if its programs are not here."""
    from tests.postgres.cluster import new_folder, running

    started: dict[int, Cluster] = {}
    with ExitStack() as stack:

        def find(major: int) -> Cluster:
            if major not in started:
                programs = Path(os.environ.get(MAJORS_VARIABLE, "")) / str(major) / "bin"
                if not (programs / "initdb").is_file():
                    pytest.skip(f"{MAJORS_VARIABLE} names no folder with {major}/bin/initdb")
                started[major] = stack.enter_context(contextmanager(running)(new_folder(), programs))
                assert started[major].major == major
            return started[major]

        yield find


@pytest.fixture
def database_url(cluster: Cluster) -> Iterator[str]:
    """The URL of an empty database; slots that are made in it are dropped afterwards."""
    url = cluster.create_database()
    yield url
    cluster.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        f" WHERE database = '{url.rpartition('/')[2]}' AND NOT active"
    )
