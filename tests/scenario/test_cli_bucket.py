"""The commands with a farm in a bucket, served on a loopback port."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from tests.scratch import attached

pytestmark = pytest.mark.slow

COMMANDS = Path(sys.executable).parent


@pytest.fixture
def bucket(tmp_path):
    """A server with an empty bucket, and a way to run commands that know it."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    access = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = {**os.environ, **access, "AWS_ENDPOINT_URL": f"http://{host}:{port}", "WLC_FARM": "s3://bucket/farm"}
    client = boto3.client(
        "s3", endpoint_url=environment["AWS_ENDPOINT_URL"], aws_access_key_id="k", aws_secret_access_key="s"
    )
    client.create_bucket(Bucket="bucket")
    client.close()

    def run(program, *arguments) -> subprocess.CompletedProcess:
        return subprocess.run(
            [COMMANDS / program, *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )

    run.stop = server.stop  # type: ignore[attr-defined]
    yield run
    server.stop()


def answer(done: subprocess.CompletedProcess):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_master_to_replica_through_a_bucket(bucket, tmp_path) -> None:
    with duckdb.connect(str(tmp_path / "sales.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT range AS i FROM range(10)")
    assert answer(bucket("wlc", "master", "sales.duckdb", "--json"))["farm"] == "s3://bucket/farm/sales"
    assert bucket("wlc", "sql", "sales.duckdb", "DELETE FROM t WHERE i < 8").returncode == 0
    assert bucket("wlc", "flush", "sales.duckdb").returncode == 0
    assert answer(bucket("wlc", "status", "s3://bucket/farm/sales", "--json"))["tick"] == 1
    assert answer(bucket("wlr", "replicate", "sales", "--into", "copy.duckdb", "--json"))["tick"] == 1
    with attached(tmp_path / "copy.duckdb") as connection:
        assert connection.execute("FROM t ORDER BY i").fetchall() == [(8,), (9,)]
    assert answer(bucket("wlr", "feed", "sales", "--to", "t.jsonl", "--json"))["records"] == 8
    assert len((tmp_path / "t.jsonl").read_text().splitlines()) == 8

    bucket.stop()
    done = bucket("wlc", "status", "sales")
    assert (done.returncode, done.stdout) == (75, "")
    assert "hush" not in done.stderr
    # The statement is committed: its answer is shown, and what is left to do is said.
    done = bucket("wlc", "sql", "sales.duckdb", "DELETE FROM t RETURNING i", "--json")
    assert done.returncode == 75
    assert sorted(row["i"] for row in json.loads(done.stdout)) == [8, 9]
    assert "error: the statements are committed" in done.stderr
    assert done.stderr.endswith("hint: wlc flush sales.duckdb\n")
    with attached(tmp_path / "sales.duckdb") as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
