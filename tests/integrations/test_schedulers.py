"""Dagster and Airflow, each step in a process of its own, under `wlc exec`."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.integrations.recorded import HERE, Master, run, tool

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

PROGRAMS = HERE / "programs"


def test_assets_of_dagster_are_captured(tmp_path: Path) -> None:
    python = tool("dagster", "dagster==1.13.27", "dagster-duckdb==0.29.27", "dagster-duckdb-pandas==0.29.27")
    master = Master(tmp_path)
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    variables = {"DAGSTER_HOME": str(tmp_path), "SALES": str(master.path)}
    words = (python.with_name("dagster"), "asset", "materialize", "--select", "*", "-f", PROGRAMS / "assets.py")
    master.execute(*words, variables=variables)
    assert master.check_end() == {"main.raw_orders", "shop.orders", "shop.stores"}


def test_a_dag_of_airflow_is_captured(tmp_path: Path) -> None:
    airflow = tool("airflow", "apache-airflow==3.3.2").with_name("airflow")
    master = Master(tmp_path)
    (tmp_path / "dags").mkdir()
    shutil.copy(PROGRAMS / "dag.py", tmp_path / "dags")
    own = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    variables = {**own, "SALES": str(master.path), "PATH": f"{airflow.parent}:{os.environ['PATH']}"}
    run(tmp_path, airflow, "db", "migrate", variables=variables)
    master.execute(airflow, "dags", "test", "nightly", "2026-11-20", variables=variables)
    assert master.check_end() == {"main.sales", "main.totals"}
