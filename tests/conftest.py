"""Settings for every test, and how tests are shared out among processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer

# Two busy cores make any example slow now and then; time is measured by the benchmarks only.
settings.register_profile("dbfarm", deadline=None)
settings.load_profile("dbfarm")


class OneSpark(LoadScopeScheduling):
    """Shares tests out one by one, but for those with Spark: one process runs them all, since each starts a session.

    Marks of a group would say the same, if pytest-xdist 3.8 could tell pytest 9.2 about them.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/spark/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSpark:
    return OneSpark(config, log)
