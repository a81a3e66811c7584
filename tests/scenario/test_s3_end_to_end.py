"""The main job with a farm in a bucket, logs in another one, and what is said when the bucket cannot be used."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.oracle import file_contents, published
from wlc.farm.errors import FarmError, InvalidError, UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "topsecretvalue"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "sales.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t VALUES (1, 'a'), (2, 'é')"
        )
    return path


def write(source: Path, *statements: str) -> None:
    with wlc.connect(source) as connection:
        for statement in statements:
            connection.execute(statement)
    wlc.flush(source)


def paths_of(url: str, endpoint: str) -> list[str]:
    import s3fs

    return s3fs.S3FileSystem(endpoint_url=endpoint, use_listings_cache=False).find(url)


@pytest.mark.slow
def test_the_main_job(source: Path, tmp_path: Path, s3_url: str, s3_environment: str) -> None:
    replica, second = tmp_path / "replica.duckdb", tmp_path / "second.duckdb"
    logs = s3_url.replace("/farm", "-logs")
    with pytest.raises(FarmError):
        wlc.master(source, farm=s3_url, logs=logs + "/no-such-bucket")
    assert paths_of(s3_url, s3_environment) == [], "a refusal leaves nothing"
    import s3fs

    s3fs.S3FileSystem(endpoint_url=s3_environment).mkdir(logs)
    wlc.master(source, farm=s3_url, logs=f"{logs}/here")
    assert wlr.replicate(source, into=replica).snapshot == 0
    write(source, "INSERT INTO t SELECT i, 'v' || i FROM range(10, 500) r(i)", "UPDATE t SET v = NULL WHERE id < 20")
    write(source, "DELETE FROM t WHERE id = 1", "CREATE TABLE u AS SELECT 1 AS x", "ALTER TABLE u ADD COLUMN y INTEGER")
    assert wlr.replicate(into=replica, tick=2).tick == 2
    assert wlr.status(replica).lag_transactions == 3
    assert wlr.replicate(into=replica).transactions == 3
    assert file_contents(replica) == file_contents(source) == published(f"{s3_url}/sales")
    wlc.snapshot(source)
    write(source, "INSERT INTO u VALUES (2, 3)")
    assert wlr.replicate("sales", farm=s3_url, into=second).snapshot == 5
    assert wlr.replicate(into=replica).tick == 6
    assert file_contents(replica) == file_contents(second) == file_contents(source)
    assert wlc.prune("sales", farm=s3_url, keep_for="0s").delete_batches == (1,)
    assert wlc.status("sales", farm=s3_url).tick == wlc.tick(source) == 6
    assert wlc.status(source).log_bytes > 0
    assert not any("_logs" in path for path in paths_of(s3_url, s3_environment))
    assert {path.rpartition("sales_")[2] for path in paths_of(logs, s3_environment)} == {
        *("000000000002", "000000000002.d/0.parquet", "000000000003", "000000000003.d/0.parquet"),
        *(f"000000000002.d/{number}.parquet" for number in (1,)),
    }
    write(source, "DROP TABLE u")
    assert wlr.replicate(into=second).tick == 7
    assert file_contents(second) == file_contents(source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["replica.duckdb", "sales.duckdb", "second.duckdb"]


def one_clear_error(error: FarmError, *parts: str) -> None:
    text = f"{error.message} {error.hint}"
    assert all(part in text for part in parts), text
    assert SECRET not in text
    assert "Traceback" not in text
    assert len(text) < 500, text


def test_a_bucket_that_is_not_there(source: Path, tmp_path: Path, s3_environment: str) -> None:
    before = file_contents(source)
    with pytest.raises((InvalidError, UnavailableError)) as caught:
        wlc.master(source, farm="s3://no-such-bucket-at-all/farm")
    one_clear_error(caught.value, "no-such-bucket-at-all")
    with pytest.raises(FarmError) as caught:
        wlr.replicate("s3://no-such-bucket-at-all/farm/sales", into=tmp_path / "replica.duckdb")
    one_clear_error(caught.value, "no-such-bucket-at-all")
    assert file_contents(source) == before
    assert [path.name for path in tmp_path.iterdir()] == ["sales.duckdb"]
    with pytest.raises(InvalidError, match="not a master"):
        wlc.flush(source)


def require_known_users(server: str, after: str) -> None:
    """Let the server look at credentials, all of which are wrong, after so many requests."""
    headers = {"Content-Type": "text/plain"}
    urllib.request.urlopen(urllib.request.Request(f"{server}/moto-api/reset-auth", after.encode(), headers)).close()


@pytest.mark.slow
def test_wrong_credentials(
    source: Path,
    tmp_path: Path,
    s3_url: str,
    s3_server: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wlc.master(source, farm=s3_url)
    write(source, "INSERT INTO t VALUES (3, 'c')")
    replica = tmp_path / "replica.duckdb"
    wlr.replicate(source, into=replica)
    write(source, "INSERT INTO t VALUES (4, 'd')")
    before = replica.read_bytes()
    require_known_users(s3_server, after="0")
    try:
        with pytest.raises((InvalidError, UnavailableError)) as caught:
            wlr.replicate(into=replica)
        one_clear_error(caught.value, s3_url.split("/")[2])
        assert replica.read_bytes() == before
        assert wlr.status(replica).tick == 1, "what the replica knows of itself needs no farm"
        connection = wlc.connect(source)
        connection.execute("INSERT INTO t VALUES (5, 'e')")
        for publish in (lambda: wlc.flush(source), connection.close):
            with pytest.raises((InvalidError, UnavailableError)) as caught:
                publish()
            one_clear_error(caught.value, s3_url.split("/")[2])
    finally:
        require_known_users(s3_server, after="inf")
    wlc.flush(source)
    assert wlr.replicate(into=replica).tick == 3
    assert file_contents(replica) == file_contents(source), "nothing was lost meanwhile"


def test_no_credentials(
    source: Path,
    tmp_path: Path,
    s3_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wlc.master(source, farm=s3_url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises((InvalidError, UnavailableError)) as caught:
        wlr.replicate(f"{s3_url}/sales", into=tmp_path / "replica.duckdb")
    one_clear_error(caught.value, "AWS_ACCESS_KEY_ID")
    assert not (tmp_path / "replica.duckdb").exists()


@pytest.mark.slow
def test_a_server_that_is_not_there(
    source: Path,
    s3_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wlc.master(source, farm=s3_url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(UnavailableError) as caught:
        wlc.tick(f"{s3_url}/sales")
    one_clear_error(caught.value)
