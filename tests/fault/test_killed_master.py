"""Masters, publishers and replicas are killed with kill -9 under load: nothing is lost and nothing twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fault import kill
from tests.fault.processes import rounds, seed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_whoever_is_killed_under_load_nothing_is_lost_and_nothing_twice(tmp_path: Path):
    report = kill.run(tmp_path, rounds(2), seed())
    assert report.mismatches == []
    assert report.transactions > 0
    assert report.kills["masters"] == report.rounds
