"""A history continues another one at a tick: readers at that tick or before it go on, all others hold too much."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import wlr
from tests.handmade import HandmadeFarm, Rows, rows_of
from tests.scratch import scratch
from wlc.farm.errors import InvalidError
from wlc.farm.log import encode_batch
from wlc.farm.model import Origin

if TYPE_CHECKING:
    from pathlib import Path


def broken_off(folder: Path, *, at: int = 3, continues: bool = True) -> HandmadeFarm:
    """Make a log whose batch 2 ends at tick 5; history h2 grew from tick 3, and begins with tick 6, without rows."""
    farm = HandmadeFarm(folder)
    farm.publish(["CREATE TABLE t (i INTEGER)"])
    farm.publish(*([Rows("t", added=(str(i),))] for i in range(2, 6)))
    farm.history, farm.parent, farm.continues = "h2", Origin("h1", at), continues
    farm.publish([])
    farm.publish([Rows("t", added=("7",))])
    return farm


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    return broken_off(tmp_path)


def held(into: Path) -> list[int]:
    return [i for (i,) in rows_of(into, "SELECT i FROM t ORDER BY i")]


@pytest.mark.parametrize("tick", [0, 1, 2, 3])
def test_a_replica_goes_on(farm: HandmadeFarm, tmp_path: Path, tick: int) -> None:
    copy = tmp_path / "copy.duckdb"
    wlr.replicate(farm.url, into=copy, tick=tick)
    assert wlr.replicate(into=copy).tick == 7
    assert held(copy) == [2, 3, 7]
    assert not wlr.verify(copy).differing


@pytest.mark.parametrize("tick", [4, 5])
def test_a_replica_that_holds_more_is_refused(farm: HandmadeFarm, tmp_path: Path, tick: int) -> None:
    copy = tmp_path / "copy.duckdb"
    wlr.replicate(farm.url, into=copy, tick=tick)
    with pytest.raises(InvalidError, match=f"continues at tick 3.*with {tick - 3} transaction") as caught:
        wlr.replicate(into=copy)
    assert f"wlr replicate --into {copy} --rebase" in str(caught.value.hint)
    assert held(copy) == list(range(2, tick + 1))
    wlr.replicate(into=copy, rebase=True)
    assert held(copy) == [2, 3, 7]


@pytest.mark.parametrize("tick, rows", [(3, [2, 3]), (5, [2, 3, 4, 5]), (6, [2, 3]), (None, [2, 3, 7])])
def test_a_new_replica_holds_what_counted_at_its_tick(
    farm: HandmadeFarm, tmp_path: Path, tick: int | None, rows: list[int]
) -> None:
    copy = tmp_path / "copy.duckdb"
    wlr.replicate(farm.url, into=copy, tick=tick)
    assert held(copy) == rows


@pytest.mark.parametrize("tick, rows", [(1, [2, 3, 7]), (3, [2, 3, 7]), (4, None)])
def test_a_lake_goes_on_or_is_refused(farm: HandmadeFarm, tmp_path: Path, tick: int, rows: list[int] | None) -> None:
    lake = tmp_path / "lake"
    wlr.replicate(farm.url, into=lake, tick=tick)
    if rows is None:
        with pytest.raises(InvalidError, match="continues at tick 3"):
            wlr.replicate(into=lake)
        return
    wlr.replicate(into=lake)
    with scratch() as connection:
        found = connection.read_parquet(wlr.files(lake, "main.t")).project("i").fetchall()
    assert sorted(i for (i,) in found) == rows


@pytest.mark.parametrize("count", [1, 2])
def test_a_feed_goes_on(farm: HandmadeFarm, tmp_path: Path, count: int) -> None:
    into = tmp_path / "changes.jsonl"
    for _ in range(count):
        wlr.feed(farm.url, to=str(into))
    assert [row["after"]["i"] for row in map(json.loads, into.read_text().splitlines()) if row.get("after")] == [
        2,
        3,
        7,
    ]


@pytest.mark.parametrize("tick", [3, 4, 5])
def test_without_the_key_no_changes_lead_on(tmp_path: Path, tick: int) -> None:
    farm = broken_off(tmp_path, continues=False)
    copy = tmp_path / "copy.duckdb"
    wlr.replicate(farm.url, into=copy, tick=tick)
    with pytest.raises(InvalidError, match="tick 5 is followed by history h2"):
        wlr.replicate(into=copy)


def test_the_end_of_a_history_is_continued_whole(tmp_path: Path) -> None:
    farm = broken_off(tmp_path, at=5)
    copy = tmp_path / "copy.duckdb"
    wlr.replicate(farm.url, into=copy, tick=4)
    wlr.replicate(into=copy)
    assert held(copy) == [2, 3, 4, 5, 7]


@pytest.mark.parametrize("parent", [None, Origin("h1", 9)])
def test_a_batch_says_at_which_earlier_tick_it_continues(farm: HandmadeFarm, parent: Origin | None) -> None:
    batch, _ = farm.db.read_batch(3)
    assert batch.continues
    with pytest.raises(InvalidError, match="does not say at which earlier tick"):
        encode_batch(replace(batch, parent=parent))
