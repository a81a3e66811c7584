"""Examples for notebooks and orchestrators run; with those programs themselves in a deep run, each where it is alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import wlc
from tests.environments import DBFARM, environment
from tests.scratch import attached

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def cells() -> list[str]:
    """The notebook's code, cell by cell."""
    found = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def programs_of(name: str, *packages: str) -> Path:
    return environment(name, DBFARM, *packages).parent


def make_master(folder: Path) -> None:
    wlc.master(folder / "sales.duckdb", farm=str(folder / "farm"), create=True)


def check_sales(folder: Path) -> None:
    with attached(folder / "copy.duckdb") as copy:
        assert copy.execute("SELECT count(*), sum(amount)::INTEGER FROM sales").fetchall() == [(100, 7425)]


def test_the_cells_of_the_notebook_run_in_order(tmp_path: Path) -> None:
    script = "\n".join(f"exec({cell!r})" for cell in cells())
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(cells()) > 8


@pytest.mark.deep
def test_a_kernel_runs_the_notebook_and_shows_tables(tmp_path: Path) -> None:
    programs = programs_of("notebook", "nbclient", "ipykernel", "nbconvert")
    command = ("nbconvert", "--to", "notebook", "--execute", "--output", tmp_path / "done", EXAMPLES / "notebook.ipynb")
    subprocess.run([programs / "jupyter", *command], check=True, env={**os.environ, "TMPDIR": str(tmp_path)})
    shown = (tmp_path / "done.ipynb").read_text(encoding="utf-8")
    assert shown.count("<table>") >= 4


@pytest.mark.deep
def test_airflow_runs_its_example(tmp_path: Path) -> None:
    programs = programs_of("airflow", "apache-airflow")
    make_master(tmp_path)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "sales.py").write_text((EXAMPLES / "airflow_dag.py").read_text(encoding="utf-8"))
    own = {"AIRFLOW_HOME": str(tmp_path), "DBFARM_WORK": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    variables = {**os.environ, **own, "PATH": f"{programs}:{os.environ['PATH']}"}
    for command in (("db", "migrate"), ("dags", "test", "nightly_sales", "2026-11-20")):
        subprocess.run([programs / "airflow", *command], check=True, env=variables)
    check_sales(tmp_path)


@pytest.mark.deep
def test_dagster_runs_its_example(tmp_path: Path) -> None:
    programs = programs_of("dagster", "dagster")
    make_master(tmp_path)
    (tmp_path / "dagster").mkdir()
    variables = {**os.environ, "DBFARM_WORK": str(tmp_path), "DAGSTER_HOME": str(tmp_path / "dagster")}
    command = ("asset", "materialize", "--select", "*", "-f", EXAMPLES / "dagster_jobs.py")
    subprocess.run([programs / "dagster", *command], check=True, env=variables)
    check_sales(tmp_path)
