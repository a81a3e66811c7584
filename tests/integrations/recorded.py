"""Programs of other projects, run under `wlc exec`, and the replica compared with their master after every commit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wlc
import wlr
from tests.docs_blocks import blocks
from tests.environments import ROOT, environment
from tests.integrations.recorder import digests
from tests.scratch import attached
from wlc.dialect.duckdb.engine import REQUIREMENT

if TYPE_CHECKING:
    from collections.abc import Mapping

# Set by the weekly job: the newest versions of the tools instead of the pinned ones.
NEWEST = "DBFARM_NEWEST_TOOLS"
HERE = Path(__file__).parent
QUIET = {"DO_NOT_TRACK": "1", "RUNTIME__DLTHUB_TELEMETRY": "false"}


def tool(name: str, *pinned: str) -> Path:
    """Return the Python of an environment with a tool and without dbfarm, in the pinned or the newest versions.

    Args:
        name: Of the environment.
        pinned: Packages with their versions, such as `dlt==1.31.0`, or `sqlglot<30,==29.0.1` if later ones fail.
    """
    wanted = [re.sub(r",?==[\w.]+$", "", each) for each in pinned] if os.environ.get(NEWEST) else pinned
    # The program must have a DuckDB that dbfarm works with.
    return environment(name, "--only-binary", ":all:", REQUIREMENT, *wanted)


def run(folder: Path, *words: object, variables: Mapping[str, str] | None = None) -> str:
    """Run a program in a folder to its successful end; return what it printed."""
    done = subprocess.run(
        [*map(str, words)],
        cwd=folder,
        env={**os.environ, **QUIET, **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def type_page(folder: Path, python: Path, page: str, variables: Mapping[str, str] | None = None) -> None:
    """Type what a guide says to type, in a folder and with the programs of an environment, where dbfarm comes last."""
    path = f"{python.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "WLC_FARM": str(folder / "farm"), **(variables or {})}
    for block in blocks(ROOT / "docs" / "howto" / page):
        shell = ("sh", "-ec") if block.language == "sh" else (python, "-c")
        run(folder, *shell, block.text, variables=own)


class Master:
    """A master in a folder, which programs write that do not know of dbfarm."""

    def __init__(self, folder: Path, *, is_there: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.path = folder, folder / "sales.duckdb"
        self._record = folder / "record.jsonl"
        if not is_there:
            wlc.master(self.path, farm=str(folder / "farm"), create=True)

    def execute(self, *words: object, variables: Mapping[str, str] | None = None) -> str:
        """Run a program by `wlc exec`."""
        own = Path(sys.executable).with_name("wlc")
        return run(self.folder, own, "exec", self.path, "--", *words, variables=variables)

    def record(self, python: Path, *words: object, captures: bool = False) -> str:
        """Run a script, or a program of an environment, and record the master after each commit.

        Args:
            python: Of the environment.
            words: The program and its arguments.
            captures: It captures without `wlc exec`.
        """
        recorder = (python, HERE / "recorder.py", self._record, *words)
        return run(self.folder, *recorder) if captures else self.execute(*recorder)

    def check(self, least: int) -> set[str]:
        """Compare a replica with each recorded state; return the names of its last tables and views.

        Args:
            least: How many ticks must be recorded at least.
        """
        lines = [json.loads(line) for line in self._record.read_text(encoding="utf-8").splitlines()]
        assert len(lines) >= least
        for tick, expected in lines:
            assert self._replicated(tick) == expected, f"tick {tick}"
        return set(lines[-1][1])

    def check_end(self) -> set[str]:
        """Compare a replica with the master as it is; return the names of its tables and views."""
        with attached(self.path) as connection:
            expected = digests(connection, "sales")
        assert self._replicated(None) == expected
        return set(expected)

    def _replicated(self, tick: int | None) -> dict[str, Any]:
        copy = self.folder / "copy.duckdb"
        wlr.replicate("sales", farm=self.folder / "farm", into=copy, tick=tick)
        with attached(copy) as connection:
            return digests(connection, connection.execute("SELECT current_database()").fetchall()[0][0])
