"""Permission to write is lost in the middle, and comes back: nothing is lost, and the place is named.

Root may write to everything, so that an immutable folder (chattr +i) stands for one without permission there.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import wait_until
from tests.fault.trial import check_log
from tests.lake import lake_contents, surplus
from tests.oracle import file_contents, published
from wlc.errors import FarmError
from wlc.farm import open_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextmanager
def forbidden(folder: Path) -> Iterator[None]:
    """A folder in which nobody can make, replace or remove anything."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        try:
            yield
        finally:
            folder.chmod(0o755)
        return
    done = subprocess.run(["chattr", "+i", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this file system has no immutable folders: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", folder], check=True)


class World:
    """A master with work to publish, and replicas with work to apply."""

    def __init__(self, folder: Path) -> None:
        self.source, self.farm = folder / "source" / "bank.duckdb", folder / "farm"
        self.replica, self.lake = folder / "replica" / "replica.duckdb", folder / "lake"
        self.source.parent.mkdir()
        self.replica.parent.mkdir()
        with duckdb.connect(str(self.source)) as connection:
            connection.execute(
                "CREATE TABLE t (i INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t SELECT i, 'x' FROM range(100) r(i)"
            )
        wlc.master(self.source, farm=str(self.farm))
        self.commit(1)
        self.flush()
        self.replicate()
        self.rewrite()
        self.commit(2)
        self.flush()
        self.commit(3)

    def commit(self, number: int) -> None:
        with pytest.MonkeyPatch.context() as patch, wlc.connect(self.source) as connection:
            patch.setattr("wlc.capture.duckdb.shared.Shared.try_publish", lambda shared: None)
            connection.execute(f"BEGIN; UPDATE t SET v = 'y{number}' WHERE i % 5 = {number}")
            connection.execute(f"INSERT INTO t VALUES ({1000 + number}, 'new'); COMMIT")

    def flush(self) -> None:
        wlc.flush(self.source)

    def snapshot(self) -> None:
        wlc.snapshot(self.source)

    def replicate(self) -> None:
        wlr.replicate("bank", farm=str(self.farm), into=self.replica)

    def rewrite(self) -> None:
        wlr.replicate("bank", farm=str(self.farm), into=self.lake, engine="local")

    def prune(self) -> None:
        wlc.snapshot(self.source)
        wlc.prune("bank", farm=str(self.farm))

    def check(self) -> None:
        """Whatever was forbidden: nothing is lost, nothing there twice, and all goes on."""
        self.flush()
        check_log(open_database("bank", str(self.farm)))
        present = file_contents(self.source)
        assert published(str(self.farm / "bank")) == present
        self.replicate()
        self.rewrite()
        assert file_contents(self.replica) == lake_contents(self.lake) == present
        assert surplus(self.lake) == []


PLACES = [
    (World.flush, "farm/bank/wlc_logs"),
    (World.flush, "farm/bank"),
    (World.snapshot, "farm/bank/snapshots"),
    (World.prune, "farm/bank/snapshots"),
    (World.replicate, "farm/bank/replicas"),
    (World.rewrite, "lake"),
    (World.rewrite, "lake/data/main.t"),
    (World.rewrite, "lake/manifests"),
]


@pytest.mark.parametrize("operation, place", PLACES, ids=lambda value: getattr(value, "__name__", value))
def test_place_that_cannot_be_written_to_is_named_and_work_goes_on_later(
    tmp_path: Path, operation: Callable[[World], None], place: str
):
    world = World(tmp_path)
    with forbidden(tmp_path / place):
        for _ in range(2):
            with pytest.raises(FarmError) as caught:
                operation(world)
            assert f"no permission for {tmp_path / place.partition('/')[0]}" in str(caught.value), caught.value
            assert caught.value.hint
        # Commits go on, and whoever asks is told.
        world.commit(4)
        assert wlc.status(world.source).unpublished in (1, 2)
        assert wlr.status(world.replica).tick == 1
        assert file_contents(world.replica)["main.t"].total() == 101
        assert lake_contents(world.lake)["main.t"].total() == 101
    operation(world)
    world.check()


def test_farm_that_is_forbidden_in_the_middle_of_a_beat_and_allowed_again(tmp_path: Path):
    world = World(tmp_path)
    wlc.beat(world.source, 0.02)
    with wlc.connect(world.source) as connection:
        with forbidden(tmp_path / "farm" / "bank" / "wlc_logs"):
            connection.execute("INSERT INTO t VALUES (-1, 'while forbidden')")
            wait_until(lambda: connection._shared.failure is not None, "the background thread notices")
            connection.execute("INSERT INTO t VALUES (-2, 'while forbidden')")
        wait_until(lambda: connection._shared.failure is None, "publishing resumes by itself")
        wait_until(lambda: wlc.tick("bank", farm=str(world.farm)) == 5, "all is published")
    world.check()
