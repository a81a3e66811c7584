"""The commands with a farm in a bucket, served on a loopback port."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from tests.fault.processes import call_command, run_command
from tests.scratch import attached

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from moto.server import ThreadedMotoServer

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedMotoServer]:
    """A server with an empty bucket, which the variables of commands name."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    access = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**access, "AWS_ENDPOINT_URL": f"http://{host}:{port}", "WLC_FARM": "s3://bucket/farm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    client.close()
    yield server
    server.stop()


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_master_to_replica_through_a_bucket(server: ThreadedMotoServer, tmp_path: Path) -> None:
    """The first command and the last one are programs; all would take most of the time to import what S3 needs."""
    with duckdb.connect(str(tmp_path / "sales.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT range AS i FROM range(10)")
    assert answer(run_command("wlc", "master", "sales.duckdb", "--json"))["farm"] == "s3://bucket/farm/sales"
    assert call_command("wlc", "sql", "sales.duckdb", "DELETE FROM t WHERE i < 8").returncode == 0
    assert call_command("wlc", "flush", "sales.duckdb").returncode == 0
    assert answer(call_command("wlc", "status", "s3://bucket/farm/sales", "--json"))["tick"] == 1
    assert answer(call_command("wlr", "replicate", "sales", "--into", "copy.duckdb", "--json"))["tick"] == 1
    with attached(tmp_path / "copy.duckdb") as connection:
        assert connection.execute("FROM t ORDER BY i").fetchall() == [(8,), (9,)]
    assert answer(call_command("wlr", "feed", "sales", "--to", "t.jsonl", "--json"))["records"] == 8
    assert len((tmp_path / "t.jsonl").read_text().splitlines()) == 8

    server.stop()
    done = call_command("wlc", "status", "sales")
    assert (done.returncode, done.stdout) == (75, "")
    assert "hush" not in done.stderr
    # The statement is committed: its answer is shown, and what is left to do is said.
    done = run_command("wlc", "sql", "sales.duckdb", "DELETE FROM t RETURNING i", "--json")
    assert done.returncode == 75
    assert sorted(row["i"] for row in json.loads(done.stdout)) == [8, 9]
    assert "error: the statements are committed" in done.stderr
    assert done.stderr.endswith("hint: wlc flush sales.duckdb\n")
    with attached(tmp_path / "sales.duckdb") as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
