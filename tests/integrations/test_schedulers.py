"""Dagster and Airflow, each step in a process of its own, under `wlc exec`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.integrations.recorded import HERE, Master, run, tool, type_page

pytestmark = pytest.mark.slow

PROGRAMS = HERE / "programs"


def test_the_guide_runs(tmp_path: Path) -> None:
    dagster = tool("dagster", "dagster==1.13.27", "dagster-duckdb==0.29.27", "dagster-duckdb-pandas==0.29.27")
    airflow = tool("airflow", "apache-airflow==3.3.2").with_name("airflow")
    master = Master(tmp_path)
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    (tmp_path / "dags").mkdir()
    shutil.copy(PROGRAMS / "dag.py", tmp_path / "dags")
    shutil.copy(PROGRAMS / "assets.py", tmp_path)
    own = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "DAGSTER_HOME": str(tmp_path)}
    path = f"{dagster.parent}:{airflow.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {**own, "SALES": str(master.path), "PATH": path}
    run(tmp_path, airflow, "db", "migrate", variables=variables)
    type_page(tmp_path, dagster, "schedulers.md", variables)
    assert master.check_end() == {"main.raw_orders", "main.sales", "main.totals", "shop.orders", "shop.stores"}
