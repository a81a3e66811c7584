"""SQLAlchemy with duckdb-engine and pandas: under `wlc exec`, and by the dialect `wlc`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integrations.recorded import HERE, Master, run, tool, type_page

pytestmark = pytest.mark.slow

SCRIPT = HERE / "programs" / "orm.py"


def test_sessions_frames_and_a_pool_write_the_same_as_without_dbfarm(tmp_path: Path) -> None:
    # duckdb-engine cannot reflect keys with later versions of SQLAlchemy.
    python = tool("sqlalchemy", "sqlalchemy<2.0.55,==2.0.54", "duckdb-engine==0.17.0", "pandas==3.1.1")
    plain = run(tmp_path, python, SCRIPT, "duckdb:///plain.duckdb")
    master = Master(tmp_path / "exec")
    assert master.record(python, SCRIPT, f"duckdb:///{master.path}") == plain
    assert master.check(least=12) == {"main.customer", "main.extra_table", "main.frames"}


def test_the_dialect_captures(tmp_path: Path) -> None:
    python = Path(sys.executable)
    plain = run(tmp_path, python, SCRIPT, "duckdb:///plain.duckdb")
    master = Master(tmp_path / "own")
    assert master.record(python, SCRIPT, f"wlc:///{master.path}", captures=True) == plain
    master.check(least=12)
    type_page(master.folder, python, "sqlalchemy.md")
    assert "main.orders" in master.check_end()
