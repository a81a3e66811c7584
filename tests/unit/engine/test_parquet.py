"""What only Parquet replicas have: files to read, old ticks, and pruning them; and what a place is told from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import wlr
from tests.handmade import HandmadeFarm, Rows
from tests.lake import lake_contents, surplus, version_of
from wlc.farm.errors import ExpiredError, InvalidError
from wlc.farm.model import Name
from wlr.engine.parquet.folder import tick_of
from wlr.engine.table_files import table_prefix

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("name", ["orders", "a/b", "..", "%2e", "ü" * 200, "x" * 255, "a b", "*?[", "\n"])
def test_folder_of_a_table(name: str) -> None:
    path = table_prefix(Name("s", name), 42) + "0a-0.parquet"
    assert tick_of(path) == 42
    assert path.count("/") == 2
    assert all(part not in ("..", ".") and len(part.encode()) < 250 for part in path.split("/"))
    assert path != table_prefix(Name("s", name + "x"), 42) + "0a-0.parquet"


# Old ticks


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)"])
    farm.publish([Rows("t", ("1, 'a'", "2, 'a'"))], ['CREATE TABLE s."a.b" (x DOUBLE)', Rows("s.a.b", ("1",))][:0])
    farm.publish([Rows("t", ("2, 'b'",), ("2, 'a'",))], ["ALTER TABLE t ADD COLUMN w INTEGER DEFAULT 5"])
    farm.publish([Rows("t", removed=("1, 'a', 5", "2, 'b', 5"))])
    farm.publish(["DROP TABLE t"])
    return farm


STATES = {
    2: {"main.t": {("1", "a"): 1, ("2", "a"): 1}},
    3: {"main.t": {("1", "a"): 1, ("2", "a"): 1}},
    4: {"main.t": {("1", "a"): 1, ("2", "b"): 1}},
    5: {"main.t": {("1", "a", "5"): 1, ("2", "b", "5"): 1}},
    6: {"main.t": {}},
    7: {},
}


@pytest.fixture
def lake(farm: HandmadeFarm, tmp_path: Path) -> Path:
    """A replica that stood at ticks 2, 3, … 7."""
    into = tmp_path / "lake"
    for tick in STATES:
        wlr.replicate(farm.url, into=into, tick=tick, engine="local")
        assert lake_contents(into) == STATES[tick]
    return into


@pytest.mark.slow
def test_old_ticks_are_read_until_they_are_pruned(lake: Path) -> None:
    assert {tick: lake_contents(lake, tick) for tick in STATES} == STATES
    held = {tick: wlr.files(lake, "t", tick=tick) for tick in STATES if tick < 7}
    assert held[6] == []
    before = sorted(lake.rglob("*"))
    planned = wlr.prune(lake, keep="2", dry_run=True)
    assert sorted(lake.rglob("*")) == before
    assert (planned.ticks, planned.oldest, planned.is_dry_run) == ((0, 1, 2, 3, 4), 5, True)
    done = wlr.prune(lake, keep="2")
    assert (done.ticks, done.files, done.bytes, done.oldest) == (planned.ticks, planned.files, planned.bytes, 5)
    assert not done.is_dry_run
    assert done.files == 2
    assert surplus(lake) == []
    assert {tick: lake_contents(lake, tick) for tick in (5, 6, 7)} == {tick: STATES[tick] for tick in (5, 6, 7)}
    for tick in (2, 4):
        with pytest.raises(ExpiredError, match=f"cannot be read at tick {tick}") as caught:
            wlr.files(lake, "t", tick=tick)
        assert "5, 6, 7" in str(caught.value.hint)
    assert not any(Path(file).exists() for file in [*held[2], *held[4]] if file not in held[5])
    again = wlr.prune(lake, keep="2")
    assert (again.ticks, again.files) == ((), 0)


@pytest.mark.slow
def test_what_the_replica_remembers_is_kept(lake: Path, farm: HandmadeFarm) -> None:
    assert wlr.prune(lake).ticks == ()
    wlr.replicate(into=lake, keep="1 hour", engine="local")
    assert wlr.prune(lake).ticks == ()
    wlr.replicate(into=lake, keep="0", engine="local")
    farm.publish(["CREATE TABLE u (a INTEGER)", Rows("u", ("1",))])
    wlr.replicate(into=lake, engine="local")
    assert wlr.prune(lake).ticks == (0, 1, 2, 3, 4, 5, 6, 7)
    assert [tick_of(str(path.relative_to(lake))) for path in lake.rglob("*.*") if "0" in path.name] == [8, 8]
    assert lake_contents(lake) == {"main.u": {("1",): 1}}
    with pytest.raises(InvalidError, match="'rubbish' is neither"):
        wlr.replicate(into=lake, keep="rubbish", engine="local")


@pytest.mark.slow
def test_files_that_nobody_names_go(lake: Path) -> None:
    stray = lake / "data" / "main.t" / "000000000004-00ff-0.parquet"
    stray.write_bytes(b"left by a run that came too late")
    mine = lake / "data" / "main.t" / "notes.txt"
    mine.write_text("not the replica's")
    done = wlr.prune(lake)
    assert (done.ticks, done.files, done.bytes) == ((), 1, 32)
    assert not stray.exists()
    assert mine.exists()


ASKED: list[tuple[Callable[[Path], object], str]] = [
    (lambda lake: wlr.files(lake, "nothing", tick=5), "has no table nothing"),
    (lambda lake: wlr.files(lake, "t"), "has no table t"),
    (lambda lake: wlr.files(lake, "t", tick=8), "is at tick 7, not yet at 8"),
    (lambda lake: wlr.files(lake.with_name("none"), "t"), "there is no replica"),
    (lambda lake: wlr.prune(lake.with_name("none")), "there is no replica"),
    (lambda lake: wlr.prune(lake.with_name("none"), dry_run=True), "there is no replica"),
    (lambda lake: wlr.files(lake.with_name("copy.duckdb"), "t"), "is a DuckDB file"),
    (lambda lake: wlr.prune(lake, keep="x"), "'x' is neither"),
]


@pytest.mark.slow
def test_what_cannot_be_asked(lake: Path) -> None:
    for ask, message in ASKED:
        with pytest.raises(InvalidError, match=message):
            ask(lake)
    assert version_of(lake).position.tick == 7
