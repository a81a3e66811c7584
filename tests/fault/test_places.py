"""A place is gone, full or forbidden for a while: it is named, commits go on, nothing is lost, and all goes on later."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.fault.bank import Bank
from tests.fault.breaker import abandon_masters
from tests.fault.processes import call_command, rounds, seed, wait_until, wants_all
from tests.fault.trial import check_log
from tests.lake import lake_contents, surplus
from tests.oracle import file_contents, published
from tests.sampling import sampled
from wlc.farm.database import open_database
from wlc.farm.errors import CorruptError, FarmError, InvalidError
from wlc.farm.store import local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def farm(tmp_path: Path) -> Path:
    return tmp_path / "farm"


@pytest.fixture
def source(tmp_path: Path, farm: Path) -> Path:
    path = tmp_path / "bank.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 0 AS i")
    wlc.master(path, farm=str(farm), beat_s=0.02)
    with wlc.connect(path) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    return path


def check_published(source: Path, farm: Path) -> None:
    wlc.flush(source)
    check_log(open_database("bank", str(farm)))
    assert published(str(farm / "bank")) == file_contents(source)


def test_commits_go_on_while_the_farm_is_away_and_publishing_resumes(source: Path, farm: Path):
    away = farm.with_name("away")
    with wlc.connect(source) as connection:
        shared = connection._shared
        connection.execute("INSERT INTO t VALUES (2)")
        wait_until(lambda: wlc.tick("bank", farm=str(farm)) == 2, "the background thread publishes")
        farm.rename(away)
        for value in range(10, 20):
            connection.execute("INSERT INTO t VALUES (?)", [value])
        wait_until(lambda: shared.publisher.failure is not None, "the background thread notices")
        assert not farm.exists(), "a second farm was made in its place"
        away.rename(farm)
        wait_until(lambda: wlc.tick("bank", farm=str(farm)) == 12, "publishing resumes by itself")
        wait_until(lambda: shared.publisher.failure is None, "the background thread is content again")
    check_published(source, farm)


@pytest.mark.slow
@pytest.mark.parametrize("is_back", [True, False])
def test_commands_say_what_to_type_while_the_farm_is_away(source: Path, farm: Path, is_back: bool):
    """The hint's commands, typed as they stand, publish what waits, or begin a new history."""
    away = farm.with_name("away")
    farm.rename(away)
    again, anew = f"wlc flush {source}", [f"wlc stop {source}", f"wlc master {source}"]
    gone = f"hint: Put it back; or {anew[0]}, then {anew[1]}, which starts a new history"
    said = call_command("wlc", "sql", source, "INSERT INTO t VALUES (2)").stderr
    assert "the statements are committed and wait to be published" in said
    assert f"{gone}. Then: {again}\n" in said
    refused = call_command(*again.split())
    assert refused.returncode != 0
    assert f"{gone}.\n" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not farm.exists()
    if is_back:
        away.rename(farm)
    for command in [again] if is_back else anew:
        assert call_command(*command.split()).returncode == 0
    into = source.with_name("copy.duckdb")
    wlr.replicate("bank", farm=farm, into=into, register=False)
    assert file_contents(into) == file_contents(source)


@pytest.mark.slow
def test_farm_moved_away_and_back_at_random_moments(source: Path, farm: Path):
    """Also in the middle of a publication, which must not go on in a second farm of its own."""
    rng, away = random.Random(seed()), farm.with_name("away")
    is_done = threading.Event()
    connection = wlc.connect(source)

    def write() -> None:
        with connection.cursor() as cursor:
            value = 100
            while not is_done.is_set():
                cursor.execute("INSERT INTO t SELECT i FROM range(?) r(i)", [value])
                value += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(rounds(20)):
            time.sleep(rng.random() * 0.05)
            farm.rename(away)
            time.sleep(rng.random() * 0.05)
            # Would fail if anything were in its place.
            away.rename(farm)
    finally:
        is_done.set()
        writer.join(60)
    connection.close()
    check_published(source, farm)


