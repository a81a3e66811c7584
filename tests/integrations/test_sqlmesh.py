"""SQLMesh: a project with plans, a virtual environment and a restatement, under `wlc exec`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.integrations.recorded import HERE, Master, run, tool, type_page

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

PINNED = "sqlmesh==0.236.3"
SCRIPT = HERE / "programs" / "mesh.py"


def test_plans_write_the_same_as_without_dbfarm(tmp_path: Path) -> None:
    python = tool("sqlmesh", PINNED)
    for name in ("plain", "exec"):
        shutil.copytree(HERE / "sqlmesh", tmp_path / name)
    master = Master(tmp_path / "exec")
    assert master.record(python, SCRIPT) == run(tmp_path / "plain", python, SCRIPT)
    assert master.check(least=150) >= {"shop.items", "shop.sales_by_day", "shop.item_history", "sqlmesh._snapshots"}


def test_the_guide_runs(tmp_path: Path) -> None:
    shutil.copytree(HERE / "sqlmesh", tmp_path, dirs_exist_ok=True)
    type_page(tmp_path, tool("sqlmesh", PINNED), "sqlmesh.md")
    assert "shop.items" in Master(tmp_path, is_there=True).check_end()
