"""Environments of tests are made once, whole, also when two processes ask for one at the same time."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests import environments

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_an_environment_has_its_requirements_and_is_made_once(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("DBFARM_TEST_ENVIRONMENTS", str(tmp_path))
    installed = []
    monkeypatch.setattr(environments, "_install", lambda python, required: installed.append(required))
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(lambda _: environments.environment("empty"), range(2))
    assert first == second
    assert installed == [()]
    assert environments.environment("empty", "pytz") != first
    found = subprocess.run([first, "-c", "import duckdb"], capture_output=True, text=True)
    assert "No module named 'duckdb'" in found.stderr


def test_an_environment_that_was_not_completed_is_made_anew(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("DBFARM_TEST_ENVIRONMENTS", str(tmp_path))

    def fail(python: Path, required: tuple[str, ...]) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as failing:
        failing.setattr(environments, "_install", fail)
        with pytest.raises(OSError, match="disk full"):
            environments.environment("pytz", "pytz")
    python = environments.environment("pytz", "pytz")
    subprocess.run([python, "-c", "import pytz"], check=True)
