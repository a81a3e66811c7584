"""A short one of the long runs: DBFARM_SOAK_MINUTES=30, or python -m tests.soak --minutes 30 --postgres, makes it longer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.fault.processes import seed
from tests.soak import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

MINUTES = float(os.environ.get("DBFARM_SOAK_MINUTES") or 0.1)


def test_nothing_is_lost_in_a_short_run(tmp_path: Path) -> None:
    soak = run(tmp_path, minutes=MINUTES, seed=seed())
    assert soak.problems == []
    assert soak.counts["cycles"] >= 2
    assert soak.counts["transactions"] >= 10
    assert soak.counts["comparisons"] >= 2 * 3
    assert soak.counts["row images replayed"] > 0
