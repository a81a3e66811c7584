"""A file of the farm is lost or damaged: what can be made again is, all else is named and nothing of it applied."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import call_command
from tests.fault.trial import check_log
from tests.oracle import file_contents, published
from wlc.farm.database import open_database
from wlc.farm.errors import CorruptError, InvalidError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def farm(tmp_path: Path) -> Path:
    return tmp_path / "farm" / "bank"


@pytest.fixture
def source(tmp_path: Path, farm: Path) -> Path:
    """A master with a snapshot at tick 0 and three batches."""
    path = tmp_path / "bank.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t AS SELECT i, 'text ' || i AS v FROM range(100) r(i)")
    wlc.master(path, farm=str(farm.parent), beat_s=7)
    for value in (1, 2, 3):
        commit(path, value)
    return path


def commit(source: Path, value: int) -> None:
    with wlc.connect(source) as connection:
        connection.execute("UPDATE t SET v = 'changed ' || i WHERE i % 5 = ?", [value])


def log(farm: Path, number: int) -> Path:
    return farm / "wlc_logs" / f"bank_{number:012}"


# wlc.config


def delete(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def overwrite(file: Path) -> None:
    file.write_bytes(b"\0" * file.stat().st_size)


@pytest.mark.slow
def test_flush_makes_wlc_config_again(source: Path, farm: Path):
    before, away = open_database(str(farm)).config(), farm.with_name("away")
    for number, damage in enumerate((delete, empty, cut, overwrite)):
        connection = wlc.connect(source)
        connection.execute("UPDATE t SET v = 'new'")
        farm.rename(away)
        with pytest.raises(InvalidError):
            connection.close()
        away.rename(farm)
        # With something to publish, and with nothing.
        for _ in range(2):
            damage(farm / "wlc.config")
            wlc.flush(source)
            config = open_database(str(farm)).config()
            assert (config.history, config.name, config.logs) == (before.history, before.name, before.logs)
            assert (config.beat_s, config.state) == (7, 1)
            assert (config.tick, config.batches) == (4 + number, 5 + number)
    check_log(open_database(str(farm)))
    assert published(str(farm)) == file_contents(source)


def test_flush_finds_logs_that_lie_elsewhere_without_wlc_config(tmp_path: Path):
    source, farm = tmp_path / "bank.duckdb", tmp_path / "farm"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE t AS SELECT i, '' AS v FROM range(100) r(i)")
    wlc.master(source, farm=str(farm), logs=str(tmp_path / "logs"))
    commit(source, 1)
    (farm / "bank" / "wlc.config").unlink()
    commit(source, 2)
    wlc.flush(source)
    assert open_database("bank", str(farm)).config().batches == 3
    assert not (farm / "bank" / "wlc_logs").exists()
    assert published(str(farm / "bank")) == file_contents(source)


@pytest.mark.slow
def test_farm_that_is_gone_for_good_is_named_with_the_way_out(source: Path, farm: Path):
    shutil.rmtree(farm)
    refused = call_command("wlc", "flush", source)
    assert refused.returncode == 2, refused.stderr
    assert str(farm) in refused.stderr
    assert not farm.exists()
    with pytest.warns(UserWarning, match="publishes no more"):
        wlc.stop(source)
    wlc.master(source, farm=str(farm.parent))
    commit(source, 4)
    assert published(str(farm)) == file_contents(source)


@pytest.mark.slow
def test_last_batch_lost_is_noticed_by_replica_and_master(source: Path, farm: Path, tmp_path: Path):
    replica = tmp_path / "replica.duckdb"
    wlr.replicate(str(farm), into=replica)
    before = file_contents(replica)
    log(farm, 3).unlink()
    commit_fails = call_command("wlc", "sql", source, "INSERT INTO t VALUES (-1, '')")
    assert commit_fails.returncode in (6, 75), commit_fails.stderr
    refused = call_command("wlc", "flush", source)
    assert refused.returncode == 6, refused.stderr
    assert "batch 3" in refused.stderr
    assert not log(farm, 4).exists()
    with pytest.raises(CorruptError):
        wlr.replicate(into=replica)
    assert file_contents(replica) == before


@pytest.mark.slow
def test_an_older_snapshot_than_a_damaged_one_can_be_asked_for(source: Path, farm: Path, tmp_path: Path):
    wlc.snapshot(source)
    replica = tmp_path / "replica.duckdb"
    cut(farm / "snapshots" / f"{3:012}" / "0.parquet")
    with pytest.raises(CorruptError, match="0.parquet"):
        wlr.replicate(str(farm), into=replica)
    assert list(tmp_path.glob("*replica*")) == []
    assert wlr.replicate(str(farm), into=replica, tick=2).tick == 2
