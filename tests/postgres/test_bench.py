"""The benchmark beside PostgreSQL's own replication runs, on next to no rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.bench import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.deep
def test_it_prints_a_figure_for_every_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["postgres", "--scale", "0.0001", "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"  [\d,.]+(?:x| s)$", printed, re.MULTILINE)) == 11, printed
    assert "PostgreSQL alone" in printed
