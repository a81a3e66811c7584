"""Jupyter: a kernel with jupysql's magics, started under `wlc exec`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integrations.recorded import HERE, Master, run, tool

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SCRIPT = HERE / "programs" / "cells.py"


def test_the_cells_of_a_notebook_are_captured(tmp_path: Path) -> None:
    wanted = (
        "jupysql==0.11.1",
        "duckdb-engine==0.17.0",
        "sqlalchemy<2.0.55,==2.0.54",
        "nbclient",
        "ipykernel",
        "pandas==3.1.1",
    )
    python = tool("jupysql", *wanted)
    plain = run(tmp_path, python, SCRIPT, "plain.duckdb")
    assert "rope" in plain
    master = Master(tmp_path / "exec")
    assert master.execute(python, SCRIPT, "sales.duckdb") == plain
    assert master.check_end() == {"main.orders"}
