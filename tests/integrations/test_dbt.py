"""dbt-duckdb: a project of twelve models, unchanged, under `wlc exec`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integrations.recorded import Recorded, tool

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parent / "dbt"


def test_every_commit_of_a_project_arrives(tmp_path: Path) -> None:
    shutil.copytree(PROJECT, tmp_path, dirs_exist_ok=True)
    made = Recorded(tool("dbt", "dbt-core==1.12.0", "dbt-duckdb==1.11.1", "pandas==3.1.1"), tmp_path)
    days = [
        ["--vars", f"{{day: {day}, more: {more}}}"] for day, more in (("2026-10-20", "false"), ("2026-10-25", "true"))
    ]
    for options in ([], *days, ["--full-refresh"]):
        made.run("dbt", "--quiet", "build", *options)
    contents = made.check(least=90)
    models = {f"main.{each.stem}" for each in (PROJECT / "models").iterdir() if each.suffix in (".sql", ".py")}
    assert len(models) == 12
    assert models <= contents.keys()
    assert {"history.customer_history", "history.item_history", "main.raw_orders"} <= contents.keys()
