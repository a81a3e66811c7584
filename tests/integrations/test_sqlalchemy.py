"""SQLAlchemy with duckdb-engine and pandas: under `wlc exec`, and by the dialect `wlc`."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.environments import DBFARM, environment
from tests.integrations.recorded import HERE, Master, run, tool

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SCRIPT = HERE / "programs" / "orm.py"


def test_sessions_frames_and_a_pool_write_the_same_as_without_dbfarm(tmp_path: Path) -> None:
    # duckdb-engine cannot reflect keys with later versions of SQLAlchemy.
    python = tool("sqlalchemy", "sqlalchemy<2.0.55", "duckdb-engine==0.17.0", "pandas==3.1.1")
    plain = run(tmp_path, python, SCRIPT, "duckdb:///plain.duckdb")
    master = Master(tmp_path / "exec")
    assert master.record(python, SCRIPT, f"duckdb:///{master.path}") == plain
    assert master.check(least=12) == {"main.customer", "main.extra_table", "main.frames"}


def test_the_dialect_captures(tmp_path: Path) -> None:
    python = environment("sqlalchemy-dialect", f"{DBFARM}[sqlalchemy]")
    plain = run(tmp_path, python, SCRIPT, "duckdb:///plain.duckdb")
    master = Master(tmp_path / "own")
    assert master.record(python, SCRIPT, f"wlc:///{master.path}", captures=True) == plain
    master.check(least=12)
    listing = (
        "import sys, sqlalchemy as s; i = s.inspect(s.create_engine(sys.argv[1]));"
        " print(sorted(i.get_table_names()), [name for name in i.get_schema_names() if 'wlc' in name])"
    )
    shown = run(tmp_path, python, "-c", listing, f"wlc:///{master.path}")
    assert shown == "['customer', 'extra_table', 'frames'] []\n"


def test_the_dialect_names_missing_packages(tmp_path: Path) -> None:
    python = environment("sqlalchemy-alone", DBFARM, "sqlalchemy")
    code = "import sqlalchemy; sqlalchemy.create_engine('wlc:///sales.duckdb')"
    failed = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "pip install 'dbfarm[sqlalchemy]'" in failed.stderr.splitlines()[-1]