@pytest.mark.deep
def test_replicas_while_the_farm_is_moved_away_and_back(source: Path, farm: Path, tmp_path: Path):
    """Whoever reads is told which place is gone, or goes on; nobody makes anything of half a farm."""
    rng, away, is_done = random.Random(seed()), farm.with_name("away"), threading.Event()
    with wlc.connect(source) as connection:
        for value in range(100, 130):
            connection.execute(f"CREATE OR REPLACE TABLE made AS SELECT {value} AS v FROM range({value})")
    wlc.flush(source)
    expected, told = file_contents(source), []

    def move() -> None:
        while not is_done.is_set():
            time.sleep(rng.random() * 0.05)
            farm.rename(away)
            time.sleep(rng.random() * 0.05)
            away.rename(farm)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for number in range(rounds(12)):
            for replica in (tmp_path / f"{number // 4}.duckdb", tmp_path / f"lake {number // 4}"):
                try:
                    wlr.replicate("bank", farm=str(farm), into=replica, tick=2 + number % 4 * 8, engine="local")
                except FarmError as error:
                    told.append(str(error))
    finally:
        is_done.set()
        mover.join(60)
    assert all(str(farm) in text or "bank" in text for text in told), told
    for number in range((rounds(12) + 3) // 4):
        replica, lake = tmp_path / f"{number}.duckdb", tmp_path / f"lake {number}"
        for into in (replica, lake):
            wlr.replicate("bank", farm=str(farm), into=into, engine="local")
        assert file_contents(replica) == lake_contents(lake) == expected
        assert surplus(lake) == []
    check_published(source, farm)


@pytest.mark.slow
def test_farm_cannot_be_written_to(source: Path, farm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Root may write everywhere, so that a disk that refuses is played."""
    write, number = local.write_file, 0

    def refuse(folder: int, path: str, data: bytes | Path) -> int:
        if Path(f"/proc/self/fd/{folder}").resolve().is_relative_to(farm.resolve()):
            raise OSError(number, os.strerror(number), path)
        return write(folder, path, data)

    for tick, number in enumerate((errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EIO), 1):  # noqa: B007 - it is raised
        replica = tmp_path / f"{tick}.duckdb"
        with monkeypatch.context() as broken:
            broken.setattr(local, "write_file", refuse)
            connection = wlc.connect(source)
            connection.execute("INSERT INTO t VALUES (2)")
            with pytest.raises(FarmError) as caught:
                connection.close()
            assert str(farm) in str(caught.value)
            assert caught.value.hint
            with pytest.raises(FarmError):
                wlc.flush(source)
            # Who may only read can replicate all the same.
            assert wlr.replicate("bank", farm=str(farm), into=replica, register=False).tick == tick
            with pytest.raises(FarmError):
                wlr.replicate(into=replica)
        check_published(source, farm)
        assert wlr.replicate(into=replica).tick == tick + 1


@pytest.mark.slow
def test_commits_go_on_without_space_for_temporary_files(source: Path, farm: Path, monkeypatch, tmp_path: Path):
    wlc.beat(source, 0)
    with wlc.connect(source) as connection:
        with monkeypatch.context() as broken:
            broken.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
            connection.execute("INSERT INTO t VALUES (2)")
            assert "nowhere" in str(connection._shared.publisher.failure)
        connection.execute("INSERT INTO t VALUES (3)")
        assert wlc.tick("bank", farm=str(farm)) == 3
    check_published(source, farm)


# Full: with more bytes left, the same operation fails at a later stage, until it does not fail any more ----------------


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


@pytest.mark.slow
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
                assert wlc.status("bank", farm=str(places.farm)).state == "active"
        places.check()
    print(small, dict(failures))
    assert failures.keys() >= EXPECTED[small], failures


# Forbidden: root may write to everything, so that an immutable folder (chattr +i) stands for it ------------------------


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


FORBIDDEN = [
    (World.flush, "farm/bank/wlc_logs"),
    (World.flush, "farm/bank"),
    (World.snapshot, "farm/bank/snapshots"),
    (World.prune, "farm/bank/snapshots"),
    (World.replicate, "farm/bank/replicas"),
    (World.rewrite, "lake"),
    (World.rewrite, "lake/data/main.t"),
    (World.rewrite, "lake/manifests"),
]


@pytest.mark.slow
@pytest.mark.parametrize("operation, place", sampled(FORBIDDEN, 2), ids=lambda value: getattr(value, "__name__", value))
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


@pytest.mark.slow
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
