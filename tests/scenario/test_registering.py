"""Which replicas register: those that go on, not copies of the past; and what a reader learns that may not write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.handmade import HandmadeFarm, time_of
from tests.new_master import new_master
from wlc.farm.errors import FarmError, InvalidError
from wlc.farm.registry import replicas
from wlc.farm.store.local import LocalStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER)"])
    farm.publish(["CREATE TABLE u (i INTEGER)"])
    return farm


def known(farm: HandmadeFarm) -> list[int]:
    return [found.position.tick if found.position else 0 for found in replicas(farm.db)]


@pytest.mark.parametrize("stop", [{"tick": 1}, {"until": time_of(1)}])
def test_a_new_copy_of_the_past_does_not_register(farm: HandmadeFarm, tmp_path: Path, stop: dict[str, object]) -> None:
    copy = tmp_path / "copy.duckdb"
    wlr.replicate(farm.url, into=copy, **stop)  # type: ignore[arg-type]
    assert known(farm) == []
    wlr.replicate(into=copy)
    assert known(farm) == [2]
    # What is known already stays known, wherever it stands.
    wlr.replicate(into=copy, tick=1)
    assert known(farm) == [1]


@pytest.mark.parametrize("options", [{"waits": True}, {"register": True}, {"delay": "0s"}])
def test_a_replica_that_goes_on_registers(farm: HandmadeFarm, tmp_path: Path, options: dict[str, object]) -> None:
    stop = {} if "delay" in options else {"tick": 1}
    wlr.replicate(farm.url, into=tmp_path / "copy.duckdb", **stop, **options)  # type: ignore[arg-type]
    assert len(known(farm)) == 1


def test_a_reader_that_may_not_write_learns_how_to_read(
    farm: HandmadeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(store: LocalStore, path: str, *_: object) -> str:
        raise InvalidError(f"no permission for {store.url}/{path}", hint="Check owner and mode.")

    copy = tmp_path / "copy.duckdb"
    monkeypatch.setattr(LocalStore, "replace", refuse)
    monkeypatch.setattr(LocalStore, "create", refuse)
    with pytest.raises(InvalidError, match="no permission") as caught:
        wlr.replicate(farm.url, into=copy)
    assert f"wlr replicate {farm.url} --into {copy} --no-register" in str(caught.value.hint)
    assert wlr.replicate(farm.url, into=copy, register=False).tick == 2


@pytest.mark.slow
def test_commits_are_safe_while_the_farm_is_away(tmp_path: Path) -> None:
    source = tmp_path / "shop.duckdb"
    with new_master(source) as connection:
        connection.execute("CREATE TABLE t (i INTEGER)")
    (tmp_path / "farm").rename(tmp_path / "away")
    connection = wlc.connect(source)
    connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(FarmError, match=f"the commits are safe in {source} and are published next time") as caught:
        connection.close()
    assert str(caught.value.hint).startswith(f"Put it back; or wlc stop {source}, then")
    (tmp_path / "away").rename(tmp_path / "farm")
    assert wlc.flush(source).transactions == 1
