"""What docs/spark.md says about clusters, on one whose workers have a `python3` without dbfarm."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.lake import lake_contents
from tests.oracle import file_contents
from tests.spark.conftest import ROOT, SETTINGS, standalone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a master with one worker; the `python3` on its path is of this version, and has no packages."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "python"], check=True)
    own = {"PATH": f"{folder / 'python' / 'bin'}:/usr/bin:/bin", "PYTHONPATH": "", "PYSPARK_PYTHON": "python3"}
    with standalone(folder, 1, own) as url:
        yield url


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A replica behind its master by an update."""
    master, lake = tmp_path / "sales.duckdb", tmp_path / "lake"
    wlc.master(master, create=True)
    with wlc.connect(master) as connection:
        connection.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t SELECT i, 'a' FROM range(99) r(i)"
        )
    wlr.replicate(master, into=lake, engine="local")
    with wlc.connect(master) as connection:
        connection.execute("UPDATE t SET v = 'b' WHERE id % 2 = 0")
    return lake


def replicate(lake: Path, url: str, submit: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command of the docs in a process of its own."""
    settings = {**SETTINGS, "spark.executor.memory": "500m", "spark.task.maxFailures": "1"}
    options = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment |= {"PYTHONPATH": str(ROOT), "PYSPARK_SUBMIT_ARGS": f"{options} {submit} pyspark-shell", **more}
    program = "from cli.wlr import main; main()"
    command = [sys.executable, "-c", program, "replicate", "--into", str(lake), "--engine", "spark", "--master", url]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_workers_without_dbfarm_are_named(bare_cluster: str, lake: Path) -> None:
    done = replicate(lake, bare_cluster)
    assert done.returncode == 75, done.stderr
    assert "No module named" in done.stderr
    assert "export PYSPARK_PYTHON=" in done.stderr


def test_the_same_path_everywhere(bare_cluster: str, lake: Path) -> None:
    done = replicate(lake, bare_cluster, PYSPARK_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert lake_contents(lake) == file_contents(lake.parent / "sales.duckdb")


def test_spark_carries_an_environment_to_its_workers(bare_cluster: str, lake: Path, tmp_path: Path) -> None:
    environment, archive = tmp_path / "venv", tmp_path / "dbfarm.tar.gz"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    # Packages that lie elsewhere stand for those that venv-pack would copy, which are 700 MB.
    (packages,) = environment.glob("lib/python*/site-packages")
    places = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "all.pth").write_text(
        "".join(f"import site; site.addsitedir({place!r})\n" for place in places) + f"{ROOT}\n"
    )
    with tarfile.open(archive, "w:gz") as made:
        made.add(environment, ".")
    python = "./environment/bin/python"
    done = replicate(lake, bare_cluster, f"--archives {archive}#environment", PYSPARK_PYTHON=python)
    assert done.returncode == 0, done.stderr
    assert lake_contents(lake) == file_contents(lake.parent / "sales.duckdb")
