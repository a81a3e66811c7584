"""The examples are run, not only shown."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_quickstart(tmp_path) -> None:
    environment = {**os.environ, "DBFARM_VENV": str(Path(sys.executable).parent.parent), "TMPDIR": str(tmp_path)}
    environment.pop("WLC_FARM", None)
    done = subprocess.run(
        ["sh", ROOT / "examples" / "quickstart.sh"], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DIFFER" not in done.stdout
    assert len(re.findall(r"  equal$", done.stdout, re.MULTILINE)) == 19
    work = re.search(r"The files are in (\S+)$", done.stdout.strip())
    assert work
    assert (Path(work[1]) / "recovered.duckdb").is_file()
    shutil.rmtree(work[1])
