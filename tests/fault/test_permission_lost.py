"""Permission to write is lost in the middle, and comes back: nothing is lost, and the place is named.

Root may write to everything, so that an immutable folder (chattr +i) stands for one without permission there.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.fault.bank import Bank
from tests.fault.processes import wait_until
from tests.lake import lake_contents
from tests.oracle import file_contents
from tests.sampling import sampled
from wlc.farm.errors import FarmError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


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


class World(Bank):
    """A bank with work to publish, and with work to apply."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            "CREATE TABLE t (i INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t SELECT i, 'x' FROM range(100) r(i)",
            {name: folder / name for name in ("source", "farm", "replica", "lake")},
        )
        self.work(1)
        self.flush()
        self.replicate()
        self.rewrite()
        self.work(2)
        self.flush()
        self.work(3)

    def work(self, number: int) -> None:
        change = f"UPDATE t SET v = 'y{number}' WHERE i % 5 = {number}"
        self.commit([f"BEGIN; {change}; INSERT INTO t VALUES ({1000 + number}, 'new'); COMMIT"])

    def prune(self) -> None:
        wlc.snapshot(self.source)
        wlc.prune("bank", farm=str(self.farm), keep_for="0s")


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


@pytest.mark.parametrize("operation, place", sampled(PLACES, 2), ids=lambda value: getattr(value, "__name__", value))
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
        world.work(4)
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
            wait_until(lambda: connection._shared.publisher.failure is not None, "the background thread notices")
            connection.execute("INSERT INTO t VALUES (-2, 'while forbidden')")
        wait_until(lambda: connection._shared.publisher.failure is None, "publishing resumes by itself")
        wait_until(lambda: wlc.tick("bank", farm=str(world.farm)) == 5, "all is published")
    world.check()
