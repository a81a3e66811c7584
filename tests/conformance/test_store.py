"""What every store must do. A new store is one more fixture value here."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.store import (
    AlreadyExistsError,
    ConflictError,
    MissingError,
    OversizedError,
    Store,
    StoredObject,
    open_store,
)
from wlc.farm.store.s3 import S3Store

if TYPE_CHECKING:
    from pathlib import Path

Open = Callable[[], Store]


SERVED = {"s3": "s3_url", "google": "google_url"}
# Their servers are no Python packages.
SERVED_ELSEWHERE = {"azure": "azure_url", "sftp": "sftp_url"}


@pytest.fixture(
    params=[
        "local",
        "linked",
        "memory",
        *SERVED,
        *(pytest.param(name, marks=pytest.mark.slow) for name in SERVED_ELSEWHERE),
    ]
)
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Open one empty store, again with each call, as other processes would."""
    if fixture := (SERVED | SERVED_ELSEWHERE).get(request.param):
        url = request.getfixturevalue(fixture)
    elif request.param == "memory":
        url = f"memory://{tmp_path.name}-{id(request)}"
    else:
        url = str(tmp_path / "farm")
        if request.param == "linked":
            # Links below a root are refused; the root itself may be one.
            (tmp_path / "elsewhere").mkdir()
            (tmp_path / "farm").symlink_to(tmp_path / "elsewhere")
    return lambda: open_store(url)


@pytest.fixture
def store(open_again: Open) -> Store:
    return open_again()


def test_what_was_created_is_read_by_others(store: Store, open_again: Open) -> None:
    store.create("a/b/c", b"one\x00\xff")
    assert open_again().read("a/b/c") == b"one\x00\xff"
    assert open_again().exists("a/b/c")
    assert open_again().fetch("a/b/c").read_bytes() == b"one\x00\xff"


def test_empty_and_large_objects(store: Store, tmp_path: Path) -> None:
    store.create("empty", b"")
    large = tmp_path / "large"
    large.write_bytes(os.urandom(1 << 20) * 9)
    store.create("large", large)
    assert store.read("empty") == b""
    assert store.read("large") == large.read_bytes()
    fetched = store.fetch("large")
    assert fetched.read_bytes() == large.read_bytes()
    assert store.list() == [StoredObject("empty", 0), StoredObject("large", 9 << 20)]


def test_create_is_exclusive_even_for_the_same_bytes(store: Store, open_again: Open, tmp_path: Path) -> None:
    store.create("x", b"mine")
    other = tmp_path / "other"
    other.write_bytes(b"theirs")
    for data in (b"mine", b"theirs", other):
        with pytest.raises(AlreadyExistsError, match="x exists already"):
            open_again().create("x", data)
    assert store.read("x") == b"mine"
    assert store.list() == [StoredObject("x", 4)]


def test_staged_objects_are_seen_when_they_are_created(store: Store, open_again: Open, tmp_path: Path) -> None:
    (file := tmp_path / "data").write_bytes(b"of a file")
    first, second = store.stage("a/1", b"bytes"), store.stage("a/2", file)
    assert store.list() == []
    store.create("a/2", second)
    store.create("a/1", first)
    store.make_durable("a/1")
    assert [open_again().read(path) for path in ("a/1", "a/2")] == [b"bytes", b"of a file"]
    # The file stays somebody else's.
    file.write_bytes(b"other")
    assert store.read("a/2") == b"of a file"
    late = store.stage("a/1", b"late")
    with pytest.raises(AlreadyExistsError):
        store.create("a/1", late)
    if not isinstance(late, bytes):
        store.release(late)
        assert not late.exists()
    assert (store.read("a/1"), store.read("a/2")) == (b"bytes", b"of a file")


@pytest.mark.slow
def test_of_many_creators_one_wins(open_again: Open) -> None:
    for turn in range(4):
        ready = threading.Barrier(8)

        def attempt(number: int, path: str = f"race/{turn}", ready: threading.Barrier = ready) -> int | None:
            ready.wait()
            try:
                open_again().create(path, b"%d" % number * 1000)
            except AlreadyExistsError:
                return None
            return number

        with ThreadPoolExecutor(8) as pool:
            winners = [number for number in pool.map(attempt, range(8)) if number is not None]
        assert len(winners) == 1
        assert open_again().read(f"race/{turn}") == b"%d" % winners[0] * 1000


def test_replace_wants_the_version(store: Store, open_again: Open) -> None:
    first = store.replace("config", b"1", None)
    assert open_again().read_versioned("config") == (b"1", first)
    second = open_again().replace("config", b"2", first)
    for stale in (first, None, store.unused_version):
        with pytest.raises(ConflictError, match="config was changed by another process"):
            store.replace("config", b"3", stale)
    assert store.read_versioned("config") == (b"2", second)


def test_replace_does_not_create_what_was_deleted(store: Store) -> None:
    version = store.replace("config", b"1", None)
    store.delete("config")
    with pytest.raises(ConflictError):
        store.replace("config", b"2", version)
    assert not store.exists("config")


@pytest.mark.slow
def test_concurrent_increments_lose_nothing(open_again: Open) -> None:
    open_again().create("counter", b"0")

    def add(_: int) -> None:
        store = open_again()
        while True:
            data, version = store.read_versioned("counter")
            try:
                store.replace("counter", b"%d" % (int(data) + 1), version)
            except ConflictError:
                continue
            return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(20)))
    assert open_again().read("counter") == b"20"


