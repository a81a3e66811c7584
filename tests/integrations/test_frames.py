"""pandas, Polars, PyArrow and ibis under `wlc exec`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs_blocks import blocks
from tests.environments import ROOT
from tests.integrations.recorded import HERE, Master, run, tool

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SCRIPT = HERE / "programs" / "frames.py"


def test_frames_and_ibis_write_the_same_as_without_dbfarm(tmp_path: Path) -> None:
    # ibis writes an incomplete statement with later versions of sqlglot.
    wanted = (
        "ibis-framework[duckdb]==12.0.0",
        "sqlglot<30,==29.0.1",
        "pandas==3.1.1",
        "polars==2.1.0",
        "pyarrow==26.0.1",
    )
    python = tool("frames", *wanted)
    plain = run(tmp_path, python, SCRIPT, "plain.duckdb")
    master = Master(tmp_path / "exec")
    assert master.record(python, SCRIPT, "sales.duckdb") == plain
    tables = {"city_totals", "from_arrow", "from_pandas", "large", "sales"}
    assert master.check(least=20) == {f"main.{name}" for name in tables}
    (block,) = blocks(ROOT / "docs" / "howto" / "notebooks.md")
    master.execute(python, "-c", block.text)
    assert "main.orders" in master.check_end()
