"""examples/lake.py runs, and docs/spark.md shows what it does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MOMENT = r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00"


def steps(text: str) -> list[str]:
    """Headings, commands and verdicts, without what differs from one run to the next."""
    found = re.findall(r"^(?:== \d.*|\$ .*|   .*  equal)$", text, re.MULTILINE)
    return [re.sub(r"[\d,]+ orders", "… orders", re.sub(MOMENT, "…", line)) for line in found]


@pytest.mark.deep
def test_the_walkthrough_is_as_it_is_told(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "WLC_"))}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "lake.py", "--rows", "2000"],
        env={**environment, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DIFFER" not in done.stdout
    assert len(re.findall(r"^   .*  equal$", done.stdout, re.MULTILINE)) == 3
    compared = re.findall(r"^   (?:master|replica) +([\d,]+) rows   ([0-9a-f]{16})$", done.stdout, re.MULTILINE)
    assert len(compared) == 2
    assert compared[0] == compared[1]
    assert 1900 < int(compared[0][0].replace(",", "")) < 2100, "the mistake would have taken a fifth of the rows"
    assert steps((ROOT / "docs" / "spark.md").read_text(encoding="utf-8")) == steps(done.stdout)
