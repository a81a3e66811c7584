"""dlt: loads by append, merge, history and upsert, with schemas that change, under `wlc exec`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.integrations.recorded import HERE, Master, run, tool, type_page

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

PINNED = "dlt==1.31.0"
SCRIPT = HERE / "programs" / "pipeline.py"


def test_three_loads_write_the_same_as_without_dbfarm(tmp_path: Path) -> None:
    python = tool("dlt", PINNED)
    master = Master(tmp_path / "exec")
    for load in "123":
        plain = run(tmp_path, python, SCRIPT, "plain.duckdb", load)
        assert master.record(python, SCRIPT, "sales.duckdb", load) == plain
    assert master.check(least=50) >= {f"loaded.{name}" for name in ("visits", "visits__tags", "prices", "growing")}


def test_the_guide_runs(tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)
    type_page(tmp_path, tool("dlt", PINNED), "dlt.md")
    assert "loaded.prices" in Master(tmp_path, is_there=True).check_end()