def test_missing_objects_are_named(store: Store) -> None:
    for call in (store.read, store.read_versioned, store.fetch):
        with pytest.raises(MissingError, match=r"there is no .*/folder/nothing"):
            call("folder/nothing")
    assert not store.exists("folder/nothing")
    assert store.list("folder/") == []
    store.delete("folder/nothing")


def test_delete(store: Store, open_again: Open) -> None:
    store.create("folder/x", b"1")
    store.delete("folder/x")
    assert not open_again().exists("folder/x")
    store.create("folder/x", b"2")
    assert store.read("folder/x") == b"2"


def test_list_by_prefix_order_and_depth(store: Store) -> None:
    for path in ("sales_2", "sales_10", "sales_10.d/1.parquet", "sales_10.d/0.parquet", "other/sales_1", "sal"):
        store.create(path, b"x")

    def paths(prefix: str = "", **options: bool | str) -> list[str]:
        return [entry.path for entry in store.list(prefix, **options)]  # type: ignore[arg-type]

    everything = ["other/sales_1", "sal", "sales_10", "sales_10.d/0.parquet", "sales_10.d/1.parquet", "sales_2"]
    assert paths() == everything
    assert paths("sales_") == everything[2:]
    assert paths("sales_", recursive=False) == ["sales_10", "sales_2"]
    assert paths("sales_10.d/") == everything[3:5]
    assert paths("other/", recursive=False) == ["other/sales_1"]
    assert paths("sales_", after="sales_10.d/0.parquet") == everything[4:]
    assert paths("nothing") == paths("sal/") == []
    assert store.folders() == ["other", "sales_10.d"]
    store.create("other/deep/x", b"x")
    assert (store.folders("other/"), store.folders("nothing/")) == (["deep"], [])


@pytest.mark.slow
def test_many_objects_are_listed_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Services list a thousand objects at a time, the server of S3 here a hundred; a directory is listed whole.
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "100")
    count = 1100 if store.seeks and not isinstance(store, S3Store) else 110
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.create(f"many/{number:04d}", b""), range(count)))
    assert [entry.path for entry in store.list("many/")] == [f"many/{number:04d}" for number in range(count)]
    assert len(store.list("many/", after=f"many/{count - 101:04d}")) == 100


def test_paths_stay_inside(store: Store, tmp_path: Path) -> None:
    for path in ("../x", "/x", "a/../../x", "a//b", "", ".", "a\\b", "a\nb", "C:x"):
        with pytest.raises(CorruptError, match="not a path inside the farm"):
            store.create(path, b"x")
        with pytest.raises(CorruptError):
            store.read(path)
    assert store.list() == []
    assert not (tmp_path / "x").exists()


def test_probe_passes_and_leaves_nothing(store: Store) -> None:
    store.probe()
    assert store.list() == []


def test_released_copies_are_gone_and_objects_stay(store: Store) -> None:
    store.create("x", b"1")
    file = store.fetch("x")
    store.release(file)
    assert store.read("x") == b"1"
    assert store.fetch("x").read_bytes() == b"1"


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
def test_no_more_is_fetched_than_an_object_may_have(store: Store, tmp_path: Path, size: int) -> None:
    store.create("x", b"." * size)
    for bytes_max in (size, size + 1, None):
        file = store.fetch("x", bytes_max)
        assert file.stat().st_size == size
        store.release(file)
    if size:
        with pytest.raises(OversizedError, match=r"/x has \d+ bytes, at most \d+ were published"):
            store.fetch("x", size - 1)


def test_keys_of_other_folders_are_not_ours(open_again: Open) -> None:
    store = open_again()
    neighbour = open_store(store.url + "2")
    neighbour.create("x", b"1")
    assert store.list() == []
    assert not store.exists("x")


@pytest.mark.parametrize(
    "url, said",
    [
        ("", "not a farm URL"),
        ("ftp://host/x", "scheme 'ftp'"),
        ("s3://", "names no bucket"),
        ("s3://key:topsecret@bucket/x", "must not hold credentials"),
        ("gs://", "names no bucket"),
        ("az://", "names no bucket"),
        ("gs://key:topsecret@bucket/x", "must not hold credentials"),
        ("az://key:top/secret@bucket/x", "must not hold credentials"),
        ("az://bucket/x?sig=topsecret", "must not hold credentials or parameters"),
        ("sftp://user:topsecret@host/x", "must not hold a password"),
        ("sftp://user:topsecret/y@host/x", "must not hold a password"),
        ("sftp://host/x?password=topsecret", "must not hold a password or parameters"),
        ("sftp://host", "names no server and folder"),
        ("a\nb", "not a farm URL"),
    ],
)
def test_bad_urls_are_refused_without_telling_secrets(url: str, said: str) -> None:
    with pytest.raises(InvalidError, match=said) as caught:
        open_store(url)
    assert "topsecret" not in str(caught.value)
    assert caught.value.hint


def test_logins_that_cannot_be_used_are_named_by_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AZURE_STORAGE_", "STORAGE_EMULATOR_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "wrong.json").write_text("{}")
    (tmp_path / "torn.json").write_text("{")
    files = {
        "none.json": "cannot be read: No such file",
        "wrong.json": "holds no service",
        "torn.json": "holds no service",
    }
    cases: list[tuple[str, dict[str, str], str]] = [("az://box/farm", {}, "no storage account is named")]
    cases += [("gs://box/farm", {"credentials_file": str(tmp_path / name)}, said) for name, said in files.items()]
    for url, options, said in cases:
        store = open_store(url, options)
        for call in (
            partial(store.create, "x", b"1"),
            partial(store.exists, "x"),
            partial(store.read, "x"),
            store.list,
        ):
            with pytest.raises(InvalidError, match=said):
                call()
