"""What docs/spark.md, docs/howto/spark.md and a docstring say can be copied and pasted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests import sales_story
from tests.docs_blocks import Shell, blocks
from tests.handmade import HandmadeFarm, Rows
from tests.spark.reading import read, texts
from tests.test_docstrings import example_of, output_of_failure

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parent.parent.parent / "docs" / "spark.md"


def test_snippets_run_in_their_order(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE TABLE orders (id INTEGER PRIMARY KEY, price DOUBLE)"])
    farm.publish([Rows("orders", added=("1, 1.5", "2, 2.5"))], [Rows("orders", removed=("1, 1.5",), added=("1, 9.5",))])
    snippets = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) > 5
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(re.sub("([\"'])/data/", rf"\1{tmp_path}/", snippet), names)
    spark.sql("DROP TABLE orders")
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    shown = capsys.readouterr().out
    assert "|  1|  9.5|" in shown
    assert "|  1|  1.5|    3|     -1| update_preimage|2026-01-01 00:00:03|  ann|" in shown
    out = spark.read.parquet(f"{tmp_path}/out").select("id", "price", "_tick", "_weight")
    assert texts(out) == texts(read(spark, farm.url, "orders", changes=True).select("id", "price", "_tick", "_weight"))


def test_the_guide_runs_as_it_stands(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(tmp_path, monkeypatch, {})
    printed = "".join(shell.run(block) for block in blocks(DOCS.parent / "howto" / "spark.md"))
    lake, farm = printed.split("| id|price|")[1:]
    assert "|  1|  9.5|" in lake
    assert "|  1|  1.5|" in farm


def test_the_example_of_the_docstring_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WLC_FARM", "farm")
    sales_story.usual()
    name = "wlr.spark.FarmDataSource"
    failure = output_of_failure(name, example_of(name).replace("/srv/farm", f"{tmp_path}/farm"), spark=spark)
    assert failure == "", failure
