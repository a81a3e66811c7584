"""The disk is full at every stage: a clear error that names the place, nothing is lost, and all goes on with space.

A small file system is filled but for so many bytes: with more of them left, the same operation fails at a later stage,
until it does not fail any more.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
from tests.fault.bank import Bank
from tests.fault.breaker import abandon_masters
from tests.fault.processes import wants_all
from tests.sampling import sampled
from wlc.farm.errors import CorruptError, FarmError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

SIZE = 16 << 20
SPACES = range(0, 4 << 20, 4096) if wants_all() else (0, 4096, 100_000, 300_000, 1_000_000, 4_000_000)
EXPECTED = {
    "source": {"write", "flush"},
    "farm": {"flush", "snapshot", "rewrite", "replicate"},
    "replica": {"replicate"},
    "lake": {"rewrite"},
    "temporary": {"flush", "snapshot"},
}
SEED = """
    CREATE TABLE item (id INTEGER PRIMARY KEY, text VARCHAR);
    INSERT INTO item SELECT i, hash(i)::VARCHAR FROM range(20000) r(i);
    CREATE TABLE bag (x INTEGER);
"""
WORK = (
    "INSERT INTO bag (x) SELECT i % 5 FROM range(1000) r(i)",
    "UPDATE item SET text = md5(id::VARCHAR) WHERE id % 3 = 0",
    "BEGIN; DELETE FROM item WHERE id % 10 = 1; ALTER TABLE bag ADD COLUMN IF NOT EXISTS y VARCHAR DEFAULT 'y'; COMMIT",
    "INSERT OR REPLACE INTO item SELECT i, md5(i::VARCHAR) FROM range(100000, 105000) r(i)",
)


class Places(Bank):
    """A bank of which one place lies on the small disk."""

    def __init__(self, folder: Path, disk: Path, small: str) -> None:
        self.disk = disk
        place = {
            name: (disk if name == small else folder) / name
            for name in ("source", "farm", "replica", "lake", "temporary")
        }
        self.temporary = place["temporary"]
        self.temporary.mkdir()
        super().__init__(SEED, place)

    def write(self) -> None:
        self.commit(WORK)

    def check(self) -> None:
        super().check()
        assert list(self.temporary.iterdir()) == []


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own; only root may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    options = f"size={SIZE}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        abandon_masters()
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def filled(disk: Path, free: int) -> Iterator[None]:
    """A disk with so many bytes left; others may have taken them, too."""
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"0" * 65536) == 65536:
            pass
    os.truncate(filler, max(0, filler.stat().st_size - free))
    try:
        yield
    finally:
        filler.unlink()


def attempt(places: Places, free: int, operation: Callable[[], None]) -> str:
    """Try it with so little space; returns what was said, or nothing if there was enough."""
    with filled(places.disk, free):
        try:
            operation()
        except FarmError as error:
            assert not isinstance(error, CorruptError | InvalidError), f"nothing is wrong but the space: {error}"
            assert error.hint
            return str(error)
        except duckdb.Error as error:
            # The user's own statement, told in DuckDB's words.
            assert operation == places.write
            return str(error)
        finally:
            abandon_masters()
    return ""


@pytest.mark.parametrize("small", sampled(["source", "farm", "replica", "lake", "temporary"], 2))
def test_full_disk_at_every_stage(tmp_path: Path, disk: Path, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places(tmp_path, disk, small)
    monkeypatch.setattr("tempfile.tempdir", str(places.temporary))
    failures: Counter[str] = Counter()
    for _ in range(2):
        for operation in (places.write, places.flush, places.snapshot, places.rewrite, places.replicate):
            for free in SPACES:
                said = attempt(places, free, operation)
                if not said:
                    break
                failures[operation.__name__] += 1
                assert str(disk) in said, said
                # Who waits for space can ask meanwhile what is there.
                assert wlc.status("bank", farm=str(places.farm)).state == "started"
        places.check()
    print(small, dict(failures))
    assert failures.keys() >= EXPECTED[small], failures
