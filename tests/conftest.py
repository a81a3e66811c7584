"""Settings and servers for every test, how tests are shared out among processes, and long runs in pieces."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests import pieces
from tests.object_store import s3_environment, s3_server, s3_url  # noqa: F401 - fixtures
from tests.parked import shop  # noqa: F401 - a fixture
from tests.postgres.server import cluster, cluster_of, database_url  # noqa: F401 - fixtures
from tests.store_servers import azure_server, azure_url, google_server, google_url, sftp_server, sftp_url  # noqa: F401

if TYPE_CHECKING:
    from xdist.remote import Producer

# A worker for each core runs tests already: DuckDB's own threads would only take turns. DuckDB reads its number of threads
# from this variable, in the programs that tests start, too. A deep run has the number that users have.
if os.environ.get("DBFARM_DEEP") != "1":
    os.environ.setdefault("SLURM_CPUS_ON_NODE", "1")
# Two busy cores make any example slow now and then; time is measured by the benchmarks only.
settings.register_profile("dbfarm", deadline=None)
settings.load_profile("dbfarm")

# One process runs all tests of such a folder, so that one server, or one Spark session, is started for them.
WHOLE = ("tests/postgres/", "tests/spark/")
# Groups of tests that take twenty seconds or more, longest first; others follow by their number of tests. Only the order
# matters: the processes end at about the same time when the short groups come last.
LONGEST = (
    *WHOLE,
    "tests/conformance/test_target.py",
    "tests/scenario/test_sites_backlog.py",
    "tests/scenario/test_mesh.py",
    "tests/fault/test_broken_calls.py",
    "tests/scenario/test_sites_succession.py",
    "tests/scenario/test_tiers_processes.py",
    "tests/scenario/test_sites_epoch.py",
    "tests/scenario/test_verify.py",
    "tests/fault/test_bit_rot.py",
    "tests/scenario/test_end_to_end.py",
    "tests/conformance/test_source.py",
    "tests/fault/test_killed_lake.py",
    "tests/scenario/test_row_filters.py",
    "tests/scenario/test_sites_anew.py",
    "tests/scenario/test_sites_restored.py",
    "tests/scenario/test_schema_end_to_end.py",
    "tests/fault/test_two_masters.py",
    "tests/scenario/test_sites_roles.py",
    "tests/scenario/test_capture_edges.py",
    "tests/scenario/test_undo.py",
    "tests/scenario/test_docs_run.py",
    "tests/scenario/test_cli.py",
    "tests/scenario/test_hostile_log.py",
    "tests/scenario/test_types_end_to_end.py",
    "tests/conformance/test_store.py",
    "tests/fault/test_capture_guard.py",
    "tests/scenario/test_sites_constraints.py",
    "tests/scenario/test_mesh_added.py",
    "tests/scenario/test_swapped.py",
    "tests/scenario/test_derived.py",
    "tests/scenario/test_s3_access.py",
    "tests/test_package.py",
    "tests/simulation/test_simulation.py",
    "tests/conformance/test_store_s3.py",
    "tests/fault/test_damaged_farm.py",
    "tests/scenario/test_serve.py",
    "tests/scenario/test_relay.py",
    "tests/scenario/test_capture.py",
    "tests/scenario/test_sites.py",
    "tests/scenario/test_replay_refusals.py",
    "tests/scenario/test_replay.py",
    "tests/scenario/test_reading.py",
    "tests/fault/test_in_use.py",
    "tests/fault/test_bad_network.py",
    "tests/scenario/test_mesh_columns.py",
    "tests/scenario/test_known_snapshot.py",
    "tests/scenario/test_row_properties.py",
    "tests/scenario/test_tiers.py",
    "tests/scenario/test_mesh_lists.py",
    "tests/scenario/test_cli_bucket.py",
    "tests/scenario/test_requests.py",
    "tests/fault/test_killed_sites.py",
    "tests/scenario/test_sites_hostile.py",
    "tests/scenario/test_feed.py",
    "tests/scenario/test_open_tables.py",
    "tests/scenario/test_capture_few.py",
    "tests/scenario/test_sites_rehearsed.py",
    "tests/scenario/test_sites_membership.py",
    "tests/scenario/test_capture_small.py",
    "tests/scenario/test_lake.py",
    "tests/scenario/test_sites_bad_input.py",
    "tests/fault/test_broken_sites.py",
    "tests/scenario/test_capture_packed.py",
    "tests/scenario/test_keys.py",
    "tests/scenario/test_capture_conflicts.py",
)


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Verify remembers farms by their places, and another run may have had another farm at the same place."""
    os.environ["DBFARM_CACHE"] = str(tmp_path_factory.mktemp("cache"))


def group_of(nodeid: str) -> str:
    """Return what is given to one process as a whole: a folder of `WHOLE`, or a file."""
    return next((folder for folder in WHOLE if nodeid.startswith(folder)), nodeid.partition("::")[0])


class GroupScheduling(LoadScopeScheduling):
    """Gives each process a group of tests at a time, so that what a module's tests share is made once.

    Marks of a group would say the same, if pytest-xdist 3.8 could tell pytest 9.2 about them.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    # Groups go out in the order of collection, see below.
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only a deep run tries, and put the longest groups first where several processes share the tests."""
    if os.environ.get("DBFARM_DEEP") != "1":
        left_out = [item for item in items if item.get_closest_marker("deep")]
        items[:] = [item for item in items if not item.get_closest_marker("deep")]
        config.hook.pytest_deselected(items=left_out)
    done = pieces.passed()
    if done:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
        items[:] = [item for item in items if item.nodeid not in done]
    if not hasattr(config, "workerinput"):
        return
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(group_of(item.nodeid), []).append(item)
    order = {name: number for number, name in enumerate(LONGEST)}
    items[:] = [
        item
        for name in sorted(groups, key=lambda name: (order.get(name, len(order)), -len(groups[name]), name))
        for item in groups[name]
    ]


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        pieces.begin()


def pytest_runtest_setup(item: pytest.Item) -> None:
    pieces.skip_if_over()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # The process that shares out the tests hears of every one, once.
    if report.when == "call" and report.passed and not os.environ.get("PYTEST_XDIST_WORKER"):
        pieces.note_passed(report.nodeid)
