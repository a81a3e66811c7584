"""Settings and servers for every test, and long runs in pieces; `tests/selection.py` says which tests run."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests import pieces
from tests.object_store import s3_environment, s3_server, s3_url, small_parts  # noqa: F401 - fixtures
from tests.parked import shop  # noqa: F401 - a fixture
from tests.postgres.server import cluster, cluster_of, database_url  # noqa: F401 - fixtures
from tests.store_servers import azure_server, azure_url, google_server, google_url, sftp_server, sftp_url  # noqa: F401

pytest_plugins = ["tests.selection"]

# A worker for each core runs tests already: DuckDB's own threads would only take turns. DuckDB reads its number of threads
# from this variable, in the programs that tests start, too. A deep run has the number that users have.
if not pieces.is_deep_run():
    os.environ.setdefault("SLURM_CPUS_ON_NODE", "1")
# Two busy cores make any example slow now and then; time is measured by the benchmarks only.
settings.register_profile("dbfarm", deadline=None)
settings.load_profile("dbfarm")


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Verify remembers farms by their places, and another run may have had another farm at the same place."""
    os.environ["DBFARM_CACHE"] = str(tmp_path_factory.mktemp("cache"))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        pieces.begin()


def pytest_runtest_setup(item: pytest.Item) -> None:
    pieces.skip_if_over()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # The process that shares out the tests hears of every one, once.
    if report.when == "call" and report.passed and not os.environ.get("PYTEST_XDIST_WORKER"):
        pieces.note_passed(report.nodeid)
