"""Fixtures with an S3 server on the loopback: one server for the session, a bucket for every test."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """URL of an S3 server that honours preconditions."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_environment(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The usual AWS variables, pointing to the loopback server; returns its URL."""
    values = {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "topsecretvalue",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return s3_server


# The least that S3 takes as a part, except for the last one. s3fs goes over to parts at twice the size of one.
PART_BYTES = 5 << 20


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upload in parts from 10 MiB on, and not only from 100 MiB on."""
    from s3fs import S3FileSystem

    put_file = S3FileSystem._put_file

    async def put_in_parts(system: S3FileSystem, *places: str, **options: object) -> None:
        await put_file(system, *places, chunksize=PART_BYTES, **options)

    monkeypatch.setattr(S3FileSystem, "_put_file", put_in_parts)


_numbers = itertools.count()


@pytest.fixture
def s3_url(s3_environment: str) -> str:
    """URL of an empty bucket's folder."""
    import s3fs

    # Processes that share a server must not share a bucket.
    bucket = f"bucket-{os.getpid()}-{next(_numbers)}"
    s3fs.S3FileSystem(endpoint_url=s3_environment).mkdir(bucket)
    return f"s3://{bucket}/farm"
