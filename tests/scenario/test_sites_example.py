"""examples/sites.py runs, and ends with the picture of who has what that it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "sites.py"


def test_three_sites_end_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, EXAMPLE], capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "300"}
    )
    assert done.returncode == 0, done.stderr
    assert "rome: site rome cannot write main.prices: the table belongs to site oslo" in done.stdout
    (rejected,) = [line for line in done.stdout.splitlines() if line.startswith("rome:")]
    assert "DATA_IN_CONFLICT" in rejected
    picture = done.stdout.split("== 6. Who has what")[1]
    (header, *sites) = [line.split() for line in picture.splitlines() if line and not line.startswith(("$", " ", "="))]
    assert header[:5] == ["site", "role", "history", "tick", "clock"]
    assert [(words[0], words[1]) for words in sites] == [
        ("oslo", "primary"),
        ("rome", "secondary"),
        ("paris", "secondary"),
    ]
    # Nobody is behind.
    assert picture.count("[]") == 3
    assert "customers all   (1, '999', 'Bergen'), (2, '222', 'Turin')" in picture
    assert "All sites are equal" in picture
