"""A master whose credentials may add objects, and nothing else but replace `wlc.config`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlc.farm.database
import wlr
from tests.oracle import file_contents
from wlc.farm.errors import InvalidError, UnsupportedError
from wlc.farm.paths import CONFIG
from wlc.farm.seal.keys import add_key
from wlc.farm.store import Store, StoredObject, open_store
from wlc.farm.store.local import LocalStore

if TYPE_CHECKING:
    from pathlib import Path


class AddOnlyStore(Store):
    """Refuses to delete, and to replace what is not to be replaced."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        return self.inner.read_versioned(path)

    def fetch(self, path: str, bytes_max: int | None = None) -> Path:
        return self.inner.fetch(path, bytes_max)

    def release(self, file: Path) -> None:
        self.inner.release(file)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def create(self, path: str, data: bytes | Path) -> None:
        self.inner.create(path, data)

    def list(self, prefix: str = "", *, recursive: bool = True, after: str = "") -> list[StoredObject]:
        return self.inner.list(prefix, recursive=recursive, after=after)

    def replace(self, path: str, data: bytes, version: str | None) -> str:
        # What is there cannot be overwritten; what is not there is created.
        if path != CONFIG and version is not None:
            raise InvalidError(f"no permission for {self.url}/{path} (AccessDenied)")
        return self.inner.replace(path, data, version)

    def delete(self, path: str) -> None:
        raise InvalidError(f"no permission for {self.url}/{path} (AccessDenied)")


@pytest.fixture
def add_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        wlc.farm.database, "open_store", lambda url, options=None: AddOnlyStore(open_store(url, options))
    )


@pytest.mark.slow
@pytest.mark.parametrize("keys", [False, True])
def test_a_master_lives_by_adding(add_only: None, tmp_path: Path, keys: bool) -> None:
    source, into = tmp_path / "sales.duckdb", tmp_path / "copy.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE t AS SELECT range AS i FROM range(10)")
    options = {}
    if keys:
        add_key(tmp_path / "e", "encryption")
        add_key(tmp_path / "s", "signing")
        options = {"encryption_key_file": str(tmp_path / "e"), "signing_key_file": str(tmp_path / "s")}
    wlc.master(source, logs=str(tmp_path / "logs"), storage_options=options)
    for number in range(3):
        with wlc.connect(source) as connection:
            connection.execute(f"INSERT INTO t VALUES ({number})")
        wlc.beat(source, number)
    wlc.snapshot(source)
    with wlc.connect(source) as connection:
        connection.execute("DELETE FROM t WHERE i > 5")
    assert wlr.replicate(source, into=into, register=False, storage_options=options).tick == 4
    wlc.stop(source)
    wlc.master(source, storage_options=options)
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (99)")
    # Only who looked for permission to delete does not get it.
    with pytest.raises(InvalidError, match="no permission"):
        wlc.prune(source, keep_for="0s", storage_options=options)
    again = tmp_path / "again.duckdb"
    wlr.replicate(source, into=again, register=False, storage_options=options)
    assert file_contents(again) == file_contents(source)


class Careless(LocalStore):
    """Overwrites whatever is there, and deletes nothing."""

    def replace(self, path: str, data: bytes, version: str | None) -> str:
        (self.root / path).write_bytes(data)
        return version or ""

    def delete(self, path: str) -> None:
        raise InvalidError("no permission")


def test_a_store_is_still_tried(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="overwrites an object that must be created exclusively"):
        Careless(tmp_path).probe()
