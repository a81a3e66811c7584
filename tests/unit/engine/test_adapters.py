"""Where a replica is, told from what the user typed; a password in it is never told again."""

from __future__ import annotations

import inspect
from pathlib import Path

import duckdb
import pytest

import wlc
import wlr
from wlc.farm.errors import InvalidError
from wlc.farm.store import open_store
from wlr.engine.adapters import locate, target_at


def test_password_is_in_no_text_of_it() -> None:
    typed = "postgresql://ann:s3/cret@host:5432/db?schema=s"
    place = locate(typed)
    assert (place.engine, target_at(typed).noun) == ("postgres", "a PostgreSQL database")
    assert str(place) == "postgresql://ann@host:5432/db?schema=s"
    assert "s3" not in repr([place])
    assert "cret" not in repr([place])
    assert place.url == typed


@pytest.mark.parametrize("typed", ["copy.duckdb", "s3://bucket/lake", "parquet://postgresql"])
def test_other_places_are_none(typed: str) -> None:
    assert locate(typed).engine != "postgres"


@pytest.mark.parametrize("typed", ["s3:/bucket/lake", "s3:bucket/lake", "S3:/bucket/lake"])
def test_a_url_that_lacks_a_slash_is_no_folder(typed: str) -> None:
    for look in (locate, open_store):
        with pytest.raises(InvalidError, match="two slashes belong behind") as caught:
            look(typed)
        assert caught.value.hint == f"s3://bucket/lake, or ./{typed} for a folder here of that name"
    assert locate(f"./{typed}").engine == "parquet"


def test_every_function_takes_a_farm_as_a_path_object(tmp_path: Path) -> None:
    for function in (getattr(package, name) for package in (wlc, wlr) for name in package.__all__):
        if inspect.isfunction(function) and "farm" in (parameters := inspect.signature(function).parameters):
            assert "PathLike" in parameters["farm"].annotation, function.__name__
    source, farm, relay = tmp_path / "sales.duckdb", tmp_path / "farm", tmp_path / "relay"
    with duckdb.connect(source) as connection:
        connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY)")
    wlc.master(source, farm=farm, logs=tmp_path / "logs")
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    assert wlc.status("sales", farm).tick == wlc.tick("sales", farm) == 1
    wlc.ship("sales", farm=farm, to=relay)
    assert wlr.replicate("sales", farm=relay, into=tmp_path / "copy.duckdb").tick == 1
    assert wlr.read("sales", "t", farm=farm).fetchall() == [(1,)]
    assert wlr.diff("sales", 0, 1, farm=farm)[0].added == 1
    wlr.feed("sales", farm=farm, to=tmp_path / "t.jsonl")
    assert all(check.state != "wrong" for check in wlr.examine("sales", farm=farm))


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.d").mkdir()
    (tmp_path / "bare").touch()
    told = {
        "lake": (f"{tmp_path}/lake", True),
        "sub/lake/": (f"{tmp_path}/sub/lake", True),
        "lake.d/": (f"{tmp_path}/lake.d", True),
        "folder.d": (f"{tmp_path}/folder.d", True),
        "bare": (f"{tmp_path}/bare", False),
        "copy.duckdb": (f"{tmp_path}/copy.duckdb", False),
        "/abs/copy.db": ("/abs/copy.db", False),
        "file:///abs/copy.db": ("/abs/copy.db", False),
        "file:///abs/my%20lake": ("/abs/my lake", True),
        "parquet://lake.duckdb": (f"{tmp_path}/lake.duckdb", True),
        "parquet:///abs/lake.d": ("/abs/lake.d", True),
        "parquet://file:///abs/lake": ("/abs/lake", True),
        "parquet://s3://bucket/lake": ("s3://bucket/lake", True),
        "s3://bucket/copy.duckdb": ("s3://bucket/copy.duckdb", True),
        "memory://lake": ("memory://lake", True),
        "~/lake": (str(Path.home() / "lake"), True),
    }
    assert {text: (place.url, place.engine == "parquet") for text in told for place in [locate(text)]} == told
    assert locate(Path("lake")).path == tmp_path / "lake"
    assert locate("s3://b/l", {"key": 1}).storage_options == {"key": 1}
    for nowhere in ("", "  ", "parquet://"):
        with pytest.raises(InvalidError):
            locate(nowhere)
