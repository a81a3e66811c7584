"""Versions that landed before this one, and this one, work on one farm, its replicas, a feed and a relay, in turns."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# A commit that writes the same format. Whoever changes the format moves it to the first commit that has it.
BASE = "eed8a8d"
ROOT = Path(__file__).parents[2]
# Run by one version or the other: what it is told to do, in a folder.
TURN = """
import sys, wlc, wlr
assert wlc.__file__.startswith(sys.argv[1]), wlc.__file__
what, value = sys.argv[2:]
if what == "master":
    wlc.master("sales.duckdb", farm="farm", beat_s=0, create=True)
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)")
if what == "write":
    with wlc.connect("sales.duckdb") as connection:
        connection.execute(f"INSERT INTO t (id, v) VALUES ({value}, 'x'); UPDATE t SET v = 'by {value}' WHERE id < {value}")
        connection.execute(f"ALTER TABLE t ADD COLUMN c{value} INTEGER DEFAULT {value}")
    wlc.snapshot("sales.duckdb")
if what == "replicate":
    for into in ("copy.duckdb", "lake"):
        tick = wlr.replicate("sales", farm="farm", into=into, engine="local").tick
        assert tick == wlc.tick("sales", farm="farm"), into
        assert {table.outcome for table in wlr.verify(into).tables} == {"same"}, into
    audit = wlr.verify_farm("farm/sales", full=True)
    assert audit.problems == (), audit
    wlr.feed("sales", farm="farm", to="changes.jsonl")
    assert wlc.ship("sales", farm="farm", to="branch").tick == wlc.tick("sales", farm="farm")
    assert {reader.tick for reader in wlc.readers("sales", farm="farm")} == {wlc.tick("sales", farm="farm")}
"""


def git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout


def landed() -> str:
    """The last state of this branch with other code than what is here; those of merged branches may have another format."""
    commits = git("log", "--first-parent", "-2", "--format=%h", "--", "wlc", "wlr").decode().split()
    return commits[0 if git("status", "--porcelain", "--", "wlc", "wlr").strip() else 1]


@pytest.fixture
def earlier(tmp_path: Path) -> list[Path]:
    """Folders with the packages of the first version of this format, and of the last one."""
    folders = [tmp_path / "first", tmp_path / "last"]
    try:
        contents = [git("archive", commit, "wlc", "wlr") for commit in (BASE, landed())]
    except (OSError, IndexError, subprocess.CalledProcessError):
        pytest.skip(f"there is no history with {BASE} here: a shallow clone, or no git")
    for folder, content in zip(folders, contents, strict=True):
        with tarfile.open(fileobj=BytesIO(content)) as archive:
            archive.extractall(folder, filter="data")
    return folders


def test_versions_take_turns_on_one_farm(earlier: list[Path], tmp_path: Path) -> None:
    first, last = earlier
    (work := tmp_path / "work").mkdir()

    def turn(packages: Path, what: str, value: int = 0) -> None:
        environment = {**os.environ, "PYTHONPATH": str(packages)}
        command = [sys.executable, "-c", TURN, str(packages), what, str(value)]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{what} by {packages}: {done.stderr}"

    turn(first, "master")
    for value, (writes, readers) in enumerate([(first, [ROOT]), (ROOT, [first, last]), (last, [ROOT])], 1):
        turn(writes, "write", value)
        for reads in readers:
            turn(reads, "replicate")
