"""A bucket on the loopback, served by a process of its own, whose time does not count."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Iterator

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%s" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


@contextmanager
def bucket_at(name: str) -> Iterator[str]:
    """Start the server; yields the bucket's URL, which the usual variables of AWS lead to."""
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdin
        assert server.stdout
        variables = {
            "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        with patch.dict(os.environ, variables):
            s3_client().create_bucket(Bucket=name)
            yield f"s3://{name}"
        server.stdin.close()


def s3_client() -> Any:
    """Return a client of the server that the variables name."""
    import boto3

    return boto3.client("s3")
