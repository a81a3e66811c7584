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
from tests.sampling import sampled
from wlc.farm.database import open_database
from wlc.farm.errors import CorruptError, GapError, InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable
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


def flip(file: Path) -> None:
    """One bit in the middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"more\n")


@pytest.mark.slow
@pytest.mark.parametrize("with_work", [True, False], ids=["something to publish", "nothing to publish"])
@pytest.mark.parametrize("damage", [delete, empty, cut, overwrite], ids=lambda f: f.__name__)
def test_flush_makes_wlc_config_again(source: Path, farm: Path, damage: Callable[[Path], None], with_work: bool):
    before = open_database(str(farm)).config()
    if with_work:
        away = farm.with_name("away")
        connection = wlc.connect(source)
        connection.execute("UPDATE t SET v = 'new'")
        farm.rename(away)
        with pytest.raises(InvalidError):
            connection.close()
        away.rename(farm)
    damage(farm / "wlc.config")
    wlc.flush(source)
    config = open_database(str(farm)).config()
    assert (config.history, config.name, config.logs) == (before.history, before.name, before.logs)
    assert (config.beat_s, config.state) == (7, 1)
    assert (config.tick, config.batches) == ((4, 5) if with_work else (3, 4))
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


# The log


LOG_DAMAGES = [delete, empty, cut, overwrite, flip, lengthen]


@pytest.mark.slow
@pytest.mark.parametrize("damage", sampled(LOG_DAMAGES, 3), ids=lambda f: f.__name__)
@pytest.mark.parametrize("what", ["log file", "data file"])
def test_damaged_batch_is_named_and_nothing_of_it_applied(
    source: Path, farm: Path, tmp_path: Path, what: str, damage: Callable[[Path], None]
):
    old, new = tmp_path / "old.duckdb", tmp_path / "new.duckdb"
    at_0, at_1 = published(str(farm), 0), published(str(farm), 1)
    wlr.replicate(str(farm), into=old, tick=1)
    file = log(farm, 2) if what == "log file" else log(farm, 2).with_suffix(".d") / "0.parquet"
    whole = file.read_bytes()
    damage(file)
    for replica in (old, new):
        with pytest.raises(CorruptError) as caught:
            wlr.replicate(str(farm), into=replica)
        assert file.name.removesuffix(".parquet") in str(caught.value.path or caught.value)
        assert "bank_000000000002" in str(caught.value.path or caught.value)
        if damage is delete and what == "log file":
            assert isinstance(caught.value, GapError)
    # What comes before it may be applied, nothing else.
    assert file_contents(old) == at_1
    assert not new.exists() or file_contents(new) == (at_0, at_1)[wlr.tick(new)]
    file.write_bytes(whole)
    for replica in (old, new):
        wlr.replicate(str(farm), into=replica)
        assert file_contents(replica) == file_contents(source)


@pytest.mark.slow
def test_batch_of_another_past_is_refused(source: Path, farm: Path, tmp_path: Path):
    """A log file that is sound in itself but does not follow the one before it."""
    replica = tmp_path / "replica.duckdb"
    wlr.replicate(str(farm), into=replica, tick=1)
    before = file_contents(replica)
    shutil.copyfile(log(farm, 3), log(farm, 2))
    with pytest.raises(CorruptError, match="bank_000000000002"):
        wlr.replicate(into=replica)
    assert file_contents(replica) == before


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


# Snapshots


@pytest.mark.slow
@pytest.mark.parametrize("damage", sampled(LOG_DAMAGES, 3), ids=lambda f: f.__name__)
@pytest.mark.parametrize("what", ["manifest.json", "0.parquet"])
def test_damaged_snapshot_is_named_and_no_replica_is_made(
    source: Path, farm: Path, tmp_path: Path, what: str, damage: Callable[[Path], None]
):
    wlc.snapshot(source)
    file, replica = farm / "snapshots" / f"{3:012}" / what, tmp_path / "replica.duckdb"
    damage(file)
    if damage is delete and what == "manifest.json":
        # Without its manifest there is no snapshot: the older one serves.
        wlr.replicate(str(farm), into=replica)
        assert file_contents(replica) == file_contents(source)
        return
    with pytest.raises(CorruptError) as caught:
        wlr.replicate(str(farm), into=replica)
    assert what in str(caught.value)
    assert str(file.parent) in str(caught.value)
    assert list(tmp_path.glob("*replica*")) == []
    # An older snapshot can be asked for.
    wlr.replicate(str(farm), into=replica, tick=2)
    assert wlr.tick(replica) == 2
