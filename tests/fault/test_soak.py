"""A short one of the long runs: python -m tests.soak --minutes 30 --postgres goes on for as long as one likes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fault.processes import seed
from tests.soak import run

if TYPE_CHECKING:
    from pathlib import Path


def test_nothing_is_lost_in_a_short_run(tmp_path: Path) -> None:
    soak = run(tmp_path, minutes=0.3, seed=seed())
    assert soak.problems == []
    assert soak.counts["cycles"] >= 2
    assert soak.counts["transactions"] >= 10
    assert soak.counts["comparisons"] >= 2 * 3
    assert soak.counts["row images replayed"] > 0
