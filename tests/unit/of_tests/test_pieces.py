"""A long run goes on where an earlier piece ended."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.fault.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

TESTS = """
import pytest
from tests.pieces import each, seed_of_run

@pytest.mark.parametrize("name", ["one", "two"])
def test_cases(name):
    for case in each(range(4)):
        print(f"tried {name} {case} with {seed_of_run()}")
        assert (name, case) != ("two", 2) or FIXED
"""


def tried(output: str) -> list[str]:
    return [line.lstrip(".") for line in output.splitlines() if line.lstrip(".").startswith("tried ")]


def run(folder: Path, *, is_fixed: bool, **variables: str) -> str:
    (folder / "test_long.py").write_text(f"FIXED = {is_fixed}\n{TESTS}")
    own = {"PYTHONPATH": str(ROOT), "DBFARM_DONE": str(folder / "done"), "PATH": "/usr/bin:/bin", **variables}
    options = ["-qs", "-p", "tests.conftest", "-p", "no:cacheprovider", f"--rootdir={folder}", str(folder)]
    command = [sys.executable, "-m", "pytest", *options]
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False, cwd=ROOT).stdout


def test_the_next_piece_tries_what_did_not_pass(tmp_path: Path) -> None:
    first = run(tmp_path, is_fixed=False, DBFARM_SEED="7")
    assert tried(first) == [
        *(f"tried one {case} with 7" for case in range(4)),
        *(f"tried two {case} with 7" for case in range(3)),
    ]
    assert "1 failed, 1 passed" in first
    second = run(tmp_path, is_fixed=True)
    assert tried(second) == ["tried two 2 with 7", "tried two 3 with 7"]
    assert "1 passed, 1 deselected" in second


def test_a_piece_ends_after_its_minutes(tmp_path: Path) -> None:
    assert "2 skipped" in run(tmp_path, is_fixed=True, DBFARM_MINUTES="0")


def test_a_file_of_another_seed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "done").write_text("seed 8\n")
    assert "unset DBFARM_SEED or remove the file" in run(tmp_path, is_fixed=True, DBFARM_SEED="7")
