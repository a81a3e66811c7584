"""What only S3 can do to us: ignored preconditions, lost answers, missing credentials."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.object_store import PART_BYTES
from tests.proxy import proxy_to
from wlc.farm.clock import utc_now
from wlc.farm.database import describe_file, open_database
from wlc.farm.errors import InvalidError, UnavailableError, UnsupportedError
from wlc.farm.model import Batch, Change, Column, Layout, Name, TableFile, Transaction
from wlc.farm.store import AlreadyExistsError, ConflictError, MissingError, OversizedError, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.proxy import Proxy


@pytest.fixture
def proxy(s3_environment: str) -> Iterator[Proxy]:
    with proxy_to(s3_environment) as running:
        yield running


@pytest.mark.slow
def test_a_server_that_ignores_preconditions_is_refused(proxy: Proxy, s3_url: str) -> None:
    proxy.store(s3_url).probe()
    for ignored, said in (
        ({"if-none-match", "if-match"}, "overwrites an object that must be created exclusively"),
        ({"if-none-match"}, "overwrites an object that must be created exclusively"),
        ({"if-match"}, "replaces an object that has another version"),
    ):
        proxy.stripped = frozenset(ignored)
        with pytest.raises(UnsupportedError, match=said) as caught:
            proxy.store(s3_url).probe()
        assert "If-None-Match" in str(caught.value.hint)
    assert open_store(s3_url).list() == []


def test_a_server_that_ignores_them_for_parts_only_is_refused(proxy: Proxy, s3_url: str) -> None:
    store = proxy.store(s3_url)
    original = store._fs.call_s3  # type: ignore[attr-defined]

    def ignoring(method: str, **options: object) -> object:
        if method == "complete_multipart_upload":
            options.pop("IfNoneMatch")
        return original(method, **options)

    store._fs.call_s3 = ignoring  # type: ignore[attr-defined]
    try:
        with pytest.raises(UnsupportedError, match="uploaded in parts"):
            store.probe()
    finally:
        store._fs.call_s3 = original  # type: ignore[attr-defined]
    assert store.list() == []


class Losing:
    """Loses the answers to the first `times` requests of a method."""

    def __init__(self, method: str, times: int) -> None:
        self.method, self.times = method, times

    def __call__(self, method: str, path: str) -> bool:
        if method != self.method or self.times == 0:
            return False
        self.times -= 1
        return True


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 100])
def test_lost_answers_are_settled_by_reading_back(proxy: Proxy, s3_url: str, times: int) -> None:
    store = proxy.store(s3_url)
    proxy.loses_answer = Losing("PUT", times)
    store.create("x", b"mine")
    assert "PUT 200" in proxy.seen
    proxy.loses_answer = Losing("PUT", 100)
    with pytest.raises(AlreadyExistsError):
        store.create("x", b"mine")
    _, version = open_store(s3_url).read_versioned("x")
    proxy.loses_answer = Losing("PUT", times)
    version = store.replace("x", b"2", version)
    assert open_store(s3_url).read_versioned("x") == (b"2", version)
    proxy.loses_answer = Losing("PUT", 1)
    with pytest.raises(ConflictError):
        store.replace("x", b"3", '"0123456789abcdef0123456789abcdef"')


LARGE_BYTES = 2 * PART_BYTES + (1 << 20)


@pytest.fixture
def large(tmp_path: Path, small_parts: None) -> Path:
    """A file that is uploaded in parts."""
    file = tmp_path / "large"
    with file.open("wb") as handle:
        handle.truncate(LARGE_BYTES)
    return file


@pytest.mark.slow
def test_large_files_go_in_parts_and_stay_exclusive(proxy: Proxy, s3_url: str, large: Path) -> None:
    store = proxy.store(s3_url)
    store.create("large", large)
    assert "POST 200" in proxy.seen
    with pytest.raises(AlreadyExistsError):
        store.create("large", large)
    fetched = store.fetch("large")
    assert fetched.stat().st_size == LARGE_BYTES
    store.release(fetched)
    assert not fetched.exists()


LOGIN = (200, {"Content-Type": "text/html"}, b"<html><body>Please log in</body></html>")
STEPS = {
    "begin": lambda method, path: path.endswith("?uploads"),
    "part": lambda method, path: "partNumber=2" in path,
    "end": lambda method, path: method == "POST" and "uploadId=" in path,
    "reading back": lambda method, path: method == "HEAD" or (method == "POST" and "uploadId=" in path),
}


@pytest.mark.slow
def test_no_step_of_a_large_upload_believes_a_login_page(proxy: Proxy, s3_url: str, large: Path) -> None:
    store = proxy.store(s3_url)
    for name, is_step in STEPS.items():
        proxy.answers = lambda method, path, is_step=is_step: LOGIN if is_step(method, path) else None
        with pytest.raises(UnavailableError, match="no answer from the store"):
            store.create(name, large)
    assert open_store(s3_url).list() == []
    proxy.answers = lambda _method, _path: None
    store.create("end", large)
    assert open_store(s3_url).exists("end")


@pytest.mark.slow
def test_a_lost_answer_to_the_last_part_is_settled(proxy: Proxy, s3_url: str, large: Path) -> None:
    def loses(method: str, path: str) -> bool:
        return method == "POST" and "uploadId=" in path

    proxy.loses_answer = loses
    proxy.store(s3_url).create("large", large)
    assert open_store(s3_url).list()[0].bytes == LARGE_BYTES


def test_an_unknown_outcome_is_said_to_be_unknown(s3_url: str) -> None:
    options = {"endpoint_url": "http://127.0.0.1:9", "key": "k", "secret": "topsecretvalue"}
    with pytest.raises(UnavailableError, match="no answer from the store at http://127.0.0.1:9 ") as caught:
        open_store(s3_url, options).create("x", b"1")
    assert "topsecretvalue" not in f"{caught.value} {caught.value.hint}"
    assert "AWS_ENDPOINT_URL" in str(caught.value.hint)


def test_no_bucket_is_named(s3_environment: str) -> None:
    store = open_store("s3://no-such-bucket-anywhere/farm")
    for call in (lambda: store.create("x", b"1"), store.list, lambda: store.read("x")):
        with pytest.raises(InvalidError, match="no-such-bucket-anywhere") as caught:
            call()
        assert not isinstance(caught.value, MissingError)


def test_wrong_storage_options_are_refused(s3_url: str) -> None:
    with pytest.raises(InvalidError, match="no_such_option") as caught:
        open_store(s3_url, {"no_such_option": "topsecretvalue"}).read("x")
    assert "topsecretvalue" not in str(caught.value)


@pytest.mark.slow
def test_no_credentials_are_said_to_be_missing(s3_server: str) -> None:
    program = (
        "from wlc.farm.store import open_store\n"
        "try:\n    open_store('s3://bucket/farm').read('x')\n"
        "except Exception as error:\n    print(type(error).__name__, error, error.hint)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"AWS_ENDPOINT_URL": s3_server, "AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("InvalidError no credentials for s3://bucket/farm/x")
    assert "AWS_ACCESS_KEY_ID" in done.stdout


def test_nobody_pays_for_s3_who_does_not_use_it() -> None:
    program = (
        "import sys, wlc.farm.database; print(sorted({'s3fs', 'fsspec', 'botocore', 'pyspark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_uploads_of_dead_writers_are_swept(s3_environment: str, s3_url: str) -> None:
    store = open_store(s3_url)
    bucket = s3_url.split("/")[2]
    store._fs.call_s3("create_multipart_upload", Bucket=bucket, Key="farm/large")  # type: ignore[attr-defined]
    # The loopback server claims that every upload began in 2010.
    store.sweep(50 * 365 * 86400.0)
    uploads = store._fs.call_s3("list_multipart_uploads", Bucket=bucket)  # type: ignore[attr-defined]
    assert [upload["Key"] for upload in uploads["Uploads"]] == ["farm/large"]
    store.sweep(86400.0)
    uploads = store._fs.call_s3("list_multipart_uploads", Bucket=bucket)  # type: ignore[attr-defined]
    assert not uploads.get("Uploads")


def test_a_batch_is_published_once_although_every_answer_is_lost(proxy: Proxy, s3_url: str, tmp_path: Path) -> None:
    table, path, local = Name("main", "t"), "sales_000000000001.d/0.parquet", tmp_path / "local"
    local.write_bytes(b"rows")
    now = utc_now()
    transaction = Transaction(1, "ann", now, now, (Change(table, path, 1, 0),))
    file = TableFile(describe_file(local, path, 1), table, Layout((Column("id", "INTEGER"),)))
    batch = Batch("sales", 1, "h", 1, 1, "", "sales", (transaction,), (file,), {"h": 1})
    proxy.loses_answer = Losing("PUT", 100)
    options = {"endpoint_url": proxy.url, "config_kwargs": {"retries": {"max_attempts": 1}}}
    chain = open_database("sales", s3_url, options).publish(batch, {path: local})
    reader = open_database("sales", s3_url)
    assert reader.batch_numbers() == [1]
    assert reader.read_batch(1, "") == (batch, chain)
    copy = reader.fetch(batch.files[0])
    assert copy.read_bytes() == b"rows"
    reader.release(copy)
    assert not copy.exists()


def test_an_object_with_more_bytes_than_published_is_not_downloaded(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = open_store(s3_url)
    store.create("x", b"." * 20_000_000)
    monkeypatch.setattr(store._fs, "default_block_size", 5 << 20)
    written = []
    monkeypatch.setattr(store._downloads, "release", lambda file: written.append(file.stat().st_size))
    # In one piece, or in parts side by side.
    for bytes_max in (10, 6 << 20):
        with pytest.raises(OversizedError, match="has 20000000 bytes"):
            store.fetch("x", bytes_max)
    assert [size for size in written if size > 1 << 17] == []
    assert store.fetch("x", 20_000_000).stat().st_size == 20_000_000
