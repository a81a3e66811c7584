"""An answer that is no store's, as a proxy's login page, is no answer: every call of every store says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.proxy import proxy_to
from wlc.farm.errors import UnavailableError
from wlc.farm.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.proxy import Proxy
    from wlc.farm.store import Store

    Answer = tuple[int, dict[str, str], bytes]

PAGE = b"<!DOCTYPE html><html><head><title>Login</title><body><p>Please log in<br></body></html>"
WELL_FORMED = b'<?xml version="1.0"?><html><head><title>Login</title></head><body><p>Please log in</p></body></html>'
TRUNCATED = b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>farm/x'
HTML = {"Content-Type": "text/html; charset=utf-8"}
ANSWERS: dict[str, Answer] = {
    "page": (200, HTML, PAGE),
    "well-formed page": (200, HTML, WELL_FORMED),
    # Frameworks give every page an ETag.
    "page with an ETag": (200, HTML | {"ETag": 'W/"5e-Qy"'}, PAGE),
    "page without its type": (200, {}, WELL_FORMED),
    "empty": (200, {}, b""),
    "truncated XML": (200, {"Content-Type": "application/xml"}, TRUNCATED),
    "JSON": (200, {"Content-Type": "application/json"}, b"{}"),
    "redirect": (302, {"Location": "/login"}, b""),
    "redirect of writes": (307, {"Location": "/login"} | HTML, PAGE),
    "not found": (404, HTML, PAGE),
    "forbidden": (403, HTML, PAGE),
}
LOGIN: Answer = (200, HTML, PAGE)
STORES: dict[str, tuple[str, dict[str, object]]] = {
    "s3": ("s3://bucket/farm", {"key": "k", "secret": "s", "config_kwargs": {"retries": {"max_attempts": 0}}}),
    "google": ("gs://bucket/farm", {}),
    "azure": ("az://bucket/farm", {"account_name": "a", "account_key": "a2V5"}),
}


def calls(file: Path) -> dict[str, Callable[[Store], object]]:
    return {
        "read": lambda store: store.read("x"),
        "read_versioned": lambda store: store.read_versioned("x"),
        "fetch": lambda store: store.fetch("x"),
        "fetch of no more": lambda store: store.fetch("x", 100_000),
        "exists": lambda store: store.exists("x"),
        "list": lambda store: store.list(),
        "list without folders": lambda store: store.list("y/", recursive=False),
        "folders": lambda store: store.folders(),
        "create": lambda store: store.create("x", b"1"),
        "create of a file": lambda store: store.create("x", file),
        "replace of nothing": lambda store: store.replace("x", b"1", None),
        "replace": lambda store: store.replace("x", b"1", store.unused_version),
        "delete": lambda store: store.delete("x"),
        "sweep": lambda store: store.sweep(0),
        "probe": lambda store: store.probe(),
    }


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    # No server is behind it.
    with proxy_to("http://127.0.0.1:9") as running:
        yield running


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("kind", ["s3", "google", pytest.param("azure", marks=pytest.mark.slow)])
def test_no_call_believes_an_answer_that_is_no_stores(proxy: Proxy, tmp_path: Path, kind: str, answer: str) -> None:
    (file := tmp_path / "file").write_bytes(b"rows")
    proxy.answers = lambda _, path: LOGIN if path.startswith("/login") else ANSWERS[answer]
    url, options = STORES[kind]
    store = open_store(url, options | {"endpoint_url": proxy.url + ("/a" if kind == "azure" else "")})
    believed = []
    for name, call in calls(file).items():
        try:
            believed.append((name, call(store)))
        except UnavailableError as error:
            assert "no answer from the store" in str(error)
            assert error.hint
    # Other services than S3 keep nothing of uploads that were broken off.
    harmless = [] if kind == "s3" else [("sweep", None)]
    assert believed == harmless


@pytest.mark.slow
def test_a_redirect_that_leads_nowhere_is_no_answer(proxy: Proxy) -> None:
    # The client asks for the bucket's region, and for the region of that answer, until its stack is full.
    proxy.answers = lambda _method, _path: (307, {}, b"")
    url, options = STORES["s3"]
    with pytest.raises(UnavailableError, match="no answer from the store"):
        open_store(url, options | {"endpoint_url": proxy.url}).read("x")


@pytest.mark.slow
def test_a_server_that_speaks_another_protocol_is_no_store(proxy: Proxy) -> None:
    store = open_store(proxy.url.replace("http://", "sftp://") + "/farm", {"known_hosts": "/dev/null"})
    for call in (lambda: store.read("x"), lambda: store.create("x", b"1"), store.list):
        with pytest.raises(UnavailableError, match="sftp://127"):
            call()


@pytest.mark.slow
@pytest.mark.parametrize("content", [PAGE, WELL_FORMED, TRUNCATED])
def test_a_listing_that_cannot_be_read_is_no_answer(proxy: Proxy, content: bytes) -> None:
    proxy.answers = lambda _method, _path: (200, {"x-ms-request-id": "1", "Content-Type": "application/xml"}, content)
    url, options = STORES["azure"]
    with pytest.raises(UnavailableError, match="no answer from the store"):
        open_store(url, options | {"endpoint_url": f"{proxy.url}/a"}).list()
