"""The last position that a reader has seen, and a farm that was rolled back behind it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import wlr
from tests.handmade import HandmadeFarm
from wlc.farm.database import Witness, open_database, witness_of
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.model import Position
from wlr.replay import log_reader

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.farm.database import FarmDatabase


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    return HandmadeFarm(tmp_path / "farm")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "witness"


def test_the_last_position_of_each_database_is_kept(file: Path) -> None:
    one, other = Witness(file, "s3://b/one"), Witness(file, "s3://b/other")
    assert one.seen() is None
    later = Position("h1", 7, 3, "c" * 64)
    for position in (Position("h1", 2, 1, "a" * 64), later, Position("h1", 5, 2, "b" * 64), Position("", 0)):
        one.note(position)
    other.note(Position("h2", 1))
    assert one.seen() == later
    assert other.seen() == Position("h2", 1)
    file.write_bytes(file.read_bytes().replace(b"h2", b"h3"))
    with pytest.raises(CorruptError, match=str(file)):
        one.seen()


def test_options_come_before_the_environment(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert witness_of({}, "s3://b/one") is None
    monkeypatch.setenv("WLC_WITNESS_FILE", str(file))
    monkeypatch.chdir(tmp_path)
    assert witness_of(None, "farm/one") == Witness(file, f"{tmp_path}/farm/one")
    assert witness_of({"witness_file": "mine"}, "s3://b/one") == Witness(tmp_path / "mine", "s3://b/one")
    with pytest.raises(InvalidError, match="no folder"):
        Witness(tmp_path / "none" / "witness", "s3://b/one").seen()


def reader(farm: HandmadeFarm, file: Path) -> FarmDatabase:
    return open_database(farm.url, storage_options={"witness_file": str(file)})


def check(database: FarmDatabase) -> None:
    numbers = database.batch_numbers()
    log_reader.refuse_rolled_back(database, numbers, log_reader.last_tick(database, numbers))


def test_a_farm_that_was_rolled_back_is_refused_to_readers_who_begin_anew(
    farm: HandmadeFarm, file: Path, tmp_path: Path
) -> None:
    farm.publish(["CREATE TABLE t (id INTEGER)"])
    yesterday = shutil.copytree(farm.url, tmp_path / "yesterday")
    farm.publish(["CREATE TABLE u (id INTEGER)"])
    options = {"witness_file": str(file)}
    wlr.replicate(farm.url, into=tmp_path / "first.duckdb", storage_options=options)
    wlr.replicate(farm.url, into=tmp_path / "second.duckdb", storage_options=options, tick=1)
    assert reader(farm, file).witness.seen().tick == 2
    assert wlr.verify_farm(farm.url, storage_options=options).problems == ()
    farm.publish(["CREATE TABLE v (id INTEGER)"])
    check(reader(farm, file))
    shutil.rmtree(farm.url)
    shutil.copytree(yesterday, farm.url)
    with pytest.raises(CorruptError, match=r"ends at tick 1, and was seen at tick 2: it was rolled back") as refused:
        wlr.replicate(farm.url, into=tmp_path / "third.duckdb", storage_options=options)
    assert str(file) in refused.value.message
    assert not (tmp_path / "third.duckdb").exists()
    (problem,) = wlr.verify_farm(farm.url, storage_options=options).problems
    assert "rolled back" in problem.problem
    assert wlr.replicate(farm.url, into=tmp_path / "third.duckdb").tick == 1, "without a witness nobody can know"


def test_a_farm_with_another_past_is_refused(farm: HandmadeFarm, file: Path) -> None:
    farm.publish(["CREATE TABLE t (id INTEGER)"])
    database = reader(farm, file)
    assert database.witness is not None
    database.witness.note(Position("h1", 1, 1, "f" * 64))
    with pytest.raises(CorruptError, match="holds another batch 1"):
        check(database)


def test_what_was_pruned_is_not_missed(farm: HandmadeFarm, file: Path) -> None:
    for name in "tuv":
        farm.publish([f"CREATE TABLE {name} (id INTEGER)"])
    database = reader(farm, file)
    assert database.witness is not None
    database.witness.note(Position("h1", 1, 1, database.read_batch(1)[1]))
    database.delete_batch(1)
    check(database)
