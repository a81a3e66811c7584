"""The dialect `wlc` of SQLAlchemy."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pandas as pd
import pytest
import sqlalchemy

import wlc
import wlr
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from pathlib import Path


def test_frames_and_transactions_arrive(tmp_path: Path) -> None:
    wlc.master(tmp_path / "sales.duckdb", farm=str(tmp_path / "farm"), create=True)
    engine = sqlalchemy.create_engine(f"wlc:///{tmp_path}/sales.duckdb", connect_args={"config": {"threads": 1}})
    pd.DataFrame({"id": [1, 2]}).to_sql("orders", engine, index=False)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (:id)"), [{"id": 3}, {"id": 4}])
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("DELETE FROM orders"))
        connection.rollback()
    inspector = sqlalchemy.inspect(engine)
    assert inspector.get_table_names() == inspector.get_table_names("main") == ["orders"]
    assert "sales.main" in inspector.get_schema_names()
    assert "sales.wlc" not in inspector.get_schema_names()
    engine.dispose()
    assert wlr.read(tmp_path / "farm" / "sales", "orders").order("id").fetchall() == [(1,), (2,), (3,), (4,)]


def test_a_file_that_is_no_master_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="there is no database"):
        sqlalchemy.create_engine(f"wlc:///{tmp_path}/sales.duckdb").connect()


@pytest.mark.slow
def test_missing_packages_are_named() -> None:
    code = "import sys; sys.modules['duckdb_engine'] = None; import sqlalchemy; sqlalchemy.create_engine('wlc:///a.duckdb')"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert failed.stderr.splitlines()[-1].endswith("pip install 'dbfarm[sqlalchemy]'")
