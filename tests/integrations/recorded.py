"""Programs of other projects, run under `wlc exec`, and the replica compared with their master after every commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wlc
import wlr
from tests.environments import environment
from tests.integrations.recorder import digests
from tests.scratch import attached

if TYPE_CHECKING:
    from collections.abc import Mapping

# DuckDB's version is the tests' own, which the interception needs.
NEWEST = "DBFARM_NEWEST_TOOLS"
RECORDER = Path(__file__).with_name("recorder.py")
DUCKDB = "duckdb>=2.0.1,<2.1"


def tool(name: str, *pinned: str) -> Path:
    """Return the Python of an environment with a tool, without dbfarm, in the pinned or the newest versions."""
    wanted = [each.partition("==")[0] for each in pinned] if os.environ.get(NEWEST) else pinned
    return environment(name, "--only-binary", ":all:", DUCKDB, *wanted)


class Recorded:
    """A master in a folder, written by programs that do not know of dbfarm.

    Attributes:
        python: Of the programs' environment.
        path: Of the master.
    """

    def __init__(self, python: Path, folder: Path, name: str = "sales") -> None:
        self.python, self.folder, self.path = python, folder, folder / f"{name}.duckdb"
        self._record = folder / "record.jsonl"
        wlc.master(self.path, farm=str(folder / "farm"), create=True)

    def run(self, *command: str | Path, variables: Mapping[str, str] | None = None) -> str:
        """Run a program of the environment, or a script, to its end; return what it printed."""
        words = [self.python, RECORDER, self._record, *command]
        done = subprocess.run(
            [Path(sys.executable).with_name("wlc"), "exec", self.path, "--", *words],
            cwd=self.folder,
            env={**os.environ, **(variables or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        return done.stdout

    def check(self, least: int) -> dict[str, Any]:
        """Compare a replica with each recorded state; return the last one.

        Args:
            least: The number of ticks that must be recorded at least.
        """
        lines = [json.loads(line) for line in self._record.read_text(encoding="utf-8").splitlines()]
        assert len(lines) >= least
        copy = self.folder / "copy.duckdb"
        for tick, expected in lines:
            wlr.replicate(self.path.stem, farm=self.folder / "farm", into=copy, tick=tick)
            with attached(copy) as connection:
                catalog = connection.execute("SELECT current_database()").fetchall()[0][0]
                assert digests(connection, catalog) == expected, f"tick {tick}"
        return dict(lines[-1][1])
