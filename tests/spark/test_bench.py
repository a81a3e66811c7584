"""The benchmarks of Parquet replicas run, on next to no rows, in the session that all tests share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from tests.bench import executors, lake_curve, rivals, run
from tests.bench.measure import Setting

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.deep
def test_lake_prints_a_figure_for_every_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(["lake", "--scale", "0.0001", "--rounds", "1", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    figures = re.findall(r"  [\d,.]+(?:x| rows/s| GB)$", printed.out.partition("\nlake (")[2], re.MULTILINE)
    assert len(figures) == (8 if rivals.has_delta() else 6), printed.out
    assert ("pip install" in printed.err) != rivals.has_delta()


@pytest.mark.deep
def test_executors_are_counted_apart(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "WARM_UPS", 0)
    assert run.main(["executors", "--scale", "0.0001", "--rounds", "1", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.partition("\nexecutors (")[2]
    assert len(re.findall(r"  -?[\d,.]+ (?:s|%)$", printed, re.MULTILINE)) == 3, printed


@pytest.mark.deep
def test_lake_curve_draws_what_it_measures(spark: SparkSession, tmp_path: Path) -> None:
    lines = list(lake_curve.run(Setting(tmp_path, 0.0001, rounds=1, plots=tmp_path)))
    assert len(lines) == 10
    assert all(0.01 < line.figure < 10 for line in lines), "a process has needed memory, and not that much"
    picture = ElementTree.parse(tmp_path / "lake_curve.svg").getroot()
    width, height = map(float, picture.attrib["viewBox"].split()[2:])
    circles = list(picture.iter(f"{SVG}circle"))
    # Four panels, two engines, three points in each; points of equal size are as many as the sizes that were measured.
    assert len(circles) >= 4 * 2 * 3
    assert all(0 <= float(c.attrib["cx"]) <= width and 0 <= float(c.attrib["cy"]) <= height for c in circles)
    assert {"local engine", "spark engine"} <= {text.text for text in picture.iter(f"{SVG}text")}
