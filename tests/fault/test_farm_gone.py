"""The farm is gone for a while, or cannot be written to: commits go on, and what they did is published later."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from pathlib import Path

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import call_command, rounds, seed, wait_until
from tests.fault.trial import check_log
from tests.lake import lake_contents, surplus
from tests.oracle import file_contents, published
from wlc.farm.database import open_database
from wlc.farm.errors import FarmError
from wlc.farm.store import local


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
def test_close_says_that_the_farm_is_away_and_the_next_flush_publishes(source: Path, farm: Path):
    away = farm.with_name("away")
    connection = wlc.connect(source)
    farm.rename(away)
    connection.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(FarmError) as caught:
        connection.close()
    assert str(farm) in str(caught.value)
    assert caught.value.hint
    refused = call_command("wlc", "flush", source)
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr
    assert str(farm) in refused.stderr
    assert not farm.exists()
    away.rename(farm)
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
    assert f"{gone}.\n" in call_command(*again.split()).stderr
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
@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_farm_cannot_be_written_to(source: Path, farm: Path, tmp_path: Path, monkeypatch, number: int):
    """Root may write everywhere, so that a disk that refuses is played."""
    write = local.write_file

    def refuse(folder: int, path: str, data: bytes | Path) -> int:
        if Path(f"/proc/self/fd/{folder}").resolve().is_relative_to(farm.resolve()):
            raise OSError(number, os.strerror(number), path)
        return write(folder, path, data)

    with monkeypatch.context() as broken:
        broken.setattr(local, "write_file", refuse)
        connection = wlc.connect(source)
        connection.execute("INSERT INTO t VALUES (2)")
        with pytest.raises(FarmError) as caught:
            connection.close()
        assert str(farm) in str(caught.value)
        with pytest.raises(FarmError):
            wlc.flush(source)
        # Who may only read can replicate all the same.
        replica = tmp_path / "replica.duckdb"
        assert wlr.replicate("bank", farm=str(farm), into=replica, register=False).tick == 1
        with pytest.raises(FarmError):
            wlr.replicate(into=replica)
    check_published(source, farm)
    assert wlr.replicate(into=replica).tick == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to everything")
def test_farm_without_permission_to_write(source: Path, farm: Path):
    logs = farm / "bank" / "wlc_logs"
    logs.chmod(0o555)
    try:
        with wlc.connect(source) as connection:
            connection.execute("INSERT INTO t VALUES (2)")
            shared = connection._shared
            wait_until(lambda: shared.publisher.failure is not None, "the background thread notices")
            logs.chmod(0o755)
            wait_until(lambda: wlc.tick("bank", farm=str(farm)) == 2, "publishing resumes by itself")
    finally:
        logs.chmod(0o755)
    check_published(source, farm)


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
