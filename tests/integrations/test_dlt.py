"""dlt: loads by append, merge, history and upsert, with schemas that change, under `wlc exec`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integrations.recorded import HERE, Master, run, tool

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SCRIPT = HERE / "programs" / "pipeline.py"


def test_three_loads_write_the_same_as_without_dbfarm(tmp_path: Path) -> None:
    python = tool("dlt", "dlt==1.31.0")
    master = Master(tmp_path / "exec")
    for load in "123":
        plain = run(tmp_path, python, SCRIPT, "plain.duckdb", load)
        assert master.record(python, SCRIPT, "sales.duckdb", load) == plain
    assert master.check(least=50) >= {f"loaded.{name}" for name in ("visits", "visits__tags", "prices", "growing")}
