"""What only Google Cloud Storage can do to us: ignored preconditions, lost answers, missing buckets and credentials."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.conformance.test_store_s3 import Losing
from tests.proxy import Proxy, proxy_to
from wlc.farm.errors import InvalidError, UnavailableError, UnsupportedError
from wlc.farm.store import AlreadyExistsError, ConflictError, Store, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def proxy(google_server: str) -> Iterator[Proxy]:
    with proxy_to(google_server) as running:
        yield running


@pytest.fixture
def store(proxy: Proxy, google_url: str) -> Store:
    return open_store(google_url, {"endpoint_url": proxy.url})


def test_a_server_that_ignores_preconditions_is_refused(proxy: Proxy, store: Store) -> None:
    store.probe()
    proxy.rewritten = lambda path: re.sub("ifGenerationMatch=[0-9]*", "", path)
    with pytest.raises(UnsupportedError, match="overwrites an object that must be created exclusively"):
        store.probe()
    proxy.rewritten = lambda path: re.sub("ifGenerationMatch=[1-9][0-9]*", "", path)
    with pytest.raises(UnsupportedError, match="replaces an object that has another version"):
        store.probe()
    assert store.list() == []


@pytest.mark.parametrize("times", [1, 100])
def test_lost_answers_are_settled_by_reading_back(
    proxy: Proxy, store: Store, tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wlc.farm.store.google.time.sleep", lambda _: None)
    proxy.loses_answer = Losing("POST", times)
    store.create("x", b"mine")
    (file := tmp_path / "large").write_bytes(b"0123456789" * 500_000)
    proxy.loses_answer = Losing("POST", times)
    store.create("large", file)
    proxy.loses_answer = Losing("POST", 0)
    assert (store.read("x"), store.fetch("large").read_bytes()) == (b"mine", file.read_bytes())
    _, version = store.read_versioned("x")
    proxy.loses_answer = Losing("POST", times)
    version = store.replace("x", b"changed", version)
    with pytest.raises(AlreadyExistsError):
        store.create("x", b"changed")
    with pytest.raises(ConflictError):
        store.replace("x", b"late", "1")
    assert store.read_versioned("x") == (b"changed", version)


def test_a_busy_service_is_asked_again(proxy: Proxy, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wlc.farm.store.google.time.sleep", lambda _: None)
    faults = iter(["503", "drop", "", *["503"] * 100])
    proxy.fault = lambda _method, _path: next(faults)
    store.create("x", b"1")
    with pytest.raises(UnavailableError, match=r"/x: no answer from the store \(503\)"):
        store.read("x")


def test_what_is_missing_is_named(google_url: str, google_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = open_store("gs://no-such-bucket/farm")
    for call in (lambda: nowhere.create("x", b"1"), lambda: nowhere.read("x"), nowhere.list):
        with pytest.raises(InvalidError, match="there is no bucket 'no-such-bucket'"):
            call()
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file.json")
    with pytest.raises(InvalidError, match="no permission for") as caught:
        open_store(google_url).read("x")
    assert "GOOGLE_APPLICATION_CREDENTIALS" in str(caught.value.hint)
