"""dbt-duckdb: a project of twelve models, unchanged, under `wlc exec`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.integrations.recorded import HERE, Master, tool, type_page

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

PROJECT = HERE / "dbt"


def installed() -> Path:
    # Later versions of dbt-core need a package that downloads a program when it is built.
    return tool("dbt", "dbt-core==1.12.0", "dbt-duckdb==1.11.1", "pandas==3.1.1")


def test_every_commit_of_a_project_arrives(tmp_path: Path) -> None:
    shutil.copytree(PROJECT, tmp_path, dirs_exist_ok=True)
    master = Master(tmp_path)
    python = installed()
    for options in ([], ["--vars", "{day: 2026-10-20, more: true}"], ["--full-refresh"]):
        master.record(python, "dbt", "--quiet", "build", *options)
    models = {f"main.{each.stem}" for each in (PROJECT / "models").iterdir() if each.suffix in (".sql", ".py")}
    assert len(models) == 12
    assert master.check(least=70) >= models | {"history.customer_history", "main_history.item_history"}


def test_the_guide_runs(tmp_path: Path) -> None:
    shutil.copytree(PROJECT, tmp_path, dirs_exist_ok=True)
    type_page(tmp_path, installed(), "dbt.md")
    assert "main.contracted" in Master(tmp_path, is_there=True).check_end()
