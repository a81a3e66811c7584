"""Where a replica is, told from what the user typed; a password in it is never told again."""

from __future__ import annotations

import errno
import inspect
import os
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
        with pytest.raises(InvalidError, match="write two slashes after") as caught:
            look(typed)
        assert caught.value.hint == f"s3://bucket/lake, or ./{typed} for a folder here of that name"
    assert locate(f"./{typed}").engine == "parquet"


@pytest.mark.parametrize("name", ["z.csv", "changes.JSONL", "c.sqlite", "t.parquet"])
def test_a_file_of_another_format_is_no_replica(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="cannot be a replica") as caught:
        locate(tmp_path / name)
    stem = (tmp_path / name).with_suffix("")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"--into {stem}.duckdb, or --into {stem}/ for Parquet files")
    # What is there is looked at.
    (tmp_path / name).write_bytes(b"")
    assert locate(tmp_path / name).engine == "duckdb"


def test_the_root_of_a_disk_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda place: (looked.append(place), scandir(place))[1])
    with pytest.raises(InvalidError, match=r"^/ holds other files, such as \w+, and no replica"):
        wlr.status("/")
    assert 1 <= len(looked) <= 4


def test_a_read_only_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("wlc.farm.store.local.write_file", refuse)
    with pytest.raises(InvalidError, match="is on a file system that is mounted read-only") as caught:
        store.create("a/b", b"")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("mount -o remount,rw /")


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
